/* Quantizes weights, as a scheme of a mapped checkpoint. */
#ifndef TSR_MAPPING_MAPPING_QUANTIZE_H
#define TSR_MAPPING_MAPPING_QUANTIZE_H

#include <stdatomic.h>

#include "mapping/mapped.h"

/* The rows and the columns that share a scale, and the number of bands whose maxima are remembered. */
enum { TSR_TILE = 128, TSR_BAND_SLOTS = 64 };

typedef struct tsr_quantized_weight tsr_quantized_weight;

/* The largest magnitudes in one band, which is the 128 rows of one row of tiles. They are remembered because several threads
 * compute the rows of a band in several runs. `busy` protects the other members; no thread waits for it. */
typedef struct tsr_band_slot {
    atomic_flag busy;
    const tsr_quantized_weight *weight;
    uint64_t band;
    float *maxima;
} tsr_band_slot;

/* What all weights of a checkpoint share. */
typedef struct tsr_quantizing {
    tsr_checkpoint *source;
    tsr_dtype dtype;     /* to which weights are cast first; TSR_DTYPE_NONE: they are not */
    uint64_t most_tiles; /* in a row of the widest weight */
    tsr_band_slot slots[TSR_BAND_SLOTS];
} tsr_quantizing;

struct tsr_quantized_weight {
    tsr_quantizing *shared;
    const tsr_entry *entry; /* in the source; two dims */
    uint64_t rows, columns;
    uint64_t tiles; /* in a row */
};

/* mapping_quantize_tiles.c: compute the numbers and the scales of a weight (tsr_computed.compute); `ctx` is a
 * tsr_quantized_weight. TSR_E_UNSUPPORTED, naming the weight and the element, if it contains NaN or infinity. */
tsr_status tsr_quantize_numbers(const void *ctx, uint64_t first, size_t count, uint8_t *out, tsr_cast_losses *losses,
                                tsr_error *err);
tsr_status tsr_quantize_scales(const void *ctx, uint64_t first, size_t count, uint8_t *out, tsr_cast_losses *losses,
                               tsr_error *err);

#endif
