/* JSON documents (index files, layouts, targets, module trees, plans) as cJSON trees, after checks that cJSON does not
 * make: strict grammar, valid UTF-8, no NUL (raw or escaped), no lone surrogates, no duplicate keys, bounded depth,
 * nothing behind the document. What is read from a tree here says where in it something unexpected stands.
 *
 * cJSON keeps numbers as doubles: integers are taken only below 2^53, where a double holds them exactly.
 * Source of the rules: RFC 8259. Memory: about 100 bytes a node, from cJSON's own hooks. */
#ifndef TSR_CODEC_JSON_H
#define TSR_CODEC_JSON_H

#include <cjson/cJSON.h>

#include "tessera/host.h"

/* A tree the caller owns (cJSON_Delete). Errors carry the byte position in `text`: TSR_E_FORMAT; TSR_E_LIMIT for depth
 * and `limits.metadata_bytes`; TSR_E_NOMEM. Thread-safe. */
tsr_status tsr_json_parse(tsr_str text, const tsr_host *host, cJSON **out, tsr_error *err);

typedef enum tsr_json_type {
    TSR_JSON_OBJECT,
    TSR_JSON_ARRAY,
    TSR_JSON_STRING,
    TSR_JSON_NUMBER,
    TSR_JSON_BOOL
} tsr_json_type;

/* The functions below take `where`, the path of `item` for messages ("mesh.dim_names"; "" is the root). All errors are
 * TSR_E_FORMAT without a position. */

/* Whether an item has the type: "expected an array at mesh.shape, found a string". */
tsr_status tsr_json_expect(const cJSON *item, tsr_json_type type, const char *where, tsr_error *err);
/* The member under `key`, which must be there and have the type. `object` must be an object too. Linear. */
tsr_status tsr_json_get(const cJSON *object, const char *key, tsr_json_type type, const char *where, const cJSON **out,
                        tsr_error *err);
/* The same for a member that may be absent or null: then *out is NULL. */
tsr_status tsr_json_find(const cJSON *object, const char *key, tsr_json_type type, const char *where, const cJSON **out,
                         tsr_error *err);
/* An exact integer in [0, 2^53) or (-2^53, 2^53). */
tsr_status tsr_json_to_u64(const cJSON *item, const char *where, uint64_t *out, tsr_error *err);
tsr_status tsr_json_to_i64(const cJSON *item, const char *where, int64_t *out, tsr_error *err);
/* The text of a string item, or the key of a member; borrowed from the tree. */
static inline tsr_str tsr_json_text_of(const cJSON *string_item)
{
    return tsr_str_from(string_item->valuestring);
}
static inline tsr_str tsr_json_key_of(const cJSON *member)
{
    return tsr_str_from(member->string);
}

#endif
