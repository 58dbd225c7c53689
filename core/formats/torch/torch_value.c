/* A torch.save pickle as a value tree. The walk is a stack of frames, one a node whose children are being made; a node that
 * several parents share is made once, so the tree is as large as the pickle, not as its expansion. */
#include "formats/torch/torch_build.h"
#include "formats/torch/torch_file.h"
#include "formats/torch/torch_loadable.h"
#include "formats/torch/torch_writer.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/try.h"

/* What to do when the children of a frame are there. */
typedef enum then {
    TSR_THEN_NOTHING,
    TSR_THEN_PARAMETER,
    TSR_THEN_BYTES,
    TSR_THEN_ATTRIBUTES,
    TSR_THEN_DEVICE_TENSOR,
    TSR_THEN_DTENSOR,
    TSR_THEN_SHARDED
} then;

/* A node whose children are being made. They go to items[first + i × step]: an object that is shown as a dictionary of named parts has
 * the names at the even places before the walk fills in the odd. */
typedef struct frame {
    tsr_value *value;
    then then;
    tsr_ref args; /* of the wrapper (DTENSOR, SHARDED) or the call (PARAMETER) */
    tsr_ref state;
    const tsr_ref *children;
    const tsr_value **items;
    size_t count, next, first, step;
} frame;

/* ---- objects of the classes and functions that pickles name ---- */

/* What Python would build by calling them is worked out from their arguments. Everything else stays an object whose class, arguments
 * and state are shown. Sources: torch/_utils.py, torch/_tensor.py, torch/_weights_only_unpickler.py of PyTorch 2.13. */

typedef struct part {
    const char *name;
    tsr_ref ref;
} part;

/* Bytes that protocol 2 wrote as a str of code points up to 255; false if the str has others. */
static bool latin1(tsr_str text, tsr_arena *arena, tsr_str *out, tsr_status *status, tsr_error *err)
{
    char *bytes = tsr_arena_array(arena, text.size, 1, err);
    *status = bytes ? TSR_OK : TSR_E_NOMEM;
    if (!bytes) return false;
    size_t n = 0;
    for (size_t i = 0; i < text.size; i++) {
        unsigned char c = (unsigned char)text.data[i];
        if (c >= 0x80) {
            if (c != 0xc2 && c != 0xc3) return false; /* text is UTF-8: a byte follows */
            c = (unsigned char)((c << 6) | ((unsigned char)text.data[++i] & 0x3f));
        }
        bytes[n++] = (char)c;
    }
    *out = (tsr_str){bytes, n};
    return true;
}

static bool is_latin1_name(tsr_str name)
{
    return tsr_str_equal(name, TSR_STR("latin1")) || tsr_str_equal(name, TSR_STR("latin-1"));
}

/* The frame for a container node: `count` children into as many items. */
static tsr_status fill(tsr_torch_build *build, tsr_value_kind kind, const tsr_ref *children, size_t count, frame *out,
                       tsr_error *err)
{
    tsr_value *value = out->value;
    const tsr_value **items = tsr_arena_array(build->arena, count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    value->kind = kind;
    value->items = items;
    value->count = count;
    out->children = children;
    out->items = items;
    out->count = count;
    out->step = 1;
    return TSR_OK;
}

/* An object shown as named parts: value = OBJECT `class_name` {DICT of the parts}. */
static tsr_status fill_parts(tsr_torch_build *build, tsr_str class_name, const part *parts, size_t count, frame *out,
                             tsr_error *err)
{
    tsr_value *value = out->value;
    tsr_arena *arena = build->arena;
    tsr_ref *refs = tsr_arena_array(arena, count, sizeof *refs, err);
    const tsr_value **pairs = tsr_arena_array(arena, 2 * count, sizeof *pairs, err);
    const tsr_value **items = tsr_arena_array(arena, 1, sizeof *items, err);
    tsr_value *dict = tsr_value_items(arena, TSR_VALUE_DICT, pairs, 2 * count, err);
    if (!refs || !pairs || !items || !dict) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        refs[i] = parts[i].ref;
        pairs[2 * i] = tsr_value_str(arena, tsr_str_from(parts[i].name), err);
        if (!pairs[2 * i]) return TSR_E_NOMEM;
    }
    items[0] = dict;
    value->kind = TSR_VALUE_OBJECT;
    value->text = class_name;
    value->items = items;
    value->count = 1;
    out->children = refs;
    out->items = pairs;
    out->count = count;
    out->first = 1;
    out->step = 2;
    return TSR_OK;
}

/* An object made with keyword arguments. It is shown; our writer refuses it by name, because its protocol has no such
 * calls. */
static tsr_status fill_keywords(tsr_torch_build *build, tsr_ref ref, frame *out, tsr_error *err)
{
    const tsr_pickle *pickle = build->pickle;
    const tsr_ref args = tsr_pickle_args(pickle, ref);
    const size_t count = tsr_pickle_count(pickle, args);
    tsr_str name = tsr_torch_class_text(build, tsr_pickle_class(pickle, ref), err);
    if (!name.data) return TSR_E_NOMEM;
    part parts[] = {{"args", count > 1 ? tsr_pickle_item(pickle, args, count - 2) : TSR_REF_NONE},
                    {"keywords", count ? tsr_pickle_item(pickle, args, count - 1) : TSR_REF_NONE},
                    {"state", tsr_pickle_state(pickle, ref)},
                    {"items", tsr_pickle_appended(pickle, ref)},
                    {"pairs", tsr_pickle_dict_items(pickle, ref)}};
    return fill_parts(build, name, parts, 5, out, err);
}

/* Any other object: class and {args, state, list items, dict}, as far as there are any. */
static tsr_status fill_object(tsr_torch_build *build, tsr_ref ref, frame *out, tsr_error *err)
{
    tsr_value *value = out->value;
    const tsr_pickle *pickle = build->pickle;
    if (tsr_pickle_has_keywords(pickle, ref)) return fill_keywords(build, ref, out, err);
    value->called = tsr_pickle_how_of(pickle, ref) == TSR_PICKLE_CALLED;
    value->text = tsr_torch_class_text(build, tsr_pickle_class(pickle, ref), err);
    tsr_ref *refs = tsr_arena_array(build->arena, 4, sizeof *refs, err);
    if (!refs || !value->text.data) return TSR_E_NOMEM;
    refs[0] = tsr_pickle_args(pickle, ref);
    refs[1] = tsr_pickle_state(pickle, ref);
    refs[2] = tsr_pickle_appended(pickle, ref);
    refs[3] = tsr_pickle_dict_items(pickle, ref);
    size_t count = 4;
    while (refs[count - 1] == TSR_REF_NONE) count--; /* args are a tuple */
    return fill(build, TSR_VALUE_OBJECT, refs, count, out, err);
}

/* Counts items that are copied for each object that shares a list. A genuine pickle has at least one byte for each of
 * them. */
static tsr_status charge(tsr_torch_build *build, tsr_ref ref, size_t count, tsr_error *err)
{
    build->copied += count;
    TSR_FAIL_AT(build->copied > build->pickle_bytes.size, err, TSR_E_LIMIT, tsr_torch_position(build, ref),
                "torch: objects built from shared lists have more items than the pickle has bytes");
    return TSR_OK;
}

/* A mapping's pairs, and its __dict__ as one child more. */
static tsr_status fill_pairs(tsr_torch_build *build, tsr_ref ref, const tsr_ref *pairs, size_t count, frame *out,
                             tsr_error *err)
{
    tsr_value *value = out->value;
    const tsr_ref state = tsr_pickle_state(build->pickle, ref);
    if (tsr_pickle_kind_of(build->pickle, state) != TSR_PICKLE_DICT || tsr_pickle_count(build->pickle, state) == 0)
        return fill(build, TSR_VALUE_DICT, pairs, count, out, err);
    tsr_ref *all = tsr_arena_array(build->arena, count + 1, sizeof *all, err);
    if (!all) return TSR_E_NOMEM;
    if (count) memcpy(all, pairs, count * sizeof *all);
    all[count] = state;
    TSR_TRY(fill(build, TSR_VALUE_DICT, all, count + 1, out, err));
    value->count = count;
    out->then = TSR_THEN_ATTRIBUTES;
    return TSR_OK;
}

static bool is_named(const tsr_torch_build *build, tsr_ref object, const char *name)
{
    return tsr_str_equal(tsr_pickle_name_of(build->pickle, tsr_pickle_class(build->pickle, object)), tsr_str_from(name));
}

/* A Counter, or a defaultdict with the name of its factory: a class, or what makes one. */
static tsr_status note_mapping_class(tsr_torch_build *build, tsr_value *value, tsr_ref ref, tsr_error *err)
{
    const tsr_ref factory = tsr_torch_arg(build->pickle, ref, 0);
    if (is_named(build, ref, "Counter")) value->variant = TSR_VARIANT_COUNTER;
    if (tsr_pickle_class_id(build->pickle, ref) != TSR_TORCH_DEFAULT_DICT) return TSR_OK;
    value->variant = TSR_VARIANT_DEFAULTDICT;
    value->text = TSR_STR("");
    if (factory == TSR_REF_NONE || tsr_pickle_kind_of(build->pickle, factory) == TSR_PICKLE_NONE) return TSR_OK;
    if (tsr_pickle_kind_of(build->pickle, factory) == TSR_PICKLE_GLOBAL)
        value->text = tsr_torch_class_text(build, factory, err);
    else value->text = TSR_STR("a factory that is not a class");
    return value->text.data ? TSR_OK : TSR_E_NOMEM;
}

/* A mapping class: pairs of its first argument (a dict, or a list of pairs), then those set on it. */
static tsr_status fill_mapping(tsr_torch_build *build, tsr_ref ref, frame *out, tsr_error *err)
{
    tsr_value *value = out->value;
    const tsr_pickle *pickle = build->pickle;
    tsr_ref first = tsr_torch_arg(pickle, ref, 0);
    bool listed = tsr_pickle_kind_of(pickle, first) == TSR_PICKLE_LIST;
    size_t given_count = 0, set_count = 0;
    const tsr_ref *given = tsr_pickle_kind_of(pickle, first) == TSR_PICKLE_DICT || listed
                               ? tsr_pickle_items(pickle, first, &given_count)
                               : NULL;
    const tsr_ref *set = tsr_pickle_items(pickle, tsr_pickle_dict_items(pickle, ref), &set_count);
    value->ordered_dict = tsr_pickle_class_id(pickle, ref) == TSR_TORCH_ORDERED_DICT;
    TSR_TRY(note_mapping_class(build, value, ref, err));
    if (!given_count) return fill_pairs(build, ref, set, set_count, out, err);
    TSR_TRY(charge(build, ref, given_count, err));
    tsr_ref *all = tsr_arena_array(build->arena, 2 * given_count + set_count, sizeof *all, err);
    if (!all) return TSR_E_NOMEM;
    size_t n = 0;
    for (size_t i = 0; i < given_count; i++) {
        if (!listed) {
            all[n++] = given[i];
            continue;
        }
        if (tsr_pickle_count(pickle, given[i]) != 2) return fill_object(build, ref, out, err);
        all[n++] = tsr_pickle_item(pickle, given[i], 0);
        all[n++] = tsr_pickle_item(pickle, given[i], 1);
    }
    for (size_t i = 0; i < set_count; i++) all[n++] = set[i];
    return fill_pairs(build, ref, all, n, out, err);
}

static void set_tensor(tsr_value *value, const tsr_torch_dense *dense)
{
    *value = (tsr_value){.kind = TSR_VALUE_TENSOR, .as.tensor = &dense->entry};
}

/* A dense tensor; without bytes (meta device) it is an object with dtype and size. */
static tsr_status make_tensor(tsr_torch_build *build, uint32_t id, tsr_ref args, bool is_parameter, frame *out,
                              tsr_error *err)
{
    tsr_value *value = out->value;
    tsr_torch_dense *dense;
    TSR_TRY(tsr_torch_rebuild(build, id, args, &dense, err));
    if (dense->entry.kind == TSR_ENTRY_TENSOR) {
        dense->entry.is_parameter = is_parameter;
        set_tensor(value, dense);
        return TSR_OK;
    }
    const tsr_pickle *pickle = build->pickle;
    part parts[] = {{"size", tsr_pickle_item(pickle, args, 2)}, {"stride", tsr_pickle_item(pickle, args, 3)}};
    return fill_parts(build, TSR_STR("torch.meta"), parts, 2, out, err);
}

static tsr_status fill_sparse(tsr_torch_build *build, tsr_ref args, frame *out, tsr_error *err)
{
    const tsr_pickle *pickle = build->pickle;
    tsr_ref data = tsr_pickle_item(pickle, args, 1);
    tsr_str layout;
    TSR_TRY(tsr_torch_keep_text(build, tsr_torch_arg(pickle, tsr_pickle_item(pickle, args, 0), 0), &layout, err));
    bool coo = tsr_str_equal(layout, TSR_STR("torch.sparse_coo"));
    part parts[] = {{coo ? "indices" : "compressed_indices", tsr_pickle_item(pickle, data, 0)},
                    {coo ? "values" : "plain_indices", tsr_pickle_item(pickle, data, 1)},
                    {coo ? "size" : "values", tsr_pickle_item(pickle, data, 2)},
                    {coo ? "is_coalesced" : "size", tsr_pickle_item(pickle, data, 3)}};
    if (!layout.size) layout = TSR_STR("torch.sparse");
    return fill_parts(build, layout, parts, coo && tsr_pickle_count(pickle, data) < 4 ? 3 : 4, out, err);
}

static tsr_status fill_quantized(tsr_torch_build *build, tsr_ref args, frame *out, tsr_error *err)
{
    const tsr_pickle *pickle = build->pickle;
    tsr_ref quantizer = tsr_pickle_item(pickle, args, 4);
    bool channels = tsr_pickle_count(pickle, quantizer) == 4;
    part parts[] = {{"data", TSR_REF_NONE},
                    {"qscheme", tsr_pickle_item(pickle, quantizer, 0)},
                    {channels ? "scales" : "scale", tsr_pickle_item(pickle, quantizer, 1)},
                    {channels ? "zero_points" : "zero_point", tsr_pickle_item(pickle, quantizer, 2)},
                    {"axis", tsr_pickle_item(pickle, quantizer, 3)},
                    {"size", tsr_pickle_item(pickle, args, 2)}};
    size_t count = channels ? 5 : 4;
    tsr_torch_dense *dense;
    tsr_value *data = tsr_value_new(build->arena, TSR_VALUE_NONE, err);
    if (!data) return TSR_E_NOMEM;
    tsr_ref storage = tsr_pickle_item(pickle, args, 0);
    tsr_dtype dtype = tsr_torch_storage_dtype(pickle, tsr_pickle_item(pickle, tsr_pickle_persistent(pickle, storage), 1));
    bool packed = dtype == TSR_QUINT4X2 || dtype == TSR_QUINT2X4; /* several elements a byte: the bytes are shown */
    TSR_TRY(packed ? tsr_torch_bare_storage(build, storage, &dense, err)
                   : tsr_torch_rebuild(build, TSR_TORCH_REBUILD_QUANTIZED, args, &dense, err));
    if (packed) parts[count++] = parts[5];
    TSR_TRY(fill_parts(build, TSR_STR("torch.quantized"), parts, count, out, err));
    set_tensor(data, dense);
    out->items[1] = data;
    out->next = 1; /* the first part is there already */
    return TSR_OK;
}

/* Tensors that are not one run of elements: their parts by name. `args` are those of the rebuild function. */
static tsr_status fill_opaque(tsr_torch_build *build, uint32_t id, tsr_ref args, frame *out, tsr_error *err)
{
    const tsr_pickle *pickle = build->pickle;
    tsr_ref a[4];
    for (size_t i = 0; i < 4; i++) a[i] = tsr_pickle_item(pickle, args, i);
    if (id == TSR_TORCH_REBUILD_QUANTIZED) return fill_quantized(build, args, out, err);
    if (id == TSR_TORCH_REBUILD_SPARSE) return fill_sparse(build, args, out, err);
    if (id == TSR_TORCH_REBUILD_META) {
        part parts[] = {{"dtype", a[0]}, {"size", a[1]}, {"stride", a[2]}};
        return fill_parts(build, TSR_STR("torch.meta"), parts, 3, out, err);
    }
    if (id == TSR_TORCH_REBUILD_DEVICE) {
        part parts[] = {{"data", a[0]}, {"dtype", a[1]}, {"device", a[2]}};
        out->then = TSR_THEN_DEVICE_TENSOR;
        return fill_parts(build, TSR_STR("torch.Tensor"), parts, 3, out, err);
    }
    if (id == TSR_TORCH_REBUILD_JAGGED) {
        part parts[] = {{"values", tsr_pickle_get(pickle, a[0], "values", NULL)},
                        {"offsets", tsr_pickle_get(pickle, a[0], "offsets", NULL)},
                        {"lengths", tsr_pickle_get(pickle, a[0], "lengths", NULL)}};
        return fill_parts(build, TSR_STR("torch.nested"), parts, 3, out, err);
    }
    part parts[] = {{"values", a[0]}, {"sizes", a[1]}, {"strides", a[2]}, {"storage_offsets", a[3]}};
    return fill_parts(build, TSR_STR("torch.nested"), parts, 4, out, err);
}

static tsr_status fill_sharded(tsr_torch_build *build, tsr_ref args, tsr_ref state, frame *out, tsr_error *err)
{
    tsr_value *value = out->value;
    const tsr_pickle *pickle = build->pickle;
    tsr_ref list = tsr_torch_local_shards(pickle, state);
    size_t count = tsr_pickle_count(pickle, list);
    TSR_TRY(charge(build, state, count, err));
    tsr_ref *refs = tsr_arena_array(build->arena, count, sizeof *refs, err);
    if (!refs) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) refs[i] = tsr_torch_attribute(pickle, tsr_pickle_item(pickle, list, i), "tensor");
    out->then = TSR_THEN_SHARDED;
    out->args = args;
    out->state = state;
    value->text = TSR_STR("torch.distributed._shard.sharded_tensor.api.ShardedTensor");
    return fill(build, TSR_VALUE_OBJECT, refs, count, out, err);
}

/* Wrapper subclasses have no bytes of their own: their state holds the inner tensors. */
static tsr_status fill_wrapper(tsr_torch_build *build, tsr_ref type, tsr_ref args, tsr_ref state, frame *out, tsr_error *err)
{
    const tsr_pickle *pickle = build->pickle;
    uint32_t id = tsr_pickle_id(pickle, type);
    if (id == TSR_TORCH_SHARDED_TENSOR && tsr_torch_local_shards(pickle, state) != TSR_REF_NONE)
        return fill_sharded(build, args, state, out, err);
    tsr_ref local = tsr_torch_attribute(pickle, state, "_local_tensor");
    const bool is_sharded = id == TSR_TORCH_DTENSOR || id == TSR_TORCH_SHARDED_TENSOR; /* written by other means */
    bool dtensor = id == TSR_TORCH_DTENSOR && local != TSR_REF_NONE;
    tsr_str name = tsr_torch_class_text(build, type, err);
    if (!name.data) return TSR_E_NOMEM;
    part parts[] = {{dtensor ? "local_tensor" : "state", dtensor ? local : state},
                    {"dtype", tsr_pickle_item(pickle, args, 1)},
                    {"size", tsr_pickle_item(pickle, args, 2)},
                    {TSR_WRAPPER_PART, args}};
    if (dtensor) out->then = TSR_THEN_DTENSOR;
    out->args = args;
    out->state = state;
    return fill_parts(build, name, parts, is_sharded ? 3 : 4, out, err);
}

/* _rebuild_from_type_v2(function, type, args, state): works out what its call of `function` would give. */
static tsr_status fill_from_type(tsr_torch_build *build, tsr_ref ref, frame *out, tsr_error *err)
{
    const tsr_pickle *pickle = build->pickle;
    tsr_ref function = tsr_torch_arg(pickle, ref, 0), type = tsr_torch_arg(pickle, ref, 1);
    tsr_ref args = tsr_torch_arg(pickle, ref, 2), state = tsr_torch_arg(pickle, ref, 3);
    uint32_t id = tsr_pickle_id(pickle, function);
    if (id == TSR_TORCH_REBUILD_TENSOR || id == TSR_TORCH_REBUILD_TENSOR_V3)
        return make_tensor(build, id, args, tsr_pickle_id(pickle, type) == TSR_TORCH_PARAMETER, out, err);
    if (id == TSR_TORCH_REBUILD_WRAPPER) return fill_wrapper(build, type, args, state, out, err);
    if (id >= TSR_TORCH_REBUILD_QUANTIZED && id <= TSR_TORCH_REBUILD_DEVICE) return fill_opaque(build, id, args, out, err);
    return fill_object(build, ref, out, err);
}

/* complex(re, im); made of text, or of other objects, it stays a call. */
static tsr_status make_complex(tsr_torch_build *build, tsr_ref ref, frame *out, tsr_error *err)
{
    tsr_value *value = out->value;
    const tsr_pickle *pickle = build->pickle;
    double parts[2];
    for (size_t i = 0; i < 2; i++) {
        tsr_ref item = tsr_torch_arg(pickle, ref, i);
        tsr_pickle_kind kind = tsr_pickle_kind_of(pickle, item);
        bool real = kind == TSR_PICKLE_FLOAT, absent = i >= tsr_pickle_count(pickle, tsr_pickle_args(pickle, ref));
        if (!real && kind != TSR_PICKLE_INT && kind != TSR_PICKLE_BOOL && !absent) return fill_object(build, ref, out, err);
        parts[i] = real ? tsr_pickle_float(pickle, item) : (double)tsr_pickle_int(pickle, item);
    }
    value->kind = TSR_VALUE_COMPLEX;
    value->as.complex.re = parts[0];
    value->as.complex.im = parts[1];
    return TSR_OK;
}

/* _codecs.encode(text, 'latin1'), bytes(), bytearray(text, 'latin-1'), bytearray(bytes). */
static tsr_status make_bytes(tsr_torch_build *build, tsr_ref ref, frame *out, tsr_error *err)
{
    tsr_value *value = out->value;
    const tsr_pickle *pickle = build->pickle;
    tsr_ref args = tsr_pickle_args(pickle, ref), text = tsr_pickle_item(pickle, args, 0);
    tsr_pickle_kind kind = tsr_pickle_kind_of(pickle, text);
    tsr_status status = TSR_OK;
    if (is_named(build, ref, "bytearray")) value->variant = TSR_VARIANT_BYTEARRAY;
    if (kind == TSR_PICKLE_STR && is_latin1_name(tsr_pickle_text(pickle, tsr_pickle_item(pickle, args, 1)))) {
        if (latin1(tsr_pickle_text(pickle, text), build->arena, &value->text, &status, err)) {
            value->kind = TSR_VALUE_BYTES;
            return TSR_OK;
        }
        return status != TSR_OK ? status : fill_object(build, ref, out, err);
    }
    if (kind == TSR_PICKLE_BYTES || tsr_pickle_count(pickle, args) == 0) {
        value->kind = TSR_VALUE_BYTES;
        return tsr_torch_keep_text(build, text, &value->text, err);
    }
    TSR_TRY(fill_object(build, ref, out, err));
    out->then = TSR_THEN_BYTES;
    return TSR_OK;
}

static tsr_status make_named(tsr_torch_build *build, tsr_ref ref, uint32_t id, frame *out, tsr_error *err)
{
    tsr_value *value = out->value;
    const tsr_pickle *pickle = build->pickle;
    tsr_ref first = tsr_torch_arg(pickle, ref, 0), second = tsr_torch_arg(pickle, ref, 1);
    if (id == TSR_TORCH_GETATTR) {
        value->kind = TSR_VALUE_GLOBAL;
        value->text = tsr_torch_class_text(build, ref, err);
        if (!value->text.data) return TSR_E_NOMEM;
        return tsr_torch_is_attribute(pickle, first, second) ? TSR_OK : fill_object(build, ref, out, err);
    }
    TSR_TRY(tsr_torch_keep_text(build, first, &value->text, err));
    value->kind = id == TSR_TORCH_DEVICE ? TSR_VALUE_DEVICE : TSR_VALUE_GLOBAL;
    if (id != TSR_TORCH_DEVICE || tsr_pickle_kind_of(pickle, second) != TSR_PICKLE_INT) return TSR_OK;
    value->text = tsr_arena_format(build->arena, err, "%.*s:%lld", TSR_STR_ARG(value->text),
                                   (long long)tsr_pickle_int(pickle, second));
    return value->text.data ? TSR_OK : TSR_E_NOMEM;
}

/* set([…]), torch.Size((…)). */
static tsr_status fill_from_items(tsr_torch_build *build, tsr_ref ref, tsr_value_kind kind, frame *out, tsr_error *err)
{
    tsr_ref items = tsr_torch_arg(build->pickle, ref, 0);
    tsr_pickle_kind held = tsr_pickle_kind_of(build->pickle, items);
    if (held != TSR_PICKLE_LIST && held != TSR_PICKLE_TUPLE && held != TSR_PICKLE_SET && items != TSR_REF_NONE)
        return fill_object(build, ref, out, err);
    size_t count = 0;
    const tsr_ref *refs = tsr_pickle_items(build->pickle, items, &count);
    TSR_TRY(charge(build, ref, count, err));
    return fill(build, kind, refs, count, out, err);
}

static tsr_status fill_parameter(tsr_torch_build *build, tsr_ref ref, frame *out, tsr_error *err)
{
    size_t count = 0;
    const tsr_ref *args = tsr_pickle_items(build->pickle, tsr_pickle_args(build->pickle, ref), &count);
    if (!count) return fill_object(build, ref, out, err);
    out->then = TSR_THEN_PARAMETER;
    out->args = tsr_pickle_args(build->pickle, ref);
    return fill(build, TSR_VALUE_OBJECT, args, 1, out, err);
}

/* torch.FloatTensor and the like with (storage, offset, size, stride) as their state, as PyTorch 0.x pickled them. */
static tsr_status fill_old_tensor(tsr_torch_build *build, tsr_ref ref, frame *out, tsr_error *err)
{
    const tsr_pickle *pickle = build->pickle;
    tsr_ref state = tsr_pickle_state(pickle, ref);
    bool old = tsr_pickle_kind_of(pickle, state) == TSR_PICKLE_TUPLE && tsr_pickle_count(pickle, state) == 4 &&
               tsr_pickle_kind_of(pickle, tsr_pickle_item(pickle, state, 0)) == TSR_PICKLE_PERSISTENT;
    return old ? make_tensor(build, TSR_TORCH_REBUILD_TENSOR, state, false, out, err) : fill_object(build, ref, out, err);
}

/* A subclass of OrderedDict is called without arguments, one of defaultdict with its factory; the items follow. */
static bool is_called_mapping(const tsr_pickle *pickle, tsr_ref ref)
{
    tsr_ref first = tsr_torch_arg(pickle, ref, 0);
    size_t count = tsr_pickle_count(pickle, tsr_pickle_args(pickle, ref));
    bool factory = count == 1 && (first == TSR_REF_NONE || tsr_pickle_kind_of(pickle, first) == TSR_PICKLE_GLOBAL);
    return tsr_pickle_how_of(pickle, ref) == TSR_PICKLE_CALLED && (count == 0 || factory);
}

/* Python pickles items beside the arguments for instances of dict and of list only: what is merely built, from no arguments,
 * or called like a subclass of OrderedDict, is what PyTorch would walk into. */
static tsr_status fill_container(tsr_torch_build *build, tsr_ref ref, frame *out, tsr_error *err)
{
    tsr_value *value = out->value;
    const tsr_pickle *pickle = build->pickle;
    tsr_ref appended = tsr_pickle_appended(pickle, ref), set = tsr_pickle_dict_items(pickle, ref);
    bool one = (appended == TSR_REF_NONE) != (set == TSR_REF_NONE), mapping = is_called_mapping(pickle, ref) && set;
    bool plain =
        tsr_pickle_how_of(pickle, ref) == TSR_PICKLE_BUILT && tsr_pickle_count(pickle, tsr_pickle_args(pickle, ref)) == 0;
    if (!one || !(plain || mapping)) return fill_object(build, ref, out, err);
    value->variant = TSR_VARIANT_SUBCLASS;
    value->text = tsr_torch_class_text(build, tsr_pickle_class(pickle, ref), err);
    if (!value->text.data) return TSR_E_NOMEM;
    size_t count = 0;
    const tsr_ref *items = tsr_pickle_items(pickle, set == TSR_REF_NONE ? appended : set, &count);
    if (!mapping) return fill(build, set == TSR_REF_NONE ? TSR_VALUE_LIST : TSR_VALUE_DICT, items, count, out, err);
    value->ordered_dict = tsr_pickle_count(pickle, tsr_pickle_args(pickle, ref)) == 0;
    return fill_pairs(build, ref, items, count, out, err);
}

/* Starts out->value, that of an OBJECT node: complete at once, or with children left in `out`. */
static tsr_status enter_object(tsr_torch_build *build, tsr_ref ref, frame *out, tsr_error *err)
{
    tsr_value *value = out->value;
    const tsr_pickle *pickle = build->pickle;
    uint32_t id = tsr_pickle_class_id(pickle, ref);
    tsr_ref args = tsr_pickle_args(pickle, ref);
    switch (id) {
    case TSR_TORCH_ORDERED_DICT:
    case TSR_TORCH_DEFAULT_DICT:
    case TSR_TORCH_PLAIN_DICT: return fill_mapping(build, ref, out, err);
    case TSR_TORCH_SET:
        if (is_named(build, ref, "frozenset")) value->variant = TSR_VARIANT_FROZENSET;
        return fill_from_items(build, ref, TSR_VALUE_SET, out, err);
    case TSR_TORCH_SIZE: return fill_from_items(build, ref, TSR_VALUE_SIZE, out, err);
    case TSR_TORCH_COMPLEX: return make_complex(build, ref, out, err);
    case TSR_TORCH_BYTES:
    case TSR_TORCH_ENCODE: return make_bytes(build, ref, out, err);
    case TSR_TORCH_GETATTR:
    case TSR_TORCH_DEVICE:
    case TSR_TORCH_LAYOUT: return make_named(build, ref, id, out, err);
    case TSR_TORCH_TENSOR: return fill_old_tensor(build, ref, out, err);
    case TSR_TORCH_REBUILD_TENSOR:
    case TSR_TORCH_REBUILD_TENSOR_V3: return make_tensor(build, id, args, false, out, err);
    case TSR_TORCH_PARAMETER:
    case TSR_TORCH_REBUILD_PARAMETER: return fill_parameter(build, ref, out, err);
    case TSR_TORCH_REBUILD_QUANTIZED:
    case TSR_TORCH_REBUILD_SPARSE:
    case TSR_TORCH_REBUILD_NESTED:
    case TSR_TORCH_REBUILD_JAGGED:
    case TSR_TORCH_REBUILD_META:
    case TSR_TORCH_REBUILD_DEVICE: return fill_opaque(build, id, args, out, err);
    case TSR_TORCH_REBUILD_FROM_TYPE: return fill_from_type(build, ref, out, err);
    default: return fill_container(build, ref, out, err);
    }
}

static const tsr_torch_dense *dense_of(const tsr_value *value)
{
    return value->kind == TSR_VALUE_TENSOR ? (const tsr_torch_dense *)value->as.tensor : NULL;
}

static tsr_status finish_parameter(tsr_torch_build *build, const frame *f, tsr_error *err)
{
    const tsr_torch_dense *data = dense_of(f->items[0]);
    if (!data) {
        *f->value = *f->items[0];
        return TSR_OK;
    }
    tsr_torch_dense *parameter = TSR_ARENA_NEW(build->arena, tsr_torch_dense, err);
    if (!parameter) return TSR_E_NOMEM;
    *parameter = *data;
    parameter->entry.is_parameter = true;
    parameter->entry.requires_grad = tsr_pickle_bool(build->pickle, tsr_pickle_item(build->pickle, f->args, 1));
    set_tensor(f->value, parameter);
    return TSR_OK;
}

/* A DTensor whose local tensor is a tensor subclass stays an object, with an entry that says which box the rank holds. */
static tsr_status finish_subclass(tsr_torch_build *build, const frame *f, const tsr_value *local, tsr_error *err)
{
    const tsr_value *args = tsr_value_get(local->items[0], TSR_STR(TSR_WRAPPER_PART)), *size;
    tsr_torch_dense outer = {.storage = UINT32_MAX}, *dense;
    if (args->count < 3 || args->items[1]->kind != TSR_VALUE_DTYPE) return TSR_OK;
    size = args->items[2];
    if (size->kind != TSR_VALUE_SIZE && size->kind != TSR_VALUE_TUPLE) return TSR_OK;
    uint64_t *shape = tsr_arena_array(build->arena, size->count, sizeof *shape, err);
    if (!shape) return TSR_E_NOMEM;
    if (size->count > TSR_MAX_NDIM) return TSR_OK;
    for (size_t i = 0; i < size->count; i++) {
        if (size->items[i]->kind != TSR_VALUE_INT || size->items[i]->as.integer < 0) return TSR_OK;
        shape[i] = (uint64_t)size->items[i]->as.integer;
    }
    uint64_t elements;
    outer.entry = (tsr_entry){.dtype = args->items[1]->as.dtype, .ndim = (uint32_t)size->count, .shape = shape};
    if (!tsr_entry_elements(&outer.entry, &elements)) return TSR_OK;
    TSR_TRY(tsr_host_load(build->host, err));
    TSR_TRY(tsr_torch_dtensor(build, f->args, f->state, &outer, &dense, err));
    if (!dense) return TSR_OK;
    const tsr_value **pieces = tsr_arena_array(build->arena, 1, sizeof *pieces, err);
    if (!pieces) return TSR_E_NOMEM;
    pieces[0] = local;
    dense->entry.kind = TSR_ENTRY_OPAQUE;
    dense->entry.type = local->text;
    dense->entry.value = tsr_value_items(build->arena, TSR_VALUE_LIST, pieces, (size_t)dense->entry.chunk_count, err);
    f->value->as.tensor = &dense->entry;
    return dense->entry.value ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status finish_dtensor(tsr_torch_build *build, const frame *f, tsr_error *err)
{
    const tsr_torch_dense *local = dense_of(f->items[1]);
    if (tsr_torch_is_subclass(f->items[1])) return finish_subclass(build, f, f->items[1], err);
    if (!local || local->storage == UINT32_MAX) return TSR_OK;
    tsr_torch_dense *dense;
    TSR_TRY(tsr_host_load(build->host, err));
    TSR_TRY(tsr_torch_dtensor(build, f->args, f->state, local, &dense, err));
    if (dense) set_tensor(f->value, dense);
    return TSR_OK;
}

static tsr_status finish_sharded(tsr_torch_build *build, const frame *f, tsr_error *err)
{
    const tsr_torch_dense **locals = tsr_arena_array(build->arena, f->count, sizeof *locals, err);
    if (!locals) return TSR_E_NOMEM;
    for (size_t i = 0; i < f->count; i++) {
        locals[i] = dense_of(f->items[i]);
        if (!locals[i]) return TSR_OK; /* shards that are not dense tensors: shown as an object */
    }
    tsr_torch_dense *dense;
    TSR_TRY(tsr_torch_sharded(build, f->args, f->state, locals, &dense, err));
    set_tensor(f->value, dense);
    return TSR_OK;
}

/* What the children of an object's frame make of it. */
static tsr_status finish_object(tsr_torch_build *build, const frame *f, tsr_error *err)
{
    switch (f->then) {
    case TSR_THEN_PARAMETER: return finish_parameter(build, f, err);
    case TSR_THEN_DTENSOR: return finish_dtensor(build, f, err);
    case TSR_THEN_SHARDED: return finish_sharded(build, f, err);
    case TSR_THEN_BYTES: /* bytearray(_codecs.encode(…)) */
        if (f->count == 1 && f->items[0]->items[0]->kind == TSR_VALUE_BYTES) {
            const tsr_value_variant variant = f->value->variant;
            *f->value = *f->items[0]->items[0];
            f->value->variant = variant;
        }
        return TSR_OK;
    case TSR_THEN_ATTRIBUTES: f->value->as.attributes = f->items[f->count - 1]; return TSR_OK;
    case TSR_THEN_DEVICE_TENSOR: /* data already has the dtype it is moved with */
        if (f->items[1]->kind == TSR_VALUE_TENSOR && f->items[3]->kind == TSR_VALUE_DTYPE &&
            f->items[1]->as.tensor->dtype == f->items[3]->as.dtype)
            *f->value = *f->items[1];
        return TSR_OK;
    default: return TSR_OK;
    }
}

/* ---- the walk ---- */

typedef struct slot {
    tsr_ref ref;
    tsr_value *value; /* NULL: free */
} slot;

/* ref → value, open addressing. */
typedef struct memo {
    const tsr_allocator *allocator;
    slot *slots;
    size_t capacity; /* a power of two */
    size_t count;
} memo;

typedef struct walk {
    tsr_torch_build *build;
    memo memo;
    tsr_vec frames;
} walk;

static slot *memo_slot(slot *slots, size_t capacity, tsr_ref ref)
{
    size_t at = ((uint64_t)ref * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (capacity - 1);
    while (slots[at].value && slots[at].ref != ref) at = (at + 1) & (capacity - 1);
    return &slots[at];
}

static tsr_value *memo_get(const memo *m, tsr_ref ref)
{
    return m->capacity ? memo_slot(m->slots, m->capacity, ref)->value : NULL;
}

static tsr_status memo_put(memo *m, tsr_ref ref, tsr_value *value, tsr_error *err)
{
    if (m->count * 4 >= m->capacity * 3) {
        size_t capacity = m->capacity ? m->capacity * 2 : 64;
        slot *slots = tsr_alloc(m->allocator, capacity, sizeof *slots, err);
        if (!slots) return TSR_E_NOMEM;
        memset(slots, 0, capacity * sizeof *slots);
        for (size_t i = 0; i < m->capacity; i++)
            if (m->slots[i].value) *memo_slot(slots, capacity, m->slots[i].ref) = m->slots[i];
        tsr_free(m->allocator, m->slots, m->capacity, sizeof *slots);
        m->slots = slots;
        m->capacity = capacity;
    }
    *memo_slot(m->slots, m->capacity, ref) = (slot){ref, value};
    m->count++;
    return TSR_OK;
}

/* A storage by itself, or the class of a module in the legacy form. */
static tsr_status enter_persistent(walk *w, tsr_value *value, tsr_ref ref, tsr_error *err)
{
    const tsr_pickle *pickle = w->build->pickle;
    tsr_ref id = tsr_pickle_persistent(pickle, ref);
    tsr_str kind = tsr_pickle_text(pickle, tsr_pickle_item(pickle, id, 0));
    if (tsr_str_equal(kind, TSR_STR("module"))) {
        value->kind = TSR_VALUE_GLOBAL;
        value->text = tsr_torch_class_text(w->build, ref, err);
        return value->text.data ? TSR_OK : TSR_E_NOMEM;
    }
    tsr_torch_dense *dense;
    TSR_TRY(tsr_torch_bare_storage(w->build, ref, &dense, err));
    tsr_value *inner = tsr_value_new(w->build->arena, TSR_VALUE_NONE, err);
    const tsr_value **items = tsr_arena_array(w->build->arena, 1, sizeof *items, err);
    if (!inner || !items) return TSR_E_NOMEM;
    if (dense->entry.kind == TSR_ENTRY_TENSOR) set_tensor(inner, dense);
    items[0] = inner;
    value->kind = TSR_VALUE_OBJECT;
    value->text = tsr_torch_class_text(w->build, tsr_pickle_item(pickle, id, 1), err);
    value->items = items;
    value->count = 1;
    return value->text.data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status enter_global(walk *w, tsr_value *value, tsr_ref ref, tsr_error *err)
{
    tsr_dtype dtype = tsr_torch_dtype(w->build->pickle, ref);
    value->kind = dtype != TSR_DTYPE_NONE ? TSR_VALUE_DTYPE : TSR_VALUE_GLOBAL;
    if (dtype != TSR_DTYPE_NONE) value->as.dtype = dtype;
    value->text = tsr_torch_class_text(w->build, ref, err);
    return value->text.data ? TSR_OK : TSR_E_NOMEM;
}

/* Starts the value of a node: scalars are complete at once, others get a frame with children. */
static tsr_status enter(walk *w, tsr_value *value, tsr_ref ref, frame *out, tsr_error *err)
{
    static const tsr_value_kind containers[] = {[TSR_PICKLE_LIST] = TSR_VALUE_LIST,
                                                [TSR_PICKLE_TUPLE] = TSR_VALUE_TUPLE,
                                                [TSR_PICKLE_SET] = TSR_VALUE_SET,
                                                [TSR_PICKLE_DICT] = TSR_VALUE_DICT};
    const tsr_pickle *pickle = w->build->pickle;
    tsr_pickle_kind kind = tsr_pickle_kind_of(pickle, ref);
    size_t count = 0;
    const tsr_ref *items;
    switch (kind) {
    case TSR_PICKLE_BOOL:
        value->kind = TSR_VALUE_BOOL;
        value->as.boolean = tsr_pickle_bool(pickle, ref);
        return TSR_OK;
    case TSR_PICKLE_INT:
        value->kind = TSR_VALUE_INT;
        value->as.integer = tsr_pickle_int(pickle, ref);
        return TSR_OK;
    case TSR_PICKLE_FLOAT:
        value->kind = TSR_VALUE_FLOAT;
        value->as.real = tsr_pickle_float(pickle, ref);
        return TSR_OK;
    case TSR_PICKLE_BIGINT: value->kind = TSR_VALUE_BIGINT; return tsr_torch_keep_text(w->build, ref, &value->text, err);
    case TSR_PICKLE_STR: value->kind = TSR_VALUE_STR; return tsr_torch_keep_text(w->build, ref, &value->text, err);
    case TSR_PICKLE_BYTES:
        value->kind = TSR_VALUE_BYTES;
        if (!tsr_pickle_is_hashable(pickle, ref)) value->variant = TSR_VARIANT_BYTEARRAY;
        return tsr_torch_keep_text(w->build, ref, &value->text, err);
    case TSR_PICKLE_LIST:
    case TSR_PICKLE_TUPLE:
    case TSR_PICKLE_SET:
    case TSR_PICKLE_DICT:
        if (kind == TSR_PICKLE_SET && tsr_pickle_is_hashable(pickle, ref)) value->variant = TSR_VARIANT_FROZENSET;
        items = tsr_pickle_items(pickle, ref, &count);
        return fill(w->build, containers[kind], items, count, out, err);
    case TSR_PICKLE_GLOBAL: return enter_global(w, value, ref, err);
    case TSR_PICKLE_PERSISTENT: return enter_persistent(w, value, ref, err);
    case TSR_PICKLE_OBJECT: return enter_object(w->build, ref, out, err);
    default: return TSR_OK;
    }
}

/* About the bytes of a value's own text. */
static uint64_t own_weight(const tsr_value *value)
{
    const uint64_t text = value->kind == TSR_VALUE_BIGINT ? 3 : 1;
    return 24 + (value->text.size < UINT32_MAX ? text * value->text.size : TSR_VALUE_ENDLESS / 2);
}

static uint64_t add_weights(uint64_t a, uint64_t b)
{
    return a > TSR_VALUE_ENDLESS - b ? TSR_VALUE_ENDLESS : a + b;
}

/* Adds what an item expands to, and whether it is foreign or loses a class, to those of the value that holds it. */
static void add_item(tsr_value *to, const tsr_value *item)
{
    if (!item) return;
    to->expanded = add_weights(to->expanded, item->expanded ? item->expanded : own_weight(item));
    to->foreign = to->foreign || (item->expanded ? item->foreign : !tsr_torch_is_plain(item));
    to->loses_class = to->loses_class || item->loses_class;
}

/* What a complete value expands to. Its items were weighed before, but for the few that an object's parts are made of. */
static void weigh(tsr_value *value)
{
    value->expanded = own_weight(value);
    value->foreign = !tsr_torch_is_plain(value);
    value->loses_class = value->variant == TSR_VARIANT_SUBCLASS;
    for (size_t i = 0; i < value->count; i++) {
        const tsr_value *item = value->items[i];
        add_item(value, item);
        for (size_t k = 0; item && !item->expanded && k < item->count; k++) add_item(value, item->items[k]);
    }
    const tsr_value *attributes = tsr_value_attributes(value);
    if (attributes) value->foreign = value->foreign || attributes->foreign;
    if (attributes) value->loses_class = value->loses_class || attributes->loses_class;
}

static tsr_status finish(walk *w, const frame *f, tsr_error *err)
{
    TSR_TRY(finish_object(w->build, f, err));
    weigh(f->value);
    return TSR_OK;
}

/* The value of a node, which may still be waiting for its children: then a frame is pushed. */
static tsr_status visit(walk *w, tsr_ref ref, const tsr_value **out, tsr_error *err)
{
    tsr_value *value = memo_get(&w->memo, ref);
    *out = value;
    if (value) return TSR_OK;
    value = tsr_value_new(w->build->arena, TSR_VALUE_NONE, err);
    if (!value) return TSR_E_NOMEM;
    *out = value;
    TSR_TRY(memo_put(&w->memo, ref, value, err));
    frame next = {.value = value};
    TSR_TRY(enter(w, value, ref, &next, err));
    if (next.next == next.count) return finish(w, &next, err);
    value->expanded = TSR_VALUE_ENDLESS; /* as long as it is open: what is inside it and holds it has no end */
    TSR_FAIL_AT(w->frames.count >= w->build->host->limits.depth, err, TSR_E_LIMIT, tsr_torch_position(w->build, ref),
                "torch: values nest deeper than the limit of %u (depth)", w->build->host->limits.depth);
    frame *pushed = tsr_vec_push(&w->frames, err);
    if (!pushed) return TSR_E_NOMEM;
    *pushed = next;
    return TSR_OK;
}

static tsr_status run(walk *w, tsr_ref root, const tsr_value **out, tsr_error *err)
{
    TSR_TRY(visit(w, root, out, err));
    while (w->frames.count) {
        frame *top = (frame *)w->frames.items + w->frames.count - 1;
        if (top->next == top->count) {
            TSR_TRY(finish(w, top, err));
            w->frames.count--;
            continue;
        }
        size_t i = top->next++;
        TSR_TRY(visit(w, top->children[i], &top->items[top->first + i * top->step], err));
    }
    return TSR_OK;
}

/* Loading reads every storage that the pickle names, also those that nothing holds in the end. */
static tsr_status require_storages(tsr_torch_build *build, tsr_error *err)
{
    const tsr_pickle *pickle = build->pickle;
    size_t count;
    const tsr_pickle_oddity *odd = tsr_pickle_oddities(pickle, &count);
    for (size_t i = 0; i < count; i++) {
        tsr_ref kind = tsr_pickle_item(pickle, tsr_pickle_persistent(pickle, odd[i].ref), 0);
        if (odd[i].kind == TSR_PICKLE_ODD_PERSISTENT && tsr_str_equal(tsr_pickle_text(pickle, kind), TSR_STR("storage")))
            TSR_TRY(tsr_torch_require_storage(build, odd[i].ref, build->pickle_offset + odd[i].position, err));
    }
    return TSR_OK;
}

tsr_status tsr_torch_values(tsr_torch_build *build, tsr_ref root, const tsr_value **out, tsr_error *err)
{
    walk w = {.build = build,
              .memo = {.allocator = build->host->allocator},
              .frames = tsr_vec_of(build->host->allocator, sizeof(frame))};
    tsr_status status = run(&w, root, out, err);
    tsr_free(w.memo.allocator, w.memo.slots, w.memo.capacity, sizeof *w.memo.slots);
    tsr_vec_free(&w.frames);
    if (status == TSR_OK) status = require_storages(build, err);
    return status == TSR_OK ? tsr_torch_verdict(build, true, err) : status;
}
