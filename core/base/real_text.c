/* Prints and reads floating-point numbers with the C library. Its decimal point is that of the locale, which the program that loads
 * this library may have set: in German, Python's locale.setlocale(LC_ALL, "") makes it a comma. WebAssembly has its own
 * implementation (wasm/platform/reals.c), because the C library's takes 9 KB there. */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tessera/sys/text.h"

/* The locale's decimal point, which may have several bytes; NULL where it is '.'. */
static const char *other_point(void)
{
    const char *point = localeconv()->decimal_point;
    return strcmp(point, ".") == 0 ? NULL : point;
}

const char *tsr_real_text(double value, int digits, char out[TSR_REAL_TEXT])
{
    const char *point = other_point();
    snprintf(out, TSR_REAL_TEXT, "%.*g", digits, value);
    char *at = point ? strstr(out, point) : NULL;
    if (at) {
        const char *after = at + strlen(point);
        *at = '.';
        memmove(at + 1, after, strlen(after) + 1);
    }
    return out;
}

double tsr_real_read(const char *text, char **end)
{
    const char *point = other_point();
    if (!point) return strtod(text, end);
    char copy[TSR_REAL_READ], *stop;
    size_t size = strcspn(text, point); /* the locale's own point ends a number here */
    if (size > sizeof copy - 1 - strlen(point)) size = sizeof copy - 1 - strlen(point);
    const char *at = memchr(text, '.', size);
    const size_t before = at ? (size_t)(at - text) : size;
    snprintf(copy, sizeof copy, "%.*s%s%.*s", (int)before, text, at ? point : "", at ? (int)(size - before - 1) : 0,
             at ? at + 1 : "");
    const double value = strtod(copy, &stop);
    size_t used = (size_t)(stop - copy);
    if (used > before) used -= strlen(point) - 1;
    if (end) *end = (char *)text + used;
    return value;
}
