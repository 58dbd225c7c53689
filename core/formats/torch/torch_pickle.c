/* Writes a value tree as the data.pkl of a torch.save archive.
 *
 * The walk keeps its own stack: a frame is an open container and the number of its next part. Containers go into the
 * pickle's memo when they are made (tuples, sets and sizes when they are complete), so that what is shared in the tree is
 * shared for the reader too, and lists and dicts may hold themselves. */
#include <stdlib.h>

#include "formats/pickle/pickle_verdict.h"
#include "formats/pickle/torch_names.h"
#include "formats/torch/torch_loadable.h"
#include "formats/torch/torch_writer.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

/* ---- loadable ---- */

/* What loaders may be given: which classes and calls of a value are passed on, and which loader takes them. */

/* A name with dots: the module is what comes before the last one. False when there is none. */
static bool torch_split_name(tsr_str dotted, tsr_str *module, tsr_str *name)
{
    size_t dot = dotted.size;
    while (dot > 0 && dotted.data[dot - 1] != '.') dot--;
    if (dot < 2 || dot == dotted.size) return false;
    *module = (tsr_str){dotted.data, dot - 1};
    *name = tsr_str_after(dotted, dot);
    return true;
}

/* ---- calls ---- */

/* The arguments of functools.partial: one function that is named. */
static bool is_harmless_function(const tsr_value *args)
{
    tsr_str module, name;
    if (args->kind != TSR_VALUE_TUPLE || args->count != 1 || args->items[0]->kind != TSR_VALUE_GLOBAL) return false;
    return torch_split_name(args->items[0]->text, &module, &name) && !tsr_name_is_dangerous(module, name);
}

/* Listed functions that call or return whatever their arguments name. PyTorch's own uses of getattr were read as GLOBALs. */
static bool reaches_further(const tsr_value *object)
{
    const tsr_value *args = object->count ? object->items[0] : NULL;
    const bool two = args && args->kind == TSR_VALUE_TUPLE && args->count > 1;
    const tsr_value *first = two ? args->items[0] : NULL, *second = two ? args->items[1] : NULL;
    if (tsr_str_equal(object->text, TSR_STR("builtins.getattr"))) return tsr_enum_picked(object).size == 0;
    if (tsr_str_starts(object->text, TSR_STR("torch._tensor._rebuild_from_type")))
        return !first || first->kind != TSR_VALUE_GLOBAL || !tsr_str_starts(first->text, TSR_STR("torch._utils._rebuild_"));
    if (tsr_str_equal(object->text, TSR_STR("functools.partial"))) return !args || !is_harmless_function(args);
    if (!tsr_str_equal(object->text, TSR_STR("copyreg._reconstructor"))) return false;
    return !second || second->kind != TSR_VALUE_GLOBAL || !tsr_str_equal(second->text, TSR_STR("builtins.object"));
}

static bool is_listed(tsr_str module, tsr_str name)
{
    for (size_t i = 0; i < tsr_torch_names.count; i++) {
        const tsr_pickle_name *listed = &tsr_torch_names.names[i];
        if (tsr_str_equal(module, tsr_str_from(listed->module)) && tsr_str_equal(name, tsr_str_from(listed->name)))
            return true;
    }
    return false;
}

/* Whether a loader may be asked to make the call that an OBJECT is: one of the reader's own list. */
static bool torch_may_be_called(const tsr_value *object)
{
    tsr_str module, name;
    if (!torch_split_name(object->text, &module, &name) || reaches_further(object)) return false;
    if (is_listed(module, name) || tsr_str_equal(object->text, TSR_STR(TSR_TORCH_ZONE))) return true;
    const uint32_t other = tsr_torch_names.other(module, name);
    return other == TSR_TORCH_LISTED || other == TSR_TORCH_RETURN_TYPE;
}

/* Whether a defaultdict of this factory calls nothing but a constructor of Python's own. */
static bool torch_is_plain_factory(tsr_str factory)
{
    /* clang-format off */
    static const char *const plain[] = {"", "builtins.list", "builtins.dict", "builtins.set", "builtins.int", "builtins.float",
                                        "builtins.str", "builtins.bool", "builtins.bytes", "builtins.tuple", "builtins.frozenset",
                                        "collections.OrderedDict", "collections.Counter", "collections.deque"};
    /* clang-format on */
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (tsr_str_equal(factory, tsr_str_from(plain[i]))) return true;
    return false;
}

/* ---- whole values ---- */

bool tsr_torch_is_plain(const tsr_value *value)
{
    if (value->kind == TSR_VALUE_BIGINT) return value->text.size < 256;
    if (value->variant == TSR_VARIANT_FROZENSET || value->variant == TSR_VARIANT_DEFAULTDICT) return false;
    return value->kind != TSR_VALUE_OBJECT && value->kind != TSR_VALUE_GLOBAL;
}

static bool is_layout(tsr_str name)
{
    static const char *const layouts[] = {"torch.strided",    "torch.sparse_coo", "torch.sparse_csr", "torch.sparse_csc",
                                          "torch.sparse_bsr", "torch.sparse_bsc", "torch._mkldnn",    "torch.jagged"};
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        if (tsr_str_equal(name, tsr_str_from(layouts[i]))) return true;
    return false;
}

/* A name that is a value by itself. */
static bool is_constant(tsr_str name)
{
    return is_layout(name) || tsr_str_equal(name, TSR_STR("builtins.Ellipsis")) ||
           tsr_str_equal(name, TSR_STR("__builtin__.Ellipsis"));
}

/* A class of Python, numpy or PyTorch that the reader lists. */
static bool is_known_class(tsr_str dotted)
{
    static const char *const packages[] = {
        "_io.",        "argparse.",  "array.",     "builtins.",  "collections.", "copyreg.",  "datetime.",   "decimal.",
        "exceptions.", "fractions.", "ipaddress.", "itertools.", "numpy.",       "pathlib.",  "random.",     "re.",
        "time.",       "torch.",     "types.",     "uuid.",      "UserDict.",    "UserList.", "UserString.", "zoneinfo."};
    tsr_str module, name;
    if (!torch_split_name(dotted, &module, &name)) return false;
    bool known = false;
    if (tsr_str_equal(dotted, TSR_STR(TSR_TORCH_ZONE))) return true;
    for (size_t i = 0; i < sizeof packages / sizeof *packages && !known; i++)
        known = tsr_str_starts(dotted, tsr_str_from(packages[i]));
    return known && (is_listed(module, name) || tsr_torch_names.other(module, name));
}

static bool is_data_node(const tsr_value *value)
{
    switch (value->kind) {
    case TSR_VALUE_GLOBAL: return is_constant(value->text) || is_known_class(value->text);
    case TSR_VALUE_OBJECT: return is_known_class(value->text) && (!value->called || torch_may_be_called(value));
    case TSR_VALUE_DICT: return value->variant != TSR_VARIANT_DEFAULTDICT || torch_is_plain_factory(value->text);
    default: return true;
    }
}

/* NULL if `counts` is true of the value and of everything inside it. Otherwise what it is not true of, or where the search
 * ended because there is too much to look at. */
static const tsr_value *find_other(const tsr_value *value, const tsr_host *host, bool (*counts)(const tsr_value *))
{
    tsr_vec stack = tsr_vec_of(host->allocator, sizeof(const tsr_value *));
    const tsr_value **top = tsr_vec_push(&stack, NULL), *other = top ? NULL : value;
    uint64_t budget = host->limits.expansion;
    if (top) *top = value;
    while (!other && stack.count) {
        const tsr_value *at = ((const tsr_value **)stack.items)[--stack.count];
        if (!counts(at) || at->count >= budget) other = at;
        budget -= at->count + 1;
        for (size_t i = 0; !other && i < at->count + (tsr_value_attributes(at) != NULL); i++) {
            top = tsr_vec_push(&stack, NULL);
            if (!top) other = at;
            else *top = i < at->count ? at->items[i] : tsr_value_attributes(at);
        }
    }
    tsr_vec_free(&stack);
    return other;
}

bool tsr_torch_weights_only(const tsr_value *value, const tsr_host *host)
{
    if (value->expanded) return !value->foreign; /* the reader has looked at every node once */
    return !find_other(value, host, tsr_torch_is_plain);
}

bool tsr_value_is_data(const tsr_value *value, const tsr_host *host, tsr_str *foreign)
{
    *foreign = (tsr_str){NULL, 0};
    if (value->expanded == TSR_VALUE_ENDLESS || value->loses_class) return false;
    const tsr_value *other = value->expanded && !value->foreign ? NULL : find_other(value, host, is_data_node);
    if (other && !is_data_node(other)) *foreign = other->text;
    return !other;
}

/* ---- pickle ---- */

typedef enum frame_mode { WHOLE, INLINE_LIST, INLINE_DICT } frame_mode;

typedef struct frame {
    const tsr_value *value;
    size_t next;
    frame_mode mode;
} frame;

typedef struct emitter {
    tsr_pickler pickler;
    const tsr_torch_tree *tree;
    const tsr_host *host;
    tsr_map *memo;    /* a value's address → memo number */
    tsr_arena *arena; /* the map's keys */
    tsr_vec frames;
    tsr_error *err;
} emitter;

/* ---- tensors ---- */

static int by_entry(const void *a, const void *b)
{
    const uintptr_t x = (uintptr_t)((const tsr_torch_new_tensor *)a)->entry,
                    y = (uintptr_t)((const tsr_torch_new_tensor *)b)->entry;
    return (x > y) - (x < y);
}

void tsr_torch_sort_tensors(tsr_torch_new_tensor *tensors, size_t count)
{
    qsort(tensors, count, sizeof *tensors, by_entry);
}

static const tsr_torch_new_tensor *tensor_of(const tsr_torch_tree *tree, const tsr_entry *entry)
{
    const tsr_torch_new_tensor wanted = {.entry = entry};
    return tree->tensor_count ? bsearch(&wanted, tree->tensors, tree->tensor_count, sizeof wanted, by_entry) : NULL;
}

static void put_sizes(tsr_pickler *p, const uint64_t *sizes, size_t count)
{
    if (count > 3) tsr_pickler_mark(p);
    for (size_t i = 0; i < count; i++) tsr_pickler_uint(p, sizes[i]);
    tsr_pickler_tuple(p, count);
}

/* As torch counts the strides of a contiguous tensor: an empty dim counts as one. */
static void put_strides(tsr_pickler *p, const tsr_torch_new_tensor *tensor)
{
    if (tensor->strides) {
        put_sizes(p, tensor->strides, tensor->ndim);
        return;
    }
    if (tensor->ndim > 3) tsr_pickler_mark(p);
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        uint64_t step = 1;
        for (uint32_t inner = d + 1; inner < tensor->ndim; inner++) step *= tensor->sizes[inner] ? tensor->sizes[inner] : 1;
        tsr_pickler_uint(p, step);
    }
    tsr_pickler_tuple(p, tensor->ndim);
}

static void put_ordered_dict(tsr_pickler *p)
{
    tsr_pickler_global(p, TSR_STR("collections"), TSR_STR("OrderedDict"));
    tsr_pickler_tuple(p, 0);
    tsr_pickler_reduce(p);
}

static void put_storage(emitter *e, uint32_t number, bool is_untyped)
{
    tsr_pickler *p = &e->pickler;
    const tsr_torch_new_storage *storage = &e->tree->storages[number];
    const char *const class_name = is_untyped ? NULL : tsr_dtype_describe(storage->dtype)->storage_class;
    const tsr_str key = tsr_arena_format(e->arena, e->err, "%u", (unsigned)number);
    if (!key.data) p->status = TSR_E_NOMEM;
    tsr_pickler_mark(p);
    tsr_pickler_str(p, TSR_STR("storage"));
    if (class_name) tsr_pickler_global(p, TSR_STR("torch"), tsr_str_from(class_name));
    else tsr_pickler_global(p, TSR_STR("torch.storage"), TSR_STR("UntypedStorage"));
    tsr_pickler_str(p, key);
    tsr_pickler_str(p, TSR_STR("cpu"));
    tsr_pickler_uint(p, class_name ? storage->byte_length / tsr_dtype_size(storage->dtype) : storage->byte_length);
    tsr_pickler_tuple(p, 5);
    tsr_pickler_persistent(p);
}

static void put_tensor(emitter *e, const tsr_torch_new_tensor *tensor)
{
    tsr_pickler *p = &e->pickler;
    const tsr_torch_new_storage *storage = &e->tree->storages[tensor->storage];
    const tsr_dtype_info *info = tsr_dtype_describe(storage->dtype);
    if (tensor->is_parameter) tsr_pickler_global(p, TSR_STR("torch._utils"), TSR_STR("_rebuild_parameter"));
    tsr_pickler_global(p, TSR_STR("torch._utils"),
                       info->storage_class ? TSR_STR("_rebuild_tensor_v2") : TSR_STR("_rebuild_tensor_v3"));
    tsr_pickler_mark(p);
    put_storage(e, tensor->storage, !info->storage_class);
    tsr_pickler_uint(p, tensor->storage_offset);
    put_sizes(p, tensor->sizes, tensor->ndim);
    put_strides(p, tensor);
    tsr_pickler_bool(p, tensor->requires_grad && !tensor->is_parameter);
    put_ordered_dict(p);
    if (!info->storage_class) tsr_pickler_global(p, TSR_STR("torch"), tsr_str_from(info->name));
    tsr_pickler_tuple(p, 6);
    tsr_pickler_reduce(p);
    if (!tensor->is_parameter) return;
    tsr_pickler_bool(p, tensor->requires_grad);
    put_ordered_dict(p);
    tsr_pickler_tuple(p, 3);
    tsr_pickler_reduce(p);
}

/* ---- values ---- */

/* The name of what is being written: the keys and positions that lead to it. */
static tsr_str name_here(emitter *e)
{
    tsr_str name = {"", 0};
    for (size_t i = 0; i < e->frames.count && name.data; i++) {
        const frame *f = (const frame *)e->frames.items + i;
        if (f->value->kind == TSR_VALUE_OBJECT || !f->next || f->next > f->value->count) continue; /* an attribute */
        const char *dot = name.size ? "." : "";
        const size_t at = f->next - 1;
        const tsr_value *key = f->value->kind == TSR_VALUE_DICT ? f->value->items[at / 2 * 2] : NULL;
        if (key && key->kind == TSR_VALUE_STR)
            name = tsr_arena_format(e->arena, e->err, "%.*s%s%.*s", TSR_STR_ARG(name), dot, TSR_STR_ARG(key->text));
        else
            name = tsr_arena_format(e->arena, e->err, "%.*s%s%lld", TSR_STR_ARG(name), dot,
                                    key && key->kind == TSR_VALUE_INT ? (long long)key->as.integer : (long long)at);
    }
    return name;
}

static tsr_status refuse(emitter *e, const char *what, tsr_str name)
{
    const tsr_str here = name_here(e);
    if (!here.data) return TSR_E_NOMEM;
    tsr_fail(e->err, TSR_E_UNSUPPORTED, "%s %.*s cannot be written again (pass --objects drop)", what, TSR_STR_ARG(name));
    if (here.size) tsr_error_context(e->err, "'%.*s'", TSR_STR_ARG(here));
    return TSR_E_UNSUPPORTED;
}

/* What protocol 2 writes as getattr(class, name): nested classes, and the members of enums. */
static bool is_attribute(tsr_str dotted, tsr_str module)
{
    return tsr_str_equal(dotted, TSR_STR(TSR_TORCH_GROUP_STATE)) || tsr_str_equal(dotted, TSR_STR(TSR_TORCH_ZONE)) ||
           tsr_str_ends(dotted, TSR_STR("_c10d.ReduceOp.RedOpType")) || tsr_enum_is_class(module);
}

/* Protocol 2 keeps the names that Python 2 had for two modules. */
static tsr_status put_global(emitter *e, tsr_str dotted)
{
    tsr_str module, name;
    if (!torch_split_name(dotted, &module, &name)) return refuse(e, "the class", dotted);
    if (is_attribute(dotted, module)) {
        tsr_pickler_global(&e->pickler, TSR_STR("__builtin__"), TSR_STR("getattr"));
        TSR_TRY(put_global(e, module));
        tsr_pickler_str(&e->pickler, name);
        tsr_pickler_tuple(&e->pickler, 2);
        tsr_pickler_reduce(&e->pickler);
        return TSR_OK;
    }
    if (tsr_str_equal(module, TSR_STR("builtins"))) module = TSR_STR("__builtin__");
    if (tsr_str_equal(module, TSR_STR("copyreg"))) module = TSR_STR("copy_reg");
    tsr_pickler_global(&e->pickler, module, name);
    return TSR_OK;
}

static tsr_status remember(emitter *e, const tsr_value *value)
{
    const uint32_t number = tsr_pickler_memoize(&e->pickler);
    const tsr_str key = tsr_arena_str(e->arena, (tsr_str){(const char *)&value, sizeof value}, e->err);
    return key.data ? tsr_map_put(e->memo, key, number, NULL, NULL, e->err) : TSR_E_NOMEM;
}

static tsr_status push(emitter *e, const tsr_value *value, frame_mode mode)
{
    TSR_FAIL_IF(e->frames.count >= e->host->limits.depth, e->err, TSR_E_LIMIT,
                "values are nested deeper than %u levels, or contain themselves", (unsigned)e->host->limits.depth);
    frame *f = tsr_vec_push(&e->frames, e->err);
    if (!f) return TSR_E_NOMEM;
    *f = (frame){value, 0, mode};
    return TSR_OK;
}

static void put_complex(tsr_pickler *p, double re, double im)
{
    tsr_pickler_global(p, TSR_STR("__builtin__"), TSR_STR("complex"));
    tsr_pickler_float(p, re);
    tsr_pickler_float(p, im);
    tsr_pickler_tuple(p, 2);
    tsr_pickler_reduce(p);
}

/* As torch.layout pickles itself: the weights_only loader takes no layout by its own name. */
static tsr_status put_layout(emitter *e, tsr_str name)
{
    tsr_pickler_global(&e->pickler, TSR_STR("torch.serialization"), TSR_STR("_get_layout"));
    tsr_pickler_str(&e->pickler, name);
    tsr_pickler_tuple(&e->pickler, 1);
    tsr_pickler_reduce(&e->pickler);
    return TSR_OK;
}

static void put_bytes(tsr_pickler *p, const tsr_value *value)
{
    const bool is_array = value->variant == TSR_VARIANT_BYTEARRAY;
    if (is_array) tsr_pickler_global(p, TSR_STR("__builtin__"), TSR_STR("bytearray"));
    tsr_pickler_bytes(p, value->text);
    if (!is_array) return;
    tsr_pickler_tuple(p, 1);
    tsr_pickler_reduce(p);
}

static tsr_status put_leaf(emitter *e, const tsr_value *value)
{
    tsr_pickler *p = &e->pickler;
    const tsr_torch_new_tensor *tensor;
    switch (value->kind) {
    case TSR_VALUE_NONE: tsr_pickler_none(p); break;
    case TSR_VALUE_BOOL: tsr_pickler_bool(p, value->as.boolean); break;
    case TSR_VALUE_INT: tsr_pickler_int(p, value->as.integer); break;
    case TSR_VALUE_BIGINT: tsr_pickler_bigint(p, value->text); break;
    case TSR_VALUE_FLOAT: tsr_pickler_float(p, value->as.real); break;
    case TSR_VALUE_COMPLEX: put_complex(p, value->as.complex.re, value->as.complex.im); break;
    case TSR_VALUE_STR: tsr_pickler_str(p, value->text); break;
    case TSR_VALUE_BYTES: put_bytes(p, value); break;
    case TSR_VALUE_DTYPE:
        tsr_pickler_global(p, TSR_STR("torch"), tsr_str_from(tsr_dtype_describe(value->as.dtype)->name));
        break;
    case TSR_VALUE_DEVICE:
        tsr_pickler_global(p, TSR_STR("torch"), TSR_STR("device"));
        tsr_pickler_str(p, value->text);
        tsr_pickler_tuple(p, 1);
        tsr_pickler_reduce(p);
        break;
    case TSR_VALUE_GLOBAL: return is_layout(value->text) ? put_layout(e, value->text) : put_global(e, value->text);
    case TSR_VALUE_TENSOR:
        tensor = tensor_of(e->tree, value->as.tensor);
        if (!tensor) return refuse(e, "the tensor", value->as.tensor->fqn);
        put_tensor(e, tensor);
        return remember(e, value);
    default: return refuse(e, "a value of kind", TSR_STR("unknown"));
    }
    return TSR_OK;
}

static bool is_storage(const tsr_value *value)
{
    return value->kind == TSR_VALUE_OBJECT && !value->called && value->count == 1 &&
           value->items[0]->kind == TSR_VALUE_TENSOR && tsr_str_starts(value->text, TSR_STR("torch.")) &&
           tsr_str_ends(value->text, TSR_STR("Storage"));
}

/* A storage that is itself a value: its one part is a tensor of all its elements. torch.load gives it the type of the storage's class. */
static tsr_status put_bare_storage(emitter *e, const tsr_value *value)
{
    const tsr_torch_new_tensor *tensor = tensor_of(e->tree, value->items[0]->as.tensor);
    const tsr_torch_new_storage *storage = tensor ? &e->tree->storages[tensor->storage] : NULL;
    const bool is_whole = storage && tensor->ndim == 1 && !tensor->storage_offset &&
                          tensor->entry->dtype == storage->dtype &&
                          tensor->sizes[0] * tsr_dtype_size(storage->dtype) == storage->byte_length;
    if (!is_whole) return refuse(e, "a storage of class", value->text);
    put_storage(e, tensor->storage, tsr_str_ends(value->text, TSR_STR(".UntypedStorage")));
    return remember(e, value);
}

/* The call that makes a tensor subclass, up to its last two arguments. */
static tsr_status open_subclass(emitter *e, const tsr_value *value)
{
    tsr_pickler *p = &e->pickler;
    tsr_pickler_global(p, TSR_STR("torch._tensor"), TSR_STR("_rebuild_from_type_v2"));
    tsr_pickler_mark(p);
    tsr_pickler_global(p, TSR_STR("torch._utils"), TSR_STR("_rebuild_wrapper_subclass"));
    TSR_TRY(put_global(e, value->text));
    return push(e, value, WHOLE);
}

static tsr_status open_dict(emitter *e, const tsr_value *value)
{
    tsr_pickler *p = &e->pickler;
    if (value->variant == TSR_VARIANT_DEFAULTDICT) {
        if (!torch_is_plain_factory(value->text)) return refuse(e, "a defaultdict with the factory", value->text);
        tsr_pickler_global(p, TSR_STR("collections"), TSR_STR("defaultdict"));
        if (value->text.size) TSR_TRY(put_global(e, value->text));
        tsr_pickler_tuple(p, value->text.size ? 1 : 0);
        tsr_pickler_reduce(p);
    } else if (value->variant == TSR_VARIANT_COUNTER) {
        tsr_pickler_global(p, TSR_STR("collections"), TSR_STR("Counter"));
        tsr_pickler_empty_dict(p);
        tsr_pickler_tuple(p, 1);
        tsr_pickler_reduce(p);
    } else if (value->ordered_dict) {
        put_ordered_dict(p);
    } else {
        tsr_pickler_empty_dict(p);
    }
    return TSR_OK;
}

/* Writes what precedes a container's parts. */
static tsr_status open_container(emitter *e, const tsr_value *value)
{
    tsr_pickler *p = &e->pickler;
    switch (value->kind) {
    case TSR_VALUE_LIST: tsr_pickler_empty_list(p); break;
    case TSR_VALUE_DICT: TSR_TRY(open_dict(e, value)); break;
    case TSR_VALUE_SET:
        tsr_pickler_global(p, TSR_STR("__builtin__"),
                           value->variant == TSR_VARIANT_FROZENSET ? TSR_STR("frozenset") : TSR_STR("set"));
        tsr_pickler_empty_list(p);
        break;
    case TSR_VALUE_SIZE: tsr_pickler_global(p, TSR_STR("torch"), TSR_STR("Size")); break;
    case TSR_VALUE_OBJECT:
        if (tsr_torch_is_subclass(value)) return open_subclass(e, value);
        if (value->count && value->items[0]->kind == TSR_VALUE_DICT) return refuse(e, "an object of class", value->text);
        if (value->called && !tsr_enum_value(value) && !torch_may_be_called(value))
            return refuse(e, "a call of", value->text);
        TSR_TRY(put_global(e, value->text));
        return push(e, value, WHOLE);
    default: break;
    }
    const bool by_reference = value->kind == TSR_VALUE_LIST || value->kind == TSR_VALUE_DICT;
    if (by_reference) TSR_TRY(remember(e, value));
    const bool tuple = value->kind == TSR_VALUE_TUPLE || value->kind == TSR_VALUE_SIZE;
    if (!tuple || value->count > 3) tsr_pickler_mark(p);
    return push(e, value, WHOLE);
}

/* Writes what follows a container's parts. */
static tsr_status close_container(emitter *e, const tsr_value *value)
{
    tsr_pickler *p = &e->pickler;
    switch (value->kind) {
    case TSR_VALUE_LIST: tsr_pickler_appends(p); return TSR_OK;
    case TSR_VALUE_DICT: tsr_pickler_setitems(p); return TSR_OK;
    case TSR_VALUE_SET:
        tsr_pickler_appends(p);
        tsr_pickler_tuple(p, 1);
        tsr_pickler_reduce(p);
        break;
    case TSR_VALUE_SIZE:
        tsr_pickler_tuple(p, value->count);
        tsr_pickler_tuple(p, 1);
        tsr_pickler_reduce(p);
        break;
    default: tsr_pickler_tuple(p, value->count); break;
    }
    return remember(e, value);
}

static tsr_status put_value(emitter *e, const tsr_value *value)
{
    const uint32_t known = tsr_map_get(e->memo, (tsr_str){(const char *)&value, sizeof value}, UINT32_MAX);
    if (known != UINT32_MAX) {
        tsr_pickler_get(&e->pickler, known);
        return TSR_OK;
    }
    switch (value->kind) {
    case TSR_VALUE_LIST:
    case TSR_VALUE_TUPLE:
    case TSR_VALUE_SET:
    case TSR_VALUE_DICT:
    case TSR_VALUE_SIZE:
    case TSR_VALUE_OBJECT: return is_storage(value) ? put_bare_storage(e, value) : open_container(e, value);
    default: return put_leaf(e, value);
    }
}

static const tsr_value *object_part(const tsr_value *object, size_t part)
{
    const tsr_value *value = part < object->count ? object->items[part] : NULL;
    return value && value->kind != TSR_VALUE_NONE ? value : NULL;
}

/* Writes the call that makes a tensor subclass, with its arguments and state. */
static tsr_status step_subclass(emitter *e, frame *f)
{
    const tsr_value *parts = f->value->items[0];
    switch (f->next++) {
    case 0: return put_value(e, tsr_value_get(parts, TSR_STR(TSR_WRAPPER_PART)));
    case 1: return put_value(e, tsr_value_get(parts, TSR_STR("state")));
    default:
        tsr_pickler_tuple(&e->pickler, 4);
        tsr_pickler_reduce(&e->pickler);
        TSR_TRY(remember(e, f->value));
        e->frames.count--;
        return TSR_OK;
    }
}

/* An instance: class, arguments, what was appended and set, state; parts are {args, state, list items, dict items}. */
static tsr_status step_object(emitter *e, frame *f)
{
    const tsr_value *object = f->value, *part = NULL;
    tsr_pickler *p = &e->pickler;
    switch (f->next++) {
    case 0:
        part = object_part(object, 0);
        if (part) return put_value(e, part);
        tsr_pickler_tuple(p, 0);
        return TSR_OK;
    case 1:
        if (object->called) {
            tsr_pickler_reduce(p);
        } else {
            tsr_pickler_newobj(p);
        }
        TSR_TRY(remember(e, object));
        part = object_part(object, 2);
        if (!part) return TSR_OK;
        tsr_pickler_mark(p);
        return push(e, part, INLINE_LIST);
    case 2:
        part = object_part(object, 3);
        if (!part) return TSR_OK;
        tsr_pickler_mark(p);
        return push(e, part, INLINE_DICT);
    case 3: part = object_part(object, 1); return part ? put_value(e, part) : TSR_OK;
    default:
        if (object_part(object, 1)) tsr_pickler_build(p);
        e->frames.count--;
        return TSR_OK;
    }
}

/* A dict whose pairs are there: they are set, then its __dict__. */
static tsr_status step_attributes(emitter *e, frame *f)
{
    if (f->next++ == f->value->count) {
        tsr_pickler_setitems(&e->pickler);
        return put_value(e, tsr_value_attributes(f->value));
    }
    tsr_pickler_build(&e->pickler);
    e->frames.count--;
    return TSR_OK;
}

static tsr_status step(emitter *e)
{
    frame *f = (frame *)e->frames.items + e->frames.count - 1;
    if (f->value->kind == TSR_VALUE_OBJECT) return tsr_torch_is_subclass(f->value) ? step_subclass(e, f) : step_object(e, f);
    if (f->next < f->value->count) return put_value(e, f->value->items[f->next++]);
    if (f->mode == WHOLE && tsr_value_attributes(f->value)) return step_attributes(e, f);
    const frame done = *f;
    e->frames.count--;
    if (done.mode == INLINE_LIST) tsr_pickler_appends(&e->pickler);
    if (done.mode == INLINE_DICT) tsr_pickler_setitems(&e->pickler);
    return done.mode == WHOLE ? close_container(e, done.value) : TSR_OK;
}

/* Python shares no ints between the places that hold them, and nothing between files: a few bytes of the source may stand for
 * any number here. */
static tsr_status check_room(const emitter *e)
{
    const uint64_t size = e->pickler.out->count;
    TSR_FAIL_IF(e->tree->room && size > *e->tree->room, e->err, TSR_E_LIMIT,
                "the objects share values, so they would be written as more than the %llu bytes left of the limit (%u for "
                "each byte of the source, plus %llu). No training job writes this; do not trust the file",
                (unsigned long long)*e->tree->room, TSR_EXPANSION_PER_BYTE, (unsigned long long)e->host->limits.expansion);
    return TSR_OK;
}

static tsr_status emit_tree(emitter *e)
{
    e->memo = tsr_map_new(e->host->allocator, 0, e->err);
    e->arena = tsr_arena_new(e->host->allocator, 0, e->err);
    if (!e->memo || !e->arena) return TSR_E_NOMEM;
    TSR_TRY(put_value(e, e->tree->root));
    while (e->frames.count) {
        TSR_TRY(step(e));
        TSR_TRY(check_room(e));
    }
    TSR_TRY(check_room(e));
    TSR_TRY(tsr_pickler_finish(&e->pickler));
    if (e->tree->room) *e->tree->room -= e->pickler.out->count < *e->tree->room ? e->pickler.out->count : *e->tree->room;
    return TSR_OK;
}

/* The pickle of the tree, appended to `out`: iterative, every node once (shared nodes stay shared). TSR_E_UNSUPPORTED for
 * values that cannot be re-emitted (parts of quantized, sparse and other such tensors), naming their class. */
static tsr_status torch_pickle(const tsr_torch_tree *tree, const tsr_host *host, tsr_vec *out, tsr_error *err)
{
    emitter e = {.tree = tree, .host = host, .frames = tsr_vec_of(host->allocator, sizeof(frame)), .err = err};
    tsr_pickler_open(&e.pickler, 2, host->allocator, out, err);
    const tsr_status status = emit_tree(&e);
    tsr_pickler_close(&e.pickler);
    tsr_map_free(e.memo);
    tsr_arena_free(e.arena);
    tsr_vec_free(&e.frames);
    return status;
}

bool tsr_torch_is_subclass(const tsr_value *value)
{
    const tsr_value *parts = value->kind == TSR_VALUE_OBJECT && value->count == 1 ? value->items[0] : NULL;
    const tsr_value *args = parts && parts->kind == TSR_VALUE_DICT ? tsr_value_get(parts, TSR_STR(TSR_WRAPPER_PART)) : NULL;
    return args && args->kind == TSR_VALUE_TUPLE && tsr_value_get(parts, TSR_STR("state"));
}

tsr_status tsr_torch_archive_plan(const tsr_torch_tree *tree, const tsr_host *host, tsr_arena *arena, tsr_torch_archive *out,
                                  tsr_error *err)
{
    tsr_vec text = tsr_vec_of(host->allocator, 1);
    tsr_status status = torch_pickle(tree, host, &text, err);
    const tsr_str pickle =
        status == TSR_OK ? tsr_arena_str(arena, (tsr_str){text.items, text.count}, err) : (tsr_str){NULL, 0};
    tsr_vec_free(&text);
    if (status != TSR_OK) return status;
    if (!pickle.data) return TSR_E_NOMEM;
    return tsr_torch_archive_around(pickle, tree, host, arena, out, err);
}
