/* Paths and keys of nested values. */
#include "live/tensor/path.h"

#include <inttypes.h>

#include "tessera/sys/try.h"

tsr_str tsr_step_text(const tsr_step *step, tsr_arena *arena, tsr_error *err)
{
    if (!step) return TSR_STR("");
    const tsr_str up = tsr_step_text(step->up, arena, err);
    if (!up.data) return up;
    const char *dot = up.size ? "." : "";
    if (!step->key) return tsr_arena_format(arena, err, "%.*s[%zu]", TSR_STR_ARG(up), step->index);
    if (step->key->kind == TSR_VALUE_STR)
        return tsr_arena_format(arena, err, "%.*s%s%.*s", TSR_STR_ARG(up), dot, TSR_STR_ARG(step->key->text));
    if (step->key->kind == TSR_VALUE_INT)
        return tsr_arena_format(arena, err, "%.*s%s%" PRId64, TSR_STR_ARG(up), dot, step->key->as.integer);
    return tsr_arena_format(arena, err, "%.*s%s(%s)", TSR_STR_ARG(up), dot, tsr_python_type(step->key));
}

enum { MAX_DEPTH = 256 };

tsr_status tsr_step_check(const tsr_step *step, const tsr_host *host, tsr_arena *arena, tsr_error *err)
{
    const uint32_t depth = host->limits.depth < MAX_DEPTH ? host->limits.depth : MAX_DEPTH;
    TSR_FAIL_IF(step->depth > depth, err, TSR_E_LIMIT, "state dict: nested deeper than %" PRIu32, depth);
    if (!step->key || step->key->kind == TSR_VALUE_INT ||
        (step->key->kind == TSR_VALUE_STR && !memchr(step->key->text.data, 0, step->key->text.size)))
        return TSR_OK;
    const tsr_str text = tsr_step_text(step, arena, err);
    return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
                     "state dict: the key '%.*s' is neither a string without NUL characters nor an int", TSR_STR_ARG(text));
}

tsr_status tsr_step_context(const tsr_step *step, tsr_arena *arena, tsr_status status, tsr_error *err)
{
    const tsr_str text = tsr_step_text(step, arena, NULL);
    if (text.size) tsr_error_context(err, "'%.*s'", TSR_STR_ARG(text));
    return status;
}

/* Whether both are the same string, or both the same int. */
static bool same_key(const tsr_value *a, const tsr_value *b)
{
    if (a->kind != b->kind) return false;
    return a->kind == TSR_VALUE_STR ? tsr_str_equal(a->text, b->text)
                                    : a->kind == TSR_VALUE_INT && a->as.integer == b->as.integer;
}

size_t tsr_dict_pair(const tsr_value *dict, const tsr_value *key, size_t hint)
{
    const size_t pairs = tsr_value_pairs(dict);
    for (size_t tried = 0; tried < pairs; tried++) {
        const size_t at = (hint + tried) % pairs;
        if (same_key(dict->items[2 * at], key)) return at;
    }
    return TSR_NO_PAIR;
}

const tsr_value *tsr_dict_find(const tsr_value *dict, const tsr_value *key, size_t hint)
{
    const size_t at = tsr_dict_pair(dict, key, hint);
    return at == TSR_NO_PAIR ? NULL : dict->items[2 * at + 1];
}

bool tsr_is_list(const tsr_value *value)
{
    return value->kind == TSR_VALUE_LIST || value->kind == TSR_VALUE_TUPLE;
}

const char *tsr_python_type(const tsr_value *value)
{
    static const char *const names[] = {"None",       "bool",  "int",    "int",    "float", "complex",
                                        "str",        "bytes", "list",   "tuple",  "set",   "dict",
                                        "torch.Size", "dtype", "device", "tensor", "class", "object"};
    return names[value->kind];
}
