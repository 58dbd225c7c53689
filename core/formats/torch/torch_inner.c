/* Names for the tensors inside an object: the path from the object's root, so that a message or a listing can point at one.
 * Each container is looked into once, however many hold it, and a name is only written where a tensor takes it. */
#include "formats/pickle/enum_names.h"
#include "formats/pickle/torch_names.h"
#include "formats/torch/torch_flatten.h"
#include "formats/torch/torch_walk.h"
#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"

enum { LONGEST_NAME = 1024 }; /* deeper tensors are not named */

typedef struct level {
    const tsr_value *container;
    size_t next;
    size_t named; /* bytes of the name before this container's items */
} level;

typedef struct naming {
    tsr_map *seen;
    tsr_vec levels;
    tsr_vec name; /* char */
    tsr_arena *arena;
    tsr_error *err;
} naming;

static bool holds_more(const tsr_value *value)
{
    switch (value->kind) {
    case TSR_VALUE_LIST:
    case TSR_VALUE_TUPLE:
    case TSR_VALUE_SET:
    case TSR_VALUE_DICT:
    case TSR_VALUE_OBJECT: return value->count > 0;
    default: return false;
    }
}

/* The text for the step to item `index`: a key, a position, or the name of an object's part. */
static tsr_str step_name(const tsr_value *in, size_t index, char digits[24])
{
    static const char *const parts[] = {"args", "state", "items", "dict"};
    if (in->kind == TSR_VALUE_DICT && in->items[index - 1]->kind == TSR_VALUE_STR) return in->items[index - 1]->text;
    if (in->kind == TSR_VALUE_OBJECT && index < sizeof parts / sizeof parts[0]) return tsr_str_from(parts[index]);
    size_t rest = in->kind == TSR_VALUE_DICT ? index / 2 : index, at = 24;
    do digits[--at] = (char)('0' + rest % 10);
    while ((rest /= 10) > 0);
    return (tsr_str){digits + at, 24 - at};
}

/* Makes `name` the first `keep` bytes and one more step; false when that is too long. */
static tsr_status add_step(naming *n, size_t keep, tsr_str step, bool *fits)
{
    *fits = step.size <= LONGEST_NAME;
    n->name.count = keep;
    if (!*fits) return TSR_OK;
    TSR_TRY(tsr_vec_reserve(&n->name, step.size + 1, n->err));
    char *text = n->name.items;
    if (keep) text[n->name.count++] = '.';
    memcpy(text + n->name.count, step.data, step.size);
    n->name.count += step.size;
    return TSR_OK;
}

static tsr_status enter(naming *n, const tsr_value *container)
{
    bool fresh;
    const tsr_str key = {(const char *)&container->items, sizeof container->items};
    if (!holds_more(container) || n->name.count > LONGEST_NAME) return TSR_OK;
    TSR_TRY(tsr_map_put(n->seen, key, 1, NULL, &fresh, n->err));
    if (!fresh) return TSR_OK;
    level *pushed = tsr_vec_push(&n->levels, n->err);
    if (!pushed) return TSR_E_NOMEM;
    *pushed = (level){container, container->kind == TSR_VALUE_DICT ? 1 : 0, n->name.count};
    return TSR_OK;
}

static tsr_status visit(naming *n, const tsr_value *in, size_t index, size_t named)
{
    const tsr_value *item = in->items[index];
    char digits[24];
    bool fits;
    if (item->kind != TSR_VALUE_TENSOR && !holds_more(item)) return TSR_OK;
    if (in->kind == TSR_VALUE_OBJECT && in->count == 1 && item->kind == TSR_VALUE_DICT) {
        n->name.count = named; /* the dictionary of a tensor's parts adds no step of its own */
        return enter(n, item);
    }
    TSR_TRY(add_step(n, named, step_name(in, index, digits), &fits));
    if (!fits) return TSR_OK;
    if (item->kind != TSR_VALUE_TENSOR) return enter(n, item);
    tsr_entry *entry = (tsr_entry *)item->as.tensor; /* made by the reader of this very tree */
    if (entry->fqn.data) return TSR_OK;
    entry->fqn = tsr_arena_str(n->arena, (tsr_str){n->name.items, n->name.count}, n->err);
    return entry->fqn.data ? TSR_OK : TSR_E_NOMEM;
}

/* Gives the tensors inside an object their path in it as `fqn` ("0.weight", "indices"), where they have none
 * yet. `seen` keeps the containers looked into: one for all objects of a tree. Stops quietly where
 * names grow beyond a kilobyte. */
static tsr_status torch_name_inner(const tsr_value *object, const tsr_host *host, tsr_map *seen, tsr_arena *arena,
                                   tsr_error *err)
{
    naming n = {seen, tsr_vec_of(host->allocator, sizeof(level)), tsr_vec_of(host->allocator, 1), arena, err};
    tsr_status status = enter(&n, object);
    while (status == TSR_OK && n.levels.count) {
        level *top = (level *)n.levels.items + n.levels.count - 1;
        const level at = *top;
        top->next += at.container->kind == TSR_VALUE_DICT ? 2 : 1;
        if (at.next >= at.container->count) n.levels.count--;
        else status = visit(&n, at.container, at.next, at.named);
    }
    tsr_vec_free(&n.levels);
    tsr_vec_free(&n.name);
    return status;
}

/* ---- leaf ---- */

/* The kind, type and value of leaves of a state dict that are not dense tensors. */

/* numpy's _reconstruct and copyreg's _reconstructor make an object of the class that is their first argument. */
static tsr_str class_name(const tsr_value *object)
{
    const tsr_value *args = object->items[0];
    bool makes = tsr_str_ends(object->text, TSR_STR("._reconstruct")) ||
                 tsr_str_equal(object->text, TSR_STR("copyreg._reconstructor"));
    bool names = makes && args->kind == TSR_VALUE_TUPLE && args->count && args->items[0]->kind == TSR_VALUE_GLOBAL;
    return names ? args->items[0]->text : object->text;
}

/* The names that classes have now, where protocol 2 or a method of the class stands for them. */
static tsr_str present_name(tsr_str name)
{
    static const struct {
        const char *pickled, *name;
    } rows[] = {{TSR_TORCH_ZONE, "zoneinfo.ZoneInfo"},
                {"array._array_reconstructor", "array.array"},
                {"re._compile", "re.Pattern"},
                {"logging.getLogger", "logging.Logger"},
                {"UserDict.IterableUserDict", "collections.UserDict"},
                {"UserDict.UserDict", "collections.UserDict"},
                {"UserList.UserList", "collections.UserList"},
                {"UserString.UserString", "collections.UserString"}};
    const tsr_str exceptions = TSR_STR("exceptions.");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (tsr_str_equal(name, tsr_str_from(rows[i].pickled))) return tsr_str_from(rows[i].name);
    if (!tsr_str_starts(name, exceptions)) return name;
    return (tsr_str){name.data + exceptions.size, name.size - exceptions.size}; /* "ValueError", as for "int" */
}

static tsr_str type_name(const tsr_value *value)
{
    if (value->variant == TSR_VARIANT_FROZENSET) return TSR_STR("frozenset");
    if (value->variant == TSR_VARIANT_BYTEARRAY) return TSR_STR("bytearray");
    /* clang-format off */
    static const char *const names[] = {
        [TSR_VALUE_NONE] = "NoneType", [TSR_VALUE_BOOL] = "bool", [TSR_VALUE_INT] = "int", [TSR_VALUE_BIGINT] = "int",
        [TSR_VALUE_FLOAT] = "float", [TSR_VALUE_COMPLEX] = "complex", [TSR_VALUE_STR] = "str", [TSR_VALUE_BYTES] = "bytes",
        [TSR_VALUE_LIST] = "list", [TSR_VALUE_TUPLE] = "tuple", [TSR_VALUE_SET] = "set", [TSR_VALUE_DICT] = "dict",
        [TSR_VALUE_SIZE] = "torch.Size", [TSR_VALUE_DTYPE] = "torch.dtype", [TSR_VALUE_DEVICE] = "torch.device",
        [TSR_VALUE_TENSOR] = "torch.Tensor", [TSR_VALUE_GLOBAL] = "type"};
    /* clang-format on */
    return value->kind == TSR_VALUE_OBJECT ? present_name(class_name(value)) : tsr_str_from(names[value->kind]);
}

/* The dtype and shape of a quantized, sparse or other special tensor, from its named parts. */
static tsr_status describe_parts(const tsr_value *value, tsr_arena *arena, tsr_entry *entry, tsr_error *err)
{
    const tsr_value *parts = value->items[0];
    if (parts->kind != TSR_VALUE_DICT) return TSR_OK;
    const tsr_value *dtype = tsr_value_get(parts, TSR_STR("dtype")), *size = tsr_value_get(parts, TSR_STR("size"));
    const tsr_value *data = tsr_value_get(parts, TSR_STR("data")), *values = tsr_value_get(parts, TSR_STR("values"));
    if (!values || values->kind != TSR_VALUE_TENSOR) values = data;
    if (values && values->kind == TSR_VALUE_TENSOR) entry->dtype = values->as.tensor->dtype;
    if (dtype && dtype->kind == TSR_VALUE_DTYPE) entry->dtype = dtype->as.dtype;
    if (data && data->kind == TSR_VALUE_TENSOR) {
        entry->ndim = data->as.tensor->ndim;
        entry->shape = data->as.tensor->shape;
    }
    if (!size || (size->kind != TSR_VALUE_SIZE && size->kind != TSR_VALUE_TUPLE)) return TSR_OK;
    uint64_t *shape = tsr_arena_array(arena, size->count, sizeof *shape, err);
    if (!shape) return TSR_E_NOMEM;
    for (size_t i = 0; i < size->count; i++) {
        if (size->items[i]->kind != TSR_VALUE_INT || size->items[i]->as.integer < 0) return TSR_OK;
        shape[i] = (uint64_t)size->items[i]->as.integer;
    }
    entry->ndim = (uint32_t)size->count;
    entry->shape = shape;
    return TSR_OK;
}

/* States where the tensors are that a shard of a tensor subclass consists of: how many bytes, and where the first ones begin. */
static void place_shard(const tsr_value *shard, tsr_chunk *chunk)
{
    const tsr_value *state = tsr_value_get(shard->items[0], TSR_STR("state"));
    for (size_t i = 1; state && state->kind == TSR_VALUE_DICT && i < state->count; i += 2) {
        const tsr_value *part = state->items[i];
        if (part->kind != TSR_VALUE_TENSOR || part->as.tensor->chunk_count != 1) continue;
        const tsr_chunk *own = part->as.tensor->chunks;
        if (!chunk->byte_length || own->byte_offset < chunk->byte_offset) chunk->byte_offset = own->byte_offset;
        chunk->byte_length += own->byte_length;
    }
}

tsr_status tsr_torch_leaf(const tsr_value *value, const tsr_host *host, tsr_map *seen, tsr_arena *arena, tsr_entry *entry,
                          tsr_error *err)
{
    if (value->kind == TSR_VALUE_OBJECT && value->as.tensor) {
        *entry = *value->as.tensor;
        tsr_chunk *chunk = entry->chunk_count ? (tsr_chunk *)entry->chunks : NULL; /* made by the reader of this very tree */
        if (chunk && !chunk->byte_length) place_shard(entry->value->items[0], chunk);
        return torch_name_inner(entry->value, host, seen, arena, err);
    }
    const tsr_str enum_class = tsr_enum_named(value);
    bool named = value->kind == TSR_VALUE_GLOBAL && !tsr_str_starts(value->text, TSR_STR("torch."));
    bool member = enum_class.size || tsr_enum_value(value);
    entry->kind = !member && (value->kind == TSR_VALUE_OBJECT || named) ? TSR_ENTRY_OPAQUE : TSR_ENTRY_OBJECT;
    entry->value = value;
    entry->type = enum_class.size ? enum_class : type_name(value);
    if (value->kind == TSR_VALUE_OBJECT) TSR_TRY(describe_parts(value, arena, entry, err));
    return torch_name_inner(value, host, seen, arena, err);
}

/* ---- node ---- */

/* Parts and texts of single nodes of a torch.save pickle. */

enum { ATTRIBUTES_MAX = 4096 }; /* the objects that are searched have only a few attributes */

tsr_ref tsr_torch_attribute(const tsr_pickle *pickle, tsr_ref holder, const char *name)
{
    if (tsr_pickle_kind_of(pickle, holder) == TSR_PICKLE_OBJECT) holder = tsr_pickle_state(pickle, holder);
    bool pair = tsr_pickle_kind_of(pickle, holder) == TSR_PICKLE_TUPLE;
    tsr_ref dicts[] = {pair ? tsr_pickle_item(pickle, holder, 1) : holder,
                       pair ? tsr_pickle_item(pickle, holder, 0) : TSR_REF_NONE};
    for (size_t i = 0; i < 2; i++) {
        bool found;
        if (tsr_pickle_count(pickle, dicts[i]) > ATTRIBUTES_MAX) continue;
        tsr_ref value = tsr_pickle_get(pickle, dicts[i], name, &found);
        if (found) return value;
    }
    return TSR_REF_NONE;
}

/* Text that may outlive the pickle: text that the parser had to decode is copied. */
tsr_status tsr_torch_keep_text(tsr_torch_build *build, tsr_ref ref, tsr_str *out, tsr_error *err)
{
    tsr_str bytes = build->pickle_bytes, text = tsr_pickle_text(build->pickle, ref);
    uintptr_t from = (uintptr_t)bytes.data, at = (uintptr_t)text.data;
    *out = text;
    if (text.size == 0 || (at >= from && at < from + bytes.size)) return TSR_OK;
    *out = tsr_arena_str(build->arena, text, err);
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

/* "module.name" of a class, a function, or a node that stands for one. */
tsr_str tsr_torch_class_text(tsr_torch_build *build, tsr_ref ref, tsr_error *err)
{
    const tsr_pickle *pickle = build->pickle;
    tsr_str attribute = {NULL, 0};
    if (tsr_pickle_kind_of(pickle, ref) == TSR_PICKLE_PERSISTENT)
        ref = tsr_pickle_item(pickle, tsr_pickle_persistent(pickle, ref), 1); /* ('module', class, file, source) */
    if (tsr_pickle_kind_of(pickle, ref) == TSR_PICKLE_OBJECT && tsr_pickle_class_id(pickle, ref) == TSR_TORCH_GETATTR) {
        attribute = tsr_pickle_text(pickle, tsr_torch_arg(pickle, ref, 1));
        ref = tsr_torch_arg(pickle, ref, 0);
    }
    if (tsr_pickle_kind_of(pickle, ref) != TSR_PICKLE_GLOBAL) return TSR_STR("(not a class)");
    return tsr_arena_format(build->arena, err, "%.*s.%.*s%s%.*s", TSR_STR_ARG(tsr_pickle_module(pickle, ref)),
                            TSR_STR_ARG(tsr_pickle_name_of(pickle, ref)), attribute.size ? "." : "", TSR_STR_ARG(attribute));
}
