/* Making entries and values, and walking them. */
#ifndef TESSERA_SYS_CATALOG_H
#define TESSERA_SYS_CATALOG_H

#include "tessera/catalog.h"
#include "tessera/dtype.h"
#include "tessera/host.h"
#include "tessera/modules.h"
#include "tessera/sys/json.h"
#include "tessera/torch_version.h"
#include "tessera/value.h"

TSR_API_BEGIN

/* Small questions about entries, their names, views and selections, which readers and writers ask everywhere.
 *
 * Example:
 *
 *     for (uint64_t c = 0; c < entry->chunk_count; c++)
 *         if (!entry->chunks[c].view || tsr_view_is_plain(entry->chunks[c].view)) puts("contiguous"); */

/* Whether the elements are stored contiguously in row-major order. */
TSR_INLINE bool tsr_view_is_plain(const tsr_view *view)
{
    return !view->strides && !view->conj && !view->neg && !view->swap && !view->zstd;
}

/* Whether `entry` is one of the catalog's own, as opposed to one that was derived from others. */
static inline bool tsr_catalog_has(const tsr_catalog *catalog, const tsr_entry *entry)
{
    return ((uintptr_t)entry - (uintptr_t)catalog->entries) / sizeof *entry < catalog->entry_count;
}

/* Whether the job includes the entry with this name. */
TSR_INLINE bool tsr_selection_keeps(const tsr_selection *selection, tsr_str fqn)
{
    return !selection->keeps || selection->keeps(selection->ctx, fqn);
}

/* The part of a name after its last dot, such as "weight" of "layers.0.weight"; all of it if it has no dot. */
TSR_INLINE tsr_str tsr_last_component(tsr_str name)
{
    size_t at = name.size;
    while (at && name.data[at - 1] != '.') at--;
    return at ? tsr_str_after(name, at) : name;
}

/* Whether two shapes have the same number of dimensions and the same sizes. */
bool tsr_shape_equal(uint32_t a_ndim, const uint64_t *a, uint32_t b_ndim, const uint64_t *b);

/* Whether two entries list the same shape; their dtypes may differ. */
bool tsr_entry_same_shape(const tsr_entry *a, const tsr_entry *b);

/* A tensor subclass that wraps other tensors (torchao's, say) is an OBJECT of its class with a DICT of parts: its state, and
 * under this name the arguments of torch._utils._rebuild_wrapper_subclass. */
#define TSR_WRAPPER_PART "wrapper"
/* Whether an entry is such a tensor, whole or sharded, whose value was read. */
bool tsr_entry_is_subclass(const tsr_entry *entry);

/* A path item as it is in a name: its key, or its number in decimal, which is written to `digits`. */
enum { TSR_PATH_DIGITS = 24 };
tsr_str tsr_path_item_text(const tsr_path_item *item, char digits[TSR_PATH_DIGITS]);
/* The length of that text. */
size_t tsr_path_item_size(const tsr_path_item *item);

/* The first key or position on the way to `entry` that is of another type than that of `other`, although they read the same, such
 * as 0 and "0"; NULL if there is none, or where one of the paths is unknown or of another length. */
const tsr_path_item *tsr_path_other_type(const tsr_entry *entry, const tsr_entry *other);
/* A path item as Python prints it: 'a', 0, or [0] for a position in a list. Returns `out`. */
const char *tsr_path_item_repr(const tsr_path_item *item, char *out, size_t capacity);

const char *tsr_entry_kind_name(tsr_entry_kind kind); /* as documents have it: "tensor", "object", "opaque" */

/* Element types as containers name them, the bytes of many elements, and the two ways of counting float4.
 *
 * Example:
 *
 *     tsr_dtype dtype = TSR_FLOAT4_E2M1FN;
 *     uint64_t columns = 8;
 *     if (tsr_dtype_pack(&dtype, &columns)) printf("%llu pairs\n", (unsigned long long)columns); */

/* TSR_DTYPE_NONE for an unknown name: "F32", and "FloatStorage". */
tsr_dtype tsr_dtype_from_safetensors(tsr_str name);
tsr_dtype tsr_dtype_from_storage_class(tsr_str name);

/* Finds the dtype that a person means: any name of tsr_dtype_from_name, safetensors' names, and the short names that the field
 * uses ("bf16", "fp32", "half"), in any case. For options and maps only: the names in checkpoints are exact. */
tsr_dtype tsr_dtype_from_text(tsr_str text);

/* Between the two ways of counting float4: F4 with an even last dimension becomes pairs with half of it, and back. Other
 * dtypes are left alone (true). false: the last dimension is odd or overflows; nothing was changed. */
bool tsr_dtype_pack(tsr_dtype *dtype, uint64_t *last_size);
bool tsr_dtype_unpack(tsr_dtype *dtype, uint64_t *last_size);

/* Bytes of `elements` elements; false when it overflows or is not whole bytes. */
bool tsr_dtype_bytes(tsr_dtype dtype, uint64_t elements, uint64_t *bytes);

/* Whether the version has the dtype. True for version 0. */
bool tsr_torch_version_has(tsr_torch_version version, tsr_dtype dtype);

/* The attributes of an indexed module tree (tessera/modules.h), as PyTorch's getattr finds them.
 *
 * Example:
 *
 *     const tsr_attribute *weight = tsr_modules_attribute(modules, 0, TSR_STR("weight"));
 *     if (weight && weight->kind == TSR_ATTRIBUTE_PARAMETER) printf("the root has a weight\n"); */

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

/* Builds a nested value from flat entries with paths: the inverse of flattening a state dict.
 *
 * Example:
 *
 *     const tsr_path_item path[] = {{.kind = TSR_PATH_KEY, .key = TSR_STR("model")}, {.kind = TSR_PATH_KEY, .key = TSR_STR("step")}};
 *     const tsr_leaf leaf = {.path = path, .path_length = 2, .value = state, .name = TSR_STR("model.step")};
 *     const tsr_value *tree;
 *     status = tsr_nest(&leaf, 1, host, arena, &tree, &err); */

typedef struct tsr_leaf {
    const tsr_path_item *path;
    uint32_t path_length; /* 0: the leaf is the whole tree, and must be the only leaf */
    const tsr_value *value;
    tsr_str name; /* for messages */
    bool mapping; /* `value` describes the dict at this path, which is created if `value` is empty; otherwise only its
                   * leaves create it */
} tsr_leaf;

/* Dicts keep the order in which their keys first appear, and int keys stay ints. List positions without a leaf become
 * None. The tree is allocated in `arena`. Fails with TSR_E_USAGE if one leaf's path leads through another leaf, or if a
 * container would be both a list and a dict; with TSR_E_LIMIT if the missing positions of lists take more than
 * limits.expansion bytes. */
tsr_status tsr_nest(const tsr_leaf *leaves, size_t count, const tsr_host *host, tsr_arena *arena, const tsr_value **out,
                    tsr_error *err);

/* The path of an entry under a new name: those items of the old path that the new name still has are kept, and the rest
 * becomes a single key. If the name did not change, the path is unchanged; an entry without a path gets the name as its only
 * key. */
tsr_status tsr_renamed_path(const tsr_entry *entry, tsr_str name, tsr_arena *arena, const tsr_path_item **path,
                            uint32_t *path_length, tsr_error *err);

/* Value trees below what their constructors show: whether two are equal, whether JSON can hold one, attributes, and values
 * that the caller fills in.
 *
 * Example:
 *
 *     tsr_json json;
 *     tsr_json_start(&json, write_to_stdout, stdout, 0, &err);
 *     if (tsr_value_is_json(state, 60, 1000)) tsr_json_value(&json, state);
 *     status = tsr_json_finish(&json); */

/* How two trees compare; TSR_TOO_LARGE: they are too large to compare. */
typedef enum tsr_match { TSR_SAME = 0, TSR_DIFFERENT = 1, TSR_TOO_LARGE = 2 } tsr_match;
/* Deep equality. NaN equals NaN; 1 and 1.0, 0.0 and -0.0 differ; the order of dicts (with unique keys) and sets does not
 * count, nor does dict against OrderedDict. Tensors inside are compared by dtype and shape only: their bytes are the
 * caller's. Large containers of a file are compared once each, however often they are met. TSR_TOO_LARGE beyond
 * `depth` containers (at most 256) or `nodes` visits. */
tsr_match tsr_value_match(const tsr_value *a, const tsr_value *b, uint32_t depth, uint64_t nodes);
/* The same, and `tensor` is called for the two tensors of every place (shared ones each time); false from it ends the walk
 * with TSR_DIFFERENT. */
typedef bool (*tsr_value_tensors)(void *ctx, const struct tsr_entry *a, const struct tsr_entry *b);
tsr_match tsr_value_match_tensors(const tsr_value *a, const tsr_value *b, uint32_t depth, uint64_t nodes,
                                  tsr_value_tensors tensor, void *ctx);

/* Whether JSON can hold the value exactly (finite numbers, integers of at most 64 bytes, strings of valid Unicode, lists,
 * string-keyed dicts). False for TSR_VALUE_ENDLESS, and beyond `depth` containers (63 are the emitter's limit, those
 * already open included) or `nodes` visits. */
bool tsr_value_is_json(const tsr_value *value, uint32_t depth, uint64_t nodes);
/* A value that tsr_value_is_json accepts, as JSON. */
void tsr_json_value(tsr_json *json, const tsr_value *value);

/* The attributes of a DICT; NULL for those without and for other kinds. */
static inline const tsr_value *tsr_value_attributes(const tsr_value *value)
{
    return value->kind == TSR_VALUE_DICT ? value->as.attributes : NULL;
}

/* A new value of `kind`; the caller fills in the rest. NULL: no memory. */
tsr_value *tsr_value_new(tsr_arena *arena, tsr_value_kind kind, tsr_error *err);

/* A value with `count` items of `kind`; as the other constructors (tessera/value.h). `items` are borrowed. */
tsr_value *tsr_value_items(tsr_arena *arena, tsr_value_kind kind, const tsr_value *const *items, size_t count,
                           tsr_error *err);
/* A tensor's leaf; as the other constructors (tessera/value.h). */
tsr_value *tsr_value_tensor(tsr_arena *arena, const struct tsr_entry *entry, tsr_error *err); /* `entry` is borrowed */

/* A value as one line of Python-like text, at most `capacity` - 1 bytes plus NUL; what does not fit ends in "…". Depth and
 * work are bounded by the capacity. Returns `out`. */
const char *tsr_value_text(const tsr_value *value, char *out, size_t capacity);

TSR_API_END

#endif
