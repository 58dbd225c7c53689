/* Builds a line of text in the caller's buffer. Text that does not fit is dropped, and `full` is set. */
#ifndef TSR_BASE_LINE_H
#define TSR_BASE_LINE_H

#include "tessera/status.h"

typedef struct tsr_line {
    char *out; /* NUL-terminated after every put */
    size_t used, capacity;
    bool full; /* something was dropped */
} tsr_line;

/* `capacity` must be at least 1. */
tsr_line tsr_line_on(char *out, size_t capacity);
void tsr_line_put(tsr_line *line, const char *data, size_t size);
/* Like printf; at most 255 bytes per call. */
void tsr_line_format(tsr_line *line, const char *format, ...) TSR_PRINTF_LIKE(2, 3);
/* The fewest digits from which the same double, or with `single` the same float32, can be read back; "nan", "inf", "-inf".
 * Whole numbers below 10^16 (10^8 with `single`) have no exponent. */
void tsr_line_real(tsr_line *line, double value, bool single);
/* The same in Python's format, with ".0" after whole numbers. */
void tsr_line_float(tsr_line *line, double value);
enum { TSR_INTEGER_BYTES = 64, TSR_LINE_INTEGER = 160 }; /* the longest integer, and a buffer for its digits */

/* The decimal digits of a two's-complement little-endian integer. Returns false, and puts nothing, if it has more than
 * TSR_INTEGER_BYTES. */
bool tsr_line_integer(tsr_line *line, tsr_str bytes);

#endif
