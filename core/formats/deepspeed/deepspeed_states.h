/* Splits the optimizer's states into those of single parameters, and collects everything else in the optimizer files. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_STATES_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_STATES_H

#include "formats/deepspeed/deepspeed_weights.h"

/* The same for a list of groups whose `params` are numbers of segments. */
tsr_status tsr_ds_name_groups(const tsr_ds_weights *weights, const tsr_value *groups, const tsr_value **out, tsr_error *err);

/* The contents of the part `optim`. */
typedef struct tsr_ds_optim_contents {
    tsr_ds_rows *states;
    tsr_ds_rows *odd;        /* or NULL */
    const tsr_value *groups; /* or NULL */
    const tsr_value *rest;   /* a DICT, or NULL: out of memory */
} tsr_ds_optim_contents;

/* Makes the part `optim`: {state: {name: {key: …}}, param_groups: […], …}, like PyTorch's optimizer state dicts with
 * names. */
tsr_status tsr_ds_optim(const tsr_ds_files *files, const tsr_ds_optim_contents *contents, const tsr_value **out,
                        tsr_error *err);

#endif
