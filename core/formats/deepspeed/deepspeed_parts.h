/* Makes parts from trees: flattens each below its name, and lists the parts in the catalog. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_PARTS_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_PARTS_H

#include "formats/common/reader.h"

typedef struct tsr_ds_part {
    const char *name;
    const tsr_value *tree; /* a DICT; NULL or empty if the checkpoint does not have this part */
} tsr_ds_part;

/* Fills the catalog of the checkpoint with the entries of the parts. The storage ids of their tensors must be at most
 * `storages`. Fails like tsr_torch_flatten. */
tsr_status tsr_ds_mount(tsr_checkpoint *checkpoint, const tsr_ds_part *parts, size_t count, uint32_t storages,
                        tsr_error *err);

#endif
