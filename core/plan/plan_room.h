/* The contents of a plan, for the files that make and read one. */
#ifndef TSR_PLAN_ROOM_H
#define TSR_PLAN_ROOM_H

#include "layout/chunk_index.h"
#include "tessera/catalog.h"
#include "tessera/plan.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/plan.h"

/* Tensors with the same shape, chunk boxes and placements, so that the boxes computed for one apply to all. */
typedef struct tsr_plan_class {
    const tsr_entry *sample; /* shape and chunks in PyTorch's elements */
    const tsr_layout *layout;
    const tsr_placement *placements;
    tsr_holders holders;
    tsr_chunk_index index;
    uint64_t elements;
    uint64_t tensors;
    uint64_t element_bits; /* of all its tensors together: Σ bits per element */
} tsr_plan_class;

typedef struct tsr_plan_tensor {
    const tsr_entry *entry;
    const tsr_entry *packed;         /* the same in PyTorch's elements; `entry` itself, unless its float4 is counted in
                                      * single elements */
    const tsr_chunk *const *sources; /* the chosen copy of each chunk; NULL means entry->chunks */
    uint32_t class_number;
    bool replicated;
} tsr_plan_tensor;

struct tsr_plan {
    const tsr_host *host;
    const tsr_catalog *catalog;
    const tsr_target *target;
    tsr_arena *arena;
    tsr_vec classes; /* of tsr_plan_class */
    tsr_vec tensors; /* of tsr_plan_tensor */
    const tsr_fsdp1_unit *flat_units;
    uint64_t flat_unit_count;
    const struct tsr_storage *storage; /* NULL: items are in file order */
    uint64_t ranks;
    uint64_t byte_total;
};

static inline const tsr_plan_class *tsr_plan_classes(const tsr_plan *plan)
{
    return plan->classes.items;
}
static inline const tsr_plan_tensor *tsr_plan_tensors(const tsr_plan *plan)
{
    return plan->tensors.items;
}

static inline uint64_t tsr_plan_bits(const tsr_plan_tensor *t)
{
    return tsr_dtype_describe(t->packed->dtype)->bits;
}

/* The copy that tensor `t` reads for chunk number `i` of its class. */
static inline const tsr_chunk *tsr_plan_source(const tsr_plan_tensor *t, uint64_t i)
{
    return t->sources ? t->sources[i] : &t->entry->chunks[i];
}

/* Calls `visit` for every distinct shard that has elements (with shared_only, only if it has several holders), with the rank
 * that owns it according to tsr_plan_each_write. */
typedef tsr_status tsr_visit_shard(void *ctx, uint64_t tensor, uint64_t first_holder, uint64_t owner, uint64_t elements,
                                   tsr_error *err);

#endif
