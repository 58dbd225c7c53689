/* DeepSpeed's bfloat16 optimizer without ZeRO cuts float32 buffers as ZeRO 1 does, but the model states have no `param_shapes`. The
 * names, in the order of the buffers, and how much of a parameter each rank has are in the optimizer files:
 *
 *   param_slice_mappings   [{"3.weight": fragment_address(numel=30, start=70), …}, …], one dictionary per param group
 */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_SLICES_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_SLICES_H

#include "formats/deepspeed/deepspeed_files.h"

typedef struct tsr_ds_slice {
    tsr_str name;
    uint32_t group;
    uint64_t elements; /* of all ranks */
} tsr_ds_slice;

/* The parameters of a column, tsr_ds_slice in order of groups and of their buffers. Free it in any case. TSR_E_NOMEM. */
tsr_status tsr_ds_slices_open(const tsr_ds_files *files, const tsr_ds_column *column, tsr_vec *out, tsr_error *err);

#endif
