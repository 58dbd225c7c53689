/* The state of an optimizer by the names of its parameters, and flat. */
#ifndef TESSERA_SYS_OPTIM_H
#define TESSERA_SYS_OPTIM_H

#include "tessera/catalog.h"
#include "tessera/host.h"
#include "tessera/optim.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/flat_params.h"
#include "tessera/value.h"

TSR_API_BEGIN

/* Builds value trees from growing lists and dicts, and takes an optimizer's state dict apart.
 *
 * Example:
 *
 *     tsr_optim_parts parts;
 *     status = tsr_optim_take_apart(state, true, &parts, &err);
 *     if (status == TSR_OK) printf("%zu param groups\n", parts.groups->count); */

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
/* Whether a key of a param group is "params". */
bool tsr_is_params(const tsr_value *key);
/* Whether two keys are equal strings, or equal ints. */
bool tsr_key_equal(const tsr_value *a, const tsr_value *b);

/* The other forms of optimizer state, and the ways back (tessera/optim.h, which has the conventions and errors).
 *
 * Example:
 *
 *     const tsr_value *flat, *nested;
 *     const tsr_unflatten how = {0};
 *     status = tsr_optim_flatten(state, host, arena, &flat, &err);
 *     if (status == TSR_OK) status = tsr_optim_unflatten(flat, &how, host, arena, &nested, &err); */

/* Nested → flat, as `_flatten_optim_state_dict` does. Native state is accepted too: its ids are written in decimal. Dicts
 * in a parameter's state are flattened at all depths; any other value there must be a tensor, an int or a float. Values of
 * groups are not flattened, and repeated for each parameter. Two different values under the same flat name are an error. */
tsr_status tsr_optim_flatten(const tsr_value *nested, const tsr_host *host, tsr_arena *arena, const tsr_value **out,
                             tsr_error *err);

/* Information from the optimizer for unflattening flat state. Every field is optional. */
typedef struct tsr_unflatten {
    /* The FQNs that exist, and which of them require gradients: those get a state even if it is empty. NULL: FQNs are taken
     * from the param_groups keys, whose last component is the option's name. */
    const tsr_params *params;
    /* The FQNs of each group; all parameters of a group must have the same options. NULL: parameters with the same options
     * form a group, in order of first appearance. */
    const tsr_name_list *groups;
    size_t group_count;
    /* Compares the values of two tensors of the same dtype and shape. It is needed because options may be tensors, of which
     * each parameter has its own. NULL: tensors are equal only if they are the same bytes of the same file. */
    tsr_status (*same)(void *ctx, const tsr_entry *a, const tsr_entry *b, bool *equal, tsr_error *err);
    void *ctx;
    /* Called for each parameter that has state although it does not require gradients; its state is kept. NULL: such state is
     * left out, as PyTorch does. */
    tsr_status (*frozen)(void *ctx, tsr_str fqn, tsr_error *err);
} tsr_unflatten;
/* Flat → nested, as `_unflatten_optim_state_dict` does with a live optimizer. Errors: also those of `same`. */
tsr_status tsr_optim_unflatten(const tsr_value *flat, const tsr_unflatten *how, const tsr_host *host, tsr_arena *arena,
                               const tsr_value **out, tsr_error *err);

/* Nested → native: parameters are numbered consecutively over the groups, as in `Optimizer.state_dict()`. */
tsr_status tsr_optim_to_id(const tsr_value *nested, const tsr_host *host, tsr_arena *arena, const tsr_value **out,
                           tsr_error *err);

/* Which state each parameter of a checkpoint's optimizers has: what is missing, and for which parameter, before a job
 * resumes with it. Forms: nested by FQN (torch.distributed.checkpoint.state_dict), flattened by FQN (its
 * flatten_optimizer_state_dict), keyed by parameter id (torch.optim.Optimizer.state_dict). Pure.
 *
 * Example:
 *
 *     tsr_optim_states *optimizers;
 *     uint32_t count;
 *     status = tsr_optim_states_of(catalog, host->allocator, arena, &optimizers, &count, &err);
 *     for (uint32_t i = 0; status == TSR_OK && i < count; i++)
 *         printf("%.*s: %u parameters\n", TSR_STR_ARG(optimizers[i].optimizer), (unsigned)optimizers[i].row_count); */

typedef struct tsr_param_states {
    tsr_str parameter;              /* FQN, or the id in decimal */
    const tsr_entry *entry;         /* its values; NULL when no entry has this name */
    bool in_group;                  /* a param group lists it */
    const tsr_entry *const *states; /* one per name of the optimizer; NULL: the parameter has none of this name */
    uint32_t state_count;           /* that the parameter has */
} tsr_param_states;

typedef struct tsr_optim_states {
    tsr_str optimizer;    /* its name in the checkpoint: "optim"; empty when the root is the optimizer */
    const tsr_str *names; /* "exp_avg", …, in order of appearance */
    uint32_t name_count;
    const tsr_param_states *rows; /* in order of the groups, then of appearance */
    uint32_t row_count;
} tsr_optim_states;

/* The optimizers of a catalog in order of appearance; what has no param groups is none. Results live in `arena` and borrow
 * the catalog. O(entries + parameters × names). Errors: TSR_E_NOMEM, TSR_E_LIMIT. */
tsr_status tsr_optim_states_of(const tsr_catalog *catalog, const tsr_allocator *allocator, tsr_arena *arena,
                               tsr_optim_states **out, uint32_t *count, tsr_error *err);

/* Finds the unit and the original parameter that a name belongs to, and the rank that has a slice
 * (tessera/sys/flat_params.h).
 *
 * Example:
 *
 *     tsr_flat_index *index;
 *     status = tsr_flat_index_new(flat, host->allocator, &index, &err);
 *     if (status == TSR_OK && tsr_flat_index_find(index, TSR_STR("fc.weight")).unit) printf("FSDP manages fc.weight\n");
 *     if (status == TSR_OK) tsr_flat_index_free(index); */

/* Into how many slices a unit is cut on `world_size` ranks, and which of them `rank` has. A hybrid unit keeps its
 * shard_size; in another world than the document's a replica is shard_size ranks in a row. TSR_E_USAGE when that does not
 * divide the world. */
typedef struct tsr_flat_place {
    uint32_t slices, slice;
} tsr_flat_place;
tsr_status tsr_flat_place_of(const tsr_flat_params *flat, const tsr_flat_unit *unit, uint32_t world_size, uint32_t rank,
                             tsr_flat_place *out, tsr_error *err);

/* Finds the unit and the original parameter of an FQN, also in nested units (`_get_fqn_to_fsdp_param_info`). */
typedef struct tsr_flat_index tsr_flat_index;
typedef struct tsr_flat_found {
    const tsr_flat_unit *unit;   /* NULL: FSDP does not manage the parameter */
    const tsr_flat_param *param; /* of a second name: the original that it is tied to */
} tsr_flat_found;
/* Borrows `flat`. TSR_E_FORMAT when two originals have one FQN, or a second name is tied to none of its unit. */
tsr_status tsr_flat_index_new(const tsr_flat_params *flat, const tsr_allocator *allocator, tsr_flat_index **out,
                              tsr_error *err);
void tsr_flat_index_free(tsr_flat_index *index); /* accepts NULL */
tsr_flat_found tsr_flat_index_find(const tsr_flat_index *index, tsr_str fqn);

/* Look-ups shared by both directions of the flat-parameter conversions.
 *
 * Example:
 *
 *     tsr_flat_keys keys = {0};
 *     status = tsr_flat_keys_open(flat, host, arena, &keys, &err);
 *     if (status == TSR_OK) printf("%u parameters\n", (unsigned)keys.count);
 *     tsr_flat_keys_close(&keys); */

/* A parameter of the optimizer, identified by one id. */
typedef struct tsr_flat_key {
    tsr_str raw;               /* name in the document's param_groups */
    tsr_str fqn;               /* the canonical name if it is not a flat parameter */
    const tsr_flat_unit *unit; /* NULL if it is not managed by FSDP */
    uint32_t param;            /* index in the unit; TSR_NO_PARAM for the flat parameter itself */
} tsr_flat_key;

/* All ids, and maps from names to ids (`_get_param_key_to_param` and its inverse). */
typedef struct tsr_flat_keys {
    tsr_flat_key *keys; /* indexed by id */
    uint32_t count;
    tsr_map *by_raw; /* raw name → id */
    tsr_map *by_fqn; /* FQN → id; all originals of a flat parameter map to its id */
} tsr_flat_keys;

/* Allocates names in `arena`. Fails with TSR_E_FORMAT if a name refers to two ids. */
tsr_status tsr_flat_keys_open(const tsr_flat_params *flat, const tsr_host *host, tsr_arena *arena, tsr_flat_keys *out,
                              tsr_error *err);
void tsr_flat_keys_close(tsr_flat_keys *keys); /* accepts a zeroed one */

/* Removes the components that FSDP and activation checkpointing add to a name, like PyTorch's clean_tensor_name. Allocates
 * in `arena`. */
tsr_status tsr_flat_clean_name(tsr_str raw, tsr_arena *arena, tsr_str *out, tsr_error *err);

/* One entry of a parameter's state. */
typedef struct tsr_named {
    tsr_str name;
    const tsr_value *key, *value;
} tsr_named;

#define TSR_MAX_STATES 4096u /* names in one parameter's state */

typedef enum tsr_state_form { TSR_FORM_TENSOR, TSR_FORM_SCALAR_TENSOR, TSR_FORM_OTHER } tsr_state_form;
/* Whether a value is a tensor with dimensions, a 0-d tensor, or anything else. */
tsr_state_form tsr_form_of(const tsr_value *value);

/* The id for a key of a state dict: an int below `count`, or the raw name if the optimizer saves names. UINT32_MAX for any
 * other key. */
uint32_t tsr_flat_keys_find(const tsr_flat_keys *keys, const tsr_value *key);

/* Functions that `tessera optim` needs in addition to the conversions of tessera/sys/flat_params.h.
 *
 * Example:
 *
 *     const tsr_fsdp_context context = {.host = host, .arena = arena};
 *     tsr_name_list names;
 *     status = tsr_fsdp_differences(flat, &state, 0, &context, &names, &err);
 *     if (status == TSR_OK) printf("%zu names differ\n", names.count); */

/* What tsr_fsdp_unshard gives `rank` and some other rank differently, by name ("expert.weight.exp_avg",
 * "param_groups[0].lr", a key of no parameter): one full state cannot hold both. In the order of `rank`'s state, then of the
 * others'; each name once. Names live in the context's arena. Errors: as tsr_fsdp_unshard; those of `same`. */
tsr_status tsr_fsdp_differences(const tsr_flat_params *flat, const tsr_value *const *ranks, uint32_t rank,
                                const tsr_fsdp_context *context, tsr_name_list *out, tsr_error *err);

/* A flat state dict of "state.FQN.NAME" keys without param_groups, as safetensors hold it → the nested full state that
 * tsr_fsdp_shard takes, without param_groups. FQNs are those of the description's param groups. Errors: TSR_E_FORMAT for any
 * other key. */
tsr_status tsr_fsdp_nest_state(const tsr_flat_params *params, const tsr_value *flat, const tsr_host *host, tsr_arena *arena,
                               const tsr_value **out, tsr_error *err);

TSR_API_END

#endif
