/* One line of text in a caller's buffer: what does not fit is left off and noted. */
#ifndef TSR_BASE_LINE_H
#define TSR_BASE_LINE_H

#include "tessera/status.h"

typedef struct tsr_line {
    char *out; /* NUL-terminated after every put */
    size_t used, capacity;
    bool full; /* something was left off */
} tsr_line;

/* `capacity` is at least 1. */
tsr_line tsr_line_on(char *out, size_t capacity);
void tsr_line_put(tsr_line *line, const char *data, size_t size);
/* printf; at most 255 bytes a call. */
void tsr_line_format(tsr_line *line, const char *format, ...) TSR_PRINTF_LIKE(2, 3);
/* The fewest digits that read back as the same double, or the same float32 when `single`; "nan", "inf", "-inf". Whole
 * numbers below 10^16 (10^8 when `single`) have no exponent. */
void tsr_line_real(tsr_line *line, double value, bool single);
/* The same as Python prints floats: ".0" where it looks whole. */
void tsr_line_float(tsr_line *line, double value);
enum { TSR_INTEGER_BYTES = 64, TSR_LINE_INTEGER = 160 }; /* the longest integer, and a buffer for its digits */

/* Decimal digits of a two's-complement little-endian integer; false, and nothing put, for one of more than TSR_INTEGER_BYTES. */
bool tsr_line_integer(tsr_line *line, tsr_str bytes);

#endif
