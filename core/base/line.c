/* See line.h. */
#include "base/line.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "tessera/sys/text.h"

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

/* The smallest number of significant digits from which `value` can be read back. */
static int fewest_digits(double value, bool single)
{
    char text[TSR_REAL_TEXT];
    int digits = 1;
    for (; digits < 17; digits++) {
        double back = tsr_real_read(tsr_real_text(value, digits, text), NULL);
        if (single ? (float)back == (float)value : back == value) break;
    }
    return digits;
}

void tsr_line_real(tsr_line *line, double value, bool single)
{
    char text[TSR_REAL_TEXT];
    if (!isfinite(value)) {
        tsr_line_format(line, "%s", isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
        return;
    }
    tsr_real_text(value, fewest_digits(value, single), text);
    /* %g uses an exponent if there are fewer digits than places before the point. */
    if (fabs(value) >= 1 && fabs(value) < (single ? 1e8 : 1e16) && strchr(text, 'e'))
        tsr_real_text(tsr_real_read(text, NULL), 17, text);
    tsr_line_put(line, text, strlen(text));
}

void tsr_line_float(tsr_line *line, double value)
{
    const size_t from = line->used;
    tsr_line_real(line, value, false);
    if (!strpbrk(line->out + from, ".en")) tsr_line_put(line, ".0", 2);
}

bool tsr_line_integer(tsr_line *line, tsr_str bytes)
{
    uint8_t left[TSR_INTEGER_BYTES];
    char digits[TSR_LINE_INTEGER];
    size_t at = sizeof digits, size = bytes.size;
    if (size == 0 || size > sizeof left) return false;
    const bool negative = (uint8_t)bytes.data[size - 1] & 0x80;
    unsigned carry = 1;
    for (size_t i = 0; i < size; i++) {
        carry += negative ? (uint8_t) ~(uint8_t)bytes.data[i] : (uint8_t)bytes.data[i];
        left[i] = (uint8_t)(negative ? carry : (uint8_t)bytes.data[i]);
        carry >>= 8;
    }
    while (size) {
        unsigned rest = 0;
        for (size_t i = size; i-- > 0;) {
            rest = rest << 8 | left[i];
            left[i] = (uint8_t)(rest / 10);
            rest %= 10;
        }
        digits[--at] = (char)('0' + rest);
        while (size && left[size - 1] == 0) size--;
    }
    if (negative) digits[--at] = '-';
    tsr_line_put(line, digits + at, sizeof digits - at);
    return true;
}
