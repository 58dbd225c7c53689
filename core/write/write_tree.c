/* Writes value trees as torch.save files. */
#include "tessera/sys/write_tree.h"

#include "model/value_path.h"
#include "tessera/sys/repeats.h"
#include "tessera/sys/try.h"
#include "tessera/sys/value_walk.h"
#include "write/dtensor_value.h"
#include "write/localize.h"
#include "write/tree_plan.h"

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

tsr_status tsr_tree_plan(tsr_checkpoint *checkpoint, const tsr_value *root, const tsr_mesh_rank *of, tsr_arena *arena,
                         tsr_torch_plan *out, tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(checkpoint);
    distributing d = {
        .checkpoint = checkpoint, .of = of, .arena = arena, .stack = tsr_vec_of(host->allocator, sizeof(frame))};
    const tsr_status status = plan_tree(&d, root, out, err);
    tsr_vec_free(&d.stack);
    return status;
}

/* ---- writing ---- */

tsr_status tsr_write_tree(tsr_checkpoint *checkpoint, const tsr_value *root, const tsr_mesh_rank *of, tsr_tree_file *file,
                          tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(checkpoint);
    tsr_torch_plan plan;
    tsr_arena *arena = tsr_arena_new(host->allocator, (size_t)host->limits.memory_bytes, err);
    if (!arena) return TSR_E_NOMEM;
    tsr_status status = tsr_tree_plan(checkpoint, root, of, arena, &plan, err);
    if (status == TSR_OK) status = tsr_torch_plan_write(&plan, file, err);
    tsr_arena_free(arena);
    return status;
}
