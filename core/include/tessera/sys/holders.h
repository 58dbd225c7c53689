/* The ranks that hold a tensor under a target (tessera/target.h).
 *
 * Example:
 *
 *     tsr_target target;
 *     status = tsr_target_parse(TSR_STR("dp=4"), TSR_STR("shard(0)"), arena, &target, &err);
 *     tsr_holders holders;
 *     if (status == TSR_OK) status = tsr_target_holders(&target, entry, &holders, &err);
 *     if (status == TSR_OK && tsr_holders_have(&holders, 3)) printf("rank 3 holds a part\n"); */
#ifndef TESSERA_SYS_HOLDERS_H
#define TESSERA_SYS_HOLDERS_H

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

TSR_API_END

#endif
