/* UTF-8 as defined in RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef TSR_BASE_UTF8_H
#define TSR_BASE_UTF8_H

#include "tessera/str.h"

static inline bool tsr_utf8_tail(uint8_t byte)
{
    return (byte & 0xC0) == 0x80;
}

/* The length of the sequence at the beginning of `text` (1 to 4), or 0 if it is empty or begins with an invalid byte. */
static inline size_t tsr_utf8_length(tsr_str text)
{
    const uint8_t *b = (const uint8_t *)text.data;
    if (text.size == 0) return 0;
    if (b[0] < 0x80) return 1;
    if (b[0] < 0xC2 || text.size < 2 || !tsr_utf8_tail(b[1])) return 0;
    if (b[0] < 0xE0) return 2;
    if (text.size < 3 || !tsr_utf8_tail(b[2])) return 0;
    if (b[0] < 0xF0) return (b[0] == 0xE0 && b[1] < 0xA0) || (b[0] == 0xED && b[1] > 0x9F) ? 0 : 3;
    if (text.size < 4 || !tsr_utf8_tail(b[3])) return 0;
    return b[0] > 0xF4 || (b[0] == 0xF0 && b[1] < 0x90) || (b[0] == 0xF4 && b[1] > 0x8F) ? 0 : 4;
}

/* The length of the surrogate at the beginning of `text`, which Python's 'surrogatepass' encodes in 3 bytes; otherwise 0. A high
 * one before a low one does not count: their two escapes in JSON would be read as one character. */
static inline size_t tsr_utf8_lone_surrogate(tsr_str text)
{
    const uint8_t *b = (const uint8_t *)text.data;
    if (text.size < 3 || b[0] != 0xED || (b[1] & 0xE0) != 0xA0 || !tsr_utf8_tail(b[2])) return 0;
    return b[1] < 0xB0 && text.size > 4 && b[3] == 0xED && (b[4] & 0xF0) == 0xB0 ? 0 : 3;
}

/* The scalar value of a valid sequence with this length; also that of a surrogate. */
static inline uint32_t tsr_utf8_get(const char *data, size_t length)
{
    uint32_t scalar = (uint8_t)data[0] & (length == 1 ? 0x7F : 0x7Fu >> length);
    for (size_t i = 1; i < length; i++) scalar = scalar << 6 | ((uint8_t)data[i] & 0x3F);
    return scalar;
}

/* The position of the first byte that is not valid UTF-8; text.size if all of it is valid. */
static inline size_t tsr_utf8_check(tsr_str text)
{
    size_t at = 0;
    while (at < text.size) {
        size_t length = tsr_utf8_length(tsr_str_after(text, at));
        if (length == 0) break;
        at += length;
    }
    return at;
}

/* Writes a scalar value (≤ U+10FFFF, or a surrogate as 'surrogatepass' does) and returns the 1 to 4 bytes used. */
static inline size_t tsr_utf8_put(uint32_t scalar, char *out)
{
    if (scalar < 0x80) {
        out[0] = (char)scalar;
        return 1;
    }
    size_t length = scalar < 0x800 ? 2 : scalar < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--, scalar >>= 6) out[i] = (char)(0x80 | (scalar & 0x3F));
    out[0] = (char)(((0xF00u >> length) & 0xFF) | scalar);
    return length;
}

#endif
