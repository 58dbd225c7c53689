/* What loaders may be given: which classes and calls of a value are passed on, and which loader takes them. */
#include "formats/torch/torch_loadable.h"

#include "formats/pickle/enum_names.h"
#include "formats/pickle/pickle_verdict.h"
#include "formats/pickle/torch_names.h"
#include "tessera/sys/try.h"
#include "tessera/sys/value_walk.h"
#include "tessera/sys/vec.h"

bool tsr_torch_split_name(tsr_str dotted, tsr_str *module, tsr_str *name)
{
    size_t dot = dotted.size;
    while (dot > 0 && dotted.data[dot - 1] != '.') dot--;
    if (dot < 2 || dot == dotted.size) return false;
    *module = (tsr_str){dotted.data, dot - 1};
    *name = (tsr_str){dotted.data + dot, dotted.size - dot};
    return true;
}

/* ---- calls ---- */

/* Whether getattr(first, second) can return anything but a member of a user's own enum, which Python 3.11 pickles as such
 * a call. */
static bool is_no_member(const tsr_value *first, const tsr_value *second)
{
    tsr_str module, name;
    if (!first || first->kind != TSR_VALUE_GLOBAL || second->kind != TSR_VALUE_STR) return true;
    if (!tsr_torch_split_name(first->text, &module, &name) || second->text.size == 0 || second->text.data[0] == '_')
        return true;
    return tsr_name_is_dangerous(module, name) || tsr_name_is_dangerous(module, second->text);
}

/* The arguments of functools.partial: one function that is named. */
static bool is_harmless_function(const tsr_value *args)
{
    tsr_str module, name;
    if (args->kind != TSR_VALUE_TUPLE || args->count != 1 || args->items[0]->kind != TSR_VALUE_GLOBAL) return false;
    return tsr_torch_split_name(args->items[0]->text, &module, &name) && !tsr_name_is_dangerous(module, name);
}

/* Listed functions that call or return whatever their arguments name. PyTorch's own uses of getattr were read as GLOBALs. */
static bool reaches_further(const tsr_value *object)
{
    const tsr_value *args = object->count ? object->items[0] : NULL;
    const bool two = args && args->kind == TSR_VALUE_TUPLE && args->count > 1;
    const tsr_value *first = two ? args->items[0] : NULL, *second = two ? args->items[1] : NULL;
    if (tsr_str_equal(object->text, TSR_STR("builtins.getattr"))) return is_no_member(first, second);
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

bool tsr_torch_may_be_called(const tsr_value *object)
{
    tsr_str module, name;
    if (!tsr_torch_split_name(object->text, &module, &name) || reaches_further(object)) return false;
    if (is_listed(module, name) || tsr_str_equal(object->text, TSR_STR(TSR_TORCH_ZONE))) return true;
    const uint32_t other = tsr_torch_names.other(module, name);
    return other == TSR_TORCH_LISTED || other == TSR_TORCH_RETURN_TYPE;
}

bool tsr_torch_is_plain_factory(tsr_str factory)
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

/* A class of Python, numpy or PyTorch that the reader lists. */
static bool is_known_class(tsr_str dotted)
{
    static const char *const packages[] = {"_io.",      "argparse.", "array.",      "builtins.",   "collections.",
                                           "copyreg.",  "datetime.", "decimal.",    "exceptions.", "fractions.",
                                           "numpy.",    "pathlib.",  "torch.",      "types.",      "uuid.",
                                           "UserDict.", "UserList.", "UserString.", "zoneinfo."};
    tsr_str module, name;
    if (!tsr_torch_split_name(dotted, &module, &name)) return false;
    bool known = false;
    if (tsr_str_equal(dotted, TSR_STR(TSR_TORCH_ZONE))) return true;
    for (size_t i = 0; i < sizeof packages / sizeof *packages && !known; i++)
        known = tsr_str_starts(dotted, tsr_str_from(packages[i]));
    return known && (is_listed(module, name) || tsr_torch_names.other(module, name));
}

static bool is_data_node(const tsr_value *value)
{
    switch (value->kind) {
    case TSR_VALUE_GLOBAL: return is_known_class(value->text);
    case TSR_VALUE_OBJECT: return is_known_class(value->text) && (!value->called || tsr_torch_may_be_called(value));
    case TSR_VALUE_DICT: return value->variant != TSR_VARIANT_DEFAULTDICT || tsr_torch_is_plain_factory(value->text);
    default: return true;
    }
}

/* Whether `counts` is true of the value and of everything inside it. */
static bool holds_throughout(const tsr_value *value, const tsr_host *host, bool (*counts)(const tsr_value *))
{
    tsr_vec stack = tsr_vec_of(host->allocator, sizeof(const tsr_value *));
    const tsr_value **top = tsr_vec_push(&stack, NULL);
    uint64_t budget = host->limits.expansion;
    bool holds = top != NULL;
    if (top) *top = value;
    while (holds && stack.count) {
        const tsr_value *at = ((const tsr_value **)stack.items)[--stack.count];
        holds = counts(at) && at->count < budget;
        budget -= at->count + 1;
        for (size_t i = 0; holds && i < at->count + (tsr_value_attributes(at) != NULL); i++) {
            top = tsr_vec_push(&stack, NULL);
            holds = top != NULL;
            if (top) *top = i < at->count ? at->items[i] : tsr_value_attributes(at);
        }
    }
    tsr_vec_free(&stack);
    return holds;
}

bool tsr_torch_weights_only(const tsr_value *value, const tsr_host *host)
{
    if (value->expanded) return !value->foreign; /* the reader has looked at every node once */
    return holds_throughout(value, host, tsr_torch_is_plain);
}

bool tsr_value_is_data(const tsr_value *value, const tsr_host *host)
{
    if (value->expanded == TSR_VALUE_ENDLESS) return false;
    return (value->expanded && !value->foreign) || holds_throughout(value, host, is_data_node);
}
