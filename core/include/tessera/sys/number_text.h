/* Numbers and sizes as people read and write them.
 *
 * Example:
 *
 *     char number[TSR_NUMBER_TEXT];
 *     uint64_t bytes;
 *     if (tsr_size_parse("64MiB", &bytes)) printf("%s bytes\n", tsr_number_text(bytes, number)); */
#ifndef TESSERA_SYS_NUMBER_TEXT_H
#define TESSERA_SYS_NUMBER_TEXT_H

#include "tessera/str.h"

TSR_API_BEGIN

/* A whole number with commas: "1,234,567". Returns `out`. */
enum { TSR_NUMBER_TEXT = 32 };
const char *tsr_number_text(uint64_t number, char out[TSR_NUMBER_TEXT]);

/* "s" for a count that needs a plural: `"%zu file%s", count, TSR_PLURAL(count)`. */
#define TSR_PLURAL(count) ((count) == 1 ? "" : "s")

/* A number with at most `digits` (1 to 17) significant digits, as C's "%.*g" has it. Only this prints floating-point numbers: the
 * formats of other functions have no %g and no %f. Returns `out`. */
enum { TSR_REAL_TEXT = 40 };
const char *tsr_real_text(double value, int digits, char out[TSR_REAL_TEXT]);

/* A size in bytes as options have it: "64MB" is decimal, "64MiB" binary, a bare number bytes. false: `text` is not one, or less than
 * one byte. */
bool tsr_size_parse(const char *text, uint64_t *bytes);

TSR_API_END

#endif
