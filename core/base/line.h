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
/* The fewest digits that read back as the same double, or the same float32 when `single`; "nan", "inf", "-inf". */
void tsr_line_real(tsr_line *line, double value, bool single);

#endif
