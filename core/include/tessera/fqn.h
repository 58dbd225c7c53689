/* Canonical fully qualified names: what a raw parameter name becomes once the wrappers' components are gone.
 *
 * With a module tree (modules.h) the answer is PyTorch's: each component is judged by the class it stands under. Without
 * one only the text is left, which cannot always tell a wrapper from a user's attribute: that form says so.
 *
 * Example:
 *
 *     tsr_name name;
 *     status = tsr_fqn_resolve(modules, TSR_STR("module._orig_mod.fc.weight"), NULL, arena, &name, &err);
 *     if (status == TSR_OK) printf("%.*s\n", TSR_STR_ARG(name.fqns[0])); */
#ifndef TESSERA_FQN_H
#define TESSERA_FQN_H

#include "tessera/catalog.h"
#include "tessera/modules.h"

TSR_API_BEGIN

/* A component that a canonical name no longer has. */
typedef struct tsr_removed {
    tsr_str component;
    tsr_str why; /* static text */
} tsr_removed;

typedef struct tsr_name {
    tsr_str raw;
    const tsr_str *fqns; /* one; several where the name is a flat parameter's */
    size_t fqn_count;
    const tsr_removed *removed; /* in the order of the name */
    size_t removed_count;
    const tsr_module_flat *flat; /* of which the FQNs are the originals, in its order; NULL: no flat parameter */
    tsr_str ambiguity;           /* text form: what else the name could mean (static text); empty: nothing */
} tsr_name;

/* Names of different raw names that are one FQN. `names` are indices into the array that was searched. */
typedef struct tsr_collision {
    tsr_str fqn;
    const uint32_t *names;
    size_t count; /* ≥ 2 */
} tsr_collision;

/* Canonical names of a checkpoint's keys by text alone. `_fsdp_wrapped_module` and `_checkpoint_wrapped_module` always
 * go; `module` (DDP) and `_orig_mod` (torch.compile) go where they are their parent's only child over all keys, as a
 * wrapper's is; the last component always stays. `names` (one a raw name) is filled by the call; everything in it lives in
 * `arena` or borrows `raws`. Time is linear in the text. Errors: TSR_E_NOMEM. Thread rule: one arena, one thread. */
tsr_status tsr_fqn_from_text(const tsr_str *raws, size_t count, const tsr_allocator *allocator, tsr_arena *arena,
                             tsr_name *names, tsr_error *err);

/* The canonical names of all entries of several catalogs, each catalog's found by tsr_fqn_from_text over its own keys. A key
 * that several catalogs have gets the first catalog's answer, so that equal keys stay equal when catalogs are compared.
 * Borrows the catalogs until free. Errors: TSR_E_NOMEM. Read-only afterwards and thread-safe. */
typedef struct tsr_canonical_names tsr_canonical_names;
tsr_status tsr_canonical_names_new(const tsr_catalog *const *catalogs, size_t count, const tsr_allocator *allocator,
                                   tsr_canonical_names **out, tsr_error *err);
void tsr_canonical_names_free(tsr_canonical_names *names); /* takes NULL */
/* The canonical name of `raw`; `raw` itself where no catalog has that key. Never fails. It has the form of
 * tsr_diff_options.canonical, whose context is the tsr_canonical_names. */
tsr_status tsr_canonical_names_find(void *names, tsr_str raw, tsr_arena *arena, tsr_str *out, tsr_error *err);

/* Every FQN that more than one name has, in order of first appearance. A name that repeats its own FQN does not count,
 * nor does the same raw name twice. Results live in `arena`. Errors: TSR_E_NOMEM. */
tsr_status tsr_fqn_collisions(const tsr_name *names, size_t count, const tsr_allocator *allocator, tsr_arena *arena,
                              tsr_collision **out, size_t *out_count, tsr_error *err);

/* A name and what it should become: `to` may be equal (it stays), or its data NULL (it has no counterpart). */
typedef struct tsr_name_pair {
    tsr_str from, to;
} tsr_name_pair;

/* One rename as `convert --rename` takes it (glob.h), and how many pairs it settles that the ones before it did not. */
typedef struct tsr_rename_rule {
    tsr_str text; /* FROM=TO */
    size_t names;
} tsr_rename_rule;

/* Renames that give names their counterparts. None of them gives any name with a counterpart a wrong one, nor a name
 * without one a name that another has, so their order does not matter; pairs may be left for which none was found.
 * Linear in the names. Results live in `arena`. Errors: TSR_E_NOMEM. Thread rule: one arena, one thread. */
tsr_status tsr_fqn_rename_rules(const tsr_name_pair *pairs, size_t count, tsr_arena *arena, tsr_rename_rule **out,
                                size_t *out_count, tsr_error *err);

/* PyTorch's `_get_fqns(model, raw)` (torch 2.13, distributed/checkpoint/state_dict.py), with what was removed and why. A
 * name without a dot is returned unchecked, as there. Errors: TSR_E_NOT_FOUND for a component that its parent does not
 * have, TSR_E_FORMAT for a wrapper's component in a wrong place; both name the component and the path up to it.
 * `keep_ddp` and `keep_compiler` are PyTorch's skip_ddp_prefix=False and skip_compiler_prefix=False. */
typedef struct tsr_fqn_options {
    bool keep_ddp;
    bool keep_compiler;
} tsr_fqn_options;
tsr_status tsr_fqn_resolve(const tsr_modules *modules, tsr_str raw, const tsr_fqn_options *options, tsr_arena *arena,
                           tsr_name *out, tsr_error *err);

/* The names of several raw names; with `raws` NULL those of a model's whole state (tsr_fqn_iterate), in its order. Results
 * live in `arena` or borrow `raws`. Errors: those of tsr_fqn_resolve for the first name that is refused; TSR_E_NOMEM. */
tsr_status tsr_fqn_resolve_all(const tsr_modules *modules, const tsr_str *raws, size_t raw_count, const tsr_host *host,
                               tsr_arena *arena, tsr_name **out, size_t *count, tsr_error *err);

/* One item of a model's state, as PyTorch's `_iterate_valid_model_state` yields it. */
typedef enum tsr_state_kind { TSR_STATE_PARAMETER, TSR_STATE_BUFFER, TSR_STATE_EXTRA } tsr_state_kind;
typedef struct tsr_state_item {
    tsr_str raw;
    tsr_state_kind kind;
    const tsr_module_tensor *tensor; /* NULL: extra state */
    uint32_t tensor_id;              /* equal for one tensor under several names */
} tsr_state_item;

/* All of a model's state in PyTorch's order: children first (a shared module once), then persistent buffers, parameters,
 * extra state; within a module one tensor comes once. Originals of a flat parameter are not listed, their `_flat_param`
 * is. Results live in `arena`. Errors: TSR_E_NOMEM. */
tsr_status tsr_fqn_iterate(const tsr_modules *modules, const tsr_host *host, tsr_arena *arena, tsr_state_item **out,
                           size_t *count, tsr_error *err);

/* `model.named_parameters()`: the order in which an optimizer given model.parameters() numbers them. A module comes
 * before its children; a shared parameter comes once, under its first name. As tsr_fqn_iterate otherwise. */
tsr_status tsr_fqn_named_parameters(const tsr_modules *modules, const tsr_host *host, tsr_arena *arena, tsr_state_item **out,
                                    size_t *count, tsr_error *err);

/* `model.named_modules()`: a module comes before its children, a shared one once, under its first name; the root's is "".
 * FSDP's units (`FSDP.fsdp_modules`) are those whose wrapper is TSR_WRAPPER_FSDP1. As tsr_fqn_iterate otherwise. */
typedef struct tsr_named_module {
    tsr_str raw;
    tsr_module_ref module;
} tsr_named_module;
tsr_status tsr_fqn_named_modules(const tsr_modules *modules, const tsr_host *host, tsr_arena *arena, tsr_named_module **out,
                                 size_t *count, tsr_error *err);

/* The prefixes of the state dict keys of some submodules, "fqn." each, in the order of named_modules (`_verify_options`:
 * submodule_prefixes); that of the root is ".", as there. Errors as tsr_fqn_resolve. */
tsr_status tsr_fqn_submodule_prefixes(const tsr_modules *modules, const tsr_module_ref *submodules, size_t submodule_count,
                                      const tsr_host *host, tsr_arena *arena, tsr_str **out, size_t *count, tsr_error *err);

/* FQNs and the tensors they name: PyTorch's fqn_param_mapping and shared_params_mapping (`_verify_options`). */
typedef struct tsr_param {
    const tsr_module_tensor *tensor;
    tsr_state_kind kind; /* parameter or buffer */
    const tsr_str *fqns; /* every canonical name, in order of appearance */
    size_t fqn_count;
    bool shared; /* met under more than one raw name */
} tsr_param;

typedef struct tsr_params tsr_params;

/* Iterates the state and resolves every name. Borrows `modules` and `host` until free. Errors: those of tsr_fqn_resolve;
 * TSR_E_NOMEM. Read-only afterwards and thread-safe. */
tsr_status tsr_params_new(const tsr_modules *modules, const tsr_host *host, tsr_params **out, tsr_error *err);
/* The same of a list that the caller made; copies names, borrows tensors. TSR_E_NOMEM. */
tsr_status tsr_params_listed(const tsr_param *list, size_t count, const tsr_host *host, tsr_params **out, tsr_error *err);
void tsr_params_free(tsr_params *params); /* takes NULL */
/* In order of first appearance. */
size_t tsr_params_count(const tsr_params *params);
const tsr_param *tsr_params_at(const tsr_params *params, size_t index);
/* By canonical FQN: index, or SIZE_MAX. When two tensors have one FQN the later one answers, as in PyTorch. */
size_t tsr_params_find(const tsr_params *params, tsr_str fqn);

TSR_API_END

#endif
