#include "write/object_json.h"

#include "formats/pickle/torch_names.h"

#include "tessera/sys/catalog.h"

enum { REPR_BYTES = 1000, VALUE_DEPTH = 59 /* four containers are open around a value, the emitter allows 63 */ };

void tsr_put_dtype_and_shape(tsr_json *json, const tsr_entry *entry)
{
    tsr_json_put_text(json, "dtype", tsr_dtype_describe(entry->dtype)->name);
    if (entry->kind == TSR_ENTRY_OPAQUE && !entry->shape) return; /* the shape is unknown */
    tsr_json_put_u64s(json, "shape", entry->shape, entry->ndim);
}

enum { NAME_BYTES = 512, MOST_NESTED = 8 };

/* A name of a part inside others, joined by dots. */
typedef struct part_name {
    char text[NAME_BYTES];
    size_t size, depth;
} part_name;

static void put_tensor(tsr_json *json, const part_name *name, const tsr_entry *tensor, bool shapes)
{
    tsr_json_object(json);
    tsr_json_put_str(json, "name", (tsr_str){name->text, name->size});
    tsr_json_put_text(json, "dtype", tsr_dtype_describe(tensor->dtype)->name);
    if (shapes) tsr_json_put_u64s(json, "shape", tensor->shape, tensor->ndim);
    tsr_json_object_end(json);
}

/* Writes the tensors among some pairs, and those of subclasses among them. Those in a "state" count as direct members. */
static void put_tensors(tsr_json *json, const tsr_value *parts, bool nested, bool shapes, part_name *name)
{
    const size_t before = name->size;
    if (name->depth == MOST_NESTED) return;
    name->depth++;
    for (size_t i = 0; i + 1 < parts->count; i += 2) {
        const tsr_value *key = parts->items[i], *part = parts->items[i + 1];
        if (key->kind != TSR_VALUE_STR) continue;
        if (part->kind == TSR_VALUE_DICT && !nested && tsr_str_equal(key->text, TSR_STR("state")))
            put_tensors(json, part, true, shapes, name);
        const bool holds = part->kind == TSR_VALUE_OBJECT && part->count && part->items[0]->kind == TSR_VALUE_DICT;
        if ((part->kind != TSR_VALUE_TENSOR && !holds) || key->text.size + 1 >= sizeof name->text - before) continue;
        memcpy(name->text + before, key->text.data, key->text.size);
        name->size += key->text.size;
        if (part->kind == TSR_VALUE_TENSOR) {
            put_tensor(json, name, part->as.tensor, shapes);
        } else {
            name->text[name->size++] = '.';
            put_tensors(json, part->items[0], false, shapes, name);
        }
        name->size = before;
    }
    name->depth--;
}

/* Writes the inner tensors of a tensor that is not dense. For a sharded one, those of the first shard; their shapes are left
 * out, because they differ from shard to shard. */
static void put_inner(tsr_json *json, const tsr_entry *entry)
{
    const tsr_value *value = entry->value;
    if (value && entry->is_sharded && value->kind == TSR_VALUE_LIST) value = value->count ? value->items[0] : NULL;
    const bool parts = value && value->kind == TSR_VALUE_OBJECT && value->count && value->items[0]->kind == TSR_VALUE_DICT;
    if (entry->kind != TSR_ENTRY_OPAQUE || entry->dtype == TSR_DTYPE_NONE || !parts) return;
    tsr_json_put_array(json, "inner");
    part_name name = {.size = 0};
    put_tensors(json, value->items[0], false, !entry->is_sharded, &name);
    tsr_json_array_end(json);
}

void tsr_put_object(tsr_json *json, const tsr_entry *entry, const tsr_host *host)
{
    char text[REPR_BYTES];
    tsr_json_put_str(json, "type", entry->type);
    if (entry->kind == TSR_ENTRY_OPAQUE && entry->dtype != TSR_DTYPE_NONE) tsr_put_dtype_and_shape(json, entry);
    put_inner(json, entry);
    if (!entry->value) return;
    const tsr_value *member = tsr_enum_value(entry->value), *value = member ? member : entry->value;
    if (entry->kind == TSR_ENTRY_OBJECT && tsr_value_is_json(value, VALUE_DEPTH, host->limits.expansion)) {
        tsr_json_key(json, "value");
        tsr_json_value(json, value);
    } else {
        tsr_json_put_text(json, "repr", tsr_value_text(entry->value, text, sizeof text));
    }
}
