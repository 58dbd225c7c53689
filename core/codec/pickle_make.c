/* Makes nodes: compact records in growable pools. A list, set or dict grows in place while its items are the last in the
 * pool; otherwise they move to twice the space, so that appending takes linear time. */
#include "base/cursor.h"
#include "base/utf8.h"
#include "codec/pickle_machine.h"
#include "tessera/sys/containers.h"

tsr_ref tsr_pickle_make_int(machine *m, int64_t value)
{
    if (value >= -(INT64_C(1) << 27) && value < INT64_C(1) << 27) return REF(TAG_SMALL, (uint32_t)value & 0xFFFFFFF);
    tsr_vec *wides = &m->pickle->wides;
    if (!has_room(m, wides, 1)) return TSR_REF_NONE;
    ((uint64_t *)wides->items)[wides->count] = (uint64_t)value;
    return REF(TAG_WIDE, wides->count++);
}

/* The bytes are two's complement, little-endian. Leading bytes that only repeat the sign are ignored. */
tsr_ref tsr_pickle_make_long(machine *m, const uint8_t *bytes, size_t size)
{
    while (size > 8 &&
           ((bytes[size - 1] == 0 && bytes[size - 2] < 0x80) || (bytes[size - 1] == 0xFF && bytes[size - 2] >= 0x80)))
        size--;
    if (size > 8) return tsr_pickle_make_text(m, TAG_BIGINT, bytes, size);
    uint64_t value = tsr_load_le(bytes, (unsigned)size);
    if (size && size < 8 && bytes[size - 1] >= 0x80) value |= UINT64_MAX << (8 * size);
    return tsr_pickle_make_int(m, (int64_t)value);
}

tsr_ref tsr_pickle_make_float(machine *m, double value)
{
    tsr_vec *wides = &m->pickle->wides;
    if (!has_room(m, wides, 1)) return TSR_REF_NONE;
    memcpy((uint64_t *)wides->items + wides->count, &value, sizeof value);
    return REF(TAG_FLOAT, wides->count++);
}

/* Texts in the input are stored as positions; all others must live as long as the pickle. */
tsr_ref tsr_pickle_make_text(machine *m, tag tag_, const uint8_t *data, size_t size)
{
    tsr_vec *texts = &m->pickle->texts, *foreign = &m->pickle->foreign;
    bool inside = data >= m->start && data <= m->end;
    uint64_t at = inside ? (uint64_t)(data - m->start) : 0;
    if (!has_room(m, texts, 1)) return TSR_REF_NONE;
    if (!inside || size >= TEXT_SIZE_MASK || at >> 40) {
        if (!has_room(m, foreign, 1)) return TSR_REF_NONE;
        at = foreign->count++;
        ((tsr_str *)foreign->items)[at] = (tsr_str){(const char *)data, size};
        size = TEXT_SIZE_MASK;
    }
    ((uint64_t *)texts->items)[texts->count] = at << 24 | size;
    return REF(tag_, texts->count++);
}

static bool is_ascii(const uint8_t *data, size_t size)
{
    uint64_t word, high = 0;
    for (; size >= 8; data += 8, size -= 8) {
        memcpy(&word, data, 8);
        high |= word;
    }
    for (; size; data++, size--) high |= *data;
    return !(high & UINT64_C(0x8080808080808080));
}

/* Whether the text is UTF-8 that may contain surrogates, as Python's 'surrogatepass' accepts. */
static bool is_python_text(tsr_str text)
{
    for (size_t at = 0;;) {
        at += tsr_utf8_check(tsr_str_after(text, at));
        if (at == text.size) return true;
        const uint8_t *b = (const uint8_t *)text.data + at;
        if (text.size - at < 3 || b[0] != 0xED || b[1] < 0xA0 || b[1] > 0xBF || (b[2] & 0xC0) != 0x80) return false;
        at += 3;
    }
}

tsr_ref tsr_pickle_make_str(machine *m, const uint8_t *data, size_t size)
{
    if (!is_ascii(data, size) && !is_python_text((tsr_str){(const char *)data, size})) {
        fail(m, TSR_E_FORMAT, "pickle: the string of opcode %s is not UTF-8", tsr_pickle_opcode(*m->at));
        return TSR_REF_NONE;
    }
    return tsr_pickle_make_text(m, TAG_STR, data, size);
}

tsr_ref tsr_pickle_make_py2_str(machine *m, const uint8_t *data, size_t size)
{
    if (is_python_text((tsr_str){(const char *)data, size})) return tsr_pickle_make_text(m, TAG_STR, data, size);
    if (!tsr_pickle_note_odd(m, TSR_PICKLE_ODD_STRING, TSR_REF_NONE)) return TSR_REF_NONE;
    return tsr_pickle_make_text(m, TAG_BYTES, data, size);
}

tsr_ref tsr_pickle_make_tuple(machine *m, const tsr_ref *from, size_t count)
{
    tsr_vec *words = &m->pickle->words;
    if (count == 0) return REF_EMPTY_TUPLE;
    if (!has_room(m, words, count + 1)) return TSR_REF_NONE;
    uint32_t *out = (uint32_t *)words->items + words->count;
    out[0] = (uint32_t)count;
    memcpy(out + 1, from, count * sizeof *from);
    words->count += count + 1;
    return REF(TAG_TUPLE, words->count - count - 1);
}

tsr_ref tsr_pickle_make_persistent(machine *m, tsr_ref id)
{
    tsr_vec *words = &m->pickle->words;
    if (!has_room(m, words, 1)) return TSR_REF_NONE;
    ((uint32_t *)words->items)[words->count] = id;
    tsr_ref made = REF(TAG_PERSISTENT, words->count++);
    return tsr_pickle_note_odd(m, TSR_PICKLE_ODD_PERSISTENT, made) ? made : TSR_REF_NONE;
}

tsr_ref tsr_pickle_make_container(machine *m, tag tag_, const tsr_ref *from, size_t count)
{
    tsr_pickle *pickle = m->pickle;
    if (!has_room(m, &pickle->containers, 1) || !has_room(m, &pickle->words, count)) return TSR_REF_NONE;
    uint32_t start = (uint32_t)pickle->words.count, size = (uint32_t)count;
    if (count) memcpy((uint32_t *)pickle->words.items + start, from, count * sizeof *from);
    pickle->words.count += count;
    ((container *)pickle->containers.items)[pickle->containers.count] = (container){start, size, size};
    return REF(tag_, pickle->containers.count++);
}

static bool extend_container(machine *m, uint32_t which, const tsr_ref *from, size_t count)
{
    tsr_vec *words = &m->pickle->words;
    container *c = (container *)m->pickle->containers.items + which;
    if (c->capacity == FROZEN) {
        fail(m, TSR_E_FORMAT, "pickle: opcode %s cannot add items to a frozenset", tsr_pickle_opcode(*m->at));
        return false;
    }
    if (c->capacity - c->count < count) {
        bool last = (size_t)c->start + c->capacity == words->count;
        size_t wanted = c->count + count, kept = last ? c->capacity : 0;
        if (!last && wanted < 2 * (size_t)c->count) wanted = 2 * (size_t)c->count;
        if (!has_room(m, words, wanted - kept)) return false;
        uint32_t *items = words->items;
        if (!last) {
            if (c->count) memcpy(items + words->count, items + c->start, c->count * sizeof *items);
            c->start = (uint32_t)words->count;
        }
        words->count += wanted - kept;
        c->capacity = (uint32_t)wanted;
    }
    if (count) memcpy((uint32_t *)words->items + c->start + c->count, from, count * sizeof *from);
    c->count += (uint32_t)count;
    return true;
}

static bool extend_object(machine *m, uint32_t which, bool pairs, const tsr_ref *from, size_t count)
{
    tsr_vec *helds = &m->pickle->helds;
    object *o = (object *)m->pickle->objects.items + which;
    if (!pairs && o->position & HAS_STATE && !tsr_pickle_note_odd(m, TSR_PICKLE_ODD_AGAIN, TSR_REF_NONE)) return false;
    if (!o->held) {
        if (!has_room(m, helds, 1)) return false;
        ((held *)helds->items)[helds->count++] = (held){TSR_REF_NONE, TSR_REF_NONE};
        o->held = (uint32_t)helds->count;
    }
    held *h = (held *)helds->items + o->held - 1;
    tsr_ref *inner = pairs ? &h->dict_items : &h->appended;
    if (*inner) return extend_container(m, index_of(*inner), from, count);
    *inner = tsr_pickle_make_container(m, pairs ? TAG_DICT : TAG_LIST, from, count);
    return *inner != TSR_REF_NONE;
}

bool tsr_pickle_extend(machine *m, tsr_ref target, bool pairs, const tsr_ref *from, size_t count)
{
    tag kind = tag_of(target);
    uint32_t which = index_of(target);
    if (kind == TAG_GLOBAL || kind == TAG_PERSISTENT) return tsr_pickle_note_odd(m, TSR_PICKLE_ODD_ITEMS, TSR_REF_NONE);
    const open *inner = m->opens.count ? (const open *)m->opens.items + m->opens.count - 1 : NULL;
    if (inner && which < (kind == TAG_OBJECT ? inner->object : inner->containers)) { /* older than what will be dropped */
        m->again = true;
        m->status = TSR_E_FORMAT;
        return false;
    }
    if ((pairs || kind == TAG_SET) && !tsr_pickle_check_keys(m, pairs, from, count)) return false;
    if (kind == TAG_OBJECT) return extend_object(m, which, pairs, from, count);
    if (pairs ? kind == TAG_DICT : kind == TAG_LIST || kind == TAG_SET) return extend_container(m, which, from, count);
    fail(m, TSR_E_FORMAT, "pickle: opcode %s cannot add items to a value of kind %d", tsr_pickle_opcode(*m->at),
         (int)tsr_pickle_kind_of(m->pickle, target));
    return false;
}

static tsr_ref renamed(machine *m, tsr_ref module)
{
    tsr_str text = tsr_pickle_text(m->pickle, module);
    const char *now = tsr_str_equal(text, TSR_STR("__builtin__")) ? "builtins"
                      : tsr_str_equal(text, TSR_STR("copy_reg"))  ? "copyreg"
                                                                  : NULL;
    return now ? tsr_pickle_make_text(m, TAG_STR, (const uint8_t *)now, strlen(now)) : module;
}

/* Returns the Python 3 name of a built-in type that protocols up to 2 write with its Python 2 name. */
static tsr_ref renamed_type(machine *m, tsr_ref module, tsr_ref name)
{
    static const struct {
        const char *then, *now;
    } types[] = {{"long", "int"}, {"unicode", "str"}, {"xrange", "range"}};
    if (!tsr_str_equal(tsr_pickle_text(m->pickle, module), TSR_STR("__builtin__"))) return name;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (!tsr_str_equal(tsr_pickle_text(m->pickle, name), tsr_str_from(types[i].then))) continue;
        return tsr_pickle_make_text(m, TAG_STR, (const uint8_t *)types[i].now, strlen(types[i].now));
    }
    return name;
}

static uint32_t id_of(const tsr_pickle_sink *sink, tsr_str module, tsr_str name)
{
    for (size_t i = 0; sink && i < sink->count; i++) {
        if (name.size == 0 || sink->names[i].name[0] != name.data[0]) continue;
        if (tsr_str_equal(name, tsr_str_from(sink->names[i].name)) &&
            tsr_str_equal(module, tsr_str_from(sink->names[i].module))) {
            return sink->names[i].id;
        }
    }
    return sink && sink->other ? sink->other(module, name) : 0;
}

/* Doubles the hash table of globals, which uses linear probing and is at most half full. */
static bool rehash(machine *m)
{
    tsr_vec *slots = &m->pickle->slots;
    const global *globals = m->pickle->globals.items;
    size_t wanted = slots->count ? 2 * slots->count : 64;
    slots->count = 0;
    if (!has_room(m, slots, wanted)) return false;
    slots->count = wanted;
    uint32_t *table = slots->items;
    memset(table, 0, wanted * sizeof *table);
    for (uint32_t i = 0; i < m->pickle->globals.count; i++) {
        size_t slot = globals[i].hash & (wanted - 1);
        while (table[slot]) slot = (slot + 1) & (wanted - 1);
        table[slot] = i + 1;
    }
    return true;
}

/* Makes only one node per pair of names, however often it occurs. */
tsr_ref tsr_pickle_make_global(machine *m, tsr_ref module, tsr_ref name)
{
    tsr_pickle *pickle = m->pickle;
    if (tag_of(module) != TAG_STR || tag_of(name) != TAG_STR) {
        fail(m, TSR_E_FORMAT, "pickle: opcode %s with a module or name that is not a string", tsr_pickle_opcode(*m->at));
        return TSR_REF_NONE;
    }
    if (m->pickle->protocol < 3) {
        name = renamed_type(m, module, name);
        module = renamed(m, module);
    }
    if (!has_room(m, &pickle->globals, 1) || (2 * (pickle->globals.count + 1) > pickle->slots.count && !rehash(m)))
        return TSR_REF_NONE;
    tsr_str module_text = tsr_pickle_text(pickle, module), name_text = tsr_pickle_text(pickle, name);
    uint64_t hash = tsr_hash_bytes(name_text.data, name_text.size,
                                   tsr_hash_bytes(module_text.data, module_text.size, (uintptr_t)pickle));
    global *globals = pickle->globals.items;
    uint32_t *table = pickle->slots.items;
    size_t mask = pickle->slots.count - 1, slot = hash & mask;
    for (; table[slot]; slot = (slot + 1) & mask) {
        const global *known = &globals[table[slot] - 1];
        if (known->hash == hash && tsr_str_equal(tsr_pickle_text(pickle, known->module), module_text) &&
            tsr_str_equal(tsr_pickle_text(pickle, known->name), name_text)) {
            return REF(TAG_GLOBAL, table[slot] - 1);
        }
    }
    globals[pickle->globals.count] =
        (global){module, name, id_of(m->sink, module_text, name_text), TSR_PICKLE_NAMED, (uint64_t)(m->at - m->start), hash};
    table[slot] = (uint32_t)pickle->globals.count + 1;
    return REF(TAG_GLOBAL, pickle->globals.count++);
}
