/* What the files hold next to weights and states: the part `engine`, and the rest of the part `optim`. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_ENGINE_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_ENGINE_H

#include "formats/deepspeed/deepspeed_files.h"

/* The DICT of the attributes of an object of a class of DeepSpeed; NULL for any other value. */
const tsr_value *tsr_ds_attributes(const tsr_value *value);
/* The entries of `dict` but those in `taken` (NULL-terminated), as a DICT. An object of a class of DeepSpeed becomes the
 * dictionary of its attributes, an enum its number. NULL: out of memory. */
tsr_value *tsr_ds_rest(const tsr_ds_files *files, const tsr_value *dict, const char *const *taken, tsr_error *err);
/* A DICT that begins with the pairs of another one and goes on with one more pair, unless `value` is NULL. NULL: out of memory. */
tsr_value *tsr_ds_with(tsr_arena *arena, const tsr_value *dict, tsr_str key, const tsr_value *value, tsr_error *err);

/* The entries of the model states that are not weights: a DICT, or NULL where no model states could be read. */
tsr_status tsr_ds_engine(const tsr_ds_files *files, const tsr_value **out, tsr_error *err);

#endif
