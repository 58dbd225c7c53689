/* The modules and parameters of a module tree, in the orders in which PyTorch names them.
 *
 * Example:
 *
 *     const tsr_param *param;
 *     tsr_params *params;
 *     status = tsr_params_new(modules, host, &params, &err);
 *     if (status == TSR_OK) {
 *         for (size_t i = 0; i < tsr_params_count(params); i++) {
 *             param = tsr_params_at(params, i);
 *             printf("%.*s\n", TSR_STR_ARG(param->fqns[0]));
 *         }
 *         tsr_params_free(params);
 *     } */
#ifndef TESSERA_SYS_PARAMS_H
#define TESSERA_SYS_PARAMS_H

#include "tessera/fqn.h"

TSR_API_BEGIN

/* `model.named_parameters()`: the order in which an optimizer given model.parameters() numbers them. A module comes
 * before its children; a shared parameter comes once, under its first name. As tsr_fqn_iterate otherwise. */
tsr_status tsr_fqn_named_parameters(const tsr_modules *modules, const tsr_host *host, tsr_arena *arena, tsr_state_item **out,
                                    size_t *count, tsr_error *err);

/* The keys of `model.state_dict()` with hooks of FSDP aside, in its order: a module before its children, and a shared module or
 * tensor under each of its names, as a strict load_state_dict wants them. As tsr_fqn_iterate otherwise; TSR_E_LIMIT where
 * modules inside of shared modules have more than 64 names each, and 65,536 together. */
tsr_status tsr_fqn_state_keys(const tsr_modules *modules, const tsr_host *host, tsr_arena *arena, tsr_state_item **out,
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
typedef struct tsr_module_refs {
    const tsr_module_ref *refs;
    size_t count;
} tsr_module_refs;
tsr_status tsr_fqn_submodule_prefixes(const tsr_modules *modules, tsr_module_refs submodules, const tsr_host *host,
                                      tsr_arena *arena, tsr_name_list *out, tsr_error *err);

/* A tensor and its names. */
typedef struct tsr_param {
    const tsr_module_tensor *tensor;
    tsr_state_kind kind; /* parameter or buffer */
    const tsr_str *fqns; /* every canonical name, in order of appearance */
    size_t fqn_count;
    bool shared; /* met under more than one raw name */
} tsr_param;

/* Iterates the state and resolves every name. Borrows `modules` and `host` until free. Errors: those of tsr_fqn_resolve;
 * TSR_E_NOMEM. Read-only afterwards and thread-safe. */
tsr_status tsr_params_new(const tsr_modules *modules, const tsr_host *host, tsr_params **out, tsr_error *err);
void tsr_params_free(tsr_params *params); /* accepts NULL */
/* As tsr_params_new, of a list that the caller made; copies names, borrows tensors. TSR_E_NOMEM. */
tsr_status tsr_params_listed(const tsr_param *list, size_t count, const tsr_host *host, tsr_params **out, tsr_error *err);
/* In order of first appearance. */
size_t tsr_params_count(const tsr_params *params);
const tsr_param *tsr_params_at(const tsr_params *params, size_t index);
/* By canonical FQN: index, or SIZE_MAX. When two tensors have one FQN the later one answers, as in PyTorch. */
size_t tsr_params_find(const tsr_params *params, tsr_str fqn);

TSR_API_END

#endif
