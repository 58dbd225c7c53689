/* Quantizing as a scheme of a mapped checkpoint. */
#ifndef TSR_MAPPING_MAPPING_QUANTIZE_H
#define TSR_MAPPING_MAPPING_QUANTIZE_H

#include <stdatomic.h>

#include "mapping/mapped.h"

enum { TSR_TILE = 128, TSR_BAND_SLOTS = 64 }; /* rows and columns that share one scale; bands whose maxima are remembered */

typedef struct tsr_quantized_weight tsr_quantized_weight;

/* The largest magnitudes of one band (the 128 rows of a row of tiles), remembered because the rows of a band are computed in several
 * runs, by several threads. `busy` guards the rest; nobody waits for it. */
typedef struct tsr_band_slot {
    atomic_flag busy;
    const tsr_quantized_weight *weight;
    uint64_t band;
    float *maxima;
} tsr_band_slot;

/* What all weights of a checkpoint share. */
typedef struct tsr_quantizing {
    tsr_checkpoint *source;
    tsr_dtype dtype; /* to which a weight is cast first; TSR_DTYPE_NONE: it is not */
    uint64_t most_tiles; /* across the widest weight */
    tsr_band_slot slots[TSR_BAND_SLOTS];
} tsr_quantizing;

struct tsr_quantized_weight {
    tsr_quantizing *shared;
    const tsr_entry *entry; /* of the source; two dims */
    uint64_t rows, columns;
    uint64_t tiles; /* across */
};

/* mapping_quantize_tiles.c: computations for tsr_computed.compute, over a tsr_quantized_weight: the numbers, and their scales.
 * TSR_E_UNSUPPORTED naming the weight and the tile where it has NaN or infinity. */
tsr_status tsr_quantize_numbers(const void *ctx, uint64_t first, size_t count, uint8_t *out, tsr_error *err);
tsr_status tsr_quantize_scales(const void *ctx, uint64_t first, size_t count, uint8_t *out, tsr_error *err);

#endif
