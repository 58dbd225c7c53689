/* ZeRO 0: all ranks have the same data, so there is one file, unless there are experts. Its optimizer identifies parameters
 * by number. Their names are found by order and shape, and, if the optimizer keeps float32 copies, by values. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_PLAIN_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_PLAIN_H

#include "formats/deepspeed/deepspeed_files.h"
#include "formats/deepspeed/deepspeed_rows.h"

/* An optimizer without names, and where its contents are added. */
typedef struct tsr_ds_plain {
    const tsr_ds_files *files;
    const tsr_ds_file *file; /* has "optimizer" */
    const tsr_value *module; /* the stored weights that it may train, a DICT in the order of the module; or NULL */
    const char *rank;        /* precedes the numbers of parameters without a name, or NULL */
    tsr_ds_rows *weights, *states;
} tsr_ds_plain;

/* Adds the float32 copies to `weights` (rows by name) and the states to `states` as rows (name, key), and sets *groups to the
 * param groups with names (NULL if there are none). Parameters that cannot be named keep their number, which in a pipeline
 * follows the name of their stage. If this happens to one with a float32 copy, the checkpoint is reported as unusable. Fails
 * if reading fails, or with TSR_E_NOMEM. */
tsr_status tsr_ds_plain_add(const tsr_ds_plain *from, const tsr_value **groups, tsr_error *err);

/* Sets *fits to whether the optimizer has one param group with the parameters of the module, as far as their number and shapes
 * show. Fails with TSR_E_NOMEM. */
tsr_status tsr_ds_plain_fits(const tsr_ds_plain *from, bool *fits, tsr_error *err);

/* The value under "optimizer" in the first model states, or NULL. */
const tsr_value *tsr_ds_plain_optimizer(const tsr_ds_files *files);

/* A parameter of the optimizer. */
typedef struct tsr_ds_numbered {
    const tsr_entry *shaped; /* a tensor with its shape, or NULL if the shape is unknown */
    const tsr_entry *fp32;   /* its float32 copy, or NULL */
    uint32_t candidate;      /* number of the matching candidate, or UINT32_MAX if unknown */
    bool is_expert;          /* it is in a param group of experts, and can only match a candidate that is an expert */
} tsr_ds_numbered;

typedef struct tsr_ds_candidate {
    tsr_str name;
    const tsr_entry *tensor;
    bool taken;
    bool is_expert;   /* belongs to an expert, which is known to be in a param group of experts */
    uint64_t storage; /* identifies its storage among those of all files */
} tsr_ds_candidate;

/* deepspeed_agree.c: sets `candidate` where it is UINT32_MAX, as far as shapes and values allow. Values are only read for
 * parameters with float32 copies that share their shape with others: first the beginning of each tensor, then all of it if
 * the beginnings are equal. */
tsr_status tsr_ds_match(tsr_checkpoint *checkpoint, tsr_ds_numbered *numbered, uint32_t count, tsr_ds_candidate *candidates,
                        uint32_t candidate_count, tsr_error *err);

/* deepspeed_agree.c: sets *does to whether the first values of a float32 tensor, rounded, are those of a 16-bit weight of the
 * same shape. True if they cannot be compared. */
tsr_status tsr_ds_rounds_to(tsr_checkpoint *checkpoint, const tsr_entry *fp32, const tsr_entry *stored, bool *does,
                            tsr_error *err);

#endif
