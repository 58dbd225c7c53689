/* Splits the optimizer's states into those of single parameters, and collects everything else in the optimizer files. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_STATES_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_STATES_H

#include "formats/deepspeed/deepspeed_weights.h"

/* Adds the states of every weight as rows (name, key). Tensors as long as the float32 buffers are split like them, and a
 * number that applies to a group is added for each of its parameters. Other tensors are added to `odd` as rows (group, key),
 * with what each rank holds. */
tsr_status tsr_ds_states_add(const tsr_ds_weights *weights, tsr_ds_rows *states, tsr_ds_rows *odd, tsr_error *err);

/* Sets *out to the list of param groups, whose `params` are names; NULL if the files have none. */
tsr_status tsr_ds_param_groups(const tsr_ds_weights *weights, const tsr_value **out, tsr_error *err);

/* The same for a list of groups whose `params` are numbers of segments. */
tsr_status tsr_ds_name_groups(const tsr_ds_weights *weights, const tsr_value *groups, const tsr_value **out, tsr_error *err);

/* Adds the parameters of another column's groups, `more`, to those of *groups, or sets *groups to `more` if it is NULL. The
 * stages of a pipeline have the same groups, with different parameters. `more` may be NULL. */
tsr_status tsr_ds_join_groups(const tsr_ds_files *files, const tsr_value **groups, const tsr_value *more, tsr_error *err);

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
