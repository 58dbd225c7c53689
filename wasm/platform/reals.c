/* Prints and parses floating-point numbers in JavaScript, which does so exactly. The C library's printf and strtod compute
 * in 128 bits and would make the module 9 KB larger. Its printf formats therefore support no such numbers
 * (print.c, tessera/sys/text.h). */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tessera/sys/text.h"

/* Provided by the host: prints a finite number that is not negative as "%.*g" does, with at most TSR_REAL_TEXT bytes.
 * Returns their number. */
__attribute__((import_module("env"), import_name("tsr_print_real"))) extern uint32_t tsr_print_real(double value,
                                                                                                    uint32_t digits,
                                                                                                    char *out);
/* Provided by the host: parses the number at the beginning of `text`, which has `size` bytes. *used becomes its length, 0 if
 * there is none. */
__attribute__((import_module("env"), import_name("tsr_parse_real"))) extern double tsr_parse_real(const char *text,
                                                                                                  uint32_t size,
                                                                                                  uint32_t *used);

const char *tsr_real_text(double value, int digits, char out[TSR_REAL_TEXT])
{
    char *at = out;
    if (signbit(value) && !isnan(value)) *at++ = '-';
    if (isfinite(value)) at[tsr_print_real(fabs(value), (uint32_t)digits, at)] = '\0';
    else strcpy(at, isnan(value) ? "nan" : "inf");
    return out;
}

/* Replaces the C library's function, for core and cJSON. */
double strtod(const char *restrict text, char **restrict end)
{
    uint32_t used;
    const double value = tsr_parse_real(text, (uint32_t)strlen(text), &used);
    if (end) *end = (char *)text + used;
    return value;
}

double tsr_real_read(const char *text, char **end)
{
    return strtod(text, end);
}
