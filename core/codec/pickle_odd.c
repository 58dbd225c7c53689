/* Records what a pickle does that its nodes do not show: calls of something that is not a global, states and items for
 * something that the pickle did not make, persistent ids, and keys that Python cannot hash. Each takes at least one opcode,
 * so the input's size bounds their number. */
#include "codec/pickle_machine.h"

enum { KEY_DEPTH = 100 };

/* The tags of keys that need checking; nodes with other tags can always be hashed. */
#define DOUBTFUL \
    (1u << TAG_LIST | 1u << TAG_DICT | 1u << TAG_SET | 1u << TAG_TUPLE | 1u << TAG_BYTES | 1u << TAG_OBJECT | \
     1u << TAG_FOLDED)

bool tsr_pickle_note_odd(machine *m, tsr_pickle_oddity_kind kind, tsr_ref ref)
{
    tsr_vec *oddities = &m->pickle->oddities;
    if (!has_room(m, oddities, 1)) return false;
    bool kept = tag_of(ref) == TAG_OBJECT || tag_of(ref) == TAG_PERSISTENT; /* a fold may drop all other nodes */
    ((tsr_pickle_oddity *)oddities->items)[oddities->count++] =
        (tsr_pickle_oddity){kind, kept ? ref : TSR_REF_NONE, (uint64_t)(m->at - m->start)};
    return true;
}

static bool is_bytearray(const tsr_pickle *pickle, uint32_t text)
{
    const uint32_t *known = pickle->bytearrays.items;
    size_t low = 0, high = pickle->bytearrays.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (known[middle] < text) low = middle + 1;
        else high = middle;
    }
    return low < pickle->bytearrays.count && known[low] == text;
}

static bool is_unhashable_object(const tsr_pickle *pickle, tsr_ref ref)
{
    tsr_ref callee = ((const object *)pickle->objects.items)[index_of(ref)].callee;
    return tag_of(callee) == TAG_GLOBAL &&
           ((const global *)pickle->globals.items)[index_of(callee)].id & TSR_PICKLE_UNHASHABLE;
}

static bool is_hashable(machine *m, tsr_ref ref, unsigned depth);

/* Hashing a tuple visits all its items each time. For tuples that share items this can take exponential time, in Python too,
 * so the number of visits is limited. */
static bool is_hashable_tuple(machine *m, tsr_ref ref, unsigned depth)
{
    size_t count;
    tsr_pickle_items(m->pickle, ref, &count);
    m->hashed += count;
    if (depth == KEY_DEPTH || m->hashed > 4 * (uint64_t)(m->end - m->start)) {
        fail(m, TSR_E_LIMIT, "pickle: tuples used as keys are nested too deeply or share too many items");
        return true;
    }
    for (size_t i = 0; i < count; i++) {
        if (!is_hashable(m, tsr_pickle_item(m->pickle, ref, i), depth + 1)) return false;
    }
    return true;
}

bool tsr_pickle_is_hashable(const tsr_pickle *pickle, tsr_ref ref)
{
    switch (tag_of(ref)) {
    case TAG_LIST:
    case TAG_DICT: return false;
    case TAG_SET: return ((const container *)pickle->containers.items)[index_of(ref)].capacity == FROZEN;
    case TAG_BYTES: return !is_bytearray(pickle, index_of(ref));
    case TAG_OBJECT: return !is_unhashable_object(pickle, ref);
    default: return true;
    }
}

static bool is_hashable(machine *m, tsr_ref ref, unsigned depth)
{
    if (tag_of(ref) == TAG_FOLDED) return !m->sink->is_hashable || m->sink->is_hashable(m->sink->ctx, ref);
    return tag_of(ref) == TAG_TUPLE ? is_hashable_tuple(m, ref, depth) : tsr_pickle_is_hashable(m->pickle, ref);
}

bool tsr_pickle_check_keys(machine *m, bool pairs, const tsr_ref *from, size_t count)
{
    for (size_t i = 0; i < count; i += pairs ? 2 : 1) {
        if (!(DOUBTFUL >> tag_of(from[i]) & 1) || is_hashable(m, from[i], 0)) continue;
        if (!tsr_pickle_note_odd(m, TSR_PICKLE_ODD_KEY, TSR_REF_NONE)) return false;
    }
    return m->status == TSR_OK;
}

/* ---- opcode ---- */

/* The names of opcodes, for messages. */

const char *tsr_pickle_opcode(uint8_t opcode)
{
    static const struct {
        uint8_t opcode;
        const char *name;
    } names[] = {
        // clang-format off
        {'(', "MARK"}, {'.', "STOP"}, {'0', "POP"}, {'1', "POP_MARK"}, {'2', "DUP"}, {'F', "FLOAT"}, {'I', "INT"}, {'J', "BININT"},
        {'K', "BININT1"}, {'L', "LONG"}, {'M', "BININT2"}, {'N', "NONE"}, {'P', "PERSID"}, {'Q', "BINPERSID"}, {'R', "REDUCE"},
        {'S', "STRING"}, {'T', "BINSTRING"}, {'U', "SHORT_BINSTRING"}, {'V', "UNICODE"}, {'X', "BINUNICODE"}, {'a', "APPEND"},
        {'b', "BUILD"}, {'c', "GLOBAL"}, {'d', "DICT"}, {'}', "EMPTY_DICT"}, {'e', "APPENDS"}, {'g', "GET"}, {'h', "BINGET"},
        {'i', "INST"}, {'j', "LONG_BINGET"}, {'l', "LIST"}, {']', "EMPTY_LIST"}, {'o', "OBJ"}, {'p', "PUT"}, {'q', "BINPUT"},
        {'r', "LONG_BINPUT"}, {'s', "SETITEM"}, {'t', "TUPLE"}, {')', "EMPTY_TUPLE"}, {'u', "SETITEMS"}, {'G', "BINFLOAT"},
        {'B', "BINBYTES"}, {'C', "SHORT_BINBYTES"}, {0x80, "PROTO"}, {0x81, "NEWOBJ"}, {0x82, "EXT1"}, {0x83, "EXT2"},
        {0x84, "EXT4"}, {0x85, "TUPLE1"}, {0x86, "TUPLE2"}, {0x87, "TUPLE3"}, {0x88, "NEWTRUE"}, {0x89, "NEWFALSE"}, {0x8a, "LONG1"},
        {0x8b, "LONG4"}, {0x8c, "SHORT_BINUNICODE"}, {0x8d, "BINUNICODE8"}, {0x8e, "BINBYTES8"}, {0x8f, "EMPTY_SET"},
        {0x90, "ADDITEMS"}, {0x91, "FROZENSET"}, {0x92, "NEWOBJ_EX"}, {0x93, "STACK_GLOBAL"}, {0x94, "MEMOIZE"}, {0x95, "FRAME"},
        {0x96, "BYTEARRAY8"}, {0x97, "NEXT_BUFFER"}, {0x98, "READONLY_BUFFER"},
        // clang-format on
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (names[i].opcode == opcode) return names[i].name;
    }
    return "(unknown)";
}
