/* Finds the unit and the original parameter that a name belongs to, and the rank that has a slice
 * (tessera/sys/flat_params.h).
 *
 * Example:
 *
 *     tsr_flat_index *index;
 *     status = tsr_flat_index_new(flat, host->allocator, &index, &err);
 *     if (status == TSR_OK && tsr_flat_index_find(index, TSR_STR("fc.weight")).unit) printf("FSDP manages fc.weight\n");
 *     if (status == TSR_OK) tsr_flat_index_free(index); */
#ifndef TESSERA_SYS_FLAT_INDEX_H
#define TESSERA_SYS_FLAT_INDEX_H

#include "tessera/sys/flat_params.h"

TSR_API_BEGIN

/* Into how many slices a unit is cut on `world_size` ranks, and which of them `rank` has. A hybrid unit keeps its
 * shard_size; in another world than the document's a replica is shard_size ranks in a row. TSR_E_USAGE when that does not
 * divide the world. */
typedef struct tsr_flat_place {
    uint32_t slices, slice;
} tsr_flat_place;
tsr_status tsr_flat_place_of(const tsr_flat_params *flat, const tsr_flat_unit *unit, uint32_t world_size, uint32_t rank,
                             tsr_flat_place *out, tsr_error *err);
/* The rank that has slice `slice` of a unit, in the document's world: of the replica that `rank` is in. */
uint32_t tsr_flat_rank_with(const tsr_flat_params *flat, const tsr_flat_unit *unit, uint32_t rank, uint32_t slice);

/* Finds the unit and the original parameter of an FQN, also in nested units (`_get_fqn_to_fsdp_param_info`). */
typedef struct tsr_flat_index tsr_flat_index;
typedef struct tsr_flat_found {
    const tsr_flat_unit *unit;   /* NULL: FSDP does not manage the parameter */
    const tsr_flat_param *param; /* of a second name: the original that it is tied to */
} tsr_flat_found;
/* Borrows `flat`. TSR_E_FORMAT when two originals have one FQN, or a second name is tied to none of its unit. */
tsr_status tsr_flat_index_new(const tsr_flat_params *flat, const tsr_allocator *allocator, tsr_flat_index **out,
                              tsr_error *err);
void tsr_flat_index_free(tsr_flat_index *index); /* accepts NULL */
tsr_flat_found tsr_flat_index_find(const tsr_flat_index *index, tsr_str fqn);

TSR_API_END

#endif
