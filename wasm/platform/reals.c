/* Floating-point numbers as text, by JavaScript, which reads and prints them exactly: with the C library's printf and strtod, which
 * compute in 128 bits, the module would be 9 KB larger. Its formats have none (tessera/sys/number_text.h). */
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tessera/sys/number_text.h"

/* The host's: prints a finite number that is not negative as "%.*g" does, to at most TSR_REAL_TEXT bytes; their number. */
__attribute__((import_module("env"), import_name("tsr_print_real"))) extern uint32_t tsr_print_real(double value, uint32_t digits, char *out);
/* The host's: reads the number that `text` of `size` bytes begins with; *used is how long it is, 0 where there is none. */
__attribute__((import_module("env"), import_name("tsr_parse_real"))) extern double tsr_parse_real(const char *text, uint32_t size, uint32_t *used);

const char *tsr_real_text(double value, int digits, char out[TSR_REAL_TEXT])
{
    char *at = out;
    if (signbit(value) && !isnan(value)) *at++ = '-';
    if (isfinite(value)) at[tsr_print_real(fabs(value), (uint32_t)digits, at)] = '\0';
    else strcpy(at, isnan(value) ? "nan" : "inf");
    return out;
}

/* In place of the C library's, for core and cJSON. */
double strtod(const char *restrict text, char **restrict end)
{
    uint32_t used;
    const double value = tsr_parse_real(text, (uint32_t)strlen(text), &used);
    if (end) *end = (char *)text + used;
    return value;
}

/* What the C library's vsnprintf calls in place of vfprintf (CMakeLists.txt): the same without %g. */
int __wrap_vfprintf(FILE *restrict file, const char *restrict format, va_list arguments);
int vfiprintf(FILE *restrict file, const char *restrict format, va_list arguments);
int __wrap_vfprintf(FILE *restrict file, const char *restrict format, va_list arguments)
{
    return vfiprintf(file, format, arguments);
}
