/* Value trees to torch.save files: the tree is pickled whole, the storages are streamed one after the other.
 *
 *     [headers, data.pkl, …] [storage 0] [descriptor, header] [storage 1] … [descriptor, directory, end]
 *      piece 0                            piece 1                            piece n
 */
#include "tessera/write_tree.h"

#include <inttypes.h>

#include "base/try.h"
#include "formats/torch_writer.h"

typedef struct collection {
    const tsr_host *host;
    tsr_arena *arena;
    tsr_map *seen;   /* entry pointer's bytes → storage */
    tsr_vec entries; /* const tsr_entry *, one a storage */
    tsr_vec stack;   /* const tsr_value * */
} collection;

static tsr_status collect_one(collection *c, const tsr_entry *entry, tsr_error *err)
{
    const tsr_entry **cell = TSR_ARENA_NEW(c->arena, const tsr_entry *, err);
    if (!cell) return TSR_E_NOMEM;
    *cell = entry;
    bool fresh;
    TSR_TRY(tsr_map_put(c->seen, (tsr_str){(const char *)cell, sizeof *cell}, (uint32_t)c->entries.count, NULL, &fresh, err));
    const tsr_entry **slot = fresh ? tsr_vec_push(&c->entries, err) : cell;
    if (!slot) return TSR_E_NOMEM;
    *slot = entry;
    return TSR_OK;
}

/* All tensor leaves, in the order of the tree. */
static tsr_status collect(collection *c, const tsr_value *root, tsr_error *err)
{
    uint64_t visited = 0;
    const tsr_value **first = tsr_vec_push(&c->stack, err);
    if (!first) return TSR_E_NOMEM;
    *first = root;
    while (c->stack.count) {
        const tsr_value *value = ((const tsr_value **)c->stack.items)[--c->stack.count];
        TSR_FAIL_IF(++visited > c->host->limits.expansion, err, TSR_E_LIMIT, TSR_NO_POSITION, "more than %" PRIu64 " values in one tree", visited - 1);
        if (value->kind == TSR_VALUE_TENSOR) TSR_TRY(collect_one(c, value->as.tensor, err));
        for (size_t i = value->count; i-- > 0;) {
            const tsr_value **slot = tsr_vec_push(&c->stack, err);
            if (!slot) return TSR_E_NOMEM;
            *slot = value->items[i];
        }
    }
    return TSR_OK;
}

typedef struct writing {
    tsr_checkpoint *checkpoint;
    tsr_output *output;
    tsr_ring *ring;
    const tsr_progress *progress;
    uint32_t file;
    tsr_torch_archive archive;
    const tsr_entry *const *entries; /* by storage */
    uint64_t byte_at;                /* of the storage being streamed */
    uint32_t crc;
} writing;

static tsr_status plan(writing *w, const collection *c, const tsr_value *root, tsr_error *err)
{
    uint32_t count = (uint32_t)c->entries.count;
    tsr_torch_new_tensor *tensors = tsr_arena_array(c->arena, count, sizeof *tensors, err);
    tsr_torch_new_storage *storages = tsr_arena_array(c->arena, count, sizeof *storages, err);
    if (!tensors || !storages) return TSR_E_NOMEM;
    w->entries = c->entries.items;
    for (uint32_t i = 0; i < count; i++) {
        const tsr_entry *e = w->entries[i];
        storages[i].dtype = e->dtype;
        TSR_TRY(tsr_tensor_bytes(w->checkpoint, e, &storages[i].byte_length, err));
        tensors[i] = (tsr_torch_new_tensor){.entry = e, .storage = i, .rank = e->rank, .sizes = e->shape};
    }
    tsr_torch_sort_tensors(tensors, count);
    tsr_torch_tree tree = {root, tensors, count, storages, count};
    return tsr_torch_archive_plan(&tree, c->host, c->arena, &w->archive, err);
}

static tsr_status write_tile(void *ctx, const void *data, size_t size, uint64_t byte_at, tsr_error *err)
{
    writing *w = ctx;
    bool on = !w->progress || !w->progress->step || w->progress->step(w->progress->ctx, w->byte_at + byte_at, w->archive.size);
    TSR_FAIL_IF(!on, err, TSR_E_CANCELLED, TSR_NO_POSITION, "stopped");
    w->crc = tsr_crc32(tsr_checkpoint_host(w->checkpoint), w->crc, data, size);
    return w->output->write_at(w->output, w->file, w->byte_at + byte_at, data, size, err);
}

static tsr_status write_piece(writing *w, uint32_t i, tsr_vec *piece, tsr_error *err)
{
    uint64_t byte_at;
    piece->count = 0;
    TSR_TRY(tsr_torch_archive_piece(&w->archive, i, piece, &byte_at, err));
    return w->output->write_at(w->output, w->file, byte_at, piece->items, piece->count, err);
}

static tsr_status write_all(writing *w, tsr_vec *piece, tsr_error *err)
{
    for (uint32_t i = 0; i < w->archive.storage_count; i++) {
        TSR_TRY(write_piece(w, i, piece, err));
        w->crc = 0;
        w->byte_at = tsr_torch_storage_at(&w->archive, i);
        TSR_TRY(tsr_stream_tensor(w->checkpoint, w->entries[i], w->ring, write_tile, w, err));
        w->archive.members[w->archive.first_storage + i].crc32 = w->crc;
    }
    return write_piece(w, w->archive.storage_count, piece, err);
}

static tsr_status write_file(writing *w, collection *c, const tsr_value *root, tsr_str name, tsr_error *err)
{
    if (!c->seen || !c->arena) return TSR_E_NOMEM;
    TSR_TRY(collect(c, root, err));
    TSR_TRY(plan(w, c, root, err));
    TSR_TRY(w->output->create(w->output, name, w->archive.size, &w->file, err));
    tsr_vec piece = tsr_vec_of(c->host->allocator, 1);
    tsr_status status = write_all(w, &piece, err);
    tsr_vec_free(&piece);
    return status;
}

tsr_status tsr_write_tree(tsr_checkpoint *checkpoint, const tsr_value *root, tsr_output *output, tsr_str name, tsr_ring *ring,
                          const tsr_progress *progress, uint32_t *file, uint64_t *bytes, tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(checkpoint);
    collection c = {host, tsr_arena_new(host->allocator, (size_t)host->limits.memory_bytes, err), tsr_map_new(host->allocator, 0, err),
                    tsr_vec_of(host->allocator, sizeof(const tsr_entry *)), tsr_vec_of(host->allocator, sizeof(const tsr_value *))};
    writing w = {.checkpoint = checkpoint, .output = output, .ring = ring, .progress = progress};
    tsr_status status = write_file(&w, &c, root, name, err);
    *file = w.file;
    if (status == TSR_OK) *bytes += w.archive.size;
    tsr_vec_free(&c.stack);
    tsr_vec_free(&c.entries);
    tsr_map_free(c.seen);
    tsr_arena_free(c.arena);
    return status;
}
