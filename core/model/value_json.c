/* Writes values as JSON: the part of the emitter that knows values. */
#include "tessera/sys/json.h"
#include "tessera/sys/value_walk.h"
#include "tessera/value.h"

enum { MAX_DEPTH = 63 };

static void write_leaf(tsr_json *json, const tsr_value *value)
{
    switch (value->kind) {
    case TSR_VALUE_BOOL: tsr_json_bool(json, value->as.boolean); break;
    case TSR_VALUE_INT: tsr_json_int(json, value->as.integer); break;
    case TSR_VALUE_BIGINT: tsr_json_integer(json, value->text); break;
    case TSR_VALUE_FLOAT: tsr_json_double(json, value->as.real); break;
    case TSR_VALUE_STR: tsr_json_str(json, value->text); break;
    default: tsr_json_null(json); break;
    }
}

static bool is_container(const tsr_value *value)
{
    return value->kind == TSR_VALUE_LIST || value->kind == TSR_VALUE_DICT;
}

static void open_container(tsr_json *json, const tsr_value *value)
{
    if (value->kind == TSR_VALUE_LIST) tsr_json_array(json);
    else tsr_json_object(json);
}

static void close_container(tsr_json *json, const tsr_value *value)
{
    if (value->kind == TSR_VALUE_LIST) tsr_json_array_end(json);
    else tsr_json_object_end(json);
}

void tsr_json_value(tsr_json *json, const tsr_value *value)
{
    struct {
        const tsr_value *container;
        size_t next;
    } stack[MAX_DEPTH];
    uint32_t height = 0;
    while (json->status == TSR_OK) {
        if (is_container(value)) {
            open_container(json, value); /* beyond 63 open containers, this fails and ends the loop */
            if (json->status != TSR_OK) return;
            stack[height].container = value;
            stack[height++].next = 0;
        } else {
            write_leaf(json, value);
        }
        while (height && stack[height - 1].next == stack[height - 1].container->count)
            close_container(json, stack[--height].container);
        if (height == 0) return;
        const tsr_value *container = stack[height - 1].container;
        size_t *next = &stack[height - 1].next;
        if (container->kind == TSR_VALUE_DICT) tsr_json_key_str(json, container->items[(*next)++]->text);
        value = container->items[(*next)++];
    }
}
