/* A torch.save pickle as a value tree. The walk is a stack of frames, one a node whose children are being made; a node that
 * several parents share is made once, so the tree is as large as the pickle, not as its expansion. */
#include "formats/torch/torch_build.h"
#include "formats/torch/torch_file.h"
#include "formats/torch/torch_loadable.h"
#include "formats/torch/torch_writer.h"
#include "tessera/sys/try.h"

#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"

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
    if (dense->entry.kind == TSR_ENTRY_TENSOR) tsr_torch_set_tensor(inner, dense);
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
static tsr_status enter(walk *w, tsr_value *value, tsr_ref ref, tsr_torch_frame *out, tsr_error *err)
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
        return tsr_torch_fill(w->build, containers[kind], items, count, out, err);
    case TSR_PICKLE_GLOBAL: return enter_global(w, value, ref, err);
    case TSR_PICKLE_PERSISTENT: return enter_persistent(w, value, ref, err);
    case TSR_PICKLE_OBJECT: return tsr_torch_enter_object(w->build, ref, out, err);
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

/* Adds what an item expands to, and whether it is foreign, to those of the value that holds it. */
static void add_item(tsr_value *to, const tsr_value *item)
{
    if (!item) return;
    to->expanded = add_weights(to->expanded, item->expanded ? item->expanded : own_weight(item));
    to->foreign = to->foreign || (item->expanded ? item->foreign : !tsr_torch_is_plain(item));
}

/* What a complete value expands to. Its items were weighed before, but for the few that an object's parts are made of. */
static void weigh(tsr_value *value)
{
    value->expanded = own_weight(value);
    value->foreign = !tsr_torch_is_plain(value);
    for (size_t i = 0; i < value->count; i++) {
        const tsr_value *item = value->items[i];
        add_item(value, item);
        for (size_t k = 0; item && !item->expanded && k < item->count; k++) add_item(value, item->items[k]);
    }
    const tsr_value *attributes = tsr_value_attributes(value);
    if (attributes) value->foreign = value->foreign || attributes->foreign;
}

static tsr_status finish(walk *w, tsr_torch_frame *frame, tsr_error *err)
{
    TSR_TRY(tsr_torch_finish_object(w->build, frame, err));
    weigh(frame->value);
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
    tsr_torch_frame next = {.value = value, .ref = ref};
    TSR_TRY(enter(w, value, ref, &next, err));
    if (next.next == next.count) return finish(w, &next, err);
    value->expanded = TSR_VALUE_ENDLESS; /* as long as it is open: what is inside it and holds it has no end */
    TSR_FAIL_AT(w->frames.count >= w->build->host->limits.depth, err, TSR_E_LIMIT, tsr_torch_position(w->build, ref),
                "torch: values nest deeper than the limit of %u (depth)", w->build->host->limits.depth);
    tsr_torch_frame *pushed = tsr_vec_push(&w->frames, err);
    if (!pushed) return TSR_E_NOMEM;
    *pushed = next;
    return TSR_OK;
}

static tsr_status run(walk *w, tsr_ref root, const tsr_value **out, tsr_error *err)
{
    TSR_TRY(visit(w, root, out, err));
    while (w->frames.count) {
        tsr_torch_frame *top = (tsr_torch_frame *)w->frames.items + w->frames.count - 1;
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
              .frames = tsr_vec_of(build->host->allocator, sizeof(tsr_torch_frame))};
    tsr_status status = run(&w, root, out, err);
    tsr_free(w.memo.allocator, w.memo.slots, w.memo.capacity, sizeof *w.memo.slots);
    tsr_vec_free(&w.frames);
    if (status == TSR_OK) status = require_storages(build, err);
    return status == TSR_OK ? tsr_torch_verdict(build, true, err) : status;
}
