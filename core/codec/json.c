/* Parses and checks documents, refuses duplicate keys, and reads items with errors that state where they are. */
#include "codec/json.h"

#include <math.h>

#include "base/utf8.h"
#include "codec/json_check.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/map.h"
#include "tessera/sys/number_text.h"
#include "tessera/sys/try.h"

#define TWO_TO_53 9007199254740992.0

/* The largest depth that tsr_json_check accepts. cJSON nodes do not point to their parents, so refuse_duplicates keeps the
 * open containers in an array of this size. */
enum { MAX_DEPTH = 256 };

static tsr_status report_duplicate(tsr_str text, const cJSON *member, uint64_t key_number, tsr_error *err)
{
    uint64_t position = TSR_NO_POSITION;
    size_t lone = 0;
    tsr_json_check(text, MAX_DEPTH, key_number, &position, &lone, NULL);
    return tsr_raise(err, TSR_E_FORMAT, position, "json: duplicate key '%s'", member->string);
}

/* Finds the first member of `object` with the same key as an earlier one; *duplicate is NULL if there is none. */
static tsr_status find_duplicate(const cJSON *object, const tsr_host *host, const cJSON **duplicate, tsr_error *err)
{
    *duplicate = NULL;
    if (!object->child || !object->child->next) return TSR_OK;
    tsr_map *keys = tsr_map_new(host->allocator, 0, err);
    if (!keys) return TSR_E_NOMEM;
    tsr_status status = TSR_OK;
    for (const cJSON *member = object->child; member && status == TSR_OK && !*duplicate; member = member->next) {
        bool inserted;
        status = tsr_map_put(keys, tsr_str_from(member->string), 0, NULL, &inserted, err);
        if (status == TSR_OK && !inserted) *duplicate = member;
    }
    tsr_map_free(keys);
    return status;
}

static tsr_status refuse_duplicates(const cJSON *root, const tsr_host *host, tsr_str text, tsr_error *err)
{
    const cJSON *stack[MAX_DEPTH + 1], *item = root, *duplicate = NULL;
    uint32_t height = 0;
    uint64_t keys = 0;
    while (item) {
        if (!duplicate && cJSON_IsObject(item)) TSR_TRY(find_duplicate(item, host, &duplicate, err));
        if (item == duplicate) return report_duplicate(text, item, keys, err);
        if (item->string) keys++;
        if (item->child) {
            stack[height++] = item;
            item = item->child;
            continue;
        }
        while (height && !item->next) item = stack[--height];
        item = height ? item->next : NULL;
    }
    return TSR_OK;
}

/* Writes the lone surrogates of a checked document as the bytes of Python's 'surrogatepass', which is what names in checkpoints
 * have. cJSON refuses their escapes, but copies bytes. Returns the size, which is not larger. */
static size_t replace_lone(tsr_str text, char *out)
{
    size_t size = 0;
    for (size_t at = 0, length; at < text.size; at += length) {
        uint32_t scalar;
        const char *wrong;
        const bool escape = text.data[at] == '\\';
        length = !escape ? 1 : text.data[at + 1] != 'u' ? 2 : tsr_json_unicode_escape(text, at, &scalar, &wrong);
        if (length) {
            memcpy(out + size, text.data + at, length);
            size += length;
        } else {
            size += tsr_utf8_put(scalar, out + size);
            length = 6;
        }
    }
    return size;
}

static cJSON *parse_with_lone(tsr_str text, const tsr_host *host)
{
    char *copy = tsr_alloc(host->allocator, text.size, 1, NULL);
    cJSON *root = copy ? cJSON_ParseWithLength(copy, replace_lone(text, copy)) : NULL;
    tsr_free(host->allocator, copy, text.size, 1);
    return root;
}

tsr_status tsr_json_parse(tsr_str text, const tsr_host *host, cJSON **out, tsr_error *err)
{
    uint32_t depth = host->limits.depth < MAX_DEPTH ? host->limits.depth : MAX_DEPTH;
    *out = NULL;
    TSR_FAIL_IF(text.size > host->limits.metadata_bytes, err, TSR_E_LIMIT,
                "json: a document of %zu bytes exceeds the limit of %llu", text.size,
                (unsigned long long)host->limits.metadata_bytes);
    size_t lone = 0;
    TSR_TRY(tsr_json_check(text, depth, 0, NULL, &lone, err));
    cJSON *root = lone ? parse_with_lone(text, host) : cJSON_ParseWithLength(text.data, text.size);
    TSR_FAIL_IF(!root, err, TSR_E_NOMEM, "json: out of memory for a document of %zu bytes", text.size);
    tsr_status status = refuse_duplicates(root, host, text, err);
    if (status != TSR_OK) cJSON_Delete(root);
    else *out = root;
    return status;
}

static const char *found_name(const cJSON *item)
{
    return cJSON_IsObject(item)   ? "an object"
           : cJSON_IsArray(item)  ? "an array"
           : cJSON_IsString(item) ? "a string"
           : cJSON_IsNumber(item) ? "a number"
           : cJSON_IsBool(item)   ? "a boolean"
                                  : "null";
}

static bool has_type(const cJSON *item, tsr_json_type type)
{
    switch (type) {
    case TSR_JSON_OBJECT: return cJSON_IsObject(item);
    case TSR_JSON_ARRAY: return cJSON_IsArray(item);
    case TSR_JSON_STRING: return cJSON_IsString(item);
    case TSR_JSON_NUMBER: return cJSON_IsNumber(item);
    case TSR_JSON_BOOL: return cJSON_IsBool(item);
    }
    return false;
}

static const char *const expected_names[] = {"an object", "an array", "a string", "a number", "a boolean"};

tsr_status tsr_json_expect(const cJSON *item, tsr_json_type type, const char *where, tsr_error *err)
{
    TSR_FAIL_IF(!has_type(item, type), err, TSR_E_FORMAT, "json: expected %s at %s, found %s", expected_names[type],
                *where ? where : "the root", found_name(item));
    return TSR_OK;
}

tsr_status tsr_json_find(const cJSON *object, const char *key, tsr_json_type type, const char *where, const cJSON **out,
                         tsr_error *err)
{
    *out = NULL;
    TSR_TRY(tsr_json_expect(object, TSR_JSON_OBJECT, where, err));
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!item || cJSON_IsNull(item)) return TSR_OK;
    TSR_FAIL_IF(!has_type(item, type), err, TSR_E_FORMAT, "json: expected %s at %s%s%s, found %s", expected_names[type],
                where, *where ? "." : "", key, found_name(item));
    *out = item;
    return TSR_OK;
}

tsr_status tsr_json_get(const cJSON *object, const char *key, tsr_json_type type, const char *where, const cJSON **out,
                        tsr_error *err)
{
    TSR_TRY(tsr_json_find(object, key, type, where, out, err));
    TSR_FAIL_IF(!*out, err, TSR_E_FORMAT, "json: %s lacks '%s' (%s)", *where ? where : "the root", key,
                expected_names[type]);
    return TSR_OK;
}

tsr_status tsr_json_find_str(const cJSON *object, const char *key, const char *where, tsr_str *out, tsr_error *err)
{
    const cJSON *item;
    TSR_TRY(tsr_json_find(object, key, TSR_JSON_STRING, where, &item, err));
    *out = item ? tsr_json_text_of(item) : (tsr_str){NULL, 0};
    return TSR_OK;
}

tsr_status tsr_json_get_str(const cJSON *object, const char *key, const char *where, tsr_str *out, tsr_error *err)
{
    const cJSON *item;
    TSR_TRY(tsr_json_get(object, key, TSR_JSON_STRING, where, &item, err));
    *out = tsr_json_text_of(item);
    return TSR_OK;
}

bool tsr_json_states(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!item || cJSON_IsNull(item) || cJSON_IsFalse(item)) return false;
    return !cJSON_IsString(item) || (item->valuestring[0] && strcmp(item->valuestring, "none") != 0);
}

size_t tsr_json_count(const cJSON *json)
{
    size_t count = 0;
    for (const cJSON *item = json ? json->child : NULL; item; item = item->next) count++;
    return count;
}

tsr_status tsr_json_to_i64(const cJSON *item, const char *where, int64_t *out, tsr_error *err)
{
    *out = 0;
    TSR_TRY(tsr_json_expect(item, TSR_JSON_NUMBER, where, err));
    double value = item->valuedouble;
    char text[TSR_REAL_TEXT];
    TSR_FAIL_IF(!(fabs(value) < TWO_TO_53) || value != floor(value), err, TSR_E_FORMAT,
                "json: expected an integer below 2^53 at %s, found %s", *where ? where : "the root",
                tsr_real_text(value, 17, text));
    *out = (int64_t)value;
    return TSR_OK;
}

tsr_status tsr_json_to_u64(const cJSON *item, const char *where, uint64_t *out, tsr_error *err)
{
    int64_t value;
    *out = 0;
    TSR_TRY(tsr_json_to_i64(item, where, &value, err));
    TSR_FAIL_IF(value < 0, err, TSR_E_FORMAT, "json: expected an integer of at least 0 at %s, found %lld",
                *where ? where : "the root", (long long)value);
    *out = (uint64_t)value;
    return TSR_OK;
}
