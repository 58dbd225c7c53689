/* A streaming JSON emitter. It writes through a callback, escapes strings, keeps integers exact, prints doubles that read
 * back as the same double, and takes care of commas and nesting. A lone surrogate of a Python string (three bytes, as
 * 'surrogatepass' writes it) becomes its \uXXXX, other invalid UTF-8 becomes U+FFFD. Pretty documents, which people look at in
 * terminals, escape invisible characters as \uXXXX.
 *
 * Example:
 *
 *     tsr_json json;
 *     tsr_json_start(&json, write_to_stdout, stdout, 0, &err);
 *     tsr_json_object(&json);
 *     tsr_json_put_uint(&json, "step", 1000);
 *     tsr_json_object_end(&json);
 *     status = tsr_json_finish(&json); */
#ifndef TESSERA_SYS_JSON_H
#define TESSERA_SYS_JSON_H

#include "tessera/status.h"

TSR_API_BEGIN

/* Takes bytes of the document, in order; a failure ends the document. */
typedef tsr_status tsr_write_fn(void *ctx, const char *data, size_t size, tsr_error *err);

typedef struct tsr_json {
    tsr_write_fn *write;
    void *ctx;
    tsr_error *err;
    tsr_status status; /* sticky: the first failure; later calls do nothing */
    uint32_t depth;
    uint8_t pretty; /* 0: compact; 1: one line per member of the outermost two levels */
    bool after_key;
    bool replaces_surrogates; /* set after tsr_json_start: lone surrogates become U+FFFD too, for readers that refuse them */
    uint64_t has_items;       /* bit per depth (≤ 63) */
    uint64_t is_object;
    size_t used;
    char buffer[4096];
} tsr_json;

/* `write` is called with `ctx` whenever the buffer is full; `err` (borrowed, may be NULL) takes the first failure. No call
 * fails by itself: tsr_json_finish returns the first failure. A value, or a key and then its value, goes into the innermost
 * array or object that is open. */
void tsr_json_start(tsr_json *json, tsr_write_fn *write, void *ctx, uint8_t pretty, tsr_error *err);
/* Ends the document with a newline, if anything was put, and writes what is left. Returns the sticky status. */
tsr_status tsr_json_finish(tsr_json *json);
/* Writes bytes as they are, in place of a document: a text that is not JSON, through the same buffer and callback. */
void tsr_json_raw(tsr_json *json, tsr_str bytes);
void tsr_json_object(tsr_json *json);
void tsr_json_object_end(tsr_json *json);
void tsr_json_array(tsr_json *json);
void tsr_json_array_end(tsr_json *json);
void tsr_json_key(tsr_json *json, const char *key);
void tsr_json_key_str(tsr_json *json, tsr_str key);
void tsr_json_str(tsr_json *json, tsr_str text);
void tsr_json_text(tsr_json *json, const char *text); /* NULL writes null */
void tsr_json_int(tsr_json *json, int64_t value);
void tsr_json_uint(tsr_json *json, uint64_t value);
/* Two's complement, little-endian, of at most 64 bytes; null for a longer one. */
void tsr_json_integer(tsr_json *json, tsr_str bytes);
void tsr_json_double(tsr_json *json, double value); /* NaN and infinities become the strings "nan", "inf", "-inf" */
void tsr_json_bool(tsr_json *json, bool value);
void tsr_json_null(tsr_json *json);
void tsr_json_u64s(tsr_json *json, const uint64_t *values, size_t count); /* an array on one line */

/* The same as members: the key, and then the value. The first two open the container. */
void tsr_json_put_object(tsr_json *json, const char *key);
void tsr_json_put_array(tsr_json *json, const char *key);
void tsr_json_put_str(tsr_json *json, const char *key, tsr_str text);
void tsr_json_put_text(tsr_json *json, const char *key, const char *text);
void tsr_json_put_int(tsr_json *json, const char *key, int64_t value);
void tsr_json_put_uint(tsr_json *json, const char *key, uint64_t value);
void tsr_json_put_double(tsr_json *json, const char *key, double value);
void tsr_json_put_bool(tsr_json *json, const char *key, bool value);
void tsr_json_put_u64s(tsr_json *json, const char *key, const uint64_t *values, size_t count);
void tsr_json_put_strs(tsr_json *json, const char *key, const tsr_str *texts, size_t count); /* an array of strings */

TSR_API_END

#endif
