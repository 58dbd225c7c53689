/* Flat parameters between live ranks, whose slices are in memory. `comm` has one rank for each slice.
 *
 * Example:
 *
 *     float slice[16], whole[64];
 *     if (tsr_flat_shard_numel(&flat->units[0], comm->size) <= 16 && flat->units[0].numel <= 64)
 *         status = tsr_flat_gather((tsr_ranks){comm, host->allocator}, &flat->units[0], sizeof(float), slice, whole, &err);
 */
#ifndef TESSERA_SYS_FLAT_RANKS_H
#define TESSERA_SYS_FLAT_RANKS_H

#include "tessera/sys/collectives.h"
#include "tessera/sys/flat_params.h"

TSR_API_BEGIN

/* Every rank's slice of a flat tensor (tsr_flat_shard_numel elements, padding last) → the whole one on all ranks (`full`:
 * unit->numel elements). Padding is not sent. Errors: those of the communicator, TSR_E_NOMEM. */
tsr_status tsr_flat_gather(tsr_ranks ranks, const tsr_flat_unit *unit, uint32_t itemsize, const void *slice, void *full,
                           tsr_error *err);
/* The inverse: rank 0's `full` (ignored elsewhere) → every rank's slice, padded with zeros. */
tsr_status tsr_flat_scatter(tsr_ranks ranks, const tsr_flat_unit *unit, uint32_t itemsize, const void *full, void *slice,
                            tsr_error *err);

/* One original of a unit, with the bytes of an element. */
typedef struct tsr_unit_original {
    const tsr_flat_unit *unit;
    uint32_t param; /* index in unit->params */
    uint32_t itemsize;
} tsr_unit_original;
/* Convert one original between slices of the flat tensor and rows of the original (tsr_rows_of_rank, clamped). Each rank
 * sends only the elements that another rank needs. `rows` holds the rank's rows; in `slice` only the original's elements are
 * read or written. TSR_E_UNSUPPORTED for an original without dimensions. */
tsr_status tsr_flat_to_rows(tsr_ranks ranks, const tsr_unit_original *original, const void *slice, void *rows,
                            tsr_error *err);
tsr_status tsr_rows_to_flat(tsr_ranks ranks, const tsr_unit_original *original, const void *rows, void *slice,
                            tsr_error *err);
/* All ranks' rows of a tensor with `row_count` rows → the whole on every rank. */
tsr_status tsr_rows_gather(tsr_ranks ranks, uint64_t row_count, uint64_t row_bytes, const void *rows, void *full,
                           tsr_error *err);

/* The parameters whose state is to be converted, the same on all ranks (`_map_param_key_to_optim_keys`). With `merge`
 * (use_orig_params): those of any rank, sorted. Without: rank 0's, in its order; TSR_E_FORMAT on all ranks, naming the
 * rank and the first parameter, when a rank lacks one of them. `names` are this rank's. Results live in `arena`. */
tsr_status tsr_flat_agree_on_keys(tsr_ranks ranks, tsr_name_list names, bool merge, tsr_arena *arena, tsr_name_list *out,
                                  tsr_error *err);

TSR_API_END

#endif
