/* Files of value trees that are produced while they are read. Such a file consists of the pieces that the archive's writer
 * puts around the storages, which are kept in memory, and of the storages, which are read from the source:
 *
 *     [ piece 0: headers, data.pkl … ][ storage 0 ][ piece 1 ][ storage 1 ] … [ piece n: central directory ]
 *       kept                            read          kept      read            kept
 *
 * Computing the CRCs of the storages would require reading all of them, so every CRC is 0, as in files that torch.save
 * writes without CRCs. */
#include <stdlib.h>

#include "formats/common/reader.h"
#include "model/value_path.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/read_run.h"
#include "tessera/sys/repeats.h"
#include "tessera/sys/try.h"
#include "tessera/sys/value_walk.h"
#include "tessera/sys/write_tree.h"
#include "write/dtensor_value.h"
#include "write/localize.h"
#include "write/torch_plan.h"

/* ---- tree ---- */

/* Writes value trees as torch.save files. */

/* ---- replacing entries by a rank's DTensors ---- */

typedef struct frame {
    const tsr_value *from;
    const tsr_value **items;
    size_t next;
} frame;

typedef struct distributing {
    tsr_checkpoint *checkpoint;
    const tsr_mesh_rank *of;
    tsr_arena *arena;
    tsr_entry *rank_map;
    const uint8_t *rank_numbers;
    const tsr_value *mesh_value;
    tsr_vec stack; /* frame */
} distributing;

static tsr_status make_dtensor(distributing *d, const tsr_entry *entry, const tsr_value **out, tsr_error *err)
{
    tsr_shard shard;
    tsr_entry *local = TSR_ARENA_NEW(d->arena, tsr_entry, err);
    if (!local) return TSR_E_NOMEM;
    TSR_TRY(tsr_mesh_shard(&(tsr_sharding){d->of->mesh, d->of->placements, TSR_STRIDED_FSDP},
                           (tsr_shape){entry->ndim, entry->shape}, d->of->rank, d->arena, &shard, err));
    TSR_TRY(tsr_localize(d->checkpoint, entry, &shard, d->arena, local, err));
    const tsr_dtensor dtensor = {.mesh = d->of->mesh,
                                 .mesh_value = d->mesh_value,
                                 .placements = d->of->placements,
                                 .dtype = entry->dtype,
                                 .ndim = entry->ndim,
                                 .shape = entry->shape,
                                 .requires_grad = entry->requires_grad,
                                 .is_parameter = entry->is_parameter,
                                 .local = local};
    *out = tsr_dtensor_value(&dtensor, d->arena, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* Sets *out to the value itself, to a DTensor, or to a copy whose items are filled in later. */
static tsr_status put(distributing *d, const tsr_value *value, const tsr_value **out, tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(d->checkpoint);
    *out = value;
    if (value->kind == TSR_VALUE_TENSOR)
        return value->as.tensor->distribution ? make_dtensor(d, value->as.tensor, out, err) : TSR_OK;
    if (value->count == 0) return TSR_OK;
    TSR_FAIL_IF(d->stack.count >= host->limits.depth, err, TSR_E_LIMIT, "a tree is nested deeper than %u",
                (unsigned)host->limits.depth);
    frame *top = tsr_vec_push(&d->stack, err);
    tsr_value *copy = top ? tsr_value_new(d->arena, value->kind, err) : NULL;
    const tsr_value **items = copy ? tsr_arena_array(d->arena, value->count, sizeof *items, err) : NULL;
    if (!items) return TSR_E_NOMEM;
    *copy = *value;
    copy->items = items;
    *top = (frame){value, items, 0};
    *out = copy;
    return TSR_OK;
}

static tsr_status distribute(distributing *d, const tsr_value *root, const tsr_value **out, tsr_error *err)
{
    TSR_TRY(tsr_mesh_rank_map(d->of->mesh, d->arena, &d->rank_map, &d->rank_numbers, err));
    d->mesh_value = tsr_mesh_value(d->of->mesh, d->of->rank, d->rank_map, d->arena, err);
    if (!d->mesh_value) return TSR_E_NOMEM;
    TSR_TRY(put(d, root, out, err));
    while (d->stack.count) {
        frame *top = (frame *)d->stack.items + d->stack.count - 1;
        if (top->next == top->from->count) {
            d->stack.count--;
            continue;
        }
        const size_t at = top->next++;
        TSR_TRY(put(d, top->from->items[at], &top->items[at], err));
    }
    return TSR_OK;
}

/* ---- the plan of a file ---- */

/* Names the tensors of a tree that was not made from a catalog's entries by their paths, because they have no names. */
static tsr_status name_repeats(tsr_repeats *repeats, const tsr_value *root, tsr_arena *arena, tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(repeats->checkpoint);
    for (size_t i = 0; i < repeats->count && i < TSR_REPEATS_NAMED; i++) {
        if (repeats->named[i].fqn.size) continue;
        TSR_TRY(tsr_value_path(root, repeats->named[i].entry, host, arena, &repeats->named[i].fqn, err));
    }
    return TSR_OK;
}

static tsr_status check_repeats(tsr_checkpoint *checkpoint, const tsr_value *root, tsr_arena *arena, tsr_error *err)
{
    tsr_repeats repeats;
    tsr_repeats_open(&repeats, checkpoint);
    tsr_status status = tsr_repeats_add_value(&repeats, root, err);
    if (status == TSR_OK && tsr_repeats_too_many(&repeats)) status = name_repeats(&repeats, root, arena, err);
    if (status == TSR_OK) status = tsr_repeats_check(&repeats, err);
    tsr_repeats_close(&repeats);
    return status;
}

static tsr_status plan_tree(distributing *d, const tsr_value *root, tsr_torch_plan *plan, tsr_error *err)
{
    TSR_TRY(check_repeats(d->checkpoint, root, d->arena, err));
    if (d->of) TSR_TRY(distribute(d, root, &root, err));
    TSR_TRY(tsr_torch_plan_open(d->checkpoint, root, d->arena, plan, err));
    if (d->of) {
        plan->literal_entry = d->rank_map;
        plan->literal = d->rank_numbers;
    }
    return tsr_torch_plan_lay_out(plan, err);
}

/* Lays out the file that tsr_write_tree would write for `root` and `of`. The plan and everything it refers to are allocated
 * in `arena`. Fails like tsr_write_tree, except that nothing is written. */
static tsr_status tree_plan(tsr_checkpoint *checkpoint, const tsr_value *root, const tsr_mesh_rank *of, tsr_arena *arena,
                            tsr_torch_plan *out, tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(checkpoint);
    distributing d = {
        .checkpoint = checkpoint, .of = of, .arena = arena, .stack = tsr_vec_of(host->allocator, sizeof(frame))};
    const tsr_status status = plan_tree(&d, root, out, err);
    tsr_vec_free(&d.stack);
    return status;
}

static void leave_sums(tsr_torch_archive *archive)
{
    archive->unsummed = true;
    for (size_t i = 0; i < archive->member_count; i++) archive->members[i].crc32 = 0;
}

/* ---- writing ---- */

tsr_status tsr_write_tree(tsr_checkpoint *checkpoint, const tsr_value *root, const tsr_mesh_rank *of, tsr_tree_file *file,
                          tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(checkpoint);
    tsr_torch_plan plan;
    tsr_arena *arena = tsr_arena_new(host->allocator, (size_t)host->limits.memory_bytes, err);
    if (!arena) return TSR_E_NOMEM;
    tsr_status status = tree_plan(checkpoint, root, of, arena, &plan, err);
    if (status == TSR_OK && file->unsummed) leave_sums(&plan.archive);
    if (status == TSR_OK) status = tsr_torch_plan_write(&plan, file, err);
    tsr_arena_free(arena);
    return status;
}

/* ---- tree store ---- */

typedef struct piece {
    uint64_t byte_at;
    const char *data;
    size_t size;
} piece;

typedef struct tree_file {
    tsr_str name;
    tsr_torch_plan plan;
    piece *pieces; /* one more than the number of storages */
} tree_file;

typedef struct tree_store {
    tsr_store base; /* must be first */
    const tsr_allocator *allocator;
    tsr_arena *arena;
    tree_file *files;         /* in the order in which they were passed */
    const tree_file **sorted; /* in the order of the store's list of files */
    uint32_t count;
} tree_store;

/* ---- reading any bytes of a tensor ---- */

typedef struct elements {
    tsr_checkpoint *checkpoint;
    const tsr_entry *entry;
    uint32_t itemsize;
} elements;

static tsr_status read_elements(const elements *e, uint64_t first, uint64_t count, char *out, tsr_error *err)
{
    const tsr_run run = {.first = first, .count = count};
    return count ? tsr_read_run(e->checkpoint, e->entry, &run, out, (size_t)count * e->itemsize, err) : TSR_OK;
}

/* Reads a part of one element, which has at most 16 bytes. */
static tsr_status read_inside(const elements *e, uint64_t byte_at, size_t size, char *out, tsr_error *err)
{
    char whole[16];
    TSR_TRY(read_elements(e, byte_at / e->itemsize, 1, whole, err));
    memcpy(out, whole + byte_at % e->itemsize, size);
    return TSR_OK;
}

static tsr_status read_bytes(const elements *e, uint64_t byte_at, size_t size, char *out, tsr_error *err)
{
    const size_t into = (size_t)(byte_at % e->itemsize);
    const size_t before = into ? (size < e->itemsize - into ? size : e->itemsize - into) : 0;
    if (before) TSR_TRY(read_inside(e, byte_at, before, out, err));
    const size_t whole = (size - before) / e->itemsize * e->itemsize, behind = size - before - whole;
    TSR_TRY(read_elements(e, (byte_at + before) / e->itemsize, whole / e->itemsize, out + before, err));
    return behind ? read_inside(e, byte_at + before + whole, behind, out + before + whole, err) : TSR_OK;
}

static tsr_status read_storage(const tree_file *file, uint32_t i, uint64_t byte_at, size_t size, void *out, tsr_error *err)
{
    const tsr_blit *blit = &file->plan.blits[i];
    tsr_packed packed;
    elements e = {.checkpoint = file->plan.checkpoint, .entry = blit->entry};
    if (blit->literal) {
        memcpy(out, blit->literal + byte_at, size);
        return TSR_OK;
    }
    TSR_TRY(tsr_gather_pack(blit->entry, &packed, err));
    e.itemsize = tsr_dtype_size(packed.dtype);
    return read_bytes(&e, byte_at, size, out, err);
}

/* ---- the store ---- */

/* The storage that contains the byte, or the first one after it. */
static uint32_t storage_near(const tree_file *file, uint64_t byte_at)
{
    uint32_t low = 0, high = file->plan.storage_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const tsr_blit *blit = &file->plan.blits[middle];
        if (blit->byte_offset + blit->byte_length <= byte_at) low = middle + 1;
        else high = middle;
    }
    return low;
}

static tsr_status read_at(tsr_store *store, uint32_t number, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    const tree_file *file = ((tree_store *)store)->sorted[number];
    for (char *out = buffer; size;) {
        const uint32_t i = storage_near(file, offset);
        const bool inside = i < file->plan.storage_count && file->plan.blits[i].byte_offset <= offset;
        const uint64_t begin = inside ? file->plan.blits[i].byte_offset : file->pieces[i].byte_at;
        const uint64_t length = inside ? file->plan.blits[i].byte_length : file->pieces[i].size;
        TSR_FAIL_AT(offset < begin || offset - begin >= length, err, TSR_E_IO, offset, "%.*s ends there",
                    TSR_STR_ARG(file->name));
        const size_t part = length - (offset - begin) < size ? (size_t)(length - (offset - begin)) : size;
        if (inside) TSR_TRY(read_storage(file, i, offset - begin, part, out, err));
        else memcpy(out, file->pieces[i].data + (offset - begin), part);
        offset += part;
        out += part;
        size -= part;
    }
    return TSR_OK;
}

static void close_store(tsr_store *store)
{
    tree_store *s = (tree_store *)store;
    tsr_arena_free(s->arena);
    tsr_free(s->allocator, s, 1, sizeof *s);
}

/* ---- making the store ---- */

static tsr_status keep_pieces(tree_store *s, tree_file *file, tsr_error *err)
{
    const uint32_t count = file->plan.storage_count + 1;
    file->pieces = tsr_arena_array(s->arena, count, sizeof *file->pieces, err);
    if (!file->pieces) return TSR_E_NOMEM;
    leave_sums(&file->plan.archive);
    for (uint32_t i = 0; i < count; i++) {
        tsr_vec bytes = tsr_vec_of(s->allocator, 1);
        piece *kept = &file->pieces[i];
        const tsr_status status = tsr_torch_archive_piece(&file->plan.archive, i, &bytes, &kept->byte_at, err);
        kept->size = bytes.count;
        tsr_str copy = TSR_STR("");
        if (status == TSR_OK) copy = tsr_arena_str(s->arena, (tsr_str){bytes.items, bytes.count}, err);
        tsr_vec_free(&bytes);
        if (status != TSR_OK) return status;
        if (!copy.data) return TSR_E_NOMEM;
        kept->data = copy.data;
    }
    return TSR_OK;
}

static tsr_status add_file(tree_store *s, tsr_checkpoint *checkpoint, const tsr_stored_tree *tree, tree_file *file,
                           tsr_error *err)
{
    file->name = tsr_arena_str(s->arena, tree->name, err);
    if (!file->name.data) return TSR_E_NOMEM;
    TSR_TRY(tree_plan(checkpoint, tree->root, tree->of, s->arena, &file->plan, err));
    return keep_pieces(s, file, err);
}

static int by_name(const void *a, const void *b)
{
    return tsr_str_compare((*(const tree_file *const *)a)->name, (*(const tree_file *const *)b)->name);
}

static tsr_status list_files(tree_store *s, tsr_error *err)
{
    tsr_store_file *listing = tsr_arena_array(s->arena, s->count, sizeof *listing, err);
    s->sorted = tsr_arena_array(s->arena, s->count, sizeof *s->sorted, err);
    if (!listing || !s->sorted) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < s->count; i++) s->sorted[i] = &s->files[i];
    if (s->count) qsort(s->sorted, s->count, sizeof *s->sorted, by_name);
    for (uint32_t i = 0; i < s->count; i++) {
        listing[i] = (tsr_store_file){s->sorted[i]->name, s->sorted[i]->plan.archive.size};
        TSR_FAIL_IF(i && tsr_str_equal(listing[i].name, listing[i - 1].name), err, TSR_E_USAGE,
                    "two files have the name '%.*s'", TSR_STR_ARG(listing[i].name));
    }
    s->base.files = listing;
    return TSR_OK;
}

static tsr_status fill(tree_store *s, tsr_checkpoint *checkpoint, const tsr_stored_tree *trees, tsr_error *err)
{
    s->arena = tsr_arena_new(s->allocator, (size_t)tsr_checkpoint_host(checkpoint)->limits.memory_bytes, err);
    if (!s->arena) return TSR_E_NOMEM;
    s->files = tsr_arena_array(s->arena, s->count, sizeof *s->files, err);
    if (!s->files) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < s->count; i++) TSR_TRY(add_file(s, checkpoint, &trees[i], &s->files[i], err));
    return list_files(s, err);
}

tsr_status tsr_tree_store_new(tsr_checkpoint *checkpoint, const tsr_stored_tree *trees, uint32_t count, tsr_store **out,
                              tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(checkpoint)->allocator;
    *out = NULL;
    tree_store *s = tsr_alloc(allocator, 1, sizeof *s, err);
    if (!s) return TSR_E_NOMEM;
    *s = (tree_store){.base = {.file_count = count,
                               .primary = count == 1 ? 0 : TSR_NO_FILE,
                               .read_at = read_at,
                               .close = close_store,
                               .unsummed = true},
                      .allocator = allocator,
                      .count = count};
    const tsr_status status = fill(s, checkpoint, trees, err);
    if (status == TSR_OK) *out = &s->base;
    else close_store(&s->base);
    return status;
}
