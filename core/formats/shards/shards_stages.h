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
/* Finds the number of a layer in a name. Returns false if the name is not in a layer. */
bool tsr_shards_layer_of(const tsr_shards_stages *stages, tsr_str name, tsr_str *digits, uint64_t *layer);
/* Renames an entry (name and path) to what it is called in the whole model. Fails with TSR_E_FORMAT for a layer that its
 * stage does not have. */
tsr_status tsr_shards_rename(const tsr_shards_stages *stages, uint32_t stage, tsr_arena *arena, tsr_entry *entry,
                             tsr_error *err);

#endif
