/* Formats and parses numbers in the form that people use. */
#include "tessera/sys/text.h"

#include "base/utf8.h"
#include "tessera/str.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

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

bool tsr_component_number(tsr_str text, uint64_t *index)
{
    *index = 0;
    if (!text.size || text.size > 9 || (text.size > 1 && text.data[0] == '0')) return false;
    for (size_t i = 0; i < text.size; i++) {
        if (!tsr_is_digit(text.data[i])) return false;
        *index = *index * 10 + (uint64_t)(text.data[i] - '0');
    }
    return true;
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
    const double number = tsr_real_read(text, &end);
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

/* Decides which characters may be printed unchanged. Names come from untrusted files, and must neither control a terminal
 * nor look like other names. Escaped are: controls, format characters (bidirectional ones, tags, zero-width ones, byte order
 * marks), line and paragraph separators, blanks other than the space, private use characters, noncharacters, characters that
 * fonts draw as nothing although Unicode classifies them as letters or marks (fillers, joiners, variation selectors), and
 * everything from U+40000 on, where no visible character is assigned. Source: Unicode 15, categories Cc, Cf, Co, Cs, Zl, Zp
 * and Zs, and Default_Ignorable_Code_Point. */

static const uint32_t hidden[][2] = {/* first, last; without ASCII */
                                     {0x80, 0xA0},       {0xAD, 0xAD},       {0x34F, 0x34F},     {0x600, 0x605},
                                     {0x61C, 0x61C},     {0x6DD, 0x6DD},     {0x70F, 0x70F},     {0x890, 0x891},
                                     {0x8E2, 0x8E2},     {0x115F, 0x1160},   {0x1680, 0x1680},   {0x17B4, 0x17B5},
                                     {0x180B, 0x180F},   {0x2000, 0x200F},   {0x2028, 0x202F},   {0x205F, 0x206F},
                                     {0x2800, 0x2800},   {0x3000, 0x3000},   {0x3164, 0x3164},   {0xD800, 0xF8FF},
                                     {0xFDD0, 0xFDEF},   {0xFE00, 0xFE0F},   {0xFEFF, 0xFEFF},   {0xFFA0, 0xFFA0},
                                     {0xFFF0, 0xFFFB},   {0xFFFE, 0xFFFF},   {0x110BD, 0x110BD}, {0x110CD, 0x110CD},
                                     {0x13430, 0x1343F}, {0x16FE4, 0x16FE4}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A},
                                     {0x1FFFE, 0x1FFFF}, {0x2FFFE, 0x2FFFF}, {0x3FFFE, 0x10FFFF}};

static bool is_hidden(uint32_t scalar)
{
    size_t low = 0, high = sizeof hidden / sizeof hidden[0];
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (scalar > hidden[middle][1]) low = middle + 1;
        else if (scalar < hidden[middle][0]) high = middle;
        else return true;
    }
    return false;
}

size_t tsr_str_visible(tsr_str text)
{
    const size_t length = tsr_utf8_length(text);
    if (length == 1) return (uint8_t)text.data[0] >= 0x20 && text.data[0] != 0x7F;
    return length && !is_hidden(tsr_utf8_get(text.data, length)) ? length : 0;
}

size_t tsr_str_step(tsr_str text, char escape[TSR_ESCAPE_SIZE], tsr_str *shown)
{
    size_t length = tsr_str_visible(text);
    if (length) {
        *shown = (tsr_str){text.data, length};
        return length;
    }
    length = tsr_utf8_length(text);
    const uint32_t scalar = length > 1 ? tsr_utf8_get(text.data, length) : (uint8_t)text.data[0];
    const char *format = length <= 1 ? "\\x%02x" : length <= 3 ? "\\u%04x" : "\\U%08x";
    *shown = (tsr_str){escape, (size_t)snprintf(escape, TSR_ESCAPE_SIZE, format, (unsigned)scalar)};
    return length ? length : 1;
}

/* "did you mean": finds the nearest word by edit distance (insert, delete, replace, swap neighbors). */

enum { MAX_WORD = 32 };

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

static unsigned distance(const char *a, const char *b)
{
    size_t rows = strlen(a), columns = strlen(b);
    unsigned d[MAX_WORD + 1][MAX_WORD + 1];
    if (rows > MAX_WORD || columns > MAX_WORD) return MAX_WORD;
    for (size_t i = 0; i <= rows; i++) d[i][0] = (unsigned)i;
    for (size_t j = 0; j <= columns; j++) d[0][j] = (unsigned)j;
    for (size_t i = 1; i <= rows; i++) {
        for (size_t j = 1; j <= columns; j++) {
            d[i][j] = least(least(d[i - 1][j], d[i][j - 1]) + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped) d[i][j] = least(d[i][j], d[i - 2][j - 2] + 1);
        }
    }
    return d[rows][columns];
}

const char *tsr_suggest(const char *wrong, const void *words, size_t step)
{
    const char *best = NULL, *word;
    unsigned nearest = (unsigned)strlen(wrong) / 3 + 2; /* words further away are not typing mistakes */
    for (const char *at = words; (word = *(const char *const *)(const void *)at); at += step) {
        size_t size = strlen(wrong);
        bool begins = size >= 3 && strncmp(word, wrong, size) == 0;
        unsigned d = begins ? 1 : distance(wrong, word);
        if (d < nearest && d < strlen(word)) {
            nearest = d;
            best = word;
        }
    }
    return best;
}
