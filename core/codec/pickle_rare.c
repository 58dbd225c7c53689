/* Executes the opcodes that current picklers seldom write, and refuses those that are not supported. */
#include "codec/pickle_machine.h"

#include "base/cursor.h"

static const uint8_t *refuse(machine *m, const char *why)
{
    fail(m, TSR_E_UNSUPPORTED, "pickle: opcode %s %s", tsr_pickle_opcode(*m->at), why);
    return NULL;
}

/* Returns the operand bytes at `p`, whose length field was read before; fails with NULL if the input ends within them. */
static const uint8_t *operand(machine *m, const uint8_t *p, uint64_t size)
{
    if (size <= (uint64_t)(m->end - p)) return p;
    fail(m, TSR_E_FORMAT, "pickle: opcode %s announces %llu bytes, but only %llu remain", tsr_pickle_opcode(*m->at),
         (unsigned long long)size, (unsigned long long)(m->end - p));
    return NULL;
}

static const uint8_t *do_long(machine *m, const uint8_t *p, unsigned field)
{
    uint64_t size = tsr_load_le(p, field);
    if (size > INT32_MAX) {
        fail(m, TSR_E_FORMAT, "pickle: opcode LONG4 with a negative length");
        return NULL;
    }
    const uint8_t *bytes = operand(m, p + field, size);
    return bytes ? then_push(m, tsr_pickle_make_long(m, bytes, (size_t)size), bytes + size) : NULL;
}

static const uint8_t *do_bytes(machine *m, const uint8_t *p, unsigned field)
{
    uint64_t size = tsr_load_le(p, field);
    const uint8_t *bytes = operand(m, p + field, size);
    return bytes ? then_push(m, tsr_pickle_make_text(m, TAG_BYTES, bytes, (size_t)size), bytes + size) : NULL;
}

static const uint8_t *do_bytearray(machine *m, const uint8_t *p)
{
    tsr_vec *bytearrays = &m->pickle->bytearrays;
    if (!has_room(m, bytearrays, 1)) return NULL;
    ((uint32_t *)bytearrays->items)[bytearrays->count++] = (uint32_t)m->pickle->texts.count; /* the next text */
    return do_bytes(m, p, 8);
}

static const uint8_t *do_str(machine *m, const uint8_t *p, unsigned field,
                             tsr_ref (*make)(machine *, const uint8_t *, size_t))
{
    uint64_t size = tsr_load_le(p, field);
    const uint8_t *bytes = operand(m, p + field, size);
    return bytes ? then_push(m, make(m, bytes, (size_t)size), bytes + size) : NULL;
}

static const uint8_t *do_float(machine *m, const uint8_t *p)
{
    uint64_t bits = 0;
    double value;
    for (unsigned i = 0; i < 8; i++) bits = bits << 8 | p[i];
    memcpy(&value, &bits, sizeof value);
    return then_push(m, tsr_pickle_make_float(m, value), p + 8);
}

static const uint8_t *do_proto(machine *m, const uint8_t *p)
{
    m->pickle->protocol = *p;
    if (*p <= 5) return p + 1;
    fail(m, TSR_E_UNSUPPORTED, "pickle: unknown protocol %d; 0 to 5 are supported", *p);
    return NULL;
}

static const uint8_t *do_frame(machine *m, const uint8_t *p)
{
    uint64_t size = tsr_load_le(p, 8);
    if (m->at < m->frame_end) {
        fail(m, TSR_E_FORMAT, "pickle: opcode FRAME inside another frame");
        return NULL;
    }
    if (!operand(m, p + 8, size)) return NULL;
    m->frame_end = p + 8 + size;
    return p + 8;
}

static const uint8_t *do_pop(machine *m, const uint8_t *p)
{
    if (m->marks.count && m->sp == m->mark_floor) return tsr_pickle_pop_mark(m) ? p : NULL;
    if (!needs(m, m->sp, 1)) return NULL;
    m->sp--;
    return p;
}

static const uint8_t *do_pop_mark(machine *m, const uint8_t *p)
{
    m->sp = tsr_pickle_pop_mark(m);
    return m->sp ? p : NULL;
}

static const uint8_t *do_dup(machine *m, const uint8_t *p)
{
    return has_top(m, m->sp) ? then_push(m, m->sp[-1], p) : NULL;
}

/* LIST, DICT, FROZENSET: combines everything above the mark into one container. */
static const uint8_t *do_collect(machine *m, const uint8_t *p, tag kind)
{
    tsr_ref *from = tsr_pickle_pop_mark(m);
    if (!from) return NULL;
    if (kind == TAG_DICT && (m->sp - from) % 2) {
        fail(m, TSR_E_FORMAT, "pickle: opcode DICT with a key that has no value");
        return NULL;
    }
    size_t count = (size_t)(m->sp - from);
    if (kind != TAG_LIST && !tsr_pickle_check_keys(m, kind == TAG_DICT, from, count)) return NULL;
    tsr_ref made = tsr_pickle_make_container(m, kind, from, count);
    if (made && kind == TAG_SET) ((container *)m->pickle->containers.items)[index_of(made)].capacity = FROZEN;
    m->sp = from;
    return then_push(m, made, p);
}

static const uint8_t *do_additems(machine *m, const uint8_t *p)
{
    tsr_ref *from = tsr_pickle_pop_mark(m), *sp = m->sp;
    if (!from || !has_top(m, from)) return NULL;
    m->sp = from;
    if (tag_of(from[-1]) == TAG_LIST) {
        fail(m, TSR_E_FORMAT, "pickle: opcode ADDITEMS cannot add items to a list");
        return NULL;
    }
    return tsr_pickle_extend(m, from[-1], false, from, (size_t)(sp - from)) ? p : NULL;
}

static const uint8_t *do_obj(machine *m, const uint8_t *p)
{
    tsr_ref *from = tsr_pickle_pop_mark(m);
    if (!from) return NULL;
    if (from == m->sp) {
        fail(m, TSR_E_FORMAT, "pickle: opcode OBJ without a class");
        return NULL;
    }
    tsr_ref made = tsr_pickle_call_since(m, from[0], from + 1);
    m->sp = from;
    return then_push(m, made, p);
}

/* The stack has the class, positional arguments and keywords. tsr_pickle_args describes the result. */
static const uint8_t *do_newobj_ex(machine *m, const uint8_t *p)
{
    if (!needs(m, m->sp, 3)) return NULL;
    tsr_ref *sp = m->sp, args = sp[-2];
    if (tag_of(args) != TAG_TUPLE || tag_of(sp[-1]) != TAG_DICT) {
        fail(m, TSR_E_FORMAT, "pickle: opcode NEWOBJ_EX with arguments that are not a tuple and a dict");
        return NULL;
    }
    if (tsr_pickle_count(m->pickle, sp[-1])) args = tsr_pickle_make_tuple(m, sp - 2, 2);
    if (!args) return NULL;
    sp[-2] = args;
    m->sp = sp - 1;
    return tsr_pickle_do_newobj(m) ? p : NULL;
}

static const uint8_t *do_persistent(machine *m, const uint8_t *p)
{
    if (!needs(m, m->sp, 1)) return NULL;
    tsr_ref made = tsr_pickle_make_persistent(m, m->sp[-1]);
    m->sp[-1] = made;
    return made ? p : NULL;
}

const uint8_t *tsr_pickle_rare(machine *m, uint8_t opcode, const uint8_t *p)
{
    // clang-format off: one opcode per line
    switch (opcode) {
    case 0x80: return do_proto(m, p);
    case 0x95: return do_frame(m, p);
    case 0x8a: return do_long(m, p, 1);
    case 0x8b: return do_long(m, p, 4);
    case 'G': return do_float(m, p);
    case 'U': return do_str(m, p, 1, tsr_pickle_make_py2_str);
    case 'T': return do_str(m, p, 4, tsr_pickle_make_py2_str);
    case 0x8d: return do_str(m, p, 8, tsr_pickle_make_str);
    case 'C': return do_bytes(m, p, 1);
    case 'B': return do_bytes(m, p, 4);
    case 0x8e: return do_bytes(m, p, 8);
    case 0x96: return do_bytearray(m, p);
    case '0': return do_pop(m, p);
    case '1': return do_pop_mark(m, p);
    case '2': return do_dup(m, p);
    case 'l': return do_collect(m, p, TAG_LIST);
    case 'd': return do_collect(m, p, TAG_DICT);
    case 0x91: return do_collect(m, p, TAG_SET);
    case 0x8f: return then_push(m, tsr_pickle_make_container(m, TAG_SET, NULL, 0), p);
    case 0x90: return do_additems(m, p);
    case 'o': return do_obj(m, p);
    case 0x92: return do_newobj_ex(m, p);
    case 'Q': return do_persistent(m, p);
    case 0x82:
    case 0x83:
    case 0x84: return refuse(m, "needs Python's extension registry, which is not supported");
    case 0x97:
    case 0x98: return refuse(m, "needs buffers from outside the pickle, which are not supported");
    default: return tsr_pickle_textual(m, opcode, p);
    }
    // clang-format on
}
