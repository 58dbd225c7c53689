/* See line.h. */
#include "base/line.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

tsr_line tsr_line_on(char *out, size_t capacity)
{
    *out = '\0';
    return (tsr_line){out, 0, capacity, false};
}

void tsr_line_put(tsr_line *line, const char *data, size_t size)
{
    size_t room = line->capacity - 1 - line->used;
    if (size > room) {
        line->full = true;
        size = room;
    }
    if (size) memcpy(line->out + line->used, data, size);
    line->used += size;
    line->out[line->used] = '\0';
}

void tsr_line_format(tsr_line *line, const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (size > 0) tsr_line_put(line, text, (size_t)size < sizeof text ? (size_t)size : sizeof text - 1);
}

void tsr_line_real(tsr_line *line, double value, bool single)
{
    char text[40];
    if (!isfinite(value)) {
        tsr_line_format(line, "%s", isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        double back = strtod(text, NULL);
        if (single ? (float)back == (float)value : back == value) break;
    }
    tsr_line_put(line, text, strlen(text));
}
