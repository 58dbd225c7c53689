/* Canonical fully qualified names: what a raw parameter name becomes once the wrappers' components are gone.
 *
 * With a module tree (modules.h) the answer is PyTorch's: each component is judged by the class of its parent. Without a tree
 * only the text is available, which cannot always distinguish a wrapper from a user's attribute; tsr_name.ambiguity then says
 * so.
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
    const tsr_str *fqns; /* one, or several if the name is a flat parameter's */
    size_t fqn_count;
    const tsr_removed *removed; /* in the order of the name */
    size_t removed_count;
    const tsr_module_flat *flat; /* the FQNs are its originals, in its order; NULL: not a flat parameter */
    tsr_str ambiguity;           /* tsr_fqn_from_text: what else the name could mean (static text); empty: nothing */
} tsr_name;

/* Canonical names of a checkpoint's keys by text alone. `_fsdp_wrapped_module` and `_checkpoint_wrapped_module` are
 * always removed. `module` (DDP) and `_orig_mod` (torch.compile) are removed where they are their parent's only child in all
 * keys, as a wrapper's child is. The last component always stays. `names` (one per raw name) is filled by the call; everything in it lives in
 * `arena` or borrows `raws`. Time is linear in the text. Errors: TSR_E_NOMEM. Thread rule: one arena, one thread. */
tsr_status tsr_fqn_from_text(const tsr_str *raws, size_t count, const tsr_allocator *allocator, tsr_arena *arena,
                             tsr_name *names, tsr_error *err);

/* PyTorch's `_get_fqns(model, raw)` (torch 2.13, distributed/checkpoint/state_dict.py), with what was removed and why. A
 * name without a dot is returned unchecked, as there. Errors: TSR_E_NOT_FOUND for a component that its parent does not
 * have, TSR_E_FORMAT for a wrapper's component in a wrong place; both name the component and the path up to it.
 * `keep_ddp` and `keep_compiler` are PyTorch's skip_ddp_prefix=False and skip_compiler_prefix=False. What `out` holds lives in
 * `arena`, except that `raw` borrows the argument and `flat` the modules. */
typedef struct tsr_fqn_options {
    size_t size; /* TSR_OPTIONS sets it */
    bool keep_ddp;
    bool keep_compiler;
} tsr_fqn_options;
tsr_status tsr_fqn_resolve(const tsr_modules *modules, tsr_str raw, const tsr_fqn_options *options, tsr_arena *arena,
                           tsr_name *out, tsr_error *err);

/* One item of a model's state, as PyTorch's `_iterate_valid_model_state` yields it. */
typedef enum tsr_state_kind { TSR_STATE_PARAMETER, TSR_STATE_BUFFER, TSR_STATE_EXTRA } tsr_state_kind;
typedef struct tsr_state_item {
    tsr_str raw;
    tsr_state_kind kind;
    const tsr_module_tensor *tensor; /* NULL: extra state */
    uint32_t tensor_id;              /* equal for one tensor under several names */
} tsr_state_item;

/* All of a model's state in PyTorch's order: children first (a shared module once), then persistent buffers, parameters,
 * extra state; a module lists each tensor once. The originals of a flat parameter are not listed, but its
 * `_flat_param` is. Results live in `arena`; `tensor` borrows the modules. Errors: TSR_E_NOMEM. */
tsr_status tsr_fqn_iterate(const tsr_modules *modules, const tsr_host *host, tsr_arena *arena, tsr_state_item **out,
                           size_t *count, tsr_error *err);

/* FQNs and the tensors they name: PyTorch's fqn_param_mapping and shared_params_mapping (`_verify_options`). Made by tsr_params_new
 * (tessera/sys/names.h). */
typedef struct tsr_params tsr_params;

TSR_API_END

#endif
