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

/* For printf-like formats: "%.*s" takes TSR_STR_ARG(s). Clipped to INT_MAX. */
#define TSR_STR_ARG(s) tsr_printf_size((s).size), (s).data
static inline int tsr_printf_size(size_t size)
{
    return size > 0x7fffffff ? 0x7fffffff : (int)size;
}

/* Borrows the string without its NUL; empty for NULL. */
static inline tsr_str tsr_str_from(const char *c_string)
{
    return TSR_LITERAL(tsr_str){c_string, c_string ? strlen(c_string) : 0};
}

/* Byte-wise; all empty strings are equal. */
static inline bool tsr_str_equal(tsr_str a, tsr_str b)
{
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

/* Byte-wise order; a proper prefix sorts first. */
static inline int tsr_str_compare(tsr_str a, tsr_str b)
{
    size_t n = a.size < b.size ? a.size : b.size;
    int order = n ? memcmp(a.data, b.data, n) : 0;
    return order ? order : (a.size > b.size) - (a.size < b.size);
}

/* Whether `prefix`, which may be empty, is how `s` begins; and how it ends. */
static inline bool tsr_str_starts(tsr_str s, tsr_str prefix)
{
    return s.size >= prefix.size && (prefix.size == 0 || memcmp(s.data, prefix.data, prefix.size) == 0);
}
static inline bool tsr_str_ends(tsr_str s, tsr_str suffix)
{
    return s.size >= suffix.size &&
           (suffix.size == 0 || memcmp(s.data + s.size - suffix.size, suffix.data, suffix.size) == 0);
}

/* Bytes of the character at the head of `text` where people can see it; 0 where it has to be escaped: a control, something
 * invisible, bytes that are not UTF-8, or nothing. */
size_t tsr_str_visible(tsr_str text);
/* Steps over the next character of a text that is not empty, for showing it to people. `*shown` is the character itself where
 * it is visible, otherwise an escape in `escape`: \x1b for an ASCII control and for a byte that is not UTF-8, \u200b or
 * \U000e0041 for other characters. Returns the bytes stepped over. */
enum { TSR_ESCAPE_SIZE = 12 };
size_t tsr_str_step(tsr_str text, char escape[TSR_ESCAPE_SIZE], tsr_str *shown);

/* The word that `wrong` most likely meant, by edit distance, or NULL where none is near. `words` points to the first of
 * NULL-terminated `const char *`, `step` bytes apart: an array of them, or of structs that begin with one. */
const char *tsr_suggest(const char *wrong, const void *words, size_t step);

/* `path` as the path of a relative URI reference (RFC 3986): bytes that may not stand there become %XX. Writes at most `capacity`
 * bytes, no NUL; 3 * path.size hold any result, a longer one is cut behind a whole byte of `path`. Returns the bytes written. */
size_t tsr_uri_path(tsr_str path, char *out, size_t capacity);

/* `text` as it may be shown and kept: of a URL (anything that begins with a scheme and "://") the user and password and the
 * fragment are left out, and every value of its query that is not known to be harmless is "***", so that the signature of
 * a presigned URL does not reach a message, a document or a log. Other texts stay as they are. Writes at most `capacity`
 * bytes, no NUL; 3 * text.size hold any result. Returns the bytes written. */
size_t tsr_uri_redact(tsr_str text, char *out, size_t capacity);

TSR_API_END

#endif
