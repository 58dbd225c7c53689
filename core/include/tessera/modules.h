/* A module tree describes a live nn.Module. Nodes carry a class name and a wrapper kind; parameters and buffers carry shape,
 * dtype and identity (for sharing); FSDP1 nodes may carry their flat parameter.
 *
 * A program fills in plain tsr_module structs (or tsr_modules_parse does from a tessera.modules/1 document) and
 * hands the root to tsr_modules_new, which checks the tree and indexes its attributes. A module may appear under several
 * names (a shared module): then several children point to one tsr_module.
 *
 * Example:
 *
 *     tsr_modules_document document;
 *     tsr_modules *tree;
 *     status = tsr_modules_parse(text, host, arena, &document, &err);
 *     if (status == TSR_OK) status = tsr_modules_new(document.root, host, &tree, &err);
 *     if (status == TSR_OK) printf("%u dims\n", (unsigned)tsr_modules_find(tree, "fc.weight")->ndim);
 *     if (status == TSR_OK) tsr_modules_free(tree); */
#ifndef TESSERA_MODULES_H
#define TESSERA_MODULES_H

#include "tessera/dtype.h"
#include "tessera/host.h"

TSR_API_BEGIN

typedef enum tsr_wrapper {
    TSR_WRAPPER_NONE = 0,
    TSR_WRAPPER_DDP,       /* torch.nn.parallel.DistributedDataParallel; child "module" */
    TSR_WRAPPER_FSDP1,     /* FullyShardedDataParallel; child "_fsdp_wrapped_module" */
    TSR_WRAPPER_COMPILED,  /* torch.compile's OptimizedModule; child "_orig_mod" */
    TSR_WRAPPER_CHECKPOINT /* CheckpointWrapper, OffloadWrapper; child "_checkpoint_wrapped_module" */
} tsr_wrapper;

/* A parameter or buffer. */
typedef struct tsr_module_tensor {
    tsr_str name;
    tsr_dtype dtype; /* TSR_DTYPE_NONE: not given */
    uint32_t ndim;
    const uint64_t *shape;
    bool requires_grad; /* parameters */
    bool persistent;    /* buffers */
    tsr_str identity;   /* equal and not empty: the same tensor */
} tsr_module_tensor;

/* An original parameter of a flat parameter. `fqn` is relative to what the unit wraps, as PyTorch's `_fqns`. */
typedef struct tsr_flat_original {
    tsr_str fqn;
    uint32_t ndim;
    const uint64_t *shape;
} tsr_flat_original;

/* A second name of a tied original: `fqn` is the same parameter as `of`. */
typedef struct tsr_flat_shared {
    tsr_str fqn;
    tsr_str of;
} tsr_flat_shared;

typedef struct tsr_module_flat {
    const tsr_flat_original *params;
    size_t param_count;
    const tsr_flat_shared *shared;
    size_t shared_count;
    uint64_t alignment; /* numel; 0: none */
    bool use_orig_params;
} tsr_module_flat;

typedef struct tsr_module tsr_module;

typedef struct tsr_module_child {
    tsr_str name;
    const tsr_module *module;
} tsr_module_child;

/* One entry of `_fqn_modifiers()`: state dict keys contain `name` in place of the attribute `child`. */
typedef struct tsr_module_modifier {
    tsr_str name;
    tsr_str child;
} tsr_module_modifier;

struct tsr_module {
    tsr_str class_name;
    tsr_wrapper wrapper;
    bool extra_state; /* defines get_extra_state */
    const tsr_module_tensor *parameters;
    size_t parameter_count;
    const tsr_module_tensor *buffers;
    size_t buffer_count;
    const tsr_module_child *children;
    size_t child_count;
    const tsr_module_modifier *modifiers;
    size_t modifier_count;
    const tsr_module_flat *flat_param; /* FSDP1 nodes that have one, otherwise NULL */
};

typedef struct tsr_modules tsr_modules;

/* A module's number: 0 is the root; others in the order a depth-first walk first meets them. */
typedef uint32_t tsr_module_ref;
#define TSR_NO_MODULE UINT32_MAX

/* Checks the tree below `root` and indexes it. Borrows `root` and all it points to until free. Errors: TSR_E_FORMAT for a
 * name used twice in a module or holding a dot, a cycle, a wrapper without its child, equal identities of
 * unequal tensors, an original that is not below its unit; TSR_E_LIMIT beyond limits.depth or limits.entries;
 * TSR_E_NOMEM. Messages name the path. Everything below is read-only afterwards and thread-safe. */
tsr_status tsr_modules_new(const tsr_module *root, const tsr_host *host, tsr_modules **out, tsr_error *err);
void tsr_modules_free(tsr_modules *modules); /* accepts NULL */

/* The parameter or buffer with a name, "fc.weight": with wrappers' components or, where none has that name, as state dicts
 * have it (canonical). NULL if there is none, or if it is an original that exists only inside a flat parameter. */
const tsr_module_tensor *tsr_modules_find(const tsr_modules *modules, const char *name);
/* The module with a name, "layers.0", in the same way; the root's is "". Of a wrapped module the outermost wrapper: of an
 * FSDP1 unit the unit. TSR_NO_MODULE: there is none. */
tsr_module_ref tsr_modules_find_module(const tsr_modules *modules, const char *name);

/* What a tessera.modules/1 document holds. `groups` are the optional lists of canonical FQNs, one per param group, that
 * `tessera optim unflatten` follows; NULL when the document has none. */
typedef struct tsr_name_list {
    const tsr_str *names;
    size_t count;
} tsr_name_list;
/* The parameters of each group by name; numbers count through the groups. */
typedef struct tsr_group_names {
    const tsr_name_list *groups;
    size_t count;
} tsr_group_names;
typedef struct tsr_modules_document {
    const tsr_module *root;
    const tsr_name_list *groups;
    size_t group_count;
} tsr_modules_document;

/* Reads a document; everything lives in `arena`, nothing borrows `text`. A node {"same_as": PATH} is the module at PATH
 * (dotted, from the root): a shared module. Errors: TSR_E_FORMAT with the place in the document, or the byte for broken JSON;
 * TSR_E_LIMIT; TSR_E_NOMEM. (core/documents) */
tsr_status tsr_modules_parse(tsr_str text, const tsr_host *host, tsr_arena *arena, tsr_modules_document *out,
                             tsr_error *err);

TSR_API_END

#endif
