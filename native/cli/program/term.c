/* See term.h. */
#include "cli/program/term.h"

#include "tessera/sys/number_text.h"
#include "tessera/sys/visible.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

cli_terminal cli_terminal_of(int fd, unsigned color_choice)
{
    cli_terminal terminal = {isatty(fd) == 1, false, 80};
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR"), *columns = getenv("COLUMNS");
    struct winsize size;
    bool plain = (no_color && *no_color) || !term || strcmp(term, "dumb") == 0;
    terminal.color = color_choice == 2 || (color_choice != 3 && terminal.is_terminal && !plain);
    if (terminal.is_terminal && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) terminal.columns = size.ws_col;
    else if (columns && atoi(columns) > 0) terminal.columns = (unsigned)atoi(columns);
    if (terminal.columns < 40) terminal.columns = 40;
    return terminal;
}

/* Prints columns [from, to) of the escaped text; only counts if `file` is NULL. Returns the columns of the whole text. */
static unsigned walk(FILE *file, tsr_str text, unsigned from, unsigned to)
{
    unsigned column = 0;
    char escape[TSR_ESCAPE_SIZE];
    tsr_str shown;
    for (size_t at = 0; at < text.size;) {
        at += tsr_str_step((tsr_str){text.data + at, text.size - at}, escape, &shown);
        const unsigned wide = shown.data == escape ? (unsigned)shown.size : 1;
        if (file && column >= from && column + wide <= to) fwrite(shown.data, 1, shown.size, file);
        column += wide;
    }
    return column;
}

void cli_put(FILE *file, tsr_str text)
{
    walk(file, text, 0, UINT32_MAX);
}

unsigned cli_width(tsr_str text)
{
    return walk(NULL, text, 0, 0);
}

void cli_pad(FILE *file, unsigned columns)
{
    fprintf(file, "%*s", (int)columns, "");
}

void cli_put_fitted(FILE *file, tsr_str text, unsigned columns, bool pad)
{
    unsigned width = cli_width(text);
    if (width <= columns) {
        cli_put(file, text);
        if (pad) cli_pad(file, columns - width);
        return;
    }
    unsigned head = (columns - 1) / 2, tail = columns - 1 - head;
    walk(file, text, 0, head);
    fputs("…", file);
    walk(file, text, width - tail, UINT32_MAX);
}

void cli_on(const cli_terminal *terminal, FILE *file, cli_style style)
{
    static const char *const codes[] = {"",         "\x1b[1m",  "\x1b[2m",  "\x1b[31m",
                                        "\x1b[33m", "\x1b[32m", "\x1b[34m", "\x1b[36m"};
    if (terminal->color) fputs(codes[style], file);
}

void cli_off(const cli_terminal *terminal, FILE *file)
{
    if (terminal->color) fputs("\x1b[0m", file);
}

void cli_put_wrapped(FILE *file, tsr_str text, unsigned indent, unsigned used, unsigned columns)
{
    unsigned column = used;
    for (size_t at = 0; at < text.size;) {
        size_t end = at;
        while (end < text.size && text.data[end] != ' ') end++;
        tsr_str word = {text.data + at, end - at};
        unsigned wide = cli_width(word);
        bool first = column == used && at == 0;
        if (!first && column + 1 + wide > columns) {
            fputc('\n', file);
            cli_pad(file, indent);
            column = indent;
        } else if (!first) {
            fputc(' ', file);
            column++;
        }
        cli_put(file, word);
        column += wide;
        at = end + (end < text.size);
    }
    fputc('\n', file);
}

cli_words cli_bytes(uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    cli_words words;
    double value = (double)bytes;
    unsigned unit = 0;
    while (value >= 1024 && unit < 6) {
        value /= 1024;
        unit++;
    }
    if (unit && value >= 1023.95 && unit < 6) { /* it would be printed as 1024.0 */
        value /= 1024;
        unit++;
    }
    snprintf(words.text, sizeof words.text, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return words;
}

cli_words cli_number(uint64_t number)
{
    cli_words words;
    tsr_number_text(number, words.text);
    return words;
}

cli_words cli_short_number(uint64_t number)
{
    static const char *const units[] = {"", " K", " M", " B", " T", " Q"};
    cli_words words;
    double value = (double)number;
    unsigned unit = 0;
    while (value >= 999.5 && unit < 5) {
        value /= 1000;
        unit++;
    }
    if (unit == 0) snprintf(words.text, sizeof words.text, "%" PRIu64, number);
    else snprintf(words.text, sizeof words.text, "%.*f%s", value < 10 ? 2 : value < 100 ? 1 : 0, value, units[unit]);
    return words;
}

cli_words cli_plural(uint64_t n, const char *one)
{
    cli_words words, number = cli_number(n);
    snprintf(words.text, sizeof words.text, "%.28s %.16s%s", number.text, one, n == 1 ? "" : "s");
    return words;
}
