/* The inverse of joining: what a rank holds of a whole tensor. */
#ifndef TSR_FORMATS_SHARDS_SHARDS_CUT_H
#define TSR_FORMATS_SHARDS_SHARDS_CUT_H

#include "formats/shards/shards_stages.h"
#include "tessera/mesh.h"

/* The rule of a document for a name; NULL: none, so that every rank holds the whole tensor. */
const tsr_shards_rule *tsr_shards_rule_of(const tsr_shards *map, tsr_str fqn);
/* One of the ranks of tensor parallelism. */
typedef struct tsr_tensor_rank {
    uint32_t rank, ranks;
} tsr_tensor_rank;

/* Whether the rank holds any of a tensor by a rule (or NULL): ONLY_RANK leaves it to one rank. TSR_E_USAGE where there is no such
 * rank. */
tsr_status tsr_shards_holds(const tsr_shards_rule *rule, const tsr_entry *entry, tsr_tensor_rank of, bool *holds,
                            tsr_error *err);
/* What a rank that holds some of the tensor holds of it, in `arena`. By STACK the shard has size 1 along `dim`, a dim that the
 * rank's tensor does not have. TSR_E_USAGE where the tensor cannot be cut evenly, with its name. */
tsr_status tsr_shards_cut(const tsr_shards_rule *rule, const tsr_entry *entry, tsr_tensor_rank of, tsr_arena *arena,
                          tsr_shard *out, tsr_error *err);
/* Along which dim STACK stacks. */
uint32_t tsr_shards_dim(const tsr_shards_rule *rule, uint32_t ndim);

/* Gives an entry the name and the path that it has in pipeline stage `stage`; *holds is false for a layer of another one. Names
 * that are in no layer are in every stage. TSR_E_USAGE for a layer that is in none. */
tsr_status tsr_shards_rename_back(const tsr_shards_stages *stages, uint32_t stage, tsr_arena *arena, tsr_entry *entry, bool *holds,
                                  tsr_error *err);

#endif
