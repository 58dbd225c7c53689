/* Text: numbers, what a terminal may show, names that are meant, URIs and regular expressions. */
#ifndef TESSERA_SYS_TEXT_H
#define TESSERA_SYS_TEXT_H

#include "tessera/memory.h"
#include "tessera/str.h"

TSR_API_BEGIN

/* Numbers and sizes as people read and write them.
 *
 * Example:
 *
 *     char number[TSR_NUMBER_TEXT];
 *     uint64_t bytes;
 *     if (tsr_size_parse("64MiB", &bytes)) printf("%s bytes\n", tsr_number_text(bytes, number)); */

/* A whole number with commas: "1,234,567". Returns `out`. */
enum { TSR_NUMBER_TEXT = 32 };
const char *tsr_number_text(uint64_t number, char out[TSR_NUMBER_TEXT]);

/* "s" for a count that needs a plural: `"%zu file%s", count, TSR_PLURAL(count)`. */
#define TSR_PLURAL(count) ((count) == 1 ? "" : "s")

/* A number with at most `digits` (1 to 17) significant digits, as C's "%.*g" has it in the C locale, whatever the locale is. Only this
 * prints floating-point numbers: the formats of other functions have no %g and no %f. Returns `out`. */
enum { TSR_REAL_TEXT = 40 };
const char *tsr_real_text(double value, int digits, char out[TSR_REAL_TEXT]);

/* The number at the beginning of `text`, as C's strtod reads it in the C locale, whatever the locale is. Of a text of TSR_REAL_READ bytes
 * or more only the beginning may be read. `*end` (may be NULL) becomes what follows the number, or `text` if there is none. Only this
 * reads floating-point numbers. */
enum { TSR_REAL_READ = 512 };
double tsr_real_read(const char *text, char **end);

/* A size in bytes as options have it: "64MB" is decimal, "64MiB" binary, a bare number bytes. false: `text` is not one, or less than
 * one byte. */
bool tsr_size_parse(const char *text, uint64_t *bytes);

/* A component of a name that counts layers or items of a list: at most nine digits, and no leading zeros. false: `text` is not one. */
bool tsr_component_number(tsr_str text, uint64_t *index);

/* Text from files as it may be shown to people: what cannot be seen, or could change a terminal, is escaped.
 *
 * Example:
 *
 *     char escape[TSR_ESCAPE_SIZE];
 *     while (text.size) {
 *         tsr_str shown;
 *         const size_t step = tsr_str_step(text, escape, &shown);
 *         printf("%.*s", TSR_STR_ARG(shown));
 *         text = tsr_str_after(text, step);
 *     } */

/* Bytes of the character at the head of `text` where people can see it; 0 where it has to be escaped: a control, something
 * invisible, bytes that are not UTF-8, or nothing. */
size_t tsr_str_visible(tsr_str text);

enum { TSR_ESCAPE_SIZE = 12 };
/* Steps over the next character of a text that is not empty, for showing it to people. `*shown` is the character itself where
 * it is visible, otherwise an escape in `escape`: \x1b for an ASCII control and for a byte that is not UTF-8, \u200b or
 * \U000e0041 for other characters. Returns the bytes stepped over. */
size_t tsr_str_step(tsr_str text, char escape[TSR_ESCAPE_SIZE], tsr_str *shown);

/* Suggests the word that a user most likely meant instead of an unknown one.
 *
 * Example:
 *
 *     const char *const levels[] = {"error", "warning", "note", NULL};
 *     const char *meant = tsr_suggest("eror", levels, sizeof *levels);
 *     if (meant) printf("did you mean %s?\n", meant); */

/* The word that `wrong` most likely meant, by edit distance, or NULL where none is near. `words` points to the first of
 * NULL-terminated `const char *`, `step` bytes apart: an array of them, or of structs that begin with one. */
const char *tsr_suggest(const char *wrong, const void *words, size_t step);

/* Paths and addresses as documents and messages show them.
 *
 * Example:
 *
 *     char shown[3 * 64];
 *     if (text.size <= 64) printf("%.*s\n", (int)tsr_uri_redact(text, shown, sizeof shown), shown); */

/* `path` as the path of a relative URI reference (RFC 3986): bytes that are not allowed there become %XX. Writes at most
 * `capacity` bytes, no NUL; 3 * path.size hold any result, a longer one is cut behind a whole byte of `path`. Returns the
 * bytes written. */
size_t tsr_uri_path(tsr_str path, char *out, size_t capacity);

/* Decodes every %XX of `text`, and with `plus_is_space`, '+' as well. `out` has text.size bytes. Returns how many of them were written. */
size_t tsr_uri_decode(tsr_str text, bool plus_is_space, char *out);

/* The value of a hexadecimal digit; -1 for any other character. */
static inline int tsr_hex_digit(char c)
{
    return tsr_is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* `text` as it may be shown and kept: of a URL (anything that begins with a scheme and "://") the user and password and the
 * fragment are left out, and every value of its query that is not known to be harmless becomes "***". Otherwise the
 * signature of a presigned URL could reach a message, a document or a log. Keys of s3://, gs://, az:// and hf:// have no
 * fragment. Other texts stay as they are. Writes at most `capacity` bytes, no NUL; 3 * text.size hold any result. Returns
 * the bytes written. */
size_t tsr_uri_redact(tsr_str text, char *out, size_t capacity);

/* Regular expressions as Python's `re` reads them, for what libraries of Python store: the patterns of PEFT's rank_pattern, and
 * DeepSpeed's patterns of parameters.
 *
 * Understood are literals, escapes, `.`, sets, groups, alternatives, repetition and anchors. Everything whose meaning depends on
 * the way in which Python searches is refused: references to groups, lookaround, atomic groups, possessive repetition and flags.
 * What is left is matched in time proportional to the product of both lengths, so that a hostile pattern does not run long.
 *
 * Example:
 *
 *     tsr_regex *regex;
 *     uint64_t work = TSR_REGEX_WORK;
 *     bool matches = false;
 *     tsr_status status = tsr_regex_compile(TSR_STR("layers\\.[12]\\..*"), &tsr_allocator_libc, arena, &regex, &err);
 *     if (status == TSR_OK) status = tsr_regex_match(regex, TSR_STR("layers.1.q_proj"), &work, &matches, &err); */

typedef struct tsr_regex tsr_regex;

/* Compiles a pattern, in `arena`; `allocator` is used for what is needed meanwhile. Fails with TSR_E_UNSUPPORTED and a message that names what is not understood, which includes
 * what Python does not accept; with TSR_E_LIMIT if the pattern is too large when its repetitions are written out; or with
 * TSR_E_NOMEM. */
tsr_status tsr_regex_compile(tsr_str pattern, const tsr_allocator *allocator, tsr_arena *arena, tsr_regex **out,
                             tsr_error *err);

/* How much may be matched with patterns that come from one input: steps of patterns times characters. Far more than the names of a
 * model need, and a few seconds at most. */
#define TSR_REGEX_WORK (UINT64_C(1) << 30)

/* Sets *matches to whether the pattern matches at the start of `text`, like re.match. Subtracts what that may cost from *work, which
 * starts at TSR_REGEX_WORK, and fails with TSR_E_LIMIT if less is left. The text is bytes: one that is not ASCII is
 * refused (TSR_E_UNSUPPORTED), because Python counts characters. Uses memory of the regex, so calls for one regex must not
 * overlap. */
tsr_status tsr_regex_match(tsr_regex *regex, tsr_str text, uint64_t *work, bool *matches, tsr_error *err);

TSR_API_END

#endif
