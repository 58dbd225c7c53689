/* Assigns the tensors of a value tree to storages.
 *
 *   source storage   ······[ w ·········]···[ a ···[ b ···· ] ]·····        w; a and b overlap
 *   new storages           [ w ·········]   [ a ···[ b ···· ] ]             each a run of bytes that tensors share
 *
 * A run with several tensors is copied unchanged, and read through a stand-in entry: a 1-d tensor of the whole run. */
#include "write/torch_plan.h"

#include <stdlib.h>

#include "base/cursor.h"
#include "formats/common/expansion.h"
#include "formats/common/reader.h"
#include "model/catalog.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"
#include "tessera/sys/write_tree.h"

/* ---- tensors of the tree ---- */

static int by_entry(const void *a, const void *b)
{
    const tsr_torch_tensor *x = a, *y = b;
    if (x->entry != y->entry) return (uintptr_t)x->entry < (uintptr_t)y->entry ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

tsr_torch_tensor *tsr_torch_plan_source(const tsr_torch_plan *plan, const tsr_entry *entry)
{
    size_t low = 0, high = plan->source_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if ((uintptr_t)plan->sources[middle].entry < (uintptr_t)entry) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < plan->source_count && plan->sources[low].entry == entry ? &plan->sources[low] : NULL;
}

typedef struct search {
    tsr_map *seen; /* addresses of values */
    tsr_arena *keys;
    tsr_vec stack; /* of const tsr_value * */
    tsr_vec found; /* tsr_torch_tensor */
} search;

static tsr_status push(search *s, const tsr_value *value, tsr_error *err)
{
    if (value->kind != TSR_VALUE_TENSOR && value->count == 0 && !tsr_value_attributes(value)) return TSR_OK;
    const tsr_value **top = tsr_vec_push(&s->stack, err);
    if (top) *top = value;
    return top ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status visit(search *s, const tsr_value *value, tsr_error *err)
{
    bool fresh = true;
    if (value->kind == TSR_VALUE_TENSOR) {
        const tsr_entry *entry = value->as.tensor;
        tsr_torch_tensor *source = tsr_vec_push(&s->found, err);
        if (source) *source = (tsr_torch_tensor){entry, entry->dtype, s->found.count, entry->is_parameter, {NULL, 0}};
        return source ? TSR_OK : TSR_E_NOMEM;
    }
    const tsr_str key = tsr_arena_str(s->keys, (tsr_str){(const char *)&value, sizeof value}, err);
    if (!key.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_map_put(s->seen, key, 0, NULL, &fresh, err));
    if (fresh && tsr_value_attributes(value)) TSR_TRY(push(s, tsr_value_attributes(value), err));
    for (size_t i = fresh ? value->count : 0; i-- > 0;) TSR_TRY(push(s, value->items[i], err));
    return TSR_OK;
}

static tsr_status walk(search *s, const tsr_value *root, const tsr_host *host, tsr_error *err)
{
    s->seen = tsr_map_new(host->allocator, 0, err);
    s->keys = tsr_arena_new(host->allocator, 0, err);
    if (!s->seen || !s->keys) return TSR_E_NOMEM;
    TSR_TRY(push(s, root, err));
    while (s->stack.count) TSR_TRY(visit(s, ((const tsr_value **)s->stack.items)[--s->stack.count], err));
    return TSR_OK;
}

static tsr_status keep_found(tsr_torch_plan *plan, tsr_vec *found, tsr_error *err)
{
    tsr_torch_tensor *sources = found->items;
    if (found->count) qsort(sources, found->count, sizeof *sources, by_entry);
    plan->sources = tsr_arena_array(plan->arena, found->count, sizeof *sources, err);
    if (!plan->sources) return TSR_E_NOMEM;
    for (size_t i = 0; i < found->count; i++) {
        const bool fresh = i == 0 || sources[i].entry != sources[i - 1].entry;
        if (fresh) plan->sources[plan->source_count++] = sources[i];
    }
    return TSR_OK;
}

tsr_status tsr_torch_plan_open(tsr_checkpoint *checkpoint, const tsr_value *root, tsr_arena *arena, tsr_torch_plan *out,
                               tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(checkpoint);
    search s = {.stack = tsr_vec_of(host->allocator, sizeof(const tsr_value *)),
                .found = tsr_vec_of(host->allocator, sizeof(tsr_torch_tensor))};
    *out = (tsr_torch_plan){.checkpoint = checkpoint, .arena = arena, .root = root};
    tsr_status status = walk(&s, root, host, err);
    if (status == TSR_OK) status = keep_found(out, &s.found, err);
    tsr_map_free(s.seen);
    tsr_arena_free(s.keys);
    tsr_vec_free(&s.stack);
    tsr_vec_free(&s.found);
    return status;
}

/* ---- runs of bytes ---- */

/* A source, and its position if it is on a storage that others may share. */
typedef struct placed {
    const tsr_torch_tensor *source;
    const tsr_entry *readable;
    tsr_dtype dtype; /* of the elements in the source, packed */
    uint32_t ndim;
    const uint64_t *sizes;
    bool sharing;
    tsr_view view; /* this and the fields below are only set with `sharing` */
    uint64_t end;
} placed;

/* The bytes from the first element to the end of the last. Returns false if this overflows. */
static bool span_of(const placed *p, uint64_t *span)
{
    uint64_t reach = 1, step;
    if (!p->view.strides) {
        for (uint32_t d = 0; d < p->ndim; d++) {
            if (!tsr_mul_u64(reach, p->sizes[d], &reach)) return false;
        }
    }
    for (uint32_t d = 0; p->view.strides && d < p->ndim; d++) {
        if (!tsr_mul_u64(p->sizes[d] - 1, p->view.strides[d], &step) || !tsr_add_u64(reach, step, &reach)) return false;
    }
    return tsr_mul_u64(reach, tsr_dtype_size(p->dtype), span);
}

static bool may_share(const placed *p, uint64_t elements)
{
    const tsr_entry *entry = p->readable;
    const bool one = entry->storage_id && entry->chunk_count == 1 && entry->chunks[0].file != TSR_NO_FILE && elements;
    if (!one || !tsr_box_equal((tsr_box){entry->ndim, entry->chunks[0].offsets, entry->chunks[0].sizes},
                               (tsr_box){entry->ndim, NULL, entry->shape}))
        return false;
    return entry->dtype == p->dtype && !p->view.zstd && !p->view.conj && !p->view.neg;
}

static tsr_status place(const tsr_torch_plan *plan, const tsr_torch_tensor *source, placed *out, tsr_error *err)
{
    tsr_packed packed;
    uint64_t span;
    *out = (placed){.source = source, .readable = tsr_entry_readable(plan->checkpoint, plan->arena, source->entry, err)};
    if (!out->readable) return TSR_E_NOMEM;
    TSR_TRY(tsr_gather_pack(source->entry, &packed, err));
    uint64_t *sizes = tsr_arena_array(plan->arena, packed.ndim, sizeof *sizes, err);
    if (!sizes) return TSR_E_NOMEM;
    memcpy(sizes, packed.shape, packed.ndim * sizeof *sizes);
    out->sizes = sizes;
    out->dtype = packed.dtype;
    out->ndim = packed.ndim;
    if (out->readable->chunk_count == 1) {
        const tsr_chunk *chunk = &out->readable->chunks[0];
        out->view = chunk->view ? *chunk->view : (tsr_view){.file = chunk->file, .byte_offset = chunk->byte_offset};
    }
    out->sharing =
        may_share(out, packed.elements) && span_of(out, &span) && tsr_add_u64(out->view.byte_offset, span, &out->end);
    return TSR_OK;
}

static int compare_u64(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

/* Sorts those that may share storages first: by storage, then by position. The others are in the order of the tree. */
static int by_storage(const void *a, const void *b)
{
    const placed *x = a, *y = b;
    if (x->sharing != y->sharing) return x->sharing ? -1 : 1;
    if (!x->sharing) return compare_u64(x->source->order, y->source->order);
    const uint64_t keys[][2] = {{x->view.file, y->view.file},
                                {x->readable->storage_id, y->readable->storage_id},
                                {x->dtype, y->dtype},
                                {x->source->dtype, y->source->dtype},
                                {x->view.swap, y->view.swap},
                                {x->view.byte_offset, y->view.byte_offset},
                                {y->end, x->end}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (keys[i][0] != keys[i][1]) return compare_u64(keys[i][0], keys[i][1]);
    }
    return compare_u64(x->source->order, y->source->order);
}

static bool one_storage(const placed *a, const placed *b, uint64_t run_end)
{
    return a->sharing && b->sharing && a->view.file == b->view.file && a->readable->storage_id == b->readable->storage_id &&
           a->dtype == b->dtype && a->source->dtype == b->source->dtype && a->view.swap == b->view.swap &&
           b->view.byte_offset <= run_end && (b->view.byte_offset - a->view.byte_offset) % tsr_dtype_size(a->dtype) == 0;
}

/* ---- storages ---- */

/* The run that begins with `first`, as a 1-d tensor. */
static const tsr_entry *stand_in(const tsr_torch_plan *plan, const placed *first, uint64_t end, tsr_error *err)
{
    struct stand {
        tsr_entry entry;
        tsr_chunk chunk;
        tsr_view view;
        uint64_t zero, count;
    } *s = TSR_ARENA_NEW(plan->arena, struct stand, err);
    if (!s) return NULL;
    s->count = (end - first->view.byte_offset) / tsr_dtype_size(first->dtype);
    s->view = (tsr_view){.file = first->view.file, .byte_offset = first->view.byte_offset, .swap = first->view.swap};
    s->chunk = (tsr_chunk){.offsets = &s->zero,
                           .sizes = &s->count,
                           .byte_offset = first->view.byte_offset,
                           .byte_length = end - first->view.byte_offset,
                           .view = &s->view,
                           .file = first->view.file};
    s->entry = (tsr_entry){.fqn = first->source->entry->fqn,
                           .dtype = first->dtype,
                           .ndim = 1,
                           .shape = &s->count,
                           .chunks = &s->chunk,
                           .chunk_count = 1};
    return &s->entry;
}

static void describe(const placed *p, tsr_torch_new_tensor *out, uint32_t storage)
{
    *out = (tsr_torch_new_tensor){.entry = p->source->entry,
                                  .storage = storage,
                                  .ndim = p->ndim,
                                  .sizes = p->sizes,
                                  .requires_grad = p->source->entry->requires_grad,
                                  .is_parameter = p->source->is_parameter};
}

/* Adds one storage for `count` tensors on the same run of bytes. */
static tsr_status add_storage(tsr_torch_plan *plan, const placed *first, size_t count, uint64_t end,
                              tsr_torch_new_tensor *tensors, tsr_error *err)
{
    const uint32_t number = plan->storage_count++;
    const tsr_entry *entry = count > 1 ? stand_in(plan, first, end, err) : first->readable;
    if (!entry) return TSR_E_NOMEM;
    tsr_dtype dtype = first->source->dtype == first->source->entry->dtype ? first->dtype : first->source->dtype;
    tsr_write_item *write_item = &plan->write_items[number];
    *write_item = (tsr_write_item){.entry = entry, .dtype = dtype};
    if (count == 1) write_item->rows = first->source->rows;
    if (first->source->entry == plan->literal_entry) write_item->literal = plan->literal;
    TSR_TRY(tsr_write_item_measure(entry, NULL, dtype, &write_item->byte_length, err));
    plan->storages[number] = (tsr_torch_new_storage){dtype, write_item->byte_length};
    for (size_t i = 0; i < count; i++) {
        describe(&first[i], &tensors[i], number);
        if (count == 1) continue;
        tensors[i].storage_offset = (first[i].view.byte_offset - first->view.byte_offset) / tsr_dtype_size(first->dtype);
        tensors[i].strides = first[i].view.strides;
    }
    return TSR_OK;
}

/* The tensors list[from, to), which are on one run of bytes. */
typedef struct shared_run {
    size_t from, to;
    uint64_t end;
    size_t order; /* of its first tensor, in the tree */
} shared_run;

static int by_order(const void *a, const void *b)
{
    return compare_u64(((const shared_run *)a)->order, ((const shared_run *)b)->order);
}

static tsr_status add_storages(tsr_torch_plan *plan, const placed *list, tsr_error *err)
{
    shared_run *runs = tsr_arena_array(plan->arena, plan->source_count, sizeof *runs, err);
    if (!runs) return TSR_E_NOMEM;
    size_t count = 0, tensor = 0;
    for (size_t i = 0; i < plan->source_count; i++) {
        shared_run *last = count ? &runs[count - 1] : NULL;
        if (!last || !one_storage(&list[last->from], &list[i], last->end)) {
            last = &runs[count++];
            *last = (shared_run){i, i, 0, SIZE_MAX};
        }
        last->to = i + 1;
        if (list[i].end > last->end) last->end = list[i].end;
        if (list[i].source->order < last->order) last->order = list[i].source->order;
    }
    qsort(runs, count, sizeof *runs, by_order);
    for (size_t i = 0; i < count; i++) {
        TSR_TRY(add_storage(plan, &list[runs[i].from], runs[i].to - runs[i].from, runs[i].end, &plan->tensors[tensor], err));
        tensor += runs[i].to - runs[i].from;
    }
    return TSR_OK;
}

uint64_t tsr_torch_plan_room(const tsr_checkpoint *checkpoint)
{
    uint64_t room = checkpoint->host->limits.expansion;
    for (uint32_t f = 0; f < checkpoint->store->file_count; f++) tsr_expansion_add(&room, checkpoint->store->files[f].size);
    return room;
}

tsr_status tsr_torch_plan_lay_out(tsr_torch_plan *plan, tsr_error *err)
{
    const size_t count = plan->source_count;
    uint64_t room = tsr_torch_plan_room(plan->checkpoint);
    TSR_FAIL_IF(count >= UINT32_MAX, err, TSR_E_LIMIT, "too many tensors for one file");
    placed *list = tsr_arena_array(plan->arena, count, sizeof *list, err);
    plan->tensors = tsr_arena_array(plan->arena, count, sizeof *plan->tensors, err);
    plan->storages = tsr_arena_array(plan->arena, count, sizeof *plan->storages, err);
    plan->write_items = tsr_arena_array(plan->arena, count, sizeof *plan->write_items, err);
    if (!list || !plan->tensors || !plan->storages || !plan->write_items) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) TSR_TRY(place(plan, &plan->sources[i], &list[i], err));
    qsort(list, count, sizeof *list, by_storage);
    TSR_TRY(add_storages(plan, list, err));
    tsr_torch_sort_tensors(plan->tensors, count);
    const tsr_torch_tree tree = {plan->root,     plan->tensors,       count,
                                 plan->storages, plan->storage_count, plan->room ? plan->room : &room,
                                 plan->unsummed};
    TSR_TRY(tsr_torch_archive_plan(&tree, tsr_checkpoint_host(plan->checkpoint), plan->arena, &plan->archive, err));
    for (uint32_t i = 0; i < plan->storage_count; i++)
        plan->write_items[i].byte_offset = tsr_torch_storage_at(&plan->archive, i);
    return TSR_OK;
}

tsr_status tsr_torch_plan_write_piece(tsr_torch_plan *plan, uint32_t i, const tsr_sink *sink, tsr_error *err)
{
    uint64_t at;
    tsr_vec piece = tsr_vec_of(tsr_checkpoint_host(plan->checkpoint)->allocator, 1);
    if (i) plan->archive.members[plan->archive.first_storage + i - 1].crc32 = plan->write_items[i - 1].crc;
    tsr_status status = tsr_torch_archive_piece(&plan->archive, i, &piece, &at, err);
    if (status == TSR_OK) status = tsr_sink_write(sink, plan->file, at, piece.items, piece.count, err);
    tsr_vec_free(&piece);
    return status;
}

/* Writes what follows a storage. What follows the last one includes the directory, which needs all CRCs. */
static tsr_status write_behind(const tsr_stage *stage, size_t i, const tsr_sink *sink, tsr_error *err)
{
    if (i + 1 == stage->count) return TSR_OK;
    return tsr_torch_plan_write_piece(stage->ctx, (uint32_t)i + 1, sink, err);
}

static tsr_status write_rest(const tsr_stage *stage, const tsr_sink *sink, tsr_error *err)
{
    tsr_torch_plan *plan = stage->ctx;
    for (uint32_t i = 0; i < plan->storage_count; i++)
        plan->archive.members[plan->archive.first_storage + i].crc32 = plan->write_items[i].crc;
    TSR_TRY(tsr_torch_plan_write_piece(plan, 0, sink, err));
    return plan->storage_count ? tsr_torch_plan_write_piece(plan, plan->storage_count, sink, err) : TSR_OK;
}

tsr_stage tsr_torch_plan_stage(tsr_torch_plan *plan, uint32_t file)
{
    plan->file = file;
    for (uint32_t i = 0; i < plan->storage_count; i++) plan->write_items[i].file = file;
    return (tsr_stage){.write_items = plan->write_items,
                       .count = plan->storage_count,
                       .behind = write_behind,
                       .rest = write_rest,
                       .ctx = plan};
}

typedef struct torch_file {
    tsr_stage stage;
    tsr_sink sink;
} torch_file;

static tsr_status write_item_done(void *ctx, size_t index, tsr_error *err)
{
    const torch_file *f = ctx;
    return f->stage.behind(&f->stage, index, &f->sink, err);
}

/* Creates the file, writes the whole archive into it, and sets the file's number and size. */
static tsr_status torch_plan_write(tsr_torch_plan *plan, tsr_tree_file *file, tsr_error *err)
{
    tsr_output *output = file->output;
    TSR_TRY(output->create(output, file->name, plan->archive.size, &file->number, err));
    torch_file f = {tsr_torch_plan_stage(plan, file->number), {output, NULL}};
    const tsr_write_items_run run = {.checkpoint = plan->checkpoint,
                                     .output = output,
                                     .ring = file->ring,
                                     .write_items = plan->write_items,
                                     .count = plan->storage_count,
                                     .crc = !plan->archive.unsummed,
                                     .progress = file->progress,
                                     .done = write_item_done,
                                     .ctx = &f};
    TSR_TRY(tsr_write_items(&run, err));
    TSR_TRY(f.stage.rest(&f.stage, &f.sink, err));
    file->bytes = plan->archive.size;
    return TSR_OK;
}

/* ---- tree store ---- */

/* Files of value trees that are produced while they are read. Such a file consists of the pieces that the archive's writer
 * puts around the storages, which are kept in memory, and of the storages, which are read from the source:
 *
 *     [ piece 0: headers, data.pkl … ][ storage 0 ][ piece 1 ][ storage 1 ] … [ piece n: central directory ]
 *       kept                            read          kept      read            kept
 *
 * Computing the CRCs of the storages would require reading all of them, so every CRC is 0, as in files that torch.save
 * writes without CRCs. */

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
    if (status == TSR_OK) status = torch_plan_write(&plan, file, err);
    tsr_arena_free(arena);
    return status;
}

/* ---- tree store ---- */

typedef struct store_piece {
    uint64_t byte_at;
    const char *data;
    size_t size;
} store_piece;

typedef struct tree_file {
    tsr_str name;
    tsr_torch_plan plan;
    store_piece *pieces; /* one more than the number of storages */
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

typedef struct store_elements {
    tsr_checkpoint *checkpoint;
    const tsr_entry *entry;
    uint32_t itemsize;
} store_elements;

static tsr_status read_elements(const store_elements *e, uint64_t first, uint64_t count, char *out, tsr_error *err)
{
    const tsr_run run = {.first = first, .count = count};
    return count ? tsr_read_run(e->checkpoint, e->entry, &run, out, (size_t)count * e->itemsize, err) : TSR_OK;
}

/* Reads a part of one element, which has at most 16 bytes. */
static tsr_status read_inside(const store_elements *e, uint64_t byte_at, size_t size, char *out, tsr_error *err)
{
    char whole[16];
    TSR_TRY(read_elements(e, byte_at / e->itemsize, 1, whole, err));
    memcpy(out, whole + byte_at % e->itemsize, size);
    return TSR_OK;
}

static tsr_status read_bytes(const store_elements *e, uint64_t byte_at, size_t size, char *out, tsr_error *err)
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
    const tsr_write_item *write_item = &file->plan.write_items[i];
    tsr_packed packed;
    store_elements e = {.checkpoint = file->plan.checkpoint, .entry = write_item->entry};
    if (write_item->literal) {
        memcpy(out, write_item->literal + byte_at, size);
        return TSR_OK;
    }
    TSR_TRY(tsr_gather_pack(write_item->entry, &packed, err));
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
        const tsr_write_item *write_item = &file->plan.write_items[middle];
        if (write_item->byte_offset + write_item->byte_length <= byte_at) low = middle + 1;
        else high = middle;
    }
    return low;
}

static tsr_status read_at(tsr_store *store, uint32_t number, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    const tree_file *file = ((tree_store *)store)->sorted[number];
    for (char *out = buffer; size;) {
        const uint32_t i = storage_near(file, offset);
        const bool inside = i < file->plan.storage_count && file->plan.write_items[i].byte_offset <= offset;
        const uint64_t begin = inside ? file->plan.write_items[i].byte_offset : file->pieces[i].byte_at;
        const uint64_t length = inside ? file->plan.write_items[i].byte_length : file->pieces[i].size;
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
        store_piece *kept = &file->pieces[i];
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
