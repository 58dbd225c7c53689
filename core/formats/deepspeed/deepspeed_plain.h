/* ZeRO 0: every rank has the same, so one file holds all of it. Its optimizer knows parameters by number: their names are found
 * by their place, their shape and, where the optimizer keeps float32 copies, by their values. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_PLAIN_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_PLAIN_H

#include "formats/deepspeed/deepspeed_files.h"
#include "formats/deepspeed/deepspeed_rows.h"

/* Adds float32 copies to `weights` (rows by name), states as rows (name, key), and gives the parameter groups with names (NULL in
 * *groups where there are none). Parameters that cannot be named keep their number, behind the name of their stage in a pipeline; where a float32 copy has none, the checkpoint is reported as not
 * usable. Errors: those of reading; TSR_E_NOMEM. */
tsr_status tsr_ds_plain_add(const tsr_ds_files *files, const tsr_ds_column *column, tsr_ds_rows *weights, tsr_ds_rows *states,
                            const tsr_value **groups, tsr_error *err);

/* What the first model states have under "optimizer", or NULL. */
const tsr_value *tsr_ds_plain_optimizer(const tsr_ds_files *files);

/* A parameter of the optimizer, and a weight that may be its own. */
typedef struct tsr_ds_numbered {
    const tsr_entry *shaped; /* a tensor of its shape, or NULL: it is not known */
    const tsr_entry *fp32;   /* its float32 copy, or NULL */
    uint32_t candidate;      /* which candidate it is; UINT32_MAX: not known */
} tsr_ds_numbered;

typedef struct tsr_ds_candidate {
    tsr_str name;
    const tsr_entry *tensor;
    bool taken;
} tsr_ds_candidate;

/* deepspeed_match.c: fills `candidate` of those that have none, as far as shapes and values decide. Reads values only of
 * parameters with float32 copies that share their shape with others: the head of each tensor, all of it where heads are equal. */
tsr_status tsr_ds_match(tsr_checkpoint *checkpoint, tsr_ds_numbered *numbered, uint32_t count, tsr_ds_candidate *candidates,
                        uint32_t candidate_count, tsr_error *err);

/* deepspeed_match.c. Whether the values are one run of bytes in a file. */
bool tsr_ds_is_plain(const tsr_entry *tensor);
/* The bits of a float32 value as one of 16 bits, BFLOAT16 or FLOAT16: to nearest, ties to even, as PyTorch. */
uint16_t tsr_ds_round(uint32_t bits, tsr_dtype to);

#endif
