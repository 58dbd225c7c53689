/* The only JSON writer in Tessera. It streams, so that a listing of a million entries needs only one buffer.
 *
 * Commas, colons and line breaks are determined by the kind of the innermost open container, which is stored as one bit per
 * level. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <math.h>

#include "base/line.h"
#include "base/utf8.h"
#include "tessera/sys/json.h"
#include "tessera/sys/text.h"

enum { MAX_DEPTH = 63, PRETTY_DEPTH = 2 };

static void flush(tsr_json *json)
{
    if (json->status == TSR_OK && json->used) json->status = json->write(json->ctx, json->buffer, json->used, json->err);
    json->used = 0;
}

static void put(tsr_json *json, const char *data, size_t size)
{
    while (size && json->status == TSR_OK) {
        if (json->used == sizeof json->buffer) flush(json);
        size_t room = sizeof json->buffer - json->used;
        size_t n = size < room ? size : room;
        memcpy(json->buffer + json->used, data, n);
        json->used += n;
        data += n;
        size -= n;
    }
}

static void put_text(tsr_json *json, const char *text)
{
    put(json, text, strlen(text));
}

static uint64_t level_bit(const tsr_json *json)
{
    return (uint64_t)1 << json->depth;
}

static void new_line(tsr_json *json, uint32_t indent)
{
    put(json, "\n  ", 1 + indent);
}

/* Writes the separator between the previous token and a new member of the open container. */
static void separate(tsr_json *json)
{
    if (json->after_key) {
        json->after_key = false;
        return;
    }
    if (json->depth == 0) {
        json->has_items |= level_bit(json);
        return;
    }
    bool first = !(json->has_items & level_bit(json));
    bool broken = json->pretty && json->depth <= PRETTY_DEPTH;
    if (!first) put_text(json, json->pretty && !broken ? ", " : ",");
    if (broken) new_line(json, json->depth);
    json->has_items |= level_bit(json);
}

static void token(tsr_json *json, const char *text)
{
    separate(json);
    put_text(json, text);
}

static void open(tsr_json *json, char bracket)
{
    separate(json);
    if (json->depth == MAX_DEPTH) {
        if (json->status == TSR_OK)
            json->status =
                tsr_raise(json->err, TSR_E_LIMIT, TSR_NO_POSITION, "json: more than %d nested containers", MAX_DEPTH);
        return;
    }
    put(json, &bracket, 1);
    json->depth++;
    json->has_items &= ~level_bit(json);
    json->is_object = bracket == '{' ? json->is_object | level_bit(json) : json->is_object & ~level_bit(json);
}

static void close(tsr_json *json, char bracket)
{
    if (json->status != TSR_OK) return;
    assert(json->depth > 0 && !json->after_key);
    assert(!(json->is_object & level_bit(json)) == (bracket == ']'));
    bool broken = json->pretty && json->depth <= PRETTY_DEPTH && json->has_items & level_bit(json);
    json->depth--;
    if (broken) new_line(json, json->depth);
    put(json, &bracket, 1);
}

void tsr_json_start(tsr_json *json, tsr_write_fn *write, void *ctx, uint8_t pretty, tsr_error *err)
{
    memset(json, 0, offsetof(tsr_json, buffer));
    json->write = write;
    json->ctx = ctx;
    json->err = err;
    json->pretty = pretty;
}

tsr_status tsr_json_finish(tsr_json *json)
{
    if (json->has_items & 1) put(json, "\n", 1);
    flush(json);
    return json->status;
}

void tsr_json_raw(tsr_json *json, tsr_str bytes)
{
    put(json, bytes.data, bytes.size);
}

void tsr_json_object(tsr_json *json)
{
    open(json, '{');
}
void tsr_json_object_end(tsr_json *json)
{
    close(json, '}');
}
void tsr_json_array(tsr_json *json)
{
    open(json, '[');
}
void tsr_json_array_end(tsr_json *json)
{
    close(json, ']');
}

/* Whether the sequence needs no escape in a JSON string. */
static bool is_plain(tsr_str text, size_t length)
{
    return length > 1 || (length == 1 && (uint8_t)text.data[0] >= 0x20 && text.data[0] != '"' && text.data[0] != '\\' &&
                          text.data[0] != 0x7F);
}

static void put_escape(tsr_json *json, uint8_t byte)
{
    static const char named[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    char escape[8];
    for (const char *pair = named; *pair; pair += 2)
        if ((uint8_t)pair[0] == byte) {
            put(json, (char[]){'\\', pair[1]}, 2);
            return;
        }
    snprintf(escape, sizeof escape, "\\u%04x", byte);
    put_text(json, escape);
}

/* Writes a multi-byte character as UTF-16 escapes. */
static void put_wide_escape(tsr_json *json, uint32_t scalar)
{
    char escape[16];
    if (scalar < 0x10000) snprintf(escape, sizeof escape, "\\u%04x", (unsigned)scalar);
    else
        snprintf(escape, sizeof escape, "\\u%04x\\u%04x", (unsigned)(0xD800 + ((scalar - 0x10000) >> 10)),
                 (unsigned)(0xDC00 + (scalar & 0x3FF)));
    put_text(json, escape);
}

static void put_string(tsr_json *json, tsr_str text)
{
    put(json, "\"", 1);
    for (size_t from = 0, at = 0; at < text.size; from = at) {
        size_t length = 0;
        for (; at < text.size; at += length) {
            tsr_str rest = {text.data + at, text.size - at};
            length = tsr_utf8_length(rest);
            if (!is_plain(rest, length) || (length > 1 && json->pretty && !tsr_str_visible(rest))) break;
        }
        put(json, text.data + from, at - from);
        if (at == text.size) break;
        const size_t lone = length ? 0 : tsr_utf8_lone_surrogate(tsr_str_after(text, at));
        if (lone && !json->replaces_surrogates) length = lone;
        if (length > 1) put_wide_escape(json, tsr_utf8_get(text.data + at, length));
        else if (length) put_escape(json, (uint8_t)text.data[at]);
        else put_text(json, "\xEF\xBF\xBD");
        at += length ? length : lone ? lone : 1;
    }
    put(json, "\"", 1);
}

void tsr_json_key_str(tsr_json *json, tsr_str key)
{
    assert(json->status != TSR_OK || (json->depth && json->is_object & level_bit(json) && !json->after_key));
    separate(json);
    put_string(json, key);
    put_text(json, json->pretty ? ": " : ":");
    json->after_key = true;
}

void tsr_json_key(tsr_json *json, const char *key)
{
    tsr_json_key_str(json, tsr_str_from(key));
}

void tsr_json_str(tsr_json *json, tsr_str text)
{
    separate(json);
    put_string(json, text);
}

void tsr_json_text(tsr_json *json, const char *text)
{
    if (text) tsr_json_str(json, tsr_str_from(text));
    else tsr_json_null(json);
}

void tsr_json_int(tsr_json *json, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, value);
    token(json, text);
}

void tsr_json_integer(tsr_json *json, tsr_str bytes)
{
    char text[TSR_LINE_INTEGER];
    tsr_line line = tsr_line_on(text, sizeof text);
    token(json, tsr_line_integer(&line, bytes) ? text : "null");
}

void tsr_json_uint(tsr_json *json, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    token(json, text);
}

void tsr_json_double(tsr_json *json, double value)
{
    char text[TSR_REAL_TEXT + 2];
    if (!isfinite(value)) {
        tsr_json_text(json, isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        if (tsr_real_read(tsr_real_text(value, digits, text), NULL) == value) break;
    }
    if (!strpbrk(text, ".e")) strcat(text, ".0");
    token(json, text);
}

void tsr_json_bool(tsr_json *json, bool value)
{
    token(json, value ? "true" : "false");
}
void tsr_json_null(tsr_json *json)
{
    token(json, "null");
}

void tsr_json_u64s(tsr_json *json, const uint64_t *values, size_t count)
{
    char text[24];
    token(json, "[");
    for (size_t i = 0; i < count; i++) {
        snprintf(text, sizeof text, "%s%" PRIu64, i == 0 ? "" : json->pretty ? ", " : ",", values[i]);
        put_text(json, text);
    }
    put(json, "]", 1);
}

void tsr_json_put_object(tsr_json *json, const char *key)
{
    tsr_json_key(json, key);
    tsr_json_object(json);
}
void tsr_json_put_array(tsr_json *json, const char *key)
{
    tsr_json_key(json, key);
    tsr_json_array(json);
}
void tsr_json_put_str(tsr_json *json, const char *key, tsr_str text)
{
    tsr_json_key(json, key);
    tsr_json_str(json, text);
}
void tsr_json_put_text(tsr_json *json, const char *key, const char *text)
{
    tsr_json_key(json, key);
    tsr_json_text(json, text);
}
void tsr_json_put_int(tsr_json *json, const char *key, int64_t value)
{
    tsr_json_key(json, key);
    tsr_json_int(json, value);
}
void tsr_json_put_uint(tsr_json *json, const char *key, uint64_t value)
{
    tsr_json_key(json, key);
    tsr_json_uint(json, value);
}
void tsr_json_put_double(tsr_json *json, const char *key, double value)
{
    tsr_json_key(json, key);
    tsr_json_double(json, value);
}
void tsr_json_put_bool(tsr_json *json, const char *key, bool value)
{
    tsr_json_key(json, key);
    tsr_json_bool(json, value);
}
void tsr_json_put_u64s(tsr_json *json, const char *key, const uint64_t *values, size_t count)
{
    tsr_json_key(json, key);
    tsr_json_u64s(json, values, count);
}
void tsr_json_put_strs(tsr_json *json, const char *key, const tsr_str *texts, size_t count)
{
    tsr_json_put_array(json, key);
    for (size_t i = 0; i < count; i++) tsr_json_str(json, texts[i]);
    tsr_json_array_end(json);
}
