/* A borrowed run of bytes: names, messages, slices of a parsed file. Not NUL-terminated; may hold any byte.
 *
 * Example:
 *
 *     const tsr_str name = tsr_str_from("model.fc.weight");
 *     if (tsr_str_ends(name, TSR_STR(".weight"))) printf("%.*s\n", TSR_STR_ARG(name)); */
#ifndef TESSERA_STR_H
#define TESSERA_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tessera/api.h"

TSR_API_BEGIN

typedef struct tsr_str {
    const char *data;
    size_t size;
} tsr_str;

#define TSR_STR(literal) (TSR_LITERAL(tsr_str){(literal), sizeof(literal) - 1})

/* For printf-like formats: "%.*s" takes TSR_STR_ARG(s). Of a string of 2 GiB or more only a beginning is printed. */
#define TSR_STR_ARG(s) tsr_printf_size((s).size), (s).data
static inline int tsr_printf_size(size_t size)
{
#ifdef TSR_PRINTS_SIZES /* the module's own printf reads the precision as unsigned (wasm/platform/print.c) */
    return (int)size;
#else
    return (int)(size & 0x7fffffff); /* a comparison would make each of 700 calls larger */
#endif
}

/* Borrows the string without its NUL; empty for NULL. */
static inline tsr_str tsr_str_from(const char *c_string)
{
    return TSR_LITERAL(tsr_str){c_string, c_string ? strlen(c_string) : 0};
}

/* Byte-wise; all empty strings are equal. */
TSR_INLINE bool tsr_str_equal(tsr_str a, tsr_str b)
{
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

/* Byte-wise order; a proper prefix sorts first. */
TSR_INLINE int tsr_str_compare(tsr_str a, tsr_str b)
{
    size_t n = a.size < b.size ? a.size : b.size;
    int order = n ? memcmp(a.data, b.data, n) : 0;
    return order ? order : (a.size > b.size) - (a.size < b.size);
}

/* Whether `prefix`, which may be empty, is how `s` begins; and how it ends. */
TSR_INLINE bool tsr_str_starts(tsr_str s, tsr_str prefix)
{
    return s.size >= prefix.size && (prefix.size == 0 || memcmp(s.data, prefix.data, prefix.size) == 0);
}
TSR_INLINE bool tsr_str_ends(tsr_str s, tsr_str suffix)
{
    return s.size >= suffix.size &&
           (suffix.size == 0 || memcmp(s.data + s.size - suffix.size, suffix.data, suffix.size) == 0);
}

/* `s` without its first `count` bytes; it has as many. */
static inline tsr_str tsr_str_after(tsr_str s, size_t count)
{
    return TSR_LITERAL(tsr_str){s.data + count, s.size - count};
}

/* Skips `prefix` at the beginning of *s. Returns false, and leaves *s as it is, if *s does not begin with it. */
static inline bool tsr_str_skip(tsr_str *s, tsr_str prefix)
{
    if (!tsr_str_starts(*s, prefix)) return false;
    *s = tsr_str_after(*s, prefix.size);
    return true;
}

/* Returns what precedes the first `end` in *s, or all of *s if it has none. *s becomes what follows. */
static inline tsr_str tsr_str_take(tsr_str *s, char end)
{
    const char *at = s->size ? (const char *)memchr(s->data, end, s->size) : NULL;
    const tsr_str first = {s->data, at ? (size_t)(at - s->data) : s->size};
    *s = tsr_str_after(*s, first.size + (at != NULL));
    return first;
}

/* Whether `c` is an ASCII digit, whatever the locale. */
static inline bool tsr_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Whether `part` occurs in `s`; an empty part does not. */
TSR_INLINE bool tsr_str_contains(tsr_str s, tsr_str part)
{
    for (size_t at = 0; part.size && at + part.size <= s.size; at++)
        if (memcmp(s.data + at, part.data, part.size) == 0) return true;
    return false;
}

TSR_API_END

#endif
