/* Parses JSON documents (index files, layouts, targets, module trees, plans) into cJSON trees. Documents are first checked
 * for what cJSON lets pass: strict grammar, valid UTF-8, no NUL (raw or escaped), no duplicate keys, bounded depth, and
 * nothing after the document. An escaped lone surrogate becomes the three bytes of Python's 'surrogatepass', because names in
 * checkpoints may have them and documents list names. The functions that read a tree report where in it they found something
 * unexpected.
 *
 * cJSON stores numbers as doubles, so integers are accepted only below 2^53, where a double is exact. Source of the rules:
 * RFC 8259. Memory: about 100 bytes per node, allocated through cJSON's own hooks. */
#ifndef TSR_CODEC_JSON_H
#define TSR_CODEC_JSON_H

#include "tessera/host.h"
#include "tessera/status.h"

#include <cjson/cJSON.h>

/* Parses a document. The caller owns the tree and frees it with cJSON_Delete. Errors, with the byte position in `text`:
 * TSR_E_FORMAT; TSR_E_LIMIT for the depth. Also TSR_E_LIMIT for limits.metadata_bytes, and TSR_E_NOMEM. Thread-safe. */
tsr_status tsr_json_parse(tsr_str text, const tsr_host *host, cJSON **out, tsr_error *err);
/* The same checks, except for that of duplicate keys, which Python's json.loads accepts. */
tsr_status tsr_json_check(tsr_str text, const tsr_host *host, tsr_error *err);

typedef enum tsr_json_type {
    TSR_JSON_OBJECT,
    TSR_JSON_ARRAY,
    TSR_JSON_STRING,
    TSR_JSON_NUMBER,
    TSR_JSON_BOOL
} tsr_json_type;

/* In the functions below, `where` is the path of the item for messages, such as "mesh.dim_names"; "" is the root. All their
 * errors are TSR_E_FORMAT without a position. */

/* Checks the type of an item. The message reads "expected an array at mesh.shape, found a string". */
tsr_status tsr_json_expect(const cJSON *item, tsr_json_type type, const char *where, tsr_error *err);
/* Finds the member with the name `key`, which must exist and have the type. `object` must be an object. Searches
 * linearly. */
tsr_status tsr_json_get(const cJSON *object, const char *key, tsr_json_type type, const char *where, const cJSON **out,
                        tsr_error *err);
/* Like tsr_json_get, but the member may be absent or null; *out is then NULL. */
tsr_status tsr_json_find(const cJSON *object, const char *key, tsr_json_type type, const char *where, const cJSON **out,
                         tsr_error *err);
/* The same for strings; without the member, the text of tsr_json_find_str has no data. The text is borrowed from the tree. */
tsr_status tsr_json_get_str(const cJSON *object, const char *key, const char *where, tsr_str *out, tsr_error *err);
tsr_status tsr_json_find_str(const cJSON *object, const char *key, const char *where, tsr_str *out, tsr_error *err);
/* Reads an integer that a double holds exactly: in [0, 2^53) or (-2^53, 2^53). */
tsr_status tsr_json_to_u64(const cJSON *item, const char *where, uint64_t *out, tsr_error *err);
tsr_status tsr_json_to_i64(const cJSON *item, const char *where, int64_t *out, tsr_error *err);
/* The number of items of an array, or of members of an object; 0 for NULL. */
size_t tsr_json_count(const cJSON *json);
/* Whether an object has a member that says something: not null, false, "" or "none". */
bool tsr_json_states(const cJSON *object, const char *key);
/* The text of a string, and the key of a member. Both are borrowed from the tree. */
static inline tsr_str tsr_json_text_of(const cJSON *string_item)
{
    return tsr_str_from(string_item->valuestring);
}
/* The same, copied into an arena. */
static inline tsr_status tsr_json_copy_text(const cJSON *string_item, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    *out = tsr_arena_str(arena, tsr_json_text_of(string_item), err);
    return out->data ? TSR_OK : TSR_E_NOMEM;
}
static inline tsr_str tsr_json_key_of(const cJSON *member)
{
    return tsr_str_from(member->string);
}

/* ---- Checks the strict grammar of a document before cJSON parses it. ---- */

/* Decodes the \u escape at text[at], or the surrogate pair of two escapes. Returns its length in bytes and sets *scalar to
 * the character. Returns 0 if it is malformed, and *wrong then states why; *scalar is a lone surrogate if that is the reason. */
size_t tsr_json_unicode_escape(tsr_str text, size_t at, uint32_t *scalar, const char **wrong);

/* Checks the single value that begins at *at, possibly after white space, and moves *at to the byte after it. */
tsr_status tsr_json_skip(tsr_str text, size_t *at, uint32_t max_depth, tsr_error *err);

#endif
