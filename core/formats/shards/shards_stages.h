/* Pipeline stages number their layers from 0: what a layer is called in the whole model. */
#ifndef TSR_FORMATS_SHARDS_SHARDS_STAGES_H
#define TSR_FORMATS_SHARDS_SHARDS_STAGES_H

#include "tessera/shards.h"

typedef struct tsr_shards_stages {
    tsr_str head, tail;     /* GLOBs around the number of a layer; empty head and tail: names are global */
    const uint64_t *first;  /* the number of the first layer of each stage */
    const uint64_t *layers; /* how many each has */
    uint32_t count;
} tsr_shards_stages;

/* Splits a pattern as "**.layers.{layer}.{rest...}", which tsr_shards_stages_wrong accepts. In `arena`. */
tsr_status tsr_shards_stages_of(tsr_str pattern, tsr_arena *arena, tsr_shards_stages *out, tsr_error *err);
/* The first layer of each stage, from `layers`, which the stages have already. In `arena`. */
tsr_status tsr_shards_stages_number(tsr_shards_stages *stages, tsr_arena *arena, tsr_error *err);
/* Where in a name the number of its layer is; false: it is in no layer. */
bool tsr_shards_layer_of(const tsr_shards_stages *stages, tsr_str name, tsr_str *digits, uint64_t *layer);
/* Gives an entry the name, and the path, that it has in the whole model. TSR_E_FORMAT for a layer that its stage does not
 * have. */
tsr_status tsr_shards_rename(const tsr_shards_stages *stages, uint32_t stage, tsr_arena *arena, tsr_entry *entry,
                             tsr_error *err);

#endif
