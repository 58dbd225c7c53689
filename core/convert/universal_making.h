/* Declarations shared by the files that make a universal checkpoint: universal.c (weights, states, optimizer),
 * universal_model.c (model states) and universal_values.c (growing dictionaries, and what the other two have in common). */
#ifndef TSR_CONVERT_UNIVERSAL_MAKING_H
#define TSR_CONVERT_UNIVERSAL_MAKING_H

#include "convert/universal.h"
#include "tessera/sys/map.h"
#include "tessera/sys/vec.h"

#define TSR_MODEL_PREFIX "model." /* of the names of weights */

typedef struct tsr_universal_making {
    const tsr_chosen *chosen;
    const tsr_value *root, *optim, *engine, *groups;
    tsr_arena *arena;
    tsr_str state_prefix;
    tsr_map *trained;        /* name → 1, or 2 after its weight was found */
    tsr_map *owners;         /* storage id of a trained weight → its row */
    const tsr_value *shapes; /* `param_shapes`, made if the source has none */
    const tsr_value *ties;   /* {second name: name}, in the form of `shared_params` */
    tsr_vec files;           /* tsr_universal_file */
    tsr_str tag;
    const tsr_value *step; /* that of any weight, or NULL */
    tsr_error *err;
} tsr_universal_making;

/* A DICT or LIST that grows. Running out of memory is only reported by tsr_dict_take. */
typedef struct tsr_growing_dict {
    tsr_vec items; /* of const tsr_value * */
    tsr_arena *arena;
    tsr_status status;
    tsr_error *err;
} tsr_growing_dict;

tsr_growing_dict tsr_dict_grow(const tsr_universal_making *m);
void tsr_dict_push(tsr_growing_dict *g, const tsr_value *value);
void tsr_dict_put(tsr_growing_dict *g, tsr_str key, const tsr_value *value);
/* Adds all pairs of a DICT (or of NULL) except those in `without` (NULL-terminated, or NULL). */
void tsr_dict_put_all(tsr_growing_dict *g, const tsr_value *dict, const char *const *without);
/* Returns the value, with the given kind, in the arena. Frees the memory in which it grew, even after an error. */
tsr_status tsr_dict_take(tsr_growing_dict *g, tsr_value_kind kind, const tsr_value **out);
/* The value for a key, or NULL. Also accepts NULL and values that are not a DICT. */
const tsr_value *tsr_dict_get(const tsr_value *dict, const char *key);

/* Adds a file. `format` receives the tag and two more texts, each as "%.*s". */
tsr_status tsr_universal_add(tsr_universal_making *m, const tsr_value *root, const char *format, tsr_str a, tsr_str b);
/* Finds NAME if the row is a written tensor "model.NAME"; returns false for other rows. */
bool tsr_universal_weight(const tsr_converted *row, tsr_str *name);
/* Records that a weight with this name has a directory. */
tsr_status tsr_universal_note(tsr_universal_making *m, tsr_str name);
/* DeepSpeed's version according to the source. */
const tsr_value *tsr_universal_version(const tsr_universal_making *m);
/* Adds both files of model states. */
tsr_status tsr_universal_add_model_states(tsr_universal_making *m);

#endif
