/* A torch.save pickle as a value tree. The walk is a stack of frames, one a node whose children are being made; a node that
 * several parents share is made once, so the tree is as large as the pickle, not as its expansion.
 *
 * A frame's children go to items[first + i × step]: an object that is shown as a dictionary of named parts has the names at
 * the even places before the walk fills in the odd ones. */
#include "base/try.h"
#include "formats/torch_build.h"

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

typedef struct frame {
    tsr_value *value;
    tsr_ref ref;
    enum { FILL, PARAMETER, BYTES_OF, DEVICE_TENSOR, DTENSOR, SHARDED } then; /* what to do when the children are there */
    tsr_ref args;  /* DTENSOR, SHARDED: of the wrapper; PARAMETER: of the call */
    tsr_ref state;
    const tsr_ref *children;
    const tsr_value **items;
    size_t count, next, first, step;
} frame;

typedef struct walk {
    tsr_torch_build *build;
    memo memo;
    tsr_vec frames;
} walk;

typedef struct part {
    const char *name;
    tsr_ref ref;
} part;

tsr_ref tsr_torch_arg(const tsr_pickle *pickle, tsr_ref object, size_t index)
{
    return tsr_pickle_item(pickle, tsr_pickle_args(pickle, object), index);
}

tsr_ref tsr_torch_attribute(const tsr_pickle *pickle, tsr_ref holder, const char *name)
{
    if (tsr_pickle_kind_of(pickle, holder) == TSR_PICKLE_OBJECT) holder = tsr_pickle_state(pickle, holder);
    if (tsr_pickle_kind_of(pickle, holder) != TSR_PICKLE_TUPLE) return tsr_pickle_get(pickle, holder, name, NULL);
    for (size_t i = tsr_pickle_count(pickle, holder); i-- > 0;) {
        bool found;
        tsr_ref value = tsr_pickle_get(pickle, tsr_pickle_item(pickle, holder, i), name, &found);
        if (found) return value;
    }
    return TSR_REF_NONE;
}

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

/* A text of the pickle that may outlive it: what its parser had to decode is copied. */
static tsr_status text_of(walk *w, tsr_ref ref, tsr_str *out, tsr_error *err)
{
    tsr_str bytes = w->build->pickle_bytes, text = tsr_pickle_text(w->build->pickle, ref);
    uintptr_t from = (uintptr_t)bytes.data, at = (uintptr_t)text.data;
    *out = text;
    if (text.size == 0 || (at >= from && at < from + bytes.size)) return TSR_OK;
    *out = tsr_arena_str(w->build->arena, text, err);
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

/* "module.name" of a class, function, or what stands for one. */
static tsr_str class_text(tsr_torch_build *build, tsr_ref ref, tsr_error *err)
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

/* Bytes that protocol 2 wrote as a str of the code points 0–255; false when it holds others. */
static bool latin1(tsr_str text, tsr_arena *arena, tsr_str *out, tsr_status *status, tsr_error *err)
{
    char *bytes = tsr_arena_array(arena, text.size, 1, err);
    *status = bytes ? TSR_OK : TSR_E_NOMEM;
    if (!bytes) return false;
    size_t n = 0;
    for (size_t i = 0; i < text.size; i++) {
        unsigned char c = (unsigned char)text.data[i];
        if (c >= 0x80) {
            if ((c != 0xc2 && c != 0xc3) || i + 1 == text.size) return false;
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

static tsr_status unlisted_call(tsr_torch_build *build, tsr_ref at, tsr_str name, tsr_error *err)
{
    if (!build->findings) return TSR_OK;
    tsr_place place = {build->file_name, tsr_torch_position(build, at), {NULL, 0}};
    return tsr_find(build->findings, "pickle/unlisted-call", place, err, "loading this file with pickle would call %.*s",
                    TSR_STR_ARG(name));
}

/* The frame for a container node: `count` children into as many items. */
static tsr_status fill(walk *w, tsr_value *value, tsr_value_kind kind, const tsr_ref *children, size_t count, frame *out,
                       tsr_error *err)
{
    const tsr_value **items = tsr_arena_array(w->build->arena, count, sizeof *items, err);
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
static tsr_status fill_parts(walk *w, tsr_value *value, tsr_str class_name, const part *parts, size_t count, frame *out,
                             tsr_error *err)
{
    tsr_arena *arena = w->build->arena;
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

/* Any other object: class and {args, state, list items, dict}, as far as there are any. */
static tsr_status fill_object(walk *w, tsr_value *value, tsr_ref ref, frame *out, tsr_error *err)
{
    const tsr_pickle *pickle = w->build->pickle;
    tsr_ref class_ref = tsr_pickle_class(pickle, ref);
    const bool reconstructed = tsr_pickle_class_id(pickle, ref) == TSR_TORCH_RECONSTRUCTOR; /* (class, object, None): __new__ */
    if (reconstructed) class_ref = tsr_torch_arg(pickle, ref, 0);
    value->called = !reconstructed && tsr_pickle_how_of(pickle, ref) == TSR_PICKLE_CALLED;
    value->text = class_text(w->build, class_ref, err);
    tsr_ref *refs = tsr_arena_array(w->build->arena, 4, sizeof *refs, err);
    if (!refs || !value->text.data) return TSR_E_NOMEM;
    refs[0] = reconstructed ? TSR_REF_NONE : tsr_pickle_args(pickle, ref);
    refs[1] = tsr_pickle_state(pickle, ref);
    refs[2] = tsr_pickle_appended(pickle, ref);
    refs[3] = tsr_pickle_dict_items(pickle, ref);
    size_t count = 4;
    while (count && refs[count - 1] == TSR_REF_NONE) count--;
    return fill(w, value, TSR_VALUE_OBJECT, refs, count, out, err);
}

/* A mapping class: pairs of its first argument (a dict, or a list of pairs), then those set on it. */
static tsr_status fill_mapping(walk *w, tsr_value *value, tsr_ref ref, frame *out, tsr_error *err)
{
    const tsr_pickle *pickle = w->build->pickle;
    tsr_ref first = tsr_torch_arg(pickle, ref, 0);
    bool listed = tsr_pickle_kind_of(pickle, first) == TSR_PICKLE_LIST;
    size_t given_count = 0, set_count = 0;
    const tsr_ref *given = tsr_pickle_kind_of(pickle, first) == TSR_PICKLE_DICT || listed
                               ? tsr_pickle_items(pickle, first, &given_count) : NULL;
    const tsr_ref *set = tsr_pickle_items(pickle, tsr_pickle_dict_items(pickle, ref), &set_count);
    value->ordered_dict = tsr_pickle_class_id(pickle, ref) == TSR_TORCH_ORDERED_DICT;
    if (!given_count) return fill(w, value, TSR_VALUE_DICT, set, set_count, out, err);
    tsr_ref *all = tsr_arena_array(w->build->arena, 2 * given_count + set_count, sizeof *all, err);
    if (!all) return TSR_E_NOMEM;
    size_t n = 0;
    for (size_t i = 0; i < given_count; i++) {
        if (!listed) {
            all[n++] = given[i];
            continue;
        }
        if (tsr_pickle_count(pickle, given[i]) != 2) return fill_object(w, value, ref, out, err);
        all[n++] = tsr_pickle_item(pickle, given[i], 0);
        all[n++] = tsr_pickle_item(pickle, given[i], 1);
    }
    for (size_t i = 0; i < set_count; i++) all[n++] = set[i];
    return fill(w, value, TSR_VALUE_DICT, all, n, out, err);
}

static void set_tensor(tsr_value *value, const tsr_torch_dense *dense)
{
    *value = (tsr_value){.kind = TSR_VALUE_TENSOR, .as.tensor = &dense->entry};
}

/* A dense tensor; without bytes (meta device) it is an object with dtype and size. */
static tsr_status make_tensor(walk *w, tsr_value *value, uint32_t id, tsr_ref args, bool parameter, frame *out, tsr_error *err)
{
    tsr_torch_dense *dense;
    TSR_TRY(tsr_torch_rebuild(w->build, id, args, &dense, err));
    if (dense->entry.kind == TSR_ENTRY_TENSOR) {
        dense->entry.is_parameter = parameter;
        set_tensor(value, dense);
        return TSR_OK;
    }
    const tsr_pickle *pickle = w->build->pickle;
    part parts[] = {{"size", tsr_pickle_item(pickle, args, 2)}, {"stride", tsr_pickle_item(pickle, args, 3)}};
    return fill_parts(w, value, TSR_STR("torch.meta"), parts, 2, out, err);
}

static tsr_status fill_sparse(walk *w, tsr_value *value, tsr_ref args, frame *out, tsr_error *err)
{
    const tsr_pickle *pickle = w->build->pickle;
    tsr_ref data = tsr_pickle_item(pickle, args, 1);
    tsr_str layout;
    TSR_TRY(text_of(w, tsr_torch_arg(pickle, tsr_pickle_item(pickle, args, 0), 0), &layout, err));
    bool coo = tsr_str_equal(layout, TSR_STR("torch.sparse_coo"));
    part parts[] = {{coo ? "indices" : "compressed_indices", tsr_pickle_item(pickle, data, 0)},
                    {coo ? "values" : "plain_indices", tsr_pickle_item(pickle, data, 1)},
                    {coo ? "size" : "values", tsr_pickle_item(pickle, data, 2)},
                    {coo ? "is_coalesced" : "size", tsr_pickle_item(pickle, data, 3)}};
    if (!layout.size) layout = TSR_STR("torch.sparse");
    return fill_parts(w, value, layout, parts, coo && tsr_pickle_count(pickle, data) < 4 ? 3 : 4, out, err);
}

static tsr_status fill_quantized(walk *w, tsr_value *value, tsr_ref args, frame *out, tsr_error *err)
{
    const tsr_pickle *pickle = w->build->pickle;
    tsr_ref quantizer = tsr_pickle_item(pickle, args, 4);
    bool channels = tsr_pickle_count(pickle, quantizer) == 4;
    part parts[] = {{"data", TSR_REF_NONE},
                    {"qscheme", tsr_pickle_item(pickle, quantizer, 0)},
                    {channels ? "scales" : "scale", tsr_pickle_item(pickle, quantizer, 1)},
                    {channels ? "zero_points" : "zero_point", tsr_pickle_item(pickle, quantizer, 2)},
                    {"axis", tsr_pickle_item(pickle, quantizer, 3)}};
    tsr_torch_dense *dense;
    tsr_value *data = tsr_value_new(w->build->arena, TSR_VALUE_NONE, err);
    if (!data) return TSR_E_NOMEM;
    TSR_TRY(tsr_torch_rebuild(w->build, TSR_TORCH_REBUILD_QUANTIZED, args, &dense, err));
    TSR_TRY(fill_parts(w, value, TSR_STR("torch.quantized"), parts, channels ? 5 : 4, out, err));
    set_tensor(data, dense);
    out->items[1] = data;
    out->next = 1; /* the first part is there already */
    return TSR_OK;
}

/* Tensors that are not one run of elements: their parts by name. `args` are those of the rebuild function. */
static tsr_status fill_opaque(walk *w, tsr_value *value, uint32_t id, tsr_ref args, frame *out, tsr_error *err)
{
    const tsr_pickle *pickle = w->build->pickle;
    tsr_ref a[4];
    for (size_t i = 0; i < 4; i++) a[i] = tsr_pickle_item(pickle, args, i);
    if (id == TSR_TORCH_REBUILD_QUANTIZED) return fill_quantized(w, value, args, out, err);
    if (id == TSR_TORCH_REBUILD_SPARSE) return fill_sparse(w, value, args, out, err);
    if (id == TSR_TORCH_REBUILD_META) {
        part parts[] = {{"dtype", a[0]}, {"size", a[1]}, {"stride", a[2]}};
        return fill_parts(w, value, TSR_STR("torch.meta"), parts, 3, out, err);
    }
    if (id == TSR_TORCH_REBUILD_DEVICE) {
        part parts[] = {{"data", a[0]}, {"dtype", a[1]}, {"device", a[2]}};
        out->then = DEVICE_TENSOR;
        return fill_parts(w, value, TSR_STR("torch.Tensor"), parts, 3, out, err);
    }
    if (id == TSR_TORCH_REBUILD_JAGGED) {
        part parts[] = {{"values", tsr_pickle_get(pickle, a[0], "values", NULL)},
                        {"offsets", tsr_pickle_get(pickle, a[0], "offsets", NULL)},
                        {"lengths", tsr_pickle_get(pickle, a[0], "lengths", NULL)}};
        return fill_parts(w, value, TSR_STR("torch.nested"), parts, 3, out, err);
    }
    part parts[] = {{"values", a[0]}, {"sizes", a[1]}, {"strides", a[2]}, {"storage_offsets", a[3]}};
    return fill_parts(w, value, TSR_STR("torch.nested"), parts, 4, out, err);
}

static tsr_status fill_sharded(walk *w, tsr_value *value, tsr_ref args, tsr_ref state, frame *out, tsr_error *err)
{
    const tsr_pickle *pickle = w->build->pickle;
    tsr_ref list = tsr_torch_local_shards(pickle, state);
    size_t count = tsr_pickle_count(pickle, list);
    tsr_ref *refs = tsr_arena_array(w->build->arena, count, sizeof *refs, err);
    if (!refs) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) refs[i] = tsr_torch_attribute(pickle, tsr_pickle_item(pickle, list, i), "tensor");
    out->then = SHARDED;
    out->args = args;
    out->state = state;
    value->text = TSR_STR("torch.distributed._shard.sharded_tensor.api.ShardedTensor");
    return fill(w, value, TSR_VALUE_OBJECT, refs, count, out, err);
}

/* Wrapper subclasses have no bytes of their own: their state holds the inner tensors. */
static tsr_status fill_wrapper(walk *w, tsr_value *value, tsr_ref type, tsr_ref args, tsr_ref state, frame *out, tsr_error *err)
{
    const tsr_pickle *pickle = w->build->pickle;
    uint32_t id = tsr_pickle_id(pickle, type);
    if (id == TSR_TORCH_SHARDED_TENSOR && tsr_torch_local_shards(pickle, state) != TSR_REF_NONE)
        return fill_sharded(w, value, args, state, out, err);
    tsr_ref local = tsr_torch_attribute(pickle, state, "_local_tensor");
    bool dtensor = id == TSR_TORCH_DTENSOR && local != TSR_REF_NONE;
    tsr_str name = class_text(w->build, type, err);
    if (!name.data) return TSR_E_NOMEM;
    part parts[] = {{dtensor ? "local_tensor" : "state", dtensor ? local : state},
                    {"dtype", tsr_pickle_item(pickle, args, 1)},
                    {"size", tsr_pickle_item(pickle, args, 2)}};
    if (dtensor) out->then = DTENSOR;
    out->args = args;
    out->state = state;
    return fill_parts(w, value, name, parts, 3, out, err);
}

/* _rebuild_from_type_v2(function, type, args, state): the call that it makes, looked at instead of made. */
static tsr_status fill_from_type(walk *w, tsr_value *value, tsr_ref ref, frame *out, tsr_error *err)
{
    const tsr_pickle *pickle = w->build->pickle;
    tsr_ref function = tsr_torch_arg(pickle, ref, 0), type = tsr_torch_arg(pickle, ref, 1);
    tsr_ref args = tsr_torch_arg(pickle, ref, 2), state = tsr_torch_arg(pickle, ref, 3);
    uint32_t id = tsr_pickle_id(pickle, function);
    if (id == TSR_TORCH_REBUILD_TENSOR || id == TSR_TORCH_REBUILD_TENSOR_V3)
        return make_tensor(w, value, id, args, tsr_pickle_id(pickle, type) == TSR_TORCH_PARAMETER, out, err);
    if (id == TSR_TORCH_REBUILD_WRAPPER) return fill_wrapper(w, value, type, args, state, out, err);
    if (id >= TSR_TORCH_REBUILD_QUANTIZED && id <= TSR_TORCH_REBUILD_DEVICE) return fill_opaque(w, value, id, args, out, err);
    tsr_str name = class_text(w->build, function, err);
    if (!name.data) return TSR_E_NOMEM;
    TSR_TRY(unlisted_call(w->build, ref, name, err));
    return fill_object(w, value, ref, out, err);
}

static tsr_status make_complex(walk *w, tsr_value *value, tsr_ref ref)
{
    const tsr_pickle *pickle = w->build->pickle;
    double parts[2];
    for (size_t i = 0; i < 2; i++) {
        tsr_ref item = tsr_torch_arg(pickle, ref, i);
        bool real = tsr_pickle_kind_of(pickle, item) == TSR_PICKLE_FLOAT;
        parts[i] = real ? tsr_pickle_float(pickle, item) : (double)tsr_pickle_int(pickle, item);
    }
    value->kind = TSR_VALUE_COMPLEX;
    value->as.complex.re = parts[0];
    value->as.complex.im = parts[1];
    return TSR_OK;
}

/* _codecs.encode(text, 'latin1'), bytes(), bytearray(text, 'latin-1'), bytearray(bytes). */
static tsr_status make_bytes(walk *w, tsr_value *value, tsr_ref ref, frame *out, tsr_error *err)
{
    const tsr_pickle *pickle = w->build->pickle;
    tsr_ref args = tsr_pickle_args(pickle, ref), text = tsr_pickle_item(pickle, args, 0);
    tsr_pickle_kind kind = tsr_pickle_kind_of(pickle, text);
    tsr_status status = TSR_OK;
    if (kind == TSR_PICKLE_STR && is_latin1_name(tsr_pickle_text(pickle, tsr_pickle_item(pickle, args, 1)))) {
        if (latin1(tsr_pickle_text(pickle, text), w->build->arena, &value->text, &status, err)) {
            value->kind = TSR_VALUE_BYTES;
            return TSR_OK;
        }
        return status != TSR_OK ? status : fill_object(w, value, ref, out, err);
    }
    if (kind == TSR_PICKLE_BYTES || tsr_pickle_count(pickle, args) == 0) {
        value->kind = TSR_VALUE_BYTES;
        return text_of(w, text, &value->text, err);
    }
    TSR_TRY(fill_object(w, value, ref, out, err));
    out->then = BYTES_OF;
    return TSR_OK;
}

static tsr_status make_named(walk *w, tsr_value *value, tsr_ref ref, uint32_t id, frame *out, tsr_error *err)
{
    const tsr_pickle *pickle = w->build->pickle;
    tsr_ref first = tsr_torch_arg(pickle, ref, 0), second = tsr_torch_arg(pickle, ref, 1);
    if (id == TSR_TORCH_GETATTR) {
        value->kind = TSR_VALUE_GLOBAL;
        value->text = class_text(w->build, ref, err);
        if (!value->text.data) return TSR_E_NOMEM;
        if (tsr_pickle_id(pickle, first) != 0) return TSR_OK;
        TSR_TRY(unlisted_call(w->build, ref, TSR_STR("builtins.getattr"), err));
        return fill_object(w, value, ref, out, err);
    }
    TSR_TRY(text_of(w, first, &value->text, err));
    value->kind = id == TSR_TORCH_DEVICE ? TSR_VALUE_DEVICE : TSR_VALUE_GLOBAL;
    if (id != TSR_TORCH_DEVICE || tsr_pickle_kind_of(pickle, second) != TSR_PICKLE_INT) return TSR_OK;
    value->text = tsr_arena_format(w->build->arena, err, "%.*s:%lld", TSR_STR_ARG(value->text),
                                   (long long)tsr_pickle_int(pickle, second));
    return value->text.data ? TSR_OK : TSR_E_NOMEM;
}

/* set([…]), torch.Size((…)). */
static tsr_status fill_from_items(walk *w, tsr_value *value, tsr_ref ref, tsr_value_kind kind, frame *out, tsr_error *err)
{
    tsr_ref items = tsr_torch_arg(w->build->pickle, ref, 0);
    tsr_pickle_kind held = tsr_pickle_kind_of(w->build->pickle, items);
    if (held != TSR_PICKLE_LIST && held != TSR_PICKLE_TUPLE && held != TSR_PICKLE_SET && items != TSR_REF_NONE)
        return fill_object(w, value, ref, out, err);
    size_t count = 0;
    const tsr_ref *refs = tsr_pickle_items(w->build->pickle, items, &count);
    return fill(w, value, kind, refs, count, out, err);
}

static tsr_status fill_parameter(walk *w, tsr_value *value, tsr_ref ref, frame *out, tsr_error *err)
{
    size_t count = 0;
    const tsr_ref *args = tsr_pickle_items(w->build->pickle, tsr_pickle_args(w->build->pickle, ref), &count);
    if (!count) return fill_object(w, value, ref, out, err);
    out->then = PARAMETER;
    out->args = tsr_pickle_args(w->build->pickle, ref);
    return fill(w, value, TSR_VALUE_OBJECT, args, 1, out, err);
}

/* torch.FloatTensor and the like with (storage, offset, size, stride) as their state, as PyTorch 0.x pickled them. */
static tsr_status fill_old_tensor(walk *w, tsr_value *value, tsr_ref ref, frame *out, tsr_error *err)
{
    const tsr_pickle *pickle = w->build->pickle;
    tsr_ref state = tsr_pickle_state(pickle, ref);
    bool old = tsr_pickle_kind_of(pickle, state) == TSR_PICKLE_TUPLE && tsr_pickle_count(pickle, state) == 4 &&
               tsr_pickle_kind_of(pickle, tsr_pickle_item(pickle, state, 0)) == TSR_PICKLE_PERSISTENT;
    return old ? make_tensor(w, value, TSR_TORCH_REBUILD_TENSOR, state, false, out, err)
               : fill_object(w, value, ref, out, err);
}

static tsr_status enter_object(walk *w, tsr_value *value, tsr_ref ref, frame *out, tsr_error *err)
{
    const tsr_pickle *pickle = w->build->pickle;
    uint32_t id = tsr_pickle_class_id(pickle, ref);
    tsr_ref args = tsr_pickle_args(pickle, ref);
    switch (id) {
    case TSR_TORCH_ORDERED_DICT:
    case TSR_TORCH_PLAIN_DICT: return fill_mapping(w, value, ref, out, err);
    case TSR_TORCH_SET: return fill_from_items(w, value, ref, TSR_VALUE_SET, out, err);
    case TSR_TORCH_SIZE: return fill_from_items(w, value, ref, TSR_VALUE_SIZE, out, err);
    case TSR_TORCH_COMPLEX: return make_complex(w, value, ref);
    case TSR_TORCH_BYTES:
    case TSR_TORCH_ENCODE: return make_bytes(w, value, ref, out, err);
    case TSR_TORCH_GETATTR:
    case TSR_TORCH_DEVICE:
    case TSR_TORCH_LAYOUT: return make_named(w, value, ref, id, out, err);
    case TSR_TORCH_TENSOR: return fill_old_tensor(w, value, ref, out, err);
    case TSR_TORCH_REBUILD_TENSOR:
    case TSR_TORCH_REBUILD_TENSOR_V3: return make_tensor(w, value, id, args, false, out, err);
    case TSR_TORCH_PARAMETER:
    case TSR_TORCH_REBUILD_PARAMETER: return fill_parameter(w, value, ref, out, err);
    case TSR_TORCH_REBUILD_QUANTIZED:
    case TSR_TORCH_REBUILD_SPARSE:
    case TSR_TORCH_REBUILD_NESTED:
    case TSR_TORCH_REBUILD_JAGGED:
    case TSR_TORCH_REBUILD_META:
    case TSR_TORCH_REBUILD_DEVICE: return fill_opaque(w, value, id, args, out, err);
    case TSR_TORCH_REBUILD_FROM_TYPE: return fill_from_type(w, value, ref, out, err);
    default: return fill_object(w, value, ref, out, err);
    }
}

/* A storage by itself, or the class of a module in the legacy form. */
static tsr_status enter_persistent(walk *w, tsr_value *value, tsr_ref ref, tsr_error *err)
{
    const tsr_pickle *pickle = w->build->pickle;
    tsr_ref id = tsr_pickle_persistent(pickle, ref);
    tsr_str kind = tsr_pickle_text(pickle, tsr_pickle_item(pickle, id, 0));
    if (tsr_str_equal(kind, TSR_STR("module"))) {
        value->kind = TSR_VALUE_GLOBAL;
        value->text = class_text(w->build, ref, err);
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
    value->text = class_text(w->build, tsr_pickle_item(pickle, id, 1), err);
    value->items = items;
    value->count = 1;
    return value->text.data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status enter_global(walk *w, tsr_value *value, tsr_ref ref, tsr_error *err)
{
    tsr_dtype dtype = tsr_torch_dtype(w->build->pickle, ref);
    value->kind = dtype != TSR_DTYPE_NONE ? TSR_VALUE_DTYPE : TSR_VALUE_GLOBAL;
    if (dtype != TSR_DTYPE_NONE) value->as.dtype = dtype;
    value->text = class_text(w->build, ref, err);
    return value->text.data ? TSR_OK : TSR_E_NOMEM;
}

/* Starts the value of a node: scalars are complete at once, others get a frame with children. */
static tsr_status enter(walk *w, tsr_value *value, tsr_ref ref, frame *out, tsr_error *err)
{
    static const tsr_value_kind containers[] = {[TSR_PICKLE_LIST] = TSR_VALUE_LIST, [TSR_PICKLE_TUPLE] = TSR_VALUE_TUPLE,
                                                [TSR_PICKLE_SET] = TSR_VALUE_SET, [TSR_PICKLE_DICT] = TSR_VALUE_DICT};
    const tsr_pickle *pickle = w->build->pickle;
    tsr_pickle_kind kind = tsr_pickle_kind_of(pickle, ref);
    size_t count = 0;
    const tsr_ref *items;
    switch (kind) {
    case TSR_PICKLE_BOOL: value->kind = TSR_VALUE_BOOL; value->as.boolean = tsr_pickle_bool(pickle, ref); return TSR_OK;
    case TSR_PICKLE_INT: value->kind = TSR_VALUE_INT; value->as.integer = tsr_pickle_int(pickle, ref); return TSR_OK;
    case TSR_PICKLE_FLOAT: value->kind = TSR_VALUE_FLOAT; value->as.real = tsr_pickle_float(pickle, ref); return TSR_OK;
    case TSR_PICKLE_BIGINT: value->kind = TSR_VALUE_BIGINT; return text_of(w, ref, &value->text, err);
    case TSR_PICKLE_STR: value->kind = TSR_VALUE_STR; return text_of(w, ref, &value->text, err);
    case TSR_PICKLE_BYTES: value->kind = TSR_VALUE_BYTES; return text_of(w, ref, &value->text, err);
    case TSR_PICKLE_LIST:
    case TSR_PICKLE_TUPLE:
    case TSR_PICKLE_SET:
    case TSR_PICKLE_DICT:
        items = tsr_pickle_items(pickle, ref, &count);
        return fill(w, value, containers[kind], items, count, out, err);
    case TSR_PICKLE_GLOBAL: return enter_global(w, value, ref, err);
    case TSR_PICKLE_PERSISTENT: return enter_persistent(w, value, ref, err);
    case TSR_PICKLE_OBJECT: return enter_object(w, value, ref, out, err);
    default: return TSR_OK;
    }
}

static const tsr_torch_dense *dense_of(const tsr_value *value)
{
    return value->kind == TSR_VALUE_TENSOR ? (const tsr_torch_dense *)value->as.tensor : NULL;
}

static tsr_status finish_parameter(walk *w, const frame *f, tsr_error *err)
{
    const tsr_torch_dense *data = dense_of(f->items[0]);
    if (!data) {
        *f->value = *f->items[0];
        return TSR_OK;
    }
    tsr_torch_dense *parameter = TSR_ARENA_NEW(w->build->arena, tsr_torch_dense, err);
    if (!parameter) return TSR_E_NOMEM;
    *parameter = *data;
    parameter->entry.is_parameter = true;
    parameter->entry.requires_grad = tsr_pickle_bool(w->build->pickle, tsr_pickle_item(w->build->pickle, f->args, 1));
    set_tensor(f->value, parameter);
    return TSR_OK;
}

static tsr_status finish_dtensor(walk *w, const frame *f, tsr_error *err)
{
    const tsr_torch_dense *local = dense_of(f->items[1]);
    if (!local || local->storage == UINT32_MAX) return TSR_OK;
    tsr_torch_dense *dense;
    TSR_TRY(tsr_torch_dtensor(w->build, f->args, f->state, local, &dense, err));
    if (dense) set_tensor(f->value, dense);
    return TSR_OK;
}

static tsr_status finish_sharded(walk *w, const frame *f, tsr_error *err)
{
    const tsr_torch_dense **locals = tsr_arena_array(w->build->arena, f->count, sizeof *locals, err);
    if (!locals) return TSR_E_NOMEM;
    for (size_t i = 0; i < f->count; i++) {
        locals[i] = dense_of(f->items[i]);
        if (!locals[i]) return TSR_OK; /* shards that are no dense tensors: shown as an object */
    }
    tsr_torch_dense *dense;
    TSR_TRY(tsr_torch_sharded(w->build, f->args, f->state, locals, &dense, err));
    set_tensor(f->value, dense);
    return TSR_OK;
}

static tsr_status finish(walk *w, const frame *f, tsr_error *err)
{
    switch (f->then) {
    case PARAMETER: return finish_parameter(w, f, err);
    case DTENSOR: return finish_dtensor(w, f, err);
    case SHARDED: return finish_sharded(w, f, err);
    case BYTES_OF: /* bytearray(_codecs.encode(…)) */
        if (f->count == 1 && f->items[0]->count && f->items[0]->items[0]->kind == TSR_VALUE_BYTES)
            *f->value = *f->items[0]->items[0];
        return TSR_OK;
    case DEVICE_TENSOR: /* data already has the dtype it is moved with */
        if (f->items[1]->kind == TSR_VALUE_TENSOR && f->items[3]->kind == TSR_VALUE_DTYPE &&
            f->items[1]->as.tensor->dtype == f->items[3]->as.dtype)
            *f->value = *f->items[1];
        return TSR_OK;
    default: return TSR_OK;
    }
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
    frame next = {.value = value, .ref = ref};
    TSR_TRY(enter(w, value, ref, &next, err));
    if (next.next == next.count) return finish(w, &next, err);
    TSR_FAIL_IF(w->frames.count >= w->build->host->limits.depth, err, TSR_E_LIMIT, tsr_torch_position(w->build, ref),
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

typedef struct unknown_walk {
    tsr_torch_build *build;
    tsr_error *err;
    tsr_status status;
} unknown_walk;

static void report_unknown(void *ctx, tsr_ref global, tsr_pickle_use use)
{
    unknown_walk *w = ctx;
    tsr_torch_build *build = w->build;
    bool data = tsr_torch_dtype(build->pickle, global) || tsr_torch_storage_dtype(build->pickle, global);
    if (w->status != TSR_OK || (data && use == TSR_PICKLE_NAMED)) return;
    tsr_str name = class_text(build, global, w->err);
    tsr_place place = {build->file_name, tsr_torch_position(build, global), {NULL, 0}};
    if (!name.data) w->status = TSR_E_NOMEM;
    else if (use == TSR_PICKLE_USE_CALLED) w->status = unlisted_call(build, global, name, w->err);
    else
        w->status = tsr_find_at(build->findings, "pickle/unlisted-class", use == TSR_PICKLE_USE_BUILT ? TSR_WARNING : TSR_NOTE,
                                place, w->err, "%s %.*s, which is not known to be harmless data",
                                use == TSR_PICKLE_USE_BUILT ? "holds objects of" : "names", TSR_STR_ARG(name));
}

tsr_status tsr_torch_values(tsr_torch_build *build, tsr_ref root, const tsr_value **out, tsr_error *err)
{
    walk w = {.build = build,
              .memo = {.allocator = build->host->allocator},
              .frames = tsr_vec_of(build->host->allocator, sizeof(frame))};
    tsr_status status = run(&w, root, out, err);
    tsr_free(w.memo.allocator, w.memo.slots, w.memo.capacity, sizeof *w.memo.slots);
    tsr_vec_free(&w.frames);
    if (status != TSR_OK || !build->findings) return status;
    unknown_walk unknown = {build, err, TSR_OK};
    tsr_pickle_unknown(build->pickle, report_unknown, &unknown);
    return unknown.status;
}
