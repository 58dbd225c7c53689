/* A module tree describes a live nn.Module. Nodes have a class name and a wrapper kind. Parameters and buffers have a
 * shape, a dtype and an identity, which shows when they are shared. FSDP1 nodes may have a flat parameter.
 *
 * A program fills in plain tsr_module structs, or tsr_modules_parse makes them from a tessera.modules/1 document, and
 * passes the root to tsr_modules_new, which checks the tree and indexes its attributes. A shared module is one tsr_module
 * to which several children point.
 *
 * Example:
 *
 *     tsr_modules_document document;
 *     tsr_modules *tree;
 *     status = tsr_modules_parse(text, host, arena, &document, &err);
 *     if (status == TSR_OK) status = tsr_modules_new(document.root, host, &tree, &err);
 *     if (status == TSR_OK) printf("the root has %zu children\n", document.root->child_count);
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
    tsr_str identity;   /* tensors with equal, non-empty identities are the same tensor */
} tsr_module_tensor;

/* An original parameter of a flat parameter. `fqn` is relative to the module that the unit wraps, as in PyTorch's
 * `_fqns`. */
typedef struct tsr_flat_original {
    tsr_str fqn;
    uint32_t ndim;
    const uint64_t *shape;
} tsr_flat_original;

/* Another name of a tied original: `fqn` names the same parameter as `of`. */
typedef struct tsr_flat_shared {
    tsr_str fqn;
    tsr_str of;
} tsr_flat_shared;

typedef struct tsr_module_flat {
    const tsr_flat_original *params;
    size_t param_count;
    const tsr_flat_shared *shared;
    size_t shared_count;
    uint64_t alignment; /* in elements; 0: none */
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

/* A module's number. The root is 0; the others are numbered in the order in which a depth-first walk first reaches them. */
typedef uint32_t tsr_module_ref;
#define TSR_NO_MODULE UINT32_MAX

/* Checks the tree below `root` and indexes it. Borrows `root` and everything that it points to until free. The functions
 * below only read the result, so threads may share it. Errors: TSR_E_FORMAT for a name that is used twice in a module or
 * contains a dot, a cycle, a wrapper without its child, different tensors with the same identity, and an original that is
 * not below its unit; TSR_E_LIMIT if limits.depth or limits.entries is exceeded; TSR_E_NOMEM. Messages name the path. */
tsr_status tsr_modules_new(const tsr_module *root, const tsr_host *host, tsr_modules **out, tsr_error *err);
void tsr_modules_free(tsr_modules *modules); /* accepts NULL */

/* A list of canonical FQNs: those of one param group. */
typedef struct tsr_name_list {
    const tsr_str *names;
    size_t count;
} tsr_name_list;
/* The names of each group's parameters. Parameters are numbered consecutively over the groups. */
typedef struct tsr_group_names {
    const tsr_name_list *groups;
    size_t count;
} tsr_group_names;
/* The contents of a tessera.modules/1 document. `groups` is optional: one list per param group, which `tessera optim
 * unflatten` follows. NULL if the document has none. */
typedef struct tsr_modules_document {
    const tsr_module *root;
    const tsr_name_list *groups;
    size_t group_count;
} tsr_modules_document;

/* Reads a document. The result lives in `arena` and does not borrow `text`. A node {"same_as": PATH} stands for the module
 * at PATH (dotted, from the root), which is then shared. Errors: TSR_E_FORMAT with the place in the document, or with the
 * byte position for invalid JSON; TSR_E_LIMIT; TSR_E_NOMEM. (core/documents) */
tsr_status tsr_modules_parse(tsr_str text, const tsr_host *host, tsr_arena *arena, tsr_modules_document *out,
                             tsr_error *err);

TSR_API_END

#endif
