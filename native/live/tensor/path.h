/* The current position of a walk over a nested value. It is kept on the stack, and made into a text for messages. */
#ifndef TSR_STATEDICT_PATH_H
#define TSR_STATEDICT_PATH_H

#include "tessera/host.h"
#include "tessera/sys/alloc.h"
#include "tessera/value.h"

typedef struct tsr_step tsr_step;
struct tsr_step {
    const tsr_step *up;   /* NULL: the root, which is not a step itself */
    const tsr_value *key; /* the key, in a dict; otherwise NULL */
    size_t index;         /* the position, in a list or tuple */
    uint32_t depth;
};

/* Keys joined with dots, positions in brackets: "groups[0].lr"; "" for the root. data is NULL on TSR_E_NOMEM. */
tsr_str tsr_step_text(const tsr_step *step, tsr_arena *arena, tsr_error *err);
/* TSR_E_LIMIT for more than limits.depth, or 256, steps; TSR_E_UNSUPPORTED for a key that is neither a string nor an int. */
tsr_status tsr_step_check(const tsr_step *step, const tsr_host *host, tsr_arena *arena, tsr_error *err);
/* Appends ", in 'path'" to an error. */
tsr_status tsr_step_context(const tsr_step *step, tsr_arena *arena, tsr_status status, tsr_error *err);

#define TSR_NO_PAIR SIZE_MAX
/* The first returns the number of the pair with a key, or TSR_NO_PAIR; the second its value, or NULL. Both search from pair
 * `hint` on, so that dicts in the same order need only one comparison per key. */
size_t tsr_dict_pair(const tsr_value *dict, const tsr_value *key, size_t hint);
const tsr_value *tsr_dict_find(const tsr_value *dict, const tsr_value *key, size_t hint);
bool tsr_is_list(const tsr_value *value); /* also true for a tuple */
/* The Python name of the value's type. */
const char *tsr_python_type(const tsr_value *value);

#endif
