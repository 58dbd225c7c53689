/* Formats lists of decimal numbers without stdio, into a buffer on the caller's stack. */
#include "layout/dims_text.h"

#include <string.h>

#define LONGEST_NUMBER 20u
static const char clipped[] = "…]";

const char *tsr_dims_text(tsr_dims_buffer *buffer, const uint64_t *values, uint32_t ndim)
{
    char *out = buffer->text;
    const char *limit = buffer->text + sizeof buffer->text - LONGEST_NUMBER - 2 - sizeof clipped;
    *out++ = '[';
    for (uint32_t d = 0; d < ndim; d++) {
        char digits[LONGEST_NUMBER];
        uint64_t value = values ? values[d] : 0;
        uint32_t count = 0;
        if (out > limit) {
            memcpy(out, clipped, sizeof clipped);
            return buffer->text;
        }
        do digits[count++] = (char)('0' + value % 10);
        while (value /= 10);
        while (count) *out++ = digits[--count];
        if (d + 1 < ndim) {
            *out++ = ',';
            *out++ = ' ';
        }
    }
    memcpy(out, "]", 2);
    return buffer->text;
}
