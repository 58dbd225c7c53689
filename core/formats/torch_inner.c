/* Names for the tensors inside an object: the path from the object's root, so that a message or a listing can point at one. */
#include "base/try.h"
#include "formats/torch_flatten.h"

enum { LONGEST_NAME = 1024 }; /* what lies deeper stays without a name */

typedef struct inside {
    const tsr_value *value;
    tsr_str name;
} inside;

static bool holds_more(const tsr_value *value)
{
    switch (value->kind) {
    case TSR_VALUE_LIST:
    case TSR_VALUE_TUPLE:
    case TSR_VALUE_SET:
    case TSR_VALUE_DICT:
    case TSR_VALUE_OBJECT: return value->count > 0;
    default: return value->kind == TSR_VALUE_TENSOR;
    }
}

/* How the step to item `index` is called: a key, a position, or a part of an object. */
static tsr_str step_name(const tsr_value *in, size_t index, tsr_arena *arena, tsr_error *err)
{
    static const char *const parts[] = {"args", "state", "items", "dict"};
    if (in->kind == TSR_VALUE_DICT && in->items[index - 1]->kind == TSR_VALUE_STR) return in->items[index - 1]->text;
    if (in->kind == TSR_VALUE_OBJECT && index < sizeof parts / sizeof parts[0]) return tsr_str_from(parts[index]);
    return tsr_arena_format(arena, err, "%zu", in->kind == TSR_VALUE_DICT ? index / 2 : index);
}

static tsr_status push_item(tsr_vec *stack, const inside *in, size_t index, tsr_arena *arena, tsr_error *err)
{
    const tsr_value *item = in->value->items[index];
    bool parts = in->value->kind == TSR_VALUE_OBJECT && in->value->count == 1 && item->kind == TSR_VALUE_DICT;
    inside next = {item, in->name}; /* the dictionary of a tensor's parts adds no step of its own */
    if (!parts) {
        tsr_str step = step_name(in->value, index, arena, err);
        if (!step.data) return TSR_E_NOMEM;
        next.name = in->name.size ? tsr_arena_format(arena, err, "%.*s.%.*s", TSR_STR_ARG(in->name), TSR_STR_ARG(step)) : step;
        if (!next.name.data) return TSR_E_NOMEM;
    }
    inside *pushed = tsr_vec_push(stack, err);
    if (!pushed) return TSR_E_NOMEM;
    *pushed = next;
    return TSR_OK;
}

static tsr_status visit(tsr_vec *stack, uint64_t *budget, tsr_arena *arena, tsr_error *err)
{
    inside top = ((const inside *)stack->items)[--stack->count];
    if (top.value->kind == TSR_VALUE_TENSOR) {
        tsr_entry *entry = (tsr_entry *)top.value->as.tensor; /* made by the reader of this very tree */
        if (!entry->fqn.data) entry->fqn = top.name;
        return TSR_OK;
    }
    if (top.name.size > LONGEST_NAME) return TSR_OK;
    size_t step = top.value->kind == TSR_VALUE_DICT ? 2 : 1;
    for (size_t i = step - 1; i < top.value->count && *budget; i += step) {
        --*budget;
        if (holds_more(top.value->items[i])) TSR_TRY(push_item(stack, &top, i, arena, err));
    }
    return TSR_OK;
}

tsr_status tsr_torch_name_inner(const tsr_value *object, const tsr_host *host, uint64_t *budget, tsr_arena *arena, tsr_error *err)
{
    tsr_vec stack = tsr_vec_of(host->allocator, sizeof(inside));
    tsr_status status = TSR_OK;
    if (holds_more(object)) {
        inside *root = tsr_vec_push(&stack, err);
        if (root) *root = (inside){object, {"", 0}};
        else status = TSR_E_NOMEM;
    }
    while (status == TSR_OK && stack.count && *budget) status = visit(&stack, budget, arena, err);
    tsr_vec_free(&stack);
    return status;
}
