/* The inverse of joining: computes what a rank holds of a whole tensor. */
#ifndef TSR_FORMATS_SHARDS_SHARDS_CUT_H
#define TSR_FORMATS_SHARDS_SHARDS_CUT_H

#include "formats/shards/shards_stages.h"
#include "tessera/mesh.h"

/* The rule of a map for a name. NULL if there is none, so that every rank holds the whole tensor. */
const tsr_shards_rule *tsr_shards_rule_of(const tsr_shards *map, tsr_str fqn);
/* A rank, and the number of ranks, of tensor parallelism. */
typedef struct tsr_tensor_rank {
    uint32_t rank, ranks;
} tsr_tensor_rank;

/* Whether the rank holds any part of a tensor according to a rule (or NULL). With ONLY_RANK, only one rank does. Fails with
 * TSR_E_USAGE if that rank does not exist. */
tsr_status tsr_shards_holds(const tsr_shards_rule *rule, const tsr_entry *entry, tsr_tensor_rank of, bool *holds,
                            tsr_error *err);
/* The shard of a rank that holds some of the tensor, in `arena`. With STACK, the shard has size 1 along `dim`, a dimension
 * that the rank's tensor does not have. Fails with TSR_E_USAGE and the tensor's name if it cannot be split evenly. */
tsr_status tsr_shards_cut(const tsr_shards_rule *rule, const tsr_entry *entry, tsr_tensor_rank of, tsr_arena *arena,
                          tsr_shard *out, tsr_error *err);
/* The dimension along which STACK stacks. */
uint32_t tsr_shards_dim(const tsr_shards_rule *rule, uint32_t ndim);

/* Renames an entry (name and path) to what it is called in pipeline stage `stage`. *holds is false if it is in a layer of
 * another stage. Names outside of layers are in every stage. Fails with TSR_E_USAGE for a layer that is in no stage. */
tsr_status tsr_shards_rename_back(const tsr_shards_stages *stages, uint32_t stage, tsr_arena *arena, tsr_entry *entry,
                                  bool *holds, tsr_error *err);

#endif
