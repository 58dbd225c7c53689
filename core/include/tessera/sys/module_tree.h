/* The attributes of an indexed module tree (tessera/modules.h), as PyTorch's getattr finds them.
 *
 * Example:
 *
 *     const tsr_attribute *weight = tsr_modules_attribute(modules, 0, TSR_STR("weight"));
 *     if (weight && weight->kind == TSR_ATTRIBUTE_PARAMETER) printf("the root has a weight\n"); */
#ifndef TESSERA_SYS_MODULE_TREE_H
#define TESSERA_SYS_MODULE_TREE_H

#include "tessera/modules.h"
#include "tessera/sys/json.h"

TSR_API_BEGIN

/* As documents have it: "none", "ddp", "fsdp1", "compiled", "checkpoint". */
const char *tsr_wrapper_name(tsr_wrapper wrapper);
/* The name a wrapper gives what it wraps; empty for TSR_WRAPPER_NONE. */
tsr_str tsr_wrapper_child(tsr_wrapper wrapper);

typedef enum tsr_attribute_kind {
    TSR_ATTRIBUTE_MODULE,
    TSR_ATTRIBUTE_PARAMETER,
    TSR_ATTRIBUTE_BUFFER,
    TSR_ATTRIBUTE_ORIGINAL /* of a flat parameter: the module keeps it as a plain attribute */
} tsr_attribute_kind;

typedef struct tsr_attribute {
    tsr_str name;
    tsr_attribute_kind kind;
    tsr_module_ref module;           /* MODULE */
    const tsr_module_tensor *tensor; /* PARAMETER, BUFFER */
    uint32_t tensor_id;              /* PARAMETER, BUFFER: equal for one tensor under several names; below tensor_count */
} tsr_attribute;

/* Python's getattr(module, name), as far as the tree contains it: the module's own attribute, or otherwise, for FSDP1,
 * compiled and checkpoint wrappers, the wrapped module's. NULL: no such attribute. O(log attributes) per level. */
const tsr_attribute *tsr_modules_attribute(const tsr_modules *modules, tsr_module_ref module, tsr_str name);

/* Distinct parameters and buffers. */
uint32_t tsr_modules_tensor_count(const tsr_modules *modules);

/* The number of modules, and the module that `ref` (< count) names, as the caller gave it; the caller still owns it. */
uint32_t tsr_modules_count(const tsr_modules *modules);
const tsr_module *tsr_modules_at(const tsr_modules *modules, tsr_module_ref ref);

/* Writes the document of a tree, which tsr_modules_parse reads back as the same tree. The tree need not be checked: a module
 * that is met again, in a cycle too, becomes a same_as. Errors: TSR_E_LIMIT for a tree of more than 28 levels; those of
 * `write`; TSR_E_NOMEM. (core/documents) */
tsr_status tsr_modules_write(const tsr_modules_document *document, const tsr_allocator *allocator, tsr_write_fn *write,
                             void *ctx, tsr_error *err);

/* Finds a parameter or buffer by a name such as "fc.weight". The name is looked up with the components of wrappers in it
 * first, and then as a canonical one, as in state dicts. The result is part of the tree. Returns NULL if there is none, or if
 * it is an original that exists only inside a flat parameter. */
const tsr_module_tensor *tsr_modules_find(const tsr_modules *modules, const char *name);
/* Finds a module by a name such as "layers.0" in the same way; the root's name is "". For a wrapped module this is the
 * outermost wrapper, such as the FSDP1 unit. Returns TSR_NO_MODULE if there is none. */
tsr_module_ref tsr_modules_find_module(const tsr_modules *modules, const char *name);

TSR_API_END

#endif
