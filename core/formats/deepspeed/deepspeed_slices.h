/* DeepSpeed's bfloat16 optimizer without ZeRO partitions float32 buffers like ZeRO 1, but its model states have no
 * `param_shapes`. The optimizer files have the names, in the order of the buffers, and how many elements of a parameter each
 * rank has:
 *
 *   param_slice_mappings   [{"3.weight": fragment_address(numel=30, start=70), …}, …], one dictionary per param group */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_SLICES_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_SLICES_H

#include "formats/deepspeed/deepspeed_files.h"

typedef struct tsr_ds_slice {
    tsr_str name;
    uint32_t group;
    uint64_t elements; /* on all ranks together */
} tsr_ds_slice;

/* The parameters of a column as tsr_ds_slice, sorted by group and by their order in the buffers. The vec must be freed in
 * any case. TSR_E_NOMEM. */
tsr_status tsr_ds_slices_open(const tsr_ds_files *files, const tsr_ds_column *column, tsr_vec *out, tsr_error *err);

#endif
