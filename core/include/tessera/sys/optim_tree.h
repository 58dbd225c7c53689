/* Builds value trees from growing lists and dicts, and takes an optimizer's state dict apart.
 *
 * Example:
 *
 *     tsr_optim_parts parts;
 *     status = tsr_optim_take_apart(state, true, &parts, &err);
 *     if (status == TSR_OK) printf("%zu param groups\n", parts.groups->count); */
#ifndef TESSERA_SYS_OPTIM_TREE_H
#define TESSERA_SYS_OPTIM_TREE_H

#include "tessera/host.h"
#include "tessera/sys/vec.h"
#include "tessera/value.h"

TSR_API_BEGIN

/* A list or dict that is being built. The items are allocated by the host's allocator, and moved into the arena when it is
 * finished. */
typedef struct tsr_tree {
    const tsr_host *host;
    tsr_arena *arena;
    tsr_vec items; /* const tsr_value *; keys and values alternate in a dict */
} tsr_tree;

/* An empty tree. */
static inline tsr_tree tsr_tree_on(const tsr_host *host, tsr_arena *arena)
{
    tsr_tree tree;
    tree.host = host;
    tree.arena = arena;
    tree.items = tsr_vec_of(host->allocator, sizeof(const tsr_value *));
    return tree;
}
void tsr_tree_drop(tsr_tree *tree); /* frees what was not finished; accepts a finished one */

/* Adds an item to a list; TSR_E_NOMEM if it is NULL. */
tsr_status tsr_tree_add(tsr_tree *tree, const tsr_value *item, tsr_error *err);
/* Adds a pair to a dict. Borrows `key`, which must be new; this is not checked. */
tsr_status tsr_tree_put(tsr_tree *tree, tsr_str key, const tsr_value *value, tsr_error *err);
tsr_status tsr_tree_put_key(tsr_tree *tree, const tsr_value *key, const tsr_value *value, tsr_error *err);
/* Returns the value, and leaves an empty tree. */
tsr_status tsr_tree_finish(tsr_tree *tree, tsr_value_kind kind, const tsr_value **out, tsr_error *err);

/* {"state": state, "param_groups": groups}, or without the latter if `groups` is NULL. */
tsr_status tsr_tree_optim(const tsr_value *state, const tsr_value *groups, tsr_arena *arena, const tsr_value **out,
                          tsr_error *err);

/* The two parts of an optimizer's state dict. param_groups may only be missing if `groups` is false. Fails with
 * TSR_E_FORMAT, saying which part is missing, or which group has no list "params". */
typedef struct tsr_optim_parts {
    const tsr_value *state;  /* DICT: key → the DICT of a parameter, or user-defined state */
    const tsr_value *groups; /* LIST of DICTs, or NULL */
} tsr_optim_parts;
tsr_status tsr_optim_take_apart(const tsr_value *optim, bool groups, tsr_optim_parts *out, tsr_error *err);
const tsr_value *tsr_group_params(const tsr_value *group);
/* A copy of a group with different "params"; everything else stays in place. Allocated in `arena`. */
tsr_status tsr_group_with_params(const tsr_value *group, const tsr_value *params, tsr_arena *arena, const tsr_value **out,
                                 tsr_error *err);
/* Fails with TSR_E_FORMAT unless a parameter's state is a dict. */
tsr_status tsr_check_state(const tsr_value *key, const tsr_value *state, tsr_error *err);

/* The name of a value's type in messages: "str", "int", … */
const char *tsr_value_kind_name(const tsr_value *value);
/* A value, or a shape, formatted for messages: "0.5", "'text'", "a float32 tensor [3, 2]", "[3, 2]". Allocated in `arena`;
 * "?" if out of memory. */
tsr_str tsr_value_brief(const tsr_value *value, tsr_arena *arena);
tsr_str tsr_shape_brief(uint32_t ndim, const uint64_t *shape, tsr_arena *arena);
/* A key as text: a string itself, an int in decimal, True, False, or None. For any other key, the text is NULL and the
 * status TSR_E_UNSUPPORTED. */
tsr_status tsr_key_text(const tsr_value *key, tsr_arena *arena, tsr_str *out, tsr_error *err);
bool tsr_is_key(const tsr_value *key, const char *text);
/* Whether two tensors consist of the same bytes of one file. */
bool tsr_same_bytes(const struct tsr_entry *a, const struct tsr_entry *b);
/* Whether two values are equal, as far as this is known without reading: tensors must consist of the same bytes. */
bool tsr_same_value(const tsr_value *a, const tsr_value *b);
/* Whether two keys are equal strings, or equal ints. */
bool tsr_key_equal(const tsr_value *a, const tsr_value *b);

TSR_API_END

#endif
