/* Executes opcodes whose operands are lines of text: those of protocol 0, and GLOBAL and INST of every protocol up to 3. */
#include "codec/pickle_machine.h"

#include <stdlib.h>

#include "base/cursor.h"
#include "base/utf8.h"
#include "tessera/sys/text.h"

enum {
    DIGITS_MAX = 4300, /* of a decimal integer, which is Python's default limit */
    FLOAT_CHARS_MAX = 400,
    LIMB_DECIMALS = 9
};

/* Reads up to the next newline, and returns the position after it. */
static const uint8_t *line(machine *m, const uint8_t *p, tsr_str *text)
{
    const uint8_t *newline = p < m->end ? memchr(p, '\n', (size_t)(m->end - p)) : NULL;
    if (!newline) {
        fail(m, TSR_E_FORMAT, "pickle: the operand of opcode %s does not end with a line feed", tsr_pickle_opcode(*m->at));
        return NULL;
    }
    *text = (tsr_str){(const char *)p, (size_t)(newline - p)};
    return newline + 1;
}

static tsr_ref bad_number(machine *m, tsr_str text)
{
    fail(m, TSR_E_FORMAT, "pickle: opcode %s: '%.*s' is not a valid number", tsr_pickle_opcode(*m->at),
         (int)(text.size < 40 ? text.size : 40), text.data);
    return TSR_REF_NONE;
}

/* Allocates memory for decoded text that lives as long as the pickle. */
static uint8_t *decoded_room(machine *m, size_t size)
{
    tsr_pickle *pickle = m->pickle;
    if (!pickle->decoded) pickle->decoded = tsr_arena_new(pickle->allocator, (size_t)m->host->limits.memory_bytes, m->err);
    uint8_t *room = pickle->decoded ? tsr_arena_array(pickle->decoded, size, 1, m->err) : NULL;
    if (!room) m->status = TSR_E_NOMEM;
    return room;
}

/* Multiplies `limbs` (base 2^32, least significant first) by 10^size and adds the number that the digits represent. */
static size_t multiply_add(uint32_t *limbs, size_t count, const char *digits, size_t size)
{
    uint64_t factor = 1, carry = 0;
    for (size_t i = 0; i < size; i++) {
        factor *= 10;
        carry = carry * 10 + (uint64_t)(digits[i] - '0');
    }
    for (size_t i = 0; i < count; i++) {
        carry += (uint64_t)limbs[i] * factor;
        limbs[i] = (uint32_t)carry;
        carry >>= 32;
    }
    if (carry) limbs[count++] = (uint32_t)carry;
    return count;
}

/* Converts decimal digits to two's complement bytes, as in LONG4. */
static tsr_ref big_decimal(machine *m, tsr_str digits, bool negative)
{
    uint32_t limbs[DIGITS_MAX / LIMB_DECIMALS + 2];
    size_t count = 0, step = digits.size % LIMB_DECIMALS;
    for (size_t at = 0; at < digits.size; at += step, step = LIMB_DECIMALS) {
        if (step == 0) step = LIMB_DECIMALS;
        count = multiply_add(limbs, count, digits.data + at, step);
    }
    size_t size = 4 * count + 1;
    uint8_t *bytes = decoded_room(m, size);
    if (!bytes) return TSR_REF_NONE;
    uint32_t carry = negative;
    for (size_t i = 0; i < size; i++) {
        uint32_t byte = i / 4 < count ? limbs[i / 4] >> (8 * (i % 4)) & 0xFF : 0;
        uint32_t sum = negative ? (byte ^ 0xFF) + carry : byte;
        bytes[i] = (uint8_t)sum;
        carry = sum >> 8;
    }
    return tsr_pickle_make_long(m, bytes, size);
}

static tsr_ref decimal(machine *m, tsr_str text)
{
    tsr_str digits = text;
    bool negative = text.size && text.data[0] == '-';
    if (negative || (text.size && text.data[0] == '+')) digits = tsr_str_after(text, 1);
    if (digits.size == 0 || digits.size > DIGITS_MAX) return bad_number(m, text);
    for (size_t i = 0; i < digits.size; i++) {
        if (!tsr_is_digit(digits.data[i])) return bad_number(m, text);
    }
    return big_decimal(m, digits, negative);
}

static tsr_ref int_of(machine *m, tsr_str text)
{
    if (tsr_str_equal(text, TSR_STR("00"))) return REF_FALSE;
    if (tsr_str_equal(text, TSR_STR("01"))) return REF_TRUE;
    return decimal(m, text);
}

static tsr_ref long_of(machine *m, tsr_str text)
{
    if (tsr_str_ends(text, TSR_STR("L"))) text.size--;
    return decimal(m, text);
}

static tsr_ref float_of(machine *m, tsr_str text)
{
    char copy[FLOAT_CHARS_MAX + 1], *end;
    if (text.size == 0 || text.size > FLOAT_CHARS_MAX) return bad_number(m, text);
    for (size_t i = 0; i < text.size; i++) { /* strtod would also accept hexadecimal numbers and white space */
        if (!tsr_is_digit(text.data[i]) && (!text.data[i] || !strchr("+-.einfaEINFA", text.data[i])))
            return bad_number(m, text);
        copy[i] = text.data[i];
    }
    copy[text.size] = '\0';
    double value = tsr_real_read(copy, &end);
    return end == copy + text.size ? tsr_pickle_make_float(m, value) : bad_number(m, text);
}

/* Reads `count` hexadecimal digits at `at`; returns false if there are fewer. */
static bool hex(tsr_str text, size_t at, size_t count, uint32_t *value)
{
    *value = 0;
    if (count > text.size - at) return false;
    for (size_t i = 0; i < count; i++) {
        int digit = tsr_hex_digit(text.data[at + i]);
        if (digit < 0) return false;
        *value = *value << 4 | (uint32_t)digit;
    }
    return true;
}

static size_t put_scalar(uint32_t scalar, uint8_t *out)
{
    return tsr_utf8_put(scalar, (char *)out); /* encodes a surrogate in three bytes, as 'surrogatepass' does */
}

/* Decodes raw-unicode-escape: Latin-1 with \uXXXX and \UXXXXXXXX. */
static tsr_ref unicode_of(machine *m, tsr_str text)
{
    uint8_t *out = decoded_room(m, 2 * text.size);
    size_t size = 0;
    if (!out) return TSR_REF_NONE;
    for (size_t at = 0; at < text.size;) {
        size_t backslashes = 0, digits = 0;
        uint32_t scalar = (uint8_t)text.data[at];
        while (at + backslashes < text.size && text.data[at + backslashes] == '\\') backslashes++;
        if (backslashes % 2 && at + backslashes < text.size) {
            digits = text.data[at + backslashes] == 'u' ? 4 : text.data[at + backslashes] == 'U' ? 8 : 0;
        }
        if (backslashes) {
            size_t plain = digits ? backslashes - 1 : backslashes;
            memset(out + size, '\\', plain);
            size += plain;
            at += backslashes;
            if (!digits) continue;
            if (!hex(text, at + 1, digits, &scalar) || scalar > 0x10FFFF) {
                fail(m, TSR_E_FORMAT, "pickle: opcode UNICODE with an invalid \\u escape");
                return TSR_REF_NONE;
            }
            at += digits;
        }
        size += put_scalar(scalar, out + size);
        at++;
    }
    return tsr_pickle_make_str(m, out, size);
}

/* Decodes one escape of a Python 2 string literal. *at is the position after the backslash. */
static bool unescape(tsr_str text, size_t *at, uint8_t *out, size_t *size)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = text.data[*at];
    const char *simple = c ? strchr(from, c) : NULL;
    uint32_t value = 0;
    ++*at;
    if (simple) {
        out[(*size)++] = (uint8_t)to[simple - from];
    } else if (c == 'x') {
        if (!hex(text, *at, 2, &value)) return false;
        *at += 2;
        out[(*size)++] = (uint8_t)value;
    } else if (c >= '0' && c <= '7') {
        value = (uint32_t)(c - '0');
        for (int i = 0; i < 2 && *at < text.size && text.data[*at] >= '0' && text.data[*at] <= '7'; i++) {
            value = value * 8 + (uint32_t)(text.data[(*at)++] - '0');
        }
        out[(*size)++] = (uint8_t)value;
    } else {
        out[(*size)++] = '\\';
        out[(*size)++] = (uint8_t)c;
    }
    return true;
}

/* Decodes a quoted Python 2 string literal. */
static tsr_ref string_of(machine *m, tsr_str text)
{
    bool quoted =
        text.size >= 2 && (text.data[0] == '\'' || text.data[0] == '"') && text.data[text.size - 1] == text.data[0];
    uint8_t *out = quoted ? decoded_room(m, text.size) : NULL;
    size_t size = 0;
    if (quoted && !out) return TSR_REF_NONE;
    tsr_str inner = {text.data + 1, quoted ? text.size - 2 : 0};
    for (size_t at = 0; quoted && at < inner.size;) {
        if (inner.data[at] != '\\') {
            out[size++] = (uint8_t)inner.data[at++];
        } else if (++at == inner.size || !unescape(inner, &at, out, &size)) {
            quoted = false;
        }
    }
    if (quoted) return tsr_pickle_make_py2_str(m, out, size);
    fail(m, TSR_E_FORMAT, "pickle: opcode STRING without a quoted string");
    return TSR_REF_NONE;
}

static tsr_ref persistent_of(machine *m, tsr_str text)
{
    tsr_ref id = tsr_pickle_make_str(m, (const uint8_t *)text.data, text.size);
    return id ? tsr_pickle_make_persistent(m, id) : TSR_REF_NONE;
}

/* GLOBAL and INST: reads the module and the name from two lines. */
static const uint8_t *named(machine *m, const uint8_t *p, tsr_ref *made)
{
    tsr_str module, name;
    p = line(m, p, &module);
    if (p) p = line(m, p, &name);
    if (!p) return NULL;
    tsr_ref module_ref = tsr_pickle_make_str(m, (const uint8_t *)module.data, module.size);
    tsr_ref name_ref = module_ref ? tsr_pickle_make_str(m, (const uint8_t *)name.data, name.size) : TSR_REF_NONE;
    *made = name_ref ? tsr_pickle_make_global(m, module_ref, name_ref) : TSR_REF_NONE;
    return *made ? p : NULL;
}

static const uint8_t *do_global(machine *m, const uint8_t *p)
{
    tsr_ref made;
    p = named(m, p, &made);
    return p ? then_push(m, made, p) : NULL;
}

static const uint8_t *do_inst(machine *m, const uint8_t *p)
{
    tsr_ref class_;
    p = named(m, p, &class_);
    tsr_ref *from = p ? tsr_pickle_pop_mark(m) : NULL;
    if (!from) return NULL;
    tsr_ref made = tsr_pickle_call_since(m, class_, from);
    m->sp = from;
    return then_push(m, made, p);
}

/* Executes GET and PUT, whose memo index is decimal. */
static const uint8_t *do_memo(machine *m, const uint8_t *p, bool get)
{
    tsr_str text;
    p = line(m, p, &text);
    if (!p) return NULL;
    uint64_t index = 0;
    for (size_t i = 0; i < text.size; i++) {
        if (!tsr_is_digit(text.data[i]) || i > 17) text.size = 0;
        else index = index * 10 + (uint64_t)(text.data[i] - '0');
    }
    if (text.size == 0) {
        fail(m, TSR_E_FORMAT, "pickle: opcode %s with a memo index that is not a decimal number", tsr_pickle_opcode(*m->at));
        return NULL;
    }
    if (!get) return has_top(m, m->sp) && tsr_pickle_put(m, index, m->sp[-1]) ? p : NULL;
    tsr_ref ref;
    return tsr_pickle_fetch(m, index, &ref) ? then_push(m, ref, p) : NULL;
}

const uint8_t *tsr_pickle_textual(machine *m, uint8_t opcode, const uint8_t *p)
{
    static const struct {
        char opcode;
        tsr_ref (*make)(machine *m, tsr_str text);
    } makers[] = {{'I', int_of}, {'L', long_of}, {'F', float_of}, {'S', string_of}, {'V', unicode_of}, {'P', persistent_of}};
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++) {
        tsr_str text;
        if (opcode != (uint8_t)makers[i].opcode) continue;
        p = line(m, p, &text);
        return p ? then_push(m, makers[i].make(m, text), p) : NULL;
    }
    switch (opcode) {
    case 'c': return do_global(m, p);
    case 'i': return do_inst(m, p);
    case 'g': return do_memo(m, p, true);
    case 'p': return do_memo(m, p, false);
    default: fail(m, TSR_E_FORMAT, "pickle: unknown opcode 0x%02x", opcode); return NULL;
    }
}
