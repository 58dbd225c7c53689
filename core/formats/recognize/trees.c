/* Opens checkpoints as value trees. For torch.save files, the trees are the pickled values. Their store gets one additional
 * file of zeros, for the parts of a tensor that no file has; so does that of other checkpoints whose chunks are located.
 *
 *     store:  rank0.pt  rank1.pt  …  rankN.pt  "\xff zeros" (16 bytes) */
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/latest.h"

#include "formats/common/expansion.h"
#include "formats/torch/torch_file.h"
#include "formats/torch/torch_flatten.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/try.h"

#define ZEROS_SIZE 16u

typedef struct padded_store {
    tsr_store base;
    tsr_store *inner;
    const tsr_allocator *allocator;
} padded_store;

static tsr_status read_padded(tsr_store *store, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    padded_store *p = (padded_store *)store;
    if (file < p->inner->file_count) return p->inner->read_at(p->inner, file, offset, buffer, size, err);
    if (size) memset(buffer, 0, size);
    return TSR_OK;
}

static tsr_status map_padded(tsr_store *store, uint32_t file, tsr_str *out, tsr_error *err)
{
    padded_store *p = (padded_store *)store;
    if (file < p->inner->file_count && p->inner->map) return p->inner->map(p->inner, file, out, err);
    return tsr_fail(err, TSR_E_UNSUPPORTED, "the file cannot be mapped");
}

static void unmap_padded(tsr_store *store, uint32_t file, tsr_str mapped)
{
    padded_store *p = (padded_store *)store;
    if (p->inner->unmap) p->inner->unmap(p->inner, file, mapped);
}

static void close_padded(tsr_store *store)
{
    padded_store *p = (padded_store *)store;
    tsr_free(p->allocator, (void *)p->base.files, p->base.file_count, sizeof *p->base.files);
    tsr_free(p->allocator, p, 1, sizeof *p);
}

static tsr_status pad_store(tsr_store *inner, const tsr_allocator *allocator, tsr_store **out, tsr_error *err)
{
    uint32_t count = inner->file_count;
    padded_store *p = tsr_alloc(allocator, 1, sizeof *p, err);
    tsr_store_file *files = p ? tsr_alloc(allocator, (size_t)count + 1, sizeof *files, err) : NULL;
    if (!files) {
        tsr_free(allocator, p, 1, sizeof *p);
        return TSR_E_NOMEM;
    }
    if (count) memcpy(files, inner->files, count * sizeof *files);
    files[count] = (tsr_store_file){TSR_STR("\xff zeros"), ZEROS_SIZE};
    *p = (padded_store){.base = {.file_count = count + 1,
                                 .files = files,
                                 .primary = inner->primary,
                                 .read_at = read_padded,
                                 .map = map_padded,
                                 .unmap = unmap_padded,
                                 .close = close_padded,
                                 .unsummed = inner->unsummed},
                        .inner = inner,
                        .allocator = allocator};
    *out = &p->base;
    return TSR_OK;
}

static const tsr_reader tree_reader = {.format = TSR_FORMAT_TORCH_ZIP};

/* Counts everything that walking a tree visits against the limit, so that later walks need no limit. */
static tsr_status count_tree(tsr_checkpoint *checkpoint, const tsr_value *root, tsr_error *err)
{
    tsr_torch_survey survey;
    tsr_status status = tsr_torch_survey_open(&survey, root, checkpoint->host, err);
    if (status == TSR_OK) status = tsr_expansion_take(&checkpoint->expansion, survey.bytes, checkpoint->host, err);
    tsr_torch_survey_close(&survey);
    return status;
}

static tsr_status read_roots(tsr_checkpoint *checkpoint, const uint32_t *files, uint32_t count, tsr_trees *out,
                             tsr_error *err)
{
    const tsr_value **roots = tsr_arena_array(checkpoint->arena, count, sizeof *roots, err);
    if (!roots) return TSR_E_NOMEM;
    out->roots = roots;
    tsr_vec runs = tsr_vec_of(checkpoint->host->allocator, sizeof(tsr_torch_run));
    tsr_status status = TSR_OK;
    for (; out->count < count && status == TSR_OK; out->count++) {
        tsr_torch_file file = {0};
        runs.count = 0;
        status = tsr_torch_file_open(checkpoint, files[out->count], (tsr_torch_rank){0}, &file, &runs, err);
        roots[out->count] = file.root;
        if (status == TSR_OK) status = count_tree(checkpoint, file.root, err);
    }
    tsr_vec_free(&runs);
    return status;
}

static tsr_status open_checkpoint(tsr_checkpoint *checkpoint, tsr_store *store, tsr_error *err)
{
    const tsr_host *host = checkpoint->host;
    TSR_TRY(pad_store(store, host->allocator, &checkpoint->store, err));
    checkpoint->arena = tsr_arena_new(host->allocator, (size_t)host->limits.memory_bytes, err);
    checkpoint->findings = checkpoint->arena ? tsr_findings_new(host->allocator, 0, err) : NULL;
    checkpoint->reader = &tree_reader;
    checkpoint->catalog.format = TSR_FORMAT_TORCH_ZIP;
    checkpoint->catalog.store = checkpoint->store;
    return checkpoint->findings ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_trees_open(tsr_store *store, const tsr_host *host, const uint32_t *files, uint32_t count, tsr_trees *out,
                          tsr_error *err)
{
    *out = (tsr_trees){.raw = true, .zeros_file = store->file_count};
    out->checkpoint = tsr_alloc(host->allocator, 1, sizeof *out->checkpoint, err);
    if (!out->checkpoint) return TSR_E_NOMEM;
    *out->checkpoint = (tsr_checkpoint){.missing = tsr_vec_of(host->allocator, sizeof(tsr_str)),
                                        .entered = tsr_vec_of(host->allocator, sizeof(tsr_store *)),
                                        .expansion = host->limits.expansion};
    tsr_checkpoint_take_host(out->checkpoint, store, host);
    tsr_status status = open_checkpoint(out->checkpoint, store, err);
    if (status == TSR_OK) status = read_roots(out->checkpoint, files, count, out, err);
    if (status != TSR_OK) tsr_trees_close(out);
    return status;
}

/* Copies an entry and locates the bytes of its chunks. Chunks of missing files are copied unchanged. */
static tsr_status locate_entry(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_entry *out, tsr_error *err)
{
    tsr_chunk *chunks = tsr_arena_array(checkpoint->arena, (size_t)entry->chunk_count, sizeof *chunks, err);
    if (!chunks) return TSR_E_NOMEM;
    *out = *entry;
    out->chunks = chunks;
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        chunks[i] = entry->chunks[i];
        if (chunks[i].view || chunks[i].file == TSR_NO_FILE) continue;
        tsr_view *view = TSR_ARENA_NEW(checkpoint->arena, tsr_view, err);
        if (!view) return TSR_E_NOMEM;
        TSR_TRY(tsr_checkpoint_locate(checkpoint, entry, &entry->chunks[i], checkpoint->arena, view, err));
        chunks[i].view = view;
    }
    return TSR_OK;
}

static tsr_status leaf_of(tsr_checkpoint *checkpoint, const tsr_entry *entry, bool located, tsr_leaf *out, tsr_error *err)
{
    size_t missing;
    tsr_checkpoint_missing(checkpoint, &missing);
    if (missing && entry->kind == TSR_ENTRY_OBJECT && !entry->value)
        return tsr_checkpoint_raise_missing(checkpoint, entry->fqn, err);
    TSR_FAIL_IF(entry->kind == TSR_ENTRY_OPAQUE || (entry->kind == TSR_ENTRY_OBJECT && !entry->value), err,
                TSR_E_UNSUPPORTED, "'%.*s' (%.*s) cannot be part of a value tree%s", TSR_STR_ARG(entry->fqn),
                TSR_STR_ARG(entry->type),
                checkpoint->catalog.part_count ? "; choose one part of the checkpoint with --part" : "");
    *out = (tsr_leaf){.value = entry->value, .name = entry->fqn};
    if (entry->kind == TSR_ENTRY_TENSOR) {
        tsr_entry *copy = located ? TSR_ARENA_NEW(checkpoint->arena, tsr_entry, err) : NULL;
        out->value = tsr_value_tensor(checkpoint->arena, located ? copy : entry, err);
        if (!out->value || (located && !copy)) return TSR_E_NOMEM;
        if (located) TSR_TRY(locate_entry(checkpoint, entry, copy, err));
    }
    return tsr_renamed_path(entry, entry->fqn, checkpoint->arena, &out->path, &out->path_length, err);
}

static tsr_status nest_catalog(tsr_trees *trees, bool located, tsr_error *err)
{
    tsr_checkpoint *checkpoint = trees->checkpoint;
    size_t count = (size_t)checkpoint->catalog.entry_count;
    const tsr_value **root = TSR_ARENA_NEW(checkpoint->arena, const tsr_value *, err);
    tsr_leaf *leaves = tsr_arena_array(checkpoint->arena, count, sizeof *leaves, err);
    if (!root || !leaves) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++)
        TSR_TRY(leaf_of(checkpoint, &checkpoint->catalog.entries[i], located, &leaves[i], err));
    trees->roots = root;
    trees->count = 1;
    return tsr_nest(leaves, count, checkpoint->host, checkpoint->arena, root, err);
}

/* Adds the file of zeros to the store of an open checkpoint. */
static tsr_status pad_checkpoint(tsr_trees *trees, tsr_error *err)
{
    tsr_checkpoint *checkpoint = trees->checkpoint;
    tsr_store *padded;
    TSR_TRY(pad_store(checkpoint->store, checkpoint->host->allocator, &padded, err));
    checkpoint->store = padded;
    trees->zeros_file = padded->file_count - 1;
    trees->raw = true;
    return TSR_OK;
}

/* The torch.save file if that is all that was opened; otherwise TSR_NO_FILE. */
static uint32_t only_pickle(const tsr_checkpoint *checkpoint)
{
    const tsr_catalog *catalog = &checkpoint->catalog;
    if (catalog->format != TSR_FORMAT_TORCH_ZIP && catalog->format != TSR_FORMAT_TORCH_LEGACY) return TSR_NO_FILE;
    if (checkpoint->options.part.data && checkpoint->file_count != 1) return TSR_NO_FILE;
    return checkpoint->files[0];
}

static tsr_status open_pickle(tsr_checkpoint *source, tsr_store *store, uint32_t file, tsr_trees *out, tsr_error *err)
{
    const tsr_host *host = source->given_host; /* its own ends with it */

    /* Where no step was entered, `source` is no longer needed; otherwise the store belongs to it. */
    if (source->store == store) {
        tsr_checkpoint_close(source);
        return tsr_trees_open(store, host, &file, 1, out, err);
    }
    const tsr_status status = tsr_trees_open(source->store, host, &file, 1, out, err);
    if (status == TSR_OK) out->entered = source;
    else tsr_checkpoint_close(source);
    return status;
}

tsr_status tsr_trees_of_part(tsr_store *store, const tsr_host *host, tsr_str part, bool located, tsr_trees *out,
                             tsr_error *err)
{
    const tsr_open_options options = {.part = part};
    *out = (tsr_trees){.zeros_file = TSR_NO_FILE};
    TSR_TRY(tsr_checkpoint_open(store, host, &options, &out->checkpoint, err));
    const uint32_t file = only_pickle(out->checkpoint);
    if (file != TSR_NO_FILE) {
        tsr_checkpoint *source = out->checkpoint;
        out->checkpoint = NULL;
        return open_pickle(source, store, file, out, err);
    }
    tsr_status status = nest_catalog(out, located, err);
    if (status == TSR_OK && located) status = pad_checkpoint(out, err);
    if (status != TSR_OK) tsr_trees_close(out);
    return status;
}

void tsr_trees_close(tsr_trees *trees)
{
    tsr_store *padded = trees->raw && trees->checkpoint ? trees->checkpoint->store : NULL;
    tsr_checkpoint_close(trees->checkpoint);
    if (padded) padded->close(padded);
    tsr_checkpoint_close(trees->entered);
    *trees = (tsr_trees){0};
}
