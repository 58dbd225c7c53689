/* Used by _optimizer.py: plans what a rank reads of a sharded optimizer state (tessera/sys/optim_load.h). The data is then
 * read with tsr_python_read. */
#include <stdlib.h>

#include "session.h"
#include "tessera/box.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/optim_load.h"

typedef struct plan {
    tsr_checkpoint *checkpoint;
    tsr_arena *arena;
    tsr_optim_reads plan;
} plan;

/* One read of the plan. Mirrored in _library.py. */
typedef struct planned {
    uint64_t index; /* index of the entry; UINT64_MAX: an empty dict */
    tsr_str fqn;
    tsr_str parameter;
    uint64_t storage_offsets[TSR_MAX_NDIM], dest_offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM], dest_size[TSR_MAX_NDIM];
    uint32_t kind; /* a tsr_optim_read_kind */
    uint32_t path_length;
    uint32_t ndim; /* of the box described by the arrays above */
    uint8_t has_shard, is_unknown;
} planned;

/* Makes a plan. tsr_tp_slice and tsr_optim_mesh are mirrored, too. Returns NULL with the error in `err`. The plan must be
 * freed before the session. */
EXPORT plan *tsr_python_plan_optimizer(session *s, const char *key, const tsr_optim_mesh *mesh, const tsr_tp_slice *slices,
                                       size_t slice_count, tsr_error *err);
EXPORT void tsr_python_free_plan(plan *p);
EXPORT size_t tsr_python_plan_count(const plan *p);
EXPORT void tsr_python_planned(const plan *p, size_t at, planned *out);
EXPORT void tsr_python_planned_path_item(const plan *p, size_t at, uint32_t item, path_item *out);

void tsr_python_free_plan(plan *p)
{
    if (!p) return;
    tsr_arena_free(p->arena);
    free(p);
}

plan *tsr_python_plan_optimizer(session *s, const char *key, const tsr_optim_mesh *mesh, const tsr_tp_slice *slices,
                                size_t slice_count, tsr_error *err)
{
    tsr_checkpoint *checkpoint = s->checkpoint;
    const tsr_allocator *allocator = tsr_checkpoint_host(checkpoint)->allocator;
    plan *p = calloc(1, sizeof *p);
    if (!p) {
        tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory");
        return NULL;
    }
    p->checkpoint = checkpoint;
    p->arena = tsr_arena_new(allocator, 0, err);
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    const tsr_optim_mesh sliced = {mesh->data_rank, mesh->data_world, mesh->tensor_parallel, slices, slice_count};
    if (p->arena && tsr_optim_load(catalog, tsr_str_from(key), &sliced, p->arena, &p->plan, err) == TSR_OK) return p;
    tsr_python_free_plan(p);
    return NULL;
}

size_t tsr_python_plan_count(const plan *p)
{
    return p->plan.count;
}

void tsr_python_planned(const plan *p, size_t at, planned *out)
{
    const tsr_optim_read *read = &p->plan.reads[at];
    const tsr_catalog *catalog = tsr_checkpoint_catalog(p->checkpoint);
    const bool is_entry = tsr_catalog_has(catalog, read->entry);
    *out = (planned){.index = is_entry ? (uint64_t)(read->entry - catalog->entries) : UINT64_MAX,
                     .fqn = read->entry->fqn,
                     .parameter = read->parameter,
                     .kind = (uint32_t)read->kind,
                     .path_length = read->path_length,
                     .has_shard = read->has_shard,
                     .is_unknown = read->is_unknown};
    if (read->kind != TSR_READ_BOX || read->entry->ndim > TSR_MAX_NDIM) return;
    out->ndim = read->entry->ndim;
    for (uint32_t d = 0; d < out->ndim; d++) {
        out->storage_offsets[d] = read->storage_offsets[d];
        out->dest_offsets[d] = read->dest_offsets[d];
        out->sizes[d] = read->sizes[d];
        out->dest_size[d] = read->dest_size[d];
    }
}

void tsr_python_planned_path_item(const plan *p, size_t at, uint32_t item, path_item *out)
{
    const tsr_path_item *from = &p->plan.reads[at].path[item];
    *out = (path_item){from->key, from->integer, from->kind};
}
