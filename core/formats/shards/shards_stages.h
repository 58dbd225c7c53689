/* Names of layers in the whole model. Each pipeline stage numbers its own layers from 0. */
#ifndef TSR_FORMATS_SHARDS_SHARDS_STAGES_H
#define TSR_FORMATS_SHARDS_SHARDS_STAGES_H

#include "tessera/shards.h"

typedef struct tsr_shards_stages {
    tsr_str head, tail;     /* GLOBs before and after the number of a layer; empty if names are already those of the whole
                             * model */
    const uint64_t *first;  /* per stage: number of its first layer */
    const uint64_t *layers; /* per stage: how many layers it has */
    uint32_t count;
} tsr_shards_stages;

/* Splits a pattern such as "**.layers.{layer}.{rest...}", which must have passed tsr_shards_stages_wrong. Allocates in
 * `arena`. */
tsr_status tsr_shards_stages_of(tsr_str pattern, tsr_arena *arena, tsr_shards_stages *out, tsr_error *err);
/* Sets the first layer of each stage by adding up `layers`, which must be set. Allocates in `arena`. */
tsr_status tsr_shards_stages_number(tsr_shards_stages *stages, tsr_arena *arena, tsr_error *err);

#endif
