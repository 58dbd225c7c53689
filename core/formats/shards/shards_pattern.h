/* Patterns for file names that contain numbers: "mp_rank_{tp}_{pp}/model_optim_rng.pt". */
#ifndef TSR_FORMATS_SHARDS_SHARDS_PATTERN_H
#define TSR_FORMATS_SHARDS_SHARDS_PATTERN_H

#include "tessera/shards.h"

typedef enum tsr_shards_capture { TSR_CAPTURE_TP, TSR_CAPTURE_PP, TSR_CAPTURE_PART, TSR_CAPTURES } tsr_shards_capture;

/* The numbers in a name; 0 for a capture that the pattern does not have. */
typedef struct tsr_shards_numbers {
    uint32_t of[TSR_CAPTURES];
} tsr_shards_numbers;

/* The name that the pattern gives for `numbers`, each with at least `widths[capture]` digits; in `arena`. */
tsr_str tsr_shards_name(tsr_str pattern, const tsr_shards_numbers *numbers, const unsigned *widths, tsr_arena *arena,
                        tsr_error *err);

#endif
