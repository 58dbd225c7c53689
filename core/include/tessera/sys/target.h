/* Targets (tessera/target.h) by the name of a strategy, and the ranks that hold a tensor under one.
 *
 * Example:
 *
 *     tsr_target target;
 *     status = tsr_target_parse(TSR_STR("dp=4"), TSR_STR("shard(0)"), arena, &target, &err);
 *     tsr_holders holders;
 *     if (status == TSR_OK) status = tsr_target_holders(&target, entry, &holders, &err);
 *     if (status == TSR_OK && tsr_holders_have(&holders, 3)) printf("rank 3 holds a part\n"); */
#ifndef TESSERA_SYS_TARGET_H
#define TESSERA_SYS_TARGET_H

#include "tessera/target.h"

TSR_API_BEGIN

/* Whether every rank is one, and whether `rank` is. */
static inline bool tsr_holders_are_all(const tsr_holders *holders)
{
    return !holders->ranks && !holders->at_coordinate;
}
bool tsr_holders_have(const tsr_holders *holders, uint64_t rank);

/* Which ranks hold a tensor by the rule that gives its placements. TSR_E_USAGE for a layer that is in no stage. */
tsr_status tsr_target_holders(const tsr_target *target, const tsr_entry *entry, tsr_holders *out, tsr_error *err);

/* The placements of a tensor, in the target's mesh. A rule that names a dim which the tensor does not have is TSR_E_USAGE; a
 * default that does replicates there instead: *out is then a copy in `arena` and *replicated is true. */
tsr_status tsr_target_placements(const tsr_target *target, const tsr_entry *entry, tsr_arena *arena,
                                 const tsr_placement **out, bool *replicated, tsr_error *err);

/* Makes the target that PyTorch's API of that name produces. It lives in `arena`.
 *
 *   fsdp2   mesh (dp)                 shard(0)
 *   hsdp    mesh (replicate, shard)   replicate, shard(0)
 *   ddp     mesh (dp)                 replicate
 *
 * Errors: TSR_E_USAGE if the mesh has a different number of dims. */
typedef enum tsr_strategy { TSR_STRATEGY_FSDP2, TSR_STRATEGY_HSDP, TSR_STRATEGY_DDP } tsr_strategy;
tsr_status tsr_target_strategy(tsr_strategy strategy, tsr_mesh mesh, tsr_arena *arena, tsr_target *out, tsr_error *err);

/* Makes a target for tensor parallelism, alone on a mesh (tp) or combined with FSDP2 on a mesh (dp, tp). Each rule gives a
 * style to the modules that its GLOB matches:
 *
 *   COLUMN             linear: weight and bias are split on dim 0
 *   ROW                linear: the weight is split on dim 1, the bias is whole on every tp rank
 *   EMBEDDING_ROW      embedding: the weight is split on dim 0
 *   EMBEDDING_COLUMN   embedding: the weight is split on dim 1
 *
 * All other tensors are whole on every tp rank. With FSDP2, dim 0 is a strided shard where tp splits it too.
 * Source: torch.distributed.tensor.parallel ColwiseParallel, RowwiseParallel. */
typedef enum tsr_tp_style { TSR_TP_COLUMN, TSR_TP_ROW, TSR_TP_EMBEDDING_ROW, TSR_TP_EMBEDDING_COLUMN } tsr_tp_style;
typedef struct tsr_tp_rule {
    tsr_str module; /* GLOB */
    tsr_tp_style style;
} tsr_tp_rule;
tsr_status tsr_target_tensor_parallel(tsr_mesh mesh, const tsr_tp_rule *rules, uint32_t rule_count, tsr_arena *arena,
                                      tsr_target *out, tsr_error *err);

TSR_API_END

#endif
