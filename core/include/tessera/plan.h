/* Plans: where the bytes of a checkpoint's chunks go on the ranks of a target.
 *
 *   storage chunks × target layout ──▶ read items: one box copy each, from a chunk into a rank's local tensor
 *
 * A plan is symbolic. Tensors with equal shape, chunk boxes and placements are one class and are planned once; the items of a
 * rank are made on request, and no data structure is as large as ranks × tensors. The items of a rank write every element of
 * its shards exactly once. Everything is pure and a plan is read-only once made: several threads may use it, each with its own
 * arena. Source of the vocabulary: torch.distributed.checkpoint.planner (ReadItem, WriteItem).
 *
 * Example:
 *
 *     tsr_target target;
 *     status = tsr_target_parse(TSR_STR("dp=4"), TSR_STR("shard(0)"), arena, &target, &err);
 *     if (status == TSR_OK) status = tsr_plan_new(catalog, &target, NULL, host, &plan, &err);
 *     if (status == TSR_OK) printf("%llu tensors are planned\n", (unsigned long long)tsr_plan_count(plan));
 *     tsr_plan_free(plan); */
#ifndef TESSERA_PLAN_H
#define TESSERA_PLAN_H

#include "tessera/host.h"
#include "tessera/target.h"

TSR_API_BEGIN

struct tsr_layout;     /* tessera/sys/layout.h */
struct tsr_fsdp1_unit; /* tessera/sys/plan.h */
struct tsr_storage;    /* tessera/sys/plan.h */
typedef struct tsr_plan tsr_plan;

typedef struct tsr_plan_options {
    size_t size;                          /* TSR_OPTIONS sets it */
    bool (*want)(void *ctx, tsr_str fqn); /* NULL: every entry */
    void *want_ctx;
    /* NULL, or gives a tensor a layout of its own (tsr_layout_explicit; over the target's number of ranks and the tensor's
     * shape in torch's count): what ranks hold need not come from placements, nor cover the tensor. It gives NULL where the
     * target's rules apply. */
    const struct tsr_layout *(*layout)(void *ctx, const tsr_entry *entry);
    void *layout_ctx;
    const struct tsr_fsdp1_unit *flat_units; /* where the layouts are flat ranges: whose; kept, so they outlive the plan */
    uint64_t flat_unit_count;
    const struct tsr_storage *storage; /* NULL, or orders each rank's reads by server; kept, so it outlives the plan */
} tsr_plan_options;

/* The most ranks that a plan can have: some loops and documents of plans are as long as there are ranks. */
#define TSR_PLAN_MAX_RANKS (UINT64_C(1) << 20)

/* Plans the catalog's tensors (objects and opaque entries have no bytes to place) for a target. Borrows catalog, target and
 * host until free; `options` may be NULL. If several copies of a box are stored, the plan uses the one in the file with the
 * fewest bytes to read so far. Shapes of float4 are counted in pairs, as PyTorch does. Errors: TSR_E_FORMAT for a tensor whose
 * chunks do not tile it, TSR_E_USAGE for rules that do not fit, TSR_E_UNSUPPORTED for a cut through a tensor whose elements are
 * not byte-aligned, TSR_E_LIMIT for more than TSR_PLAN_MAX_RANKS ranks, TSR_E_NOMEM. */
tsr_status tsr_plan_new(const tsr_catalog *catalog, const tsr_target *target, const tsr_plan_options *options,
                        const tsr_host *host, tsr_plan **out, tsr_error *err);
void tsr_plan_free(tsr_plan *plan); /* accepts NULL */

/* One planned tensor. */
typedef struct tsr_planned {
    const tsr_entry *entry;
    const uint64_t *shape;           /* in torch's count */
    const tsr_placement *placements; /* one per mesh dim of the target; NULL: a layout of its own */
    const struct tsr_layout *layout;
    tsr_holders holders; /* which ranks hold it at all */
    bool replicated;     /* the default names a dim that the tensor does not have, so it is whole there */
} tsr_planned;
uint64_t tsr_plan_count(const tsr_plan *plan); /* in the catalog's order */
tsr_planned tsr_plan_tensor_at(const tsr_plan *plan, uint64_t index);

/* One box copy from storage into a rank's local tensor. Arrays have entry->ndim numbers, in elements. */
typedef struct tsr_read_item {
    uint64_t tensor; /* index as in tsr_plan_tensor_at */
    const tsr_entry *entry;
    const tsr_chunk *chunk; /* one of the entry's chunks or replicas */
    uint64_t dest_rank;
    const uint64_t *offsets;         /* of the box in the tensor */
    const uint64_t *dest_offsets;    /* in the rank's local tensor */
    const uint64_t *storage_offsets; /* in the chunk */
    const uint64_t *lengths;
} tsr_read_item;

TSR_API_END

#endif
