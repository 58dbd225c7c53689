/* Accessors of a parsed pickle. For a ref of another kind they return zero, so that readers need not check the kind
 * first. */
#include "codec/pickle_machine.h"

bool tsr_pickle_has_keywords(const tsr_pickle *pickle, tsr_ref ref)
{
    if (tag_of(ref) != TAG_OBJECT) return false;
    const uint64_t position = tsr_pickle_position(pickle, ref);
    if (position >= pickle->data.size || pickle->data.data[position] != '\x92') return false;
    const tsr_ref args = tsr_pickle_args(pickle, ref);
    if (tsr_pickle_count(pickle, args) != 2) return false; /* without keywords the arguments are as those of NEWOBJ */
    const tsr_ref keywords = tsr_pickle_item(pickle, args, 1);
    return tag_of(tsr_pickle_item(pickle, args, 0)) == TAG_TUPLE && tag_of(keywords) == TAG_DICT &&
           tsr_pickle_count(pickle, keywords);
}

unsigned tsr_pickle_protocol(const tsr_pickle *pickle)
{
    return pickle->protocol;
}

uint64_t tsr_pickle_highest_far(const tsr_pickle *pickle)
{
    return pickle->highest_far;
}

tsr_ref tsr_pickle_root(const tsr_pickle *pickle)
{
    return pickle->root;
}

tsr_pickle_kind tsr_pickle_kind_of(const tsr_pickle *pickle, tsr_ref ref)
{
    static const uint8_t kinds[16] = {
        TSR_PICKLE_NONE,   TSR_PICKLE_INT,        TSR_PICKLE_INT,    TSR_PICKLE_BIGINT, TSR_PICKLE_FLOAT, TSR_PICKLE_STR,
        TSR_PICKLE_BYTES,  TSR_PICKLE_LIST,       TSR_PICKLE_TUPLE,  TSR_PICKLE_DICT,   TSR_PICKLE_SET,   TSR_PICKLE_GLOBAL,
        TSR_PICKLE_OBJECT, TSR_PICKLE_PERSISTENT, TSR_PICKLE_FOLDED, TSR_PICKLE_NONE,
    };
    (void)pickle;
    return ref == REF_TRUE || ref == REF_FALSE ? TSR_PICKLE_BOOL : (tsr_pickle_kind)kinds[ref & 15];
}

bool tsr_pickle_bool(const tsr_pickle *pickle, tsr_ref ref)
{
    (void)pickle;
    return ref == REF_TRUE;
}

int64_t tsr_pickle_int(const tsr_pickle *pickle, tsr_ref ref)
{
    if (tag_of(ref) == TAG_SMALL) return (int64_t)((index_of(ref) ^ 0x8000000) & 0xFFFFFFF) - 0x8000000;
    if (tag_of(ref) == TAG_WIDE) return (int64_t)((const uint64_t *)pickle->wides.items)[index_of(ref)];
    return ref == REF_TRUE;
}

double tsr_pickle_float(const tsr_pickle *pickle, tsr_ref ref)
{
    double value = 0;
    if (tag_of(ref) == TAG_FLOAT) memcpy(&value, (const uint64_t *)pickle->wides.items + index_of(ref), sizeof value);
    return value;
}

tsr_str tsr_pickle_text(const tsr_pickle *pickle, tsr_ref ref)
{
    tag kind = tag_of(ref);
    if (kind != TAG_STR && kind != TAG_BYTES && kind != TAG_BIGINT) return (tsr_str){"", 0};
    uint64_t packed = ((const uint64_t *)pickle->texts.items)[index_of(ref)];
    size_t size = packed & TEXT_SIZE_MASK, at = (size_t)(packed >> 24);
    if (size == TEXT_SIZE_MASK) return ((const tsr_str *)pickle->foreign.items)[at];
    return (tsr_str){pickle->data.data + at, size};
}

const tsr_ref *tsr_pickle_items(const tsr_pickle *pickle, tsr_ref ref, size_t *count)
{
    const uint32_t *words = pickle->words.items;
    switch (tag_of(ref)) {
    case TAG_TUPLE: *count = words[index_of(ref)]; return words + index_of(ref) + 1;
    case TAG_LIST:
    case TAG_SET:
    case TAG_DICT: {
        const container *c = (const container *)pickle->containers.items + index_of(ref);
        *count = c->count;
        return words + c->start;
    }
    default: *count = 0; return words;
    }
}

size_t tsr_pickle_count(const tsr_pickle *pickle, tsr_ref ref)
{
    size_t count;
    tsr_pickle_items(pickle, ref, &count);
    return tag_of(ref) == TAG_DICT ? count / 2 : count;
}

/* Word `index` of the node's run of words, or TSR_REF_NONE beyond its end. */
static tsr_ref word(const tsr_pickle *pickle, tsr_ref ref, size_t index)
{
    size_t count;
    const tsr_ref *items = tsr_pickle_items(pickle, ref, &count);
    return index < count ? items[index] : TSR_REF_NONE;
}

tsr_ref tsr_pickle_item(const tsr_pickle *pickle, tsr_ref ref, size_t index)
{
    return tag_of(ref) == TAG_DICT ? TSR_REF_NONE : word(pickle, ref, index);
}

tsr_ref tsr_pickle_key(const tsr_pickle *pickle, tsr_ref dict, size_t index)
{
    return tag_of(dict) == TAG_DICT ? word(pickle, dict, 2 * index) : TSR_REF_NONE;
}

tsr_ref tsr_pickle_value(const tsr_pickle *pickle, tsr_ref dict, size_t index)
{
    return tag_of(dict) == TAG_DICT ? word(pickle, dict, 2 * index + 1) : TSR_REF_NONE;
}

int tsr_pickle_ints(const tsr_pickle *pickle, tsr_ref ref, int64_t *out, int max)
{
    size_t count;
    const tsr_ref *items = tsr_pickle_items(pickle, ref, &count);
    if ((tag_of(ref) != TAG_TUPLE && tag_of(ref) != TAG_LIST) || count > (size_t)max) return -1;
    for (size_t i = 0; i < count; i++) {
        if (tag_of(items[i]) != TAG_SMALL && tag_of(items[i]) != TAG_WIDE) return -1;
        out[i] = tsr_pickle_int(pickle, items[i]);
    }
    return (int)count;
}

tsr_ref tsr_pickle_get(const tsr_pickle *pickle, tsr_ref dict, const char *key, bool *found)
{
    size_t count = 0;
    const tsr_ref *items = tsr_pickle_items(pickle, dict, &count);
    if (found) *found = false;
    if (tag_of(dict) != TAG_DICT) return TSR_REF_NONE;
    for (size_t i = count; i >= 2; i -= 2) {
        if (tag_of(items[i - 2]) == TAG_STR && tsr_str_equal(tsr_pickle_text(pickle, items[i - 2]), tsr_str_from(key))) {
            if (found) *found = true;
            return items[i - 1];
        }
    }
    return TSR_REF_NONE;
}

static const global *global_of(const tsr_pickle *pickle, tsr_ref ref)
{
    static const global none = {.position = TSR_NO_POSITION};
    return tag_of(ref) == TAG_GLOBAL ? (const global *)pickle->globals.items + index_of(ref) : &none;
}

tsr_str tsr_pickle_module(const tsr_pickle *pickle, tsr_ref ref)
{
    return tsr_pickle_text(pickle, global_of(pickle, ref)->module);
}
tsr_str tsr_pickle_name_of(const tsr_pickle *pickle, tsr_ref ref)
{
    return tsr_pickle_text(pickle, global_of(pickle, ref)->name);
}
uint32_t tsr_pickle_id(const tsr_pickle *pickle, tsr_ref ref)
{
    return global_of(pickle, ref)->id & 0xFFFF;
}

static const object *object_of(const tsr_pickle *pickle, tsr_ref ref)
{
    static const object none = {.position = 0};
    return tag_of(ref) == TAG_OBJECT ? (const object *)pickle->objects.items + index_of(ref) : &none;
}

static held held_of(const tsr_pickle *pickle, tsr_ref ref)
{
    uint32_t which = object_of(pickle, ref)->held;
    return which ? ((const held *)pickle->helds.items)[which - 1] : (held){TSR_REF_NONE, TSR_REF_NONE};
}

tsr_pickle_how tsr_pickle_how_of(const tsr_pickle *pickle, tsr_ref ref)
{
    return object_of(pickle, ref)->position & MADE_BY_NEWOBJ ? TSR_PICKLE_BUILT : TSR_PICKLE_CALLED;
}

tsr_ref tsr_pickle_class(const tsr_pickle *pickle, tsr_ref ref)
{
    return object_of(pickle, ref)->callee;
}
uint32_t tsr_pickle_class_id(const tsr_pickle *pickle, tsr_ref ref)
{
    return tsr_pickle_id(pickle, object_of(pickle, ref)->callee);
}
tsr_ref tsr_pickle_args(const tsr_pickle *pickle, tsr_ref ref)
{
    return object_of(pickle, ref)->args;
}
tsr_ref tsr_pickle_state(const tsr_pickle *pickle, tsr_ref ref)
{
    return object_of(pickle, ref)->state;
}
bool tsr_pickle_has_state(const tsr_pickle *pickle, tsr_ref ref)
{
    return object_of(pickle, ref)->position & HAS_STATE;
}
tsr_ref tsr_pickle_appended(const tsr_pickle *pickle, tsr_ref ref)
{
    return held_of(pickle, ref).appended;
}
tsr_ref tsr_pickle_dict_items(const tsr_pickle *pickle, tsr_ref ref)
{
    return held_of(pickle, ref).dict_items;
}

uint64_t tsr_pickle_position(const tsr_pickle *pickle, tsr_ref ref)
{
    if (tag_of(ref) == TAG_OBJECT) return object_of(pickle, ref)->position >> 2;
    return global_of(pickle, ref)->position;
}

tsr_ref tsr_pickle_persistent(const tsr_pickle *pickle, tsr_ref ref)
{
    return tag_of(ref) == TAG_PERSISTENT ? ((const uint32_t *)pickle->words.items)[index_of(ref)] : TSR_REF_NONE;
}

tsr_ref tsr_pickle_folded(uint32_t index)
{
    return REF(TAG_FOLDED, index);
}
uint32_t tsr_pickle_folded_index(tsr_ref ref)
{
    return index_of(ref);
}

void tsr_pickle_unknown(const tsr_pickle *pickle, void (*each)(void *ctx, tsr_ref global, tsr_pickle_use use), void *ctx)
{
    const global *globals = pickle->globals.items;
    for (size_t i = 0; i < pickle->globals.count; i++) {
        if (!globals[i].id) each(ctx, REF(TAG_GLOBAL, i), globals[i].use);
    }
}

size_t tsr_pickle_object_count(const tsr_pickle *pickle)
{
    return pickle->objects.count;
}
tsr_ref tsr_pickle_object(const tsr_pickle *pickle, size_t index)
{
    return index < pickle->objects.count ? REF(TAG_OBJECT, index) : TSR_REF_NONE;
}

const tsr_pickle_oddity *tsr_pickle_oddities(const tsr_pickle *pickle, size_t *count)
{
    *count = pickle->oddities.count;
    return pickle->oddities.items;
}
