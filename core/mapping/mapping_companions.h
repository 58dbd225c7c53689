/* Which tensors are stored numbers, and which are the scales that give them their meaning: one table of the names that
 * quantization libraries use. */
#ifndef TSR_MAPPING_COMPANIONS_H
#define TSR_MAPPING_COMPANIONS_H

#include "tessera/checkpoint.h"
#include "tessera/sys/vec.h"

/* The name of a scale is that of its numbers, with the ending `data` replaced by `scale`. */
typedef struct tsr_companion {
    const char *data, *scale;
    bool words;      /* the numbers may be packed in integers with more than 8 bits */
    bool packed;     /* the scale is next to any integers, such as the zero points of packed numbers */
    bool multiplies; /* --dequantize multiplies float8 and int8 numbers by it */
} tsr_companion;
extern const tsr_companion tsr_companions[];
extern const size_t tsr_companion_count;

/* Finds the tensor whose name is `fqn` with the ending `from` replaced by `to`; *out is NULL if there is none. `text` is a
 * vec of bytes for the name. */
tsr_status tsr_companion_named(const tsr_checkpoint *checkpoint, tsr_str fqn, const char *from, const char *to,
                               tsr_vec *text, const tsr_entry **out, tsr_error *err);
/* Finds the scale with the name that `companion` states, of numbers that may have one; *out is NULL if there is none. */
tsr_status tsr_companion_scale(const tsr_checkpoint *checkpoint, const tsr_entry *data, const tsr_companion *companion,
                               tsr_vec *text, const tsr_entry **out, tsr_error *err);
/* Finds the numbers that have this scale; *out is NULL if there are none. */
tsr_status tsr_companion_data(const tsr_checkpoint *checkpoint, const tsr_entry *scale, const tsr_companion *companion,
                              tsr_vec *text, const tsr_entry **out, tsr_error *err);

/* mapping_arithmetic.c: whether the entry has float8 numbers that are weights by their shape or name; exponents and the marks
 * of a file are not. */
bool tsr_is_float8_weight(const tsr_entry *entry);
/* The message about one without a scale: its name, more of them, its dtype, and its name again. */
#define TSR_UNSCALED \
    "'%.*s'%s is %s without a scale that is known here (such as '%.*s_scale'), but config.json has a quantization_config, so " \
    "its numbers are not the weights themselves"

#endif
