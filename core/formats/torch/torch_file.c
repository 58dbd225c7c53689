/* One torch.save file as a checkpoint, and what all torch readers share. */
#include "formats/torch/torch_file.h"

#include <stdlib.h>

#include "formats/common/expansion.h"
#include "formats/torch/torch_flatten.h"
#include "formats/torch/torch_item.h"
#include "formats/torch/torch_union.h"
#include "tessera/sys/try.h"

typedef struct run_list {
    const tsr_torch_run *runs; /* in order of (file, byte_offset) */
    size_t count;
} run_list;

/* A chunk of contiguous raw bytes, which may fill a run. */
typedef struct filling {
    const tsr_entry *entry;
    const tsr_chunk *chunk;
    uint64_t order; /* position of the entry in the catalog */
} filling;

static tsr_status push_run(tsr_vec *runs, tsr_torch_run run, tsr_error *err)
{
    tsr_torch_run *added = tsr_vec_push(runs, err);
    if (!added) return TSR_E_NOMEM;
    *added = run;
    return TSR_OK;
}

/* Files whose root is an object that holds the state of one rank for the library that wrote it. */
static const char *foreign_root(const tsr_value *root)
{
    static const char *const classes[] = {
        "nvidia_resiliency_ext.checkpointing.local.basic_state_dict.BasicTensorAwareStateDict",
        "megatron.core.dist_checkpointing.tensor_aware_state_dict.MCoreTensorAwareStateDict"};
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++)
        if (root->kind == TSR_VALUE_OBJECT && tsr_str_equal(root->text, tsr_str_from(classes[i]))) return classes[i];
    return NULL;
}

static tsr_status open_zip(tsr_checkpoint *checkpoint, uint32_t file, tsr_torch_rank rank, tsr_torch_file *out,
                           tsr_vec *runs, tsr_error *err)
{
    tsr_torch_item item;
    const tsr_torch_source from = {tsr_whole_file(checkpoint->store, file), rank.hinted, rank.hint, NULL};
    tsr_status status = tsr_torch_item_open(&from, checkpoint->host, checkpoint->arena, checkpoint->findings, &item, err);
    if (status != TSR_OK) return status;
    TSR_FAIL_IF(foreign_root(item.root), err, TSR_E_UNSUPPORTED,
                "%.*s is one rank's local checkpoint of nvidia-resiliency-ext (%s), which is not supported: its "
                "LocalCheckpointManager loads it in the job that wrote it",
                TSR_STR_ARG(checkpoint->store->files[file].name), foreign_root(item.root));
    *out = (tsr_torch_file){file,
                            item.root,
                            item.storage_count,
                            {item.rank_known, item.rank, item.world, rank.hinted, rank.hint},
                            item.pickle_bytes};
    for (uint32_t i = 0; i < item.zip.count; i++) {
        const tsr_zip_member *m = &item.zip.members[i];
        const bool has_crc = !item.zip.crc_absent && !(item.storages_unsummed && tsr_torch_is_storage(&item.zip, m));
        TSR_TRY(push_run(runs, (tsr_torch_run){file, m->byte_offset, m->size, has_crc, m->crc32, m->name}, err));
    }
    return TSR_OK;
}

tsr_status tsr_torch_file_open(tsr_checkpoint *checkpoint, uint32_t file, tsr_torch_rank rank, tsr_torch_file *out,
                               tsr_vec *runs, tsr_error *err)
{
    char head[4] = {0};
    const tsr_store_file *named = &checkpoint->store->files[file];
    TSR_FAIL_AT(named->size < sizeof head, err, TSR_E_FORMAT, 0,
                "torch: %.*s has %llu bytes, which are too few for a torch.save file", TSR_STR_ARG(named->name),
                (unsigned long long)named->size);
    TSR_TRY(tsr_store_read(checkpoint->store, file, 0, head, sizeof head, err));
    bool zip = tsr_zip_looks_like((tsr_str){head, sizeof head});
    tsr_status status = zip ? open_zip(checkpoint, file, rank, out, runs, err)
                            : tsr_torch_legacy_open(checkpoint, file, rank, out, runs, err);
    if (status != TSR_OK && status != TSR_E_IO) tsr_error_context(err, "%.*s", TSR_STR_ARG(named->name));
    if (status == TSR_OK) tsr_expansion_add(&checkpoint->expansion, out->pickle_bytes);
    return status;
}

static int by_place(const void *a, const void *b)
{
    const tsr_torch_run *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return (x->byte_offset > y->byte_offset) - (x->byte_offset < y->byte_offset);
}

tsr_status tsr_torch_keep_runs(tsr_checkpoint *checkpoint, const tsr_vec *runs, tsr_error *err)
{
    run_list *list = TSR_ARENA_NEW(checkpoint->arena, run_list, err);
    tsr_torch_run *copy = tsr_arena_array(checkpoint->arena, runs->count, sizeof *copy, err);
    if (!list || !copy) return TSR_E_NOMEM;
    if (runs->count) memcpy(copy, runs->items, runs->count * sizeof *copy);
    qsort(copy, runs->count, sizeof *copy, by_place);
    *list = (run_list){copy, runs->count};
    checkpoint->state = list;
    return TSR_OK;
}

/* The run that contains a chunk, or NULL. */
static const tsr_torch_run *run_around(const run_list *list, const tsr_chunk *chunk)
{
    size_t low = 0, high = list->count; /* the first run behind the chunk's beginning */
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const tsr_torch_run *run = &list->runs[middle];
        if (run->file < chunk->file || (run->file == chunk->file && run->byte_offset <= chunk->byte_offset))
            low = middle + 1;
        else high = middle;
    }
    const tsr_torch_run *run = low ? &list->runs[low - 1] : NULL;
    return run && run->file == chunk->file && chunk->byte_offset - run->byte_offset < run->byte_length ? run : NULL;
}

static bool same_view(const tsr_entry *entry, const tsr_chunk *a, const tsr_chunk *b)
{
    const tsr_view plain = {0}, *x = a->view ? a->view : &plain, *y = b->view ? b->view : &plain;
    if (x->conj != y->conj || x->neg != y->neg || x->swap != y->swap || !x->strides != !y->strides) return false;
    return !x->strides || memcmp(x->strides, y->strides, entry->ndim * sizeof *x->strides) == 0;
}

bool tsr_torch_decide(const tsr_checkpoint *checkpoint, const tsr_entry *a, const tsr_entry *b, bool *same)
{
    const tsr_chunk *x = a->chunks, *y = b->chunks;
    const tsr_torch_run *first = run_around(checkpoint->state, x), *second = run_around(checkpoint->state, y);
    if (!first || !second || !first->has_crc || !second->has_crc || !same_view(a, x, y)) return false;
    *same = first->byte_length == second->byte_length && first->crc32 == second->crc32 &&
            x->byte_offset - first->byte_offset == y->byte_offset - second->byte_offset;
    if (*same) return true;
    /* The storages differ. The tensors may still be equal, unless each fills its whole storage. */
    const bool plain = !x->view || !x->view->strides;
    return plain && x->byte_length == first->byte_length && y->byte_length == second->byte_length;
}

static int by_bytes(const void *a, const void *b)
{
    const filling *x = a, *y = b;
    if (x->chunk->file != y->chunk->file) return x->chunk->file < y->chunk->file ? -1 : 1;
    if (x->chunk->byte_offset != y->chunk->byte_offset) return x->chunk->byte_offset < y->chunk->byte_offset ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

static tsr_status add_fillings(tsr_vec *list, const tsr_entry *entry, uint64_t order, const tsr_chunk *chunks,
                               uint64_t count, tsr_error *err)
{
    for (uint64_t i = 0; i < count; i++) {
        const tsr_view *view = chunks[i].view;
        if (chunks[i].byte_length == 0 || chunks[i].file == TSR_NO_FILE) continue;
        if (view && (view->strides || view->conj || view->neg)) continue;
        if (entry->per_rank && view) continue; /* such an entry cannot be gathered to look at its values */
        filling *added = tsr_vec_push(list, err);
        if (!added) return TSR_E_NOMEM;
        *added = (filling){entry, &chunks[i], order};
    }
    return TSR_OK;
}

static tsr_status add_per_rank(tsr_vec *list, const tsr_entry *entry, uint64_t order, tsr_error *err)
{
    for (uint32_t r = 0; r < entry->per_rank->count; r++) {
        const tsr_entry *held = entry->per_rank->tensors[r];
        if (!held || held->kind != TSR_ENTRY_TENSOR || held->dtype != entry->dtype) continue;
        TSR_TRY(add_fillings(list, entry, order, held->chunks, held->chunk_count, err));
    }
    return TSR_OK;
}

static tsr_status collect_fillings(const tsr_catalog *catalog, tsr_vec *list, tsr_error *err)
{
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (entry->per_rank) TSR_TRY(add_per_rank(list, entry, i, err));
        if (entry->kind != TSR_ENTRY_TENSOR) continue;
        TSR_TRY(add_fillings(list, entry, i, entry->chunks, entry->chunk_count, err));
        TSR_TRY(add_fillings(list, entry, i, entry->replicas, entry->replica_count, err));
    }
    if (list->count) qsort(list->items, list->count, sizeof(filling), by_bytes);
    return TSR_OK;
}

static tsr_extent extent_of(const tsr_torch_run *run, const filling *fills)
{
    tsr_extent extent = {.file = run->file,
                         .byte_offset = run->byte_offset,
                         .byte_length = run->byte_length,
                         .has_crc = run->has_crc,
                         .crc32 = run->crc32,
                         .member = run->member};
    if (!fills) return extent;
    extent.entry = fills->entry;
    extent.chunk = fills->chunk;
    if (fills->chunk->view) extent.view = *fills->chunk->view;
    else extent.view = (tsr_view){.file = run->file, .byte_offset = run->byte_offset};
    return extent;
}

/* Runs and fillings are both in file order: one pass over each. */
static tsr_status visit_runs(const run_list *list, const tsr_vec *fillings,
                             tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                             tsr_error *err)
{
    const filling *items = fillings->items;
    size_t at = 0;
    for (size_t i = 0; i < list->count; i++) {
        const tsr_torch_run *run = &list->runs[i];
        const filling *fills = NULL;
        while (at < fillings->count &&
               (items[at].chunk->file < run->file ||
                (items[at].chunk->file == run->file && items[at].chunk->byte_offset < run->byte_offset)))
            at++;
        for (;
             at < fillings->count && items[at].chunk->file == run->file && items[at].chunk->byte_offset == run->byte_offset;
             at++)
            if (!fills && items[at].chunk->byte_length == run->byte_length) fills = &items[at];
        tsr_extent extent = extent_of(run, fills);
        TSR_TRY(each(ctx, &extent, err));
    }
    return TSR_OK;
}

tsr_status tsr_torch_extents(tsr_checkpoint *checkpoint,
                             tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                             tsr_error *err)
{
    tsr_vec fillings = tsr_vec_of(checkpoint->host->allocator, sizeof(filling));
    tsr_status status = collect_fillings(&checkpoint->catalog, &fillings, err);
    if (status == TSR_OK) status = visit_runs(checkpoint->state, &fillings, each, ctx, err);
    tsr_vec_free(&fillings);
    return status;
}

tsr_status tsr_torch_crc(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                         tsr_stated_crc *out, tsr_error *err)
{
    const run_list *list = checkpoint->state;
    const tsr_torch_run place = {.file = chunk->file, .byte_offset = chunk->byte_offset};
    const tsr_torch_run *run = list->count ? bsearch(&place, list->runs, list->count, sizeof place, by_place) : NULL;
    (void)entry, (void)scratch, (void)err;
    if (run && run->has_crc && run->byte_length == chunk->byte_length) *out = (tsr_stated_crc){true, run->crc32};
    return TSR_OK;
}

static tsr_status open_single(tsr_checkpoint *checkpoint, tsr_error *err)
{
    tsr_torch_file file;
    tsr_torch_flat flat;
    tsr_vec runs = tsr_vec_of(checkpoint->host->allocator, sizeof(tsr_torch_run));
    tsr_status status = tsr_torch_file_open(checkpoint, checkpoint->files[0], (tsr_torch_rank){0}, &file, &runs, err);
    if (status == TSR_OK) status = tsr_torch_keep_runs(checkpoint, &runs, err);
    tsr_vec_free(&runs);
    if (status == TSR_OK)
        status = tsr_torch_flatten(file.root, checkpoint->host, &checkpoint->expansion, checkpoint->arena, &flat, err);
    if (status != TSR_OK) return status;
    checkpoint->catalog.entries = flat.entries;
    checkpoint->catalog.entry_count = flat.entry_count;
    checkpoint->catalog.mappings = flat.mappings;
    checkpoint->catalog.mapping_count = flat.mapping_count;
    return tsr_torch_keep_shared(checkpoint->host, flat.entries, flat.entry_count, file.storage_count, err);
}

const tsr_reader tsr_reader_torch_zip = {.format = TSR_FORMAT_TORCH_ZIP,
                                         .is_aside = true,
                                         .open = open_single,
                                         .extents = tsr_torch_extents,
                                         .crc = tsr_torch_crc};
const tsr_reader tsr_reader_torch_legacy = {
    .format = TSR_FORMAT_TORCH_LEGACY, .is_aside = true, .open = open_single, .extents = tsr_torch_extents};
