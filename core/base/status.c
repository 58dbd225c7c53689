/* Raises errors with a position. They are formatted into the caller's fixed buffer, so that raising an error never
 * allocates. */
#include <stdarg.h>
#include <stdio.h>

#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

/* Appends text to the message, and escapes characters that could affect a terminal or break a one-line log. */
static void append_clean(char *message, const char *text)
{
    size_t used = strlen(message);
    tsr_str rest = tsr_str_from(text), shown;
    char escape[TSR_ESCAPE_SIZE];
    while (rest.size) {
        const size_t taken = tsr_str_step(rest, escape, &shown);
        if (used + shown.size >= TSR_ERROR_MESSAGE_SIZE) break;
        memcpy(message + used, shown.data, shown.size);
        used += shown.size;
        rest = tsr_str_after(rest, taken);
    }
    message[used] = '\0';
}

static void append(tsr_error *err, const char *format, va_list args)
{
    char text[TSR_ERROR_MESSAGE_SIZE];
    vsnprintf(text, sizeof text, format, args);
    append_clean(err->message, text);
}

static tsr_status raise_at(tsr_error *err, tsr_status status, uint64_t byte_position, const char *format, va_list args)
{
    if (!err || err->status != TSR_OK) return status;
    err->status = status;
    err->byte_position = byte_position;
    err->message[0] = '\0';
    append(err, format, args);
    return status;
}

tsr_status tsr_raise(tsr_error *err, tsr_status status, uint64_t byte_position, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    raise_at(err, status, byte_position, format, args);
    va_end(args);
    return status;
}

tsr_status tsr_fail(tsr_error *err, tsr_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    raise_at(err, status, TSR_NO_POSITION, format, args);
    va_end(args);
    return status;
}

static bool ends_name(char c)
{
    return c == '\0' || strchr(" '\"(),:;", c) != NULL;
}

/* Whether the message names `text` already, as a whole and not as a part of a longer name. A very short one may be there by
 * chance. */
static bool mentions(const char *message, const char *text)
{
    enum { LEAST = 4 };
    const size_t size = strlen(text), all = strlen(message);
    for (size_t at = 0; size >= LEAST && at + size <= all; at++)
        if ((!at || ends_name(message[at - 1])) && ends_name(message[at + size]) && memcmp(message + at, text, size) == 0)
            return true;
    return false;
}

static void add_context(tsr_error *err, const char *format, va_list args)
{
    char text[TSR_ERROR_MESSAGE_SIZE], clean[TSR_ERROR_MESSAGE_SIZE] = "";
    if (!err || err->status == TSR_OK) return;
    vsnprintf(text, sizeof text, format, args);
    append_clean(clean, text);
    if (mentions(err->message, clean)) return;
    append_clean(err->message, ", in ");
    append_clean(err->message, text);
}

void tsr_error_context(tsr_error *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    add_context(err, format, args);
    va_end(args);
}

void tsr_error_subject(tsr_error *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    add_context(err, format, args);
    va_end(args);
    if (err && err->status != TSR_OK) err->names_subject = 1;
}

tsr_error *tsr_naming(tsr_error *err)
{
    if (err && err->status == TSR_OK) err->names_subject = 1;
    return err;
}

tsr_status tsr_raise_again(tsr_error *err, tsr_status status, const tsr_error *caught)
{
    if (!err || err->status != TSR_OK) return status;
    *err = *caught;
    err->status = status;
    if (caught->status == TSR_OK) err->byte_position = TSR_NO_POSITION;
    return status;
}

bool tsr_error_names(const tsr_error *err, const char *path)
{
    const size_t size = path ? strlen(path) : 0;
    if (!size || err->names_subject) return true;
    for (const char *at = err->message; (at = strstr(at, path)) != NULL; at++) {
        const char before = at == err->message ? '\0' : at[-1], after = at[size];
        if ((before == '\'' && after == '\'') || (before == ' ' && (after == ':' || !after))) return true;
        if (!before && after && strchr(" :,", after)) return true;
    }
    return false;
}

const char *tsr_status_name(tsr_status status)
{
    switch (status) {
    case TSR_OK: return "ok";
    case TSR_E_NOMEM: return "out of memory";
    case TSR_E_IO: return "input/output";
    case TSR_E_FORMAT: return "malformed";
    case TSR_E_UNSUPPORTED: return "unsupported";
    case TSR_E_LIMIT: return "limit exceeded";
    case TSR_E_USAGE: return "usage";
    case TSR_E_NOT_FOUND: return "not found";
    case TSR_E_EXISTS: return "exists";
    case TSR_E_CHANGED: return "changed";
    case TSR_E_CANCELLED: return "cancelled";
    case TSR_E_NOT_BUILT: return "not built";
    }
    return "unknown";
}
