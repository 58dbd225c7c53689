/* The optimizer's states as those of single parameters, and the rest of what the optimizer files hold. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_STATES_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_STATES_H

#include "formats/deepspeed/deepspeed_weights.h"

/* Adds the states of every weight as rows (name, key): tensors as long as the float32 buffers are cut like them; a number that
 * counts for a whole group counts for each of its parameters. Other tensors go to `odd` as rows (group, key), with what each
 * rank holds. */
tsr_status tsr_ds_states_add(const tsr_ds_weights *weights, tsr_ds_rows *states, tsr_ds_rows *odd, tsr_error *err);

/* The list of parameter groups, in which `params` are names; NULL in *out where the files have none. */
tsr_status tsr_ds_param_groups(const tsr_ds_weights *weights, const tsr_value **out, tsr_error *err);

/* The same for a list of groups whose `params` are numbers of segments. */
tsr_status tsr_ds_name_groups(const tsr_ds_weights *weights, const tsr_value *groups, const tsr_value **out, tsr_error *err);

/* Adds the parameters of another column's groups to those of the groups at *groups, which it sets where that is NULL: the stages of a
 * pipeline have equal groups, of different parameters. `more` may be NULL. */
tsr_status tsr_ds_join_groups(const tsr_ds_files *files, const tsr_value **groups, const tsr_value *more, tsr_error *err);

/* What the part `optim` is made of. */
typedef struct tsr_ds_optim_contents {
    tsr_ds_rows *states;
    tsr_ds_rows *odd;        /* or NULL */
    const tsr_value *groups; /* or NULL */
    const tsr_value *rest;   /* a DICT, or NULL: out of memory */
} tsr_ds_optim_contents;

/* The part `optim`: {state: {name: {key: …}}, param_groups: […], …}, as PyTorch's own optimizer state dicts with names are. */
tsr_status tsr_ds_optim(const tsr_ds_files *files, const tsr_ds_optim_contents *contents, const tsr_value **out,
                        tsr_error *err);

#endif
