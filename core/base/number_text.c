/* Formats and parses numbers in the form that people use. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "tessera/str.h"
#include "tessera/sys/number_text.h"

const char *tsr_number_text(uint64_t number, char out[TSR_NUMBER_TEXT])
{
    char digits[24];
    const int count = snprintf(digits, sizeof digits, "%" PRIu64, number);
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        if (i && (count - i) % 3 == 0) out[used++] = ',';
        out[used++] = digits[i];
    }
    out[used] = '\0';
    return out;
}

bool tsr_size_parse(const char *text, uint64_t *bytes)
{
    static const struct {
        const char *suffix;
        double factor;
    } units[] = {{"", 1},
                 {"B", 1},
                 {"K", 1e3},
                 {"KB", 1e3},
                 {"MB", 1e6},
                 {"M", 1e6},
                 {"GB", 1e9},
                 {"G", 1e9},
                 {"TB", 1e12},
                 {"T", 1e12},
                 {"KiB", 1024.0},
                 {"MiB", 1048576.0},
                 {"GiB", 1073741824.0},
                 {"TiB", 1099511627776.0}};
    char *end;
    const double number = strtod(text, &end);
    if (end == text || !(number >= 0)) return false;
    while (*end == ' ') end++;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].suffix) != 0) continue;
        const double value = number * units[i].factor;
        if (value < 1 || value >= 9.2e18) return false;
        *bytes = (uint64_t)value;
        return true;
    }
    return false;
}
