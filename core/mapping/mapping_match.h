/* Binds entries of the source to the rules that take them. */
#ifndef TSR_MAPPING_MAPPING_MATCH_H
#define TSR_MAPPING_MAPPING_MATCH_H

#include "mapping/mapped.h"
#include "tessera/checkpoint.h"
#include "tessera/sys/containers.h"

/* An entry that matches a pattern. The matches of one rule with the same key make up one binding. */
typedef struct tsr_name_match {
    const tsr_entry *entry;
    const tsr_str *values;
    tsr_str key;    /* the values of all captures except the folded one */
    uint64_t index; /* the value of the folded one */
    uint64_t order;
    uint32_t rule, pattern;
    /* In an inverse: another name that the entry may come from. Its data is NULL if there is none. */
    tsr_str other;
} tsr_name_match;

/* The tensors of one binding that a pattern folds: a prefix such as "layers.0.experts", and the number of members. */
typedef struct tsr_family {
    tsr_str prefix;
    const tsr_name_match *first;
    uint32_t pattern;
    uint64_t members;
} tsr_family;

typedef struct tsr_matcher {
    tsr_mapped *m;
    tsr_arena *arena;
    tsr_vec matches;    /* of tsr_name_match */
    tsr_vec unmatched;  /* of const tsr_entry * */
    tsr_vec families;   /* of tsr_family */
    tsr_map *members;   /* rule, pattern and prefix → 1 + index in `families` */
    bool layers_differ; /* so that the rules of an inverse which say "alike" are not used */
    tsr_error *err;
} tsr_matcher;

/* Returns TSR_E_FORMAT, naming what the binding of `of` lacks: member `index` of its pattern number `pattern`. */
tsr_status tsr_match_lacks(const tsr_matcher *s, const tsr_name_match *of, uint32_t pattern, uint64_t index);
/* mapping_complete.c: remembers the families of a binding. */
tsr_status tsr_family_add(tsr_matcher *s, const tsr_name_match *first, uint64_t members);
/* mapping_complete.c: checks, after all rules are bound, that nothing is missing: that families with the same prefix have equally many
 * members, that the experts and layers of the source agree with each other and with config.json, that every layer has what the "layers"
 * of the rules state, and that no layer between others is missing. TSR_E_FORMAT, naming the tensor, the layer or the counts. */
tsr_status tsr_complete_check(tsr_matcher *s);
/* mapping_complete.c: checks that the source has what the "required" of the rules states. TSR_E_FORMAT, naming what it lacks. */
tsr_status tsr_required_check(tsr_matcher *s);
/* mapping_steps.c: checks, after all rules are bound, that tensors have the shapes that the rules state. TSR_E_FORMAT,
 * naming the tensors, their shapes and the dim. */
tsr_status tsr_shapes_check(const tsr_mapped *m, tsr_error *err);

/* Which tensors are stored numbers, and which are the scales that give them their meaning: one table of the names that
 * quantization libraries use. */

/* Dtypes that the numbers may have: of 8 bits or fewer, also integers of more bits, or any. */
typedef enum tsr_companion_dtypes { TSR_IN_BYTES, TSR_IN_INTEGERS, TSR_IN_ANY } tsr_companion_dtypes;

/* The name of a scale is that of its numbers, with the ending `data` replaced by `scale`. */
typedef struct tsr_companion {
    const char *data, *scale;
    tsr_companion_dtypes dtypes;
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
