/* See term.h. */
#include "cli/program/term.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/program/cli.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

/* Prints columns [from, to) of the escaped text; only counts if `file` is NULL. Returns the columns of the whole text. */
static unsigned walk(FILE *file, tsr_str text, unsigned from, unsigned to)
{
    unsigned column = 0;
    char escape[TSR_ESCAPE_SIZE];
    tsr_str shown;
    for (size_t at = 0; at < text.size;) {
        at += tsr_str_step(tsr_str_after(text, at), escape, &shown);
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

cli_words cli_plural(uint64_t n, const char *one)
{
    cli_words words, number = cli_number(n);
    snprintf(words.text, sizeof words.text, "%.28s %.16s%s", number.text, one, n == 1 ? "" : "s");
    return words;
}

/* ---- ranks ---- */

bool cli_speaks(const cli *program)
{
    return !program->ranks || program->ranks->rank == 0;
}

/* An error that is the same on all ranks, or that occurs on rank 0 because it decides for all, is reported as if there were
 * one process. */
tsr_status cli_agree(const cli *program, tsr_status status, tsr_error *err)
{
    return program->ranks ? tsr_comm_agree_as_one(program->ranks, status, err) : status;
}

/* ---- messages ---- */

static void message(const cli *program, cli_saying saying, const char *format, va_list arguments)
{
    static const char *const kinds[] = {"", "warning: ", "note: "};
    static const cli_style styles[] = {CLI_PLAIN, CLI_YELLOW, CLI_BLUE};
    char text[2048];
    if (!cli_speaks(program)) return;
    vsnprintf(text, sizeof text, format, arguments);
    if (program->caller) {
        const tsr_error usage = {.status = TSR_E_USAGE, .byte_position = TSR_NO_POSITION};
        program->caller->say(program->caller->ctx, saying, text, &usage);
        return;
    }
    fflush(stdout);
    fputs("tessera: ", stderr);
    cli_on(&program->err, stderr, styles[saying]);
    fputs(kinds[saying], stderr);
    cli_off(&program->err, stderr);
    cli_put(stderr, tsr_str_from(text));
    fputc('\n', stderr);
}

int cli_fail(const cli *program, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    message(program, CLI_SAYS_ERROR, format, arguments);
    va_end(arguments);
    return CLI_TROUBLE;
}

int cli_fail_error(const cli *program, const char *path, const tsr_error *err)
{
    char place[48] = "", stated[48] = "";
    const char *text = *err->message ? err->message : tsr_status_name(err->status);
    snprintf(stated, sizeof stated, "at byte %" PRIu64 " ", err->byte_position);
    if (err->byte_position != TSR_NO_POSITION && !strstr(text, stated))
        snprintf(place, sizeof place, " (byte %" PRIu64 ")", err->byte_position);
    const bool named = tsr_error_names(err, path);
    if (program->caller) {
        char whole[2048];
        snprintf(whole, sizeof whole, "%s%s%s", named ? "" : path, named ? "" : ": ", text);
        program->caller->say(program->caller->ctx, CLI_SAYS_ERROR, whole, err);
        return CLI_TROUBLE;
    }
    return cli_fail(program, "%s%s%s%s", named ? "" : path, named ? "" : ": ", text, place);
}

void cli_warn(const cli *program, const char *format, ...)
{
    if (program->options.quiet) return;
    va_list arguments;
    va_start(arguments, format);
    message(program, CLI_SAYS_WARNING, format, arguments);
    va_end(arguments);
}

void cli_note(const cli *program, const char *format, ...)
{
    if (program->options.quiet) return;
    va_list arguments;
    va_start(arguments, format);
    message(program, CLI_SAYS_NOTE, format, arguments);
    va_end(arguments);
}

void cli_document_start(const cli *program, tsr_json *json, tsr_error *err)
{
    const cli_caller *caller = program->caller;
    tsr_json_start(json, caller ? caller->write : cli_write_file, caller ? caller->ctx : stdout, 1, err);
}

tsr_status cli_write_file(void *ctx, const char *data, size_t size, tsr_error *err)
{
    if (fwrite(data, 1, size, ctx) == size) return TSR_OK;
    return tsr_fail(tsr_naming(err), TSR_E_IO, "cannot write %s: %s", ctx == stdout ? "to standard output" : "the output",
                    strerror(errno));
}

/* ---- host ---- */

const tsr_host *cli_host(cli *program)
{
    if (!program->host_is_open) {
        uint64_t threads = program->options.threads;
        if (threads == 0) threads = program->default_threads;
        tsr_native_host_open(&program->native, threads < UINT32_MAX ? (uint32_t)threads : 0);
        if (program->caller) program->native.host.allocator = program->caller->allocator;
        program->native.host.io_depth = program->options.io_depth < UINT32_MAX ? (uint32_t)program->options.io_depth : 0;
        program->host_is_open = true;
    }
    return &program->native.host;
}

void cli_allow_expansion(cli *program, bool allowed)
{
    cli_host(program);
    if (allowed) program->native.host.limits.repetition = UINT64_MAX;
}
