/* Everything in the files except weights and states: the part `engine`, and the rest of the part `optim`. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_ENGINE_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_ENGINE_H

#include "formats/deepspeed/deepspeed_files.h"

/* The DICT of attributes of an object whose class is DeepSpeed's; NULL for any other value. */
const tsr_value *tsr_ds_attributes(const tsr_value *value);
/* The entries of `dict` except those in `taken` (NULL-terminated), as a DICT. Objects of DeepSpeed's classes become DICTs of
 * their attributes, enums become their numbers. NULL if out of memory. */
tsr_value *tsr_ds_rest(const tsr_ds_files *files, const tsr_value *dict, const char *const *taken, tsr_error *err);
/* A DICT with the pairs of another one, followed by one more pair, unless `value` is NULL. NULL if out of memory. */
tsr_value *tsr_ds_with(tsr_arena *arena, const tsr_value *dict, tsr_str key, const tsr_value *value, tsr_error *err);

/* Sets *out to a DICT of the entries in the model states that are not weights, or to NULL if no model states could be
 * read. */
tsr_status tsr_ds_engine(const tsr_ds_files *files, const tsr_value **out, tsr_error *err);

#endif
