/* Makes parts from trees: flattens each below its name, and lists the parts in the catalog. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_PARTS_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_PARTS_H

#include "formats/common/reader.h"
#include "formats/deepspeed/deepspeed_files.h"
#include "formats/deepspeed/deepspeed_weights.h"

typedef struct tsr_ds_part {
    const char *name;
    const tsr_value *tree; /* a DICT; NULL or empty if the checkpoint does not have this part */
} tsr_ds_part;

/* Fills the catalog of the checkpoint with the entries of the parts. The storage ids of their tensors must be at most
 * `storages`. Fails like tsr_torch_flatten. */
tsr_status tsr_ds_mount(tsr_checkpoint *checkpoint, const tsr_ds_part *parts, size_t count, uint32_t storages,
                        tsr_error *err);

/* Weights that several stages of a pipeline have under one name. Tied weights are equal. If a tied module also has other
 * weights, such as an embedding's positions, every stage trains its own:
 *
 *   stage 0   tied_modules.embed.weight   tied_modules.embed.positions
 *   stage 1   tied_modules.embed.weight   tied_modules.embed.positions     listed as
 * mp_rank_01.tied_modules.embed.positions */

/* Renames weights of a column if an earlier stage, whose weights are in `model`, has different values under the same name,
 * and reports this. Reads a few values of both. `trained` has the column's float32 weights. Sets *renamed if there was any
 * such weight. Does nothing if there is only one stage, and for tensor-parallel ranks. Fails if reading fails, or with
 * TSR_E_NOMEM. */
tsr_status tsr_ds_stages_rename(tsr_ds_weights *weights, const tsr_ds_rows *trained, const tsr_ds_rows *model, bool *renamed,
                                tsr_error *err);

/* Splits the optimizer's states into those of single parameters, and collects everything else in the optimizer files. */

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

/* Everything in the files except weights and states: the part `engine`, and the rest of the part `optim`. */

/* The DICT of attributes of an object whose class is DeepSpeed's; NULL for any other value. */
const tsr_value *tsr_ds_attributes(const tsr_value *value);
/* The entries of `dict` except those in `taken` (NULL-terminated), as a DICT. Objects of DeepSpeed's classes become DICTs of
 * their attributes, enums become their numbers. NULL if out of memory. */
tsr_value *tsr_ds_rest(const tsr_ds_files *files, const tsr_value *dict, const char *const *taken, tsr_error *err);

/* Sets *out to a DICT of the entries in the model states that are not weights, or to NULL if no model states could be
 * read. */
tsr_status tsr_ds_engine(const tsr_ds_files *files, const tsr_value **out, tsr_error *err);

/* Checks whether the optimizer files of ZeRO 1 and 2 belong to the model states and to the files of experts, which store the
 * same weights, rounded. */

/* Compares a few values of each optimizer file of a column with the stored weights, and reports files that are from another
 * step. Reads values only in three cases: there are experts, whose files state no step; the optimizer's step differs from
 * the number of steps in the model states (which is legitimate if the optimizer was restarted); or the optimizer does not
 * count steps, such as SGD. `trained` has the column's float32 weights. Fails if reading fails, or with TSR_E_NOMEM. */
tsr_status tsr_ds_agree(const tsr_ds_files *files, const tsr_ds_column *column, const tsr_ds_rows *trained, tsr_error *err);

/* ---- Checks whether the files of a DeepSpeed checkpoint are complete and from one save. ---- */

/* Reports, with the names of the files: ranks whose files are missing; ranks beyond the number of ranks; files that state a
 * different number of ranks; files whose step or param groups differ from those of the other ranks. Fails if reading fails,
 * or with TSR_E_NOMEM. */
tsr_status tsr_ds_check(const tsr_ds_files *files, tsr_error *err);

/* Sets *same to whether two values of different files are equal, or are 0-d tensors with equal values. True if one is NULL, or
 * if a tensor has dimensions. Fails only if reading fails. */
tsr_status tsr_ds_same_scalar(const tsr_ds_files *files, const tsr_value *a, const tsr_value *b, bool *same, tsr_error *err);

#endif
