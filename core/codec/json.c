/* Parses and checks documents, refuses duplicate keys, and reads items with errors that state where they are. */
#include "codec/json.h"

#include <math.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

/* ---- json check ---- */

/* cJSON accepts too much (NUL, control characters, invalid UTF-8, words after the document) and does not report positions,
 * so every document passes this check first. It is a single pass, and stores one bit per open container. */

/* The largest depth that is accepted, and thereby the size of refuse_duplicates' array: cJSON nodes do not point to their parents.
 * MAX_NUMBER is the size of cJSON's buffer. */
enum { MAX_DEPTH = 256, MAX_NUMBER = 63 };

typedef struct checker {
    tsr_str text;
    size_t at;
    uint32_t depth;
    uint64_t objects[MAX_DEPTH / 64]; /* one bit per level: 1 for an object */
    uint64_t key_number;
    uint64_t *key_position;
    size_t *lone; /* counts lone surrogates; NULL: they are refused */
    tsr_error *err;
} checker;

static int peek(const checker *c)
{
    return c->at < c->text.size ? (uint8_t)c->text.data[c->at] : -1;
}

static void skip_space(checker *c)
{
    while (peek(c) == ' ' || peek(c) == '\n' || peek(c) == '\r' || peek(c) == '\t') c->at++;
}

static tsr_status fail(checker *c, const char *expected)
{
    int found = peek(c);
    if (found < 0) return tsr_raise(c->err, TSR_E_FORMAT, c->at, "json: expected %s, found the end", expected);
    if (found > 0x20 && found < 0x7F)
        return tsr_raise(c->err, TSR_E_FORMAT, c->at, "json: expected %s, found '%c'", expected, found);
    return tsr_raise(c->err, TSR_E_FORMAT, c->at, "json: expected %s, found byte 0x%02x", expected, (unsigned)found);
}

static tsr_status check_word(checker *c, const char *word)
{
    size_t size = strlen(word);
    tsr_str rest = {c->text.data + c->at, c->text.size - c->at};
    if (!tsr_str_starts(rest, (tsr_str){word, size})) return fail(c, "a value");
    c->at += size;
    return TSR_OK;
}

static tsr_status check_digits(checker *c)
{
    size_t from = c->at;
    while (peek(c) >= '0' && peek(c) <= '9') c->at++;
    return c->at > from ? TSR_OK : fail(c, "a digit");
}

static tsr_status check_range(checker *c, size_t from)
{
    char copy[MAX_NUMBER + 1] = {0};
    memcpy(copy, c->text.data + from, c->at - from);
    TSR_FAIL_AT(isinf(tsr_real_read(copy, NULL)), c->err, TSR_E_FORMAT, from, "json: %s is outside the range of a double",
                copy);
    return TSR_OK;
}

static tsr_status check_number(checker *c)
{
    size_t from = c->at;
    if (peek(c) == '-') c->at++;
    if (peek(c) == '0') c->at++;
    else TSR_TRY(check_digits(c));
    if (peek(c) == '.') {
        c->at++;
        TSR_TRY(check_digits(c));
    }
    if (peek(c) == 'e' || peek(c) == 'E') {
        c->at++;
        if (peek(c) == '+' || peek(c) == '-') c->at++;
        TSR_TRY(check_digits(c));
    }
    TSR_FAIL_AT(c->at - from > MAX_NUMBER, c->err, TSR_E_FORMAT, from,
                "json: a number of %zu characters; at most %d are allowed", c->at - from, MAX_NUMBER);
    return check_range(c, from);
}

/* Returns the value of four hexadecimal digits, or -1 if they are not there. */
static int hex4(tsr_str text, size_t at)
{
    int unit = 0;
    if (at > text.size || text.size - at < 4) return -1;
    for (size_t i = at; i < at + 4; i++) {
        const int digit = tsr_hex_digit(text.data[i]);
        if (digit < 0) return -1;
        unit = unit << 4 | digit;
    }
    return unit;
}

size_t tsr_json_unicode_escape(tsr_str text, size_t at, uint32_t *scalar, const char **wrong)
{
    int unit = hex4(text, at + 2), low = -1;
    *wrong = "\\u without four hexadecimal digits";
    *scalar = (uint32_t)unit;
    if (unit < 0) return 0;
    if (unit < 0xD800 || unit > 0xDFFF) return 6;
    *wrong = "a lone surrogate";
    if (unit < 0xDC00 && text.size - at >= 12 && text.data[at + 6] == '\\' && text.data[at + 7] == 'u')
        low = hex4(text, at + 8);
    if (low < 0xDC00 || low > 0xDFFF) return 0;
    *scalar = 0x10000 + (((uint32_t)unit - 0xD800) << 10) + ((uint32_t)low - 0xDC00);
    return 12;
}

static tsr_status check_unicode_escape(checker *c)
{
    uint32_t scalar;
    const char *wrong;
    size_t length = tsr_json_unicode_escape(c->text, c->at, &scalar, &wrong);
    if (c->lone && length == 0 && scalar >= 0xD800 && scalar <= 0xDFFF) {
        ++*c->lone;
        length = 6;
    }
    TSR_FAIL_AT(length == 0, c->err, TSR_E_FORMAT, c->at, "json: %s in a string", wrong);
    TSR_FAIL_AT(scalar == 0, c->err, TSR_E_FORMAT, c->at, "json: NUL character in a string");
    c->at += length;
    return TSR_OK;
}

static tsr_status check_escape(checker *c)
{
    char kind = c->at + 1 < c->text.size ? c->text.data[c->at + 1] : 0;
    if (kind == 'u') return check_unicode_escape(c);
    TSR_FAIL_AT(!kind || !strchr("\"\\/bfnrt", kind), c->err, TSR_E_FORMAT, c->at, "json: unknown escape in a string");
    c->at += 2;
    return TSR_OK;
}

static tsr_status check_string(checker *c)
{
    if (peek(c) != '"') return fail(c, "a string");
    for (c->at++; peek(c) != '"';) {
        int byte = peek(c);
        if (byte == '\\') {
            TSR_TRY(check_escape(c));
            continue;
        }
        TSR_FAIL_AT(byte < 0, c->err, TSR_E_FORMAT, c->at, "json: unterminated string");
        TSR_FAIL_AT(byte < 0x20, c->err, TSR_E_FORMAT, c->at, "json: unescaped control byte 0x%02x in a string",
                    (unsigned)byte);
        size_t length = tsr_utf8_length(tsr_str_after(c->text, c->at));
        TSR_FAIL_AT(length == 0, c->err, TSR_E_FORMAT, c->at, "json: invalid UTF-8 (byte 0x%02x)", (unsigned)byte);
        c->at += length;
    }
    c->at++;
    return TSR_OK;
}

static tsr_status check_key(checker *c)
{
    skip_space(c);
    if (c->key_position && c->key_number-- == 0) *c->key_position = c->at;
    TSR_TRY(check_string(c));
    skip_space(c);
    if (peek(c) != ':') return fail(c, "':'");
    c->at++;
    return TSR_OK;
}

static bool in_object(const checker *c)
{
    return c->objects[(c->depth - 1) / 64] >> ((c->depth - 1) % 64) & 1;
}

static tsr_status enter(checker *c, bool object, uint32_t max_depth)
{
    uint64_t bit = (uint64_t)1 << (c->depth % 64);
    TSR_FAIL_AT(c->depth == max_depth || c->depth == MAX_DEPTH, c->err, TSR_E_LIMIT, c->at,
                "json: more than %u nested containers", (unsigned)c->depth);
    if (object) c->objects[c->depth / 64] |= bit;
    else c->objects[c->depth / 64] &= ~bit;
    c->depth++;
    c->at++;
    return TSR_OK;
}

/* Closes every container that ends here. Then either a value must follow, or the document is complete (depth 0). */
static tsr_status after_value(checker *c)
{
    while (c->depth) {
        skip_space(c);
        int byte = peek(c);
        if (byte == ',') {
            c->at++;
            return in_object(c) ? check_key(c) : TSR_OK;
        }
        if (byte != (in_object(c) ? '}' : ']')) return fail(c, in_object(c) ? "',' or '}'" : "',' or ']'");
        c->at++;
        c->depth--;
    }
    return TSR_OK;
}

/* Checks the beginning of a value: a scalar, or the opening of a container. *complete reports whether the value ends
 * there. */
static tsr_status check_value(checker *c, uint32_t max_depth, bool *complete)
{
    int byte;
    skip_space(c);
    byte = peek(c);
    *complete = true;
    if (byte == '{' || byte == '[') {
        TSR_TRY(enter(c, byte == '{', max_depth));
        skip_space(c);
        *complete = peek(c) == byte + 2; /* '}' or ']': the container is empty */
        return *complete || byte == '[' ? TSR_OK : check_key(c);
    }
    if (byte == '"') return check_string(c);
    if (byte == 't') return check_word(c, "true");
    if (byte == 'f') return check_word(c, "false");
    if (byte == 'n') return check_word(c, "null");
    return byte == '-' || tsr_is_digit(byte) ? check_number(c) : fail(c, "a value");
}

static tsr_status check_whole_value(checker *c, uint32_t max_depth)
{
    bool complete;
    do {
        TSR_TRY(check_value(c, max_depth, &complete));
        if (complete) TSR_TRY(after_value(c));
    } while (c->depth);
    return TSR_OK;
}

/* Checks `text` against RFC 8259 and the rules in codec/json.h, except for duplicate keys. *key_position receives the byte
 * position of the key that follows the first `key_number` keys in document order; NULL if it is not needed. *lone is increased
 * by the number of escaped lone surrogates; NULL: they are refused. Does not recurse. */
static tsr_status json_check(tsr_str text, uint32_t max_depth, uint64_t key_number, uint64_t *key_position, size_t *lone,
                             tsr_error *err)
{
    checker c = {.text = text, .key_number = key_number, .key_position = key_position, .lone = lone, .err = err};
    TSR_TRY(check_whole_value(&c, max_depth));
    skip_space(&c);
    return c.at == text.size ? TSR_OK : fail(&c, "the end");
}

tsr_status tsr_json_skip(tsr_str text, size_t *at, uint32_t max_depth, tsr_error *err)
{
    checker c = {.text = text, .at = *at, .err = err};
    TSR_TRY(check_whole_value(&c, max_depth));
    *at = c.at;
    return TSR_OK;
}

/* ---- json ---- */

#define TWO_TO_53 9007199254740992.0

static tsr_status report_duplicate(tsr_str text, const cJSON *member, uint64_t key_number, tsr_error *err)
{
    uint64_t position = TSR_NO_POSITION;
    size_t lone = 0;
    json_check(text, MAX_DEPTH, key_number, &position, &lone, NULL);
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

static tsr_status check_document(tsr_str text, const tsr_host *host, size_t *lone, tsr_error *err)
{
    uint32_t depth = host->limits.depth < MAX_DEPTH ? host->limits.depth : MAX_DEPTH;
    TSR_FAIL_IF(text.size > host->limits.metadata_bytes, err, TSR_E_LIMIT,
                "json: a document of %zu bytes exceeds the limit of %llu", text.size,
                (unsigned long long)host->limits.metadata_bytes);
    return json_check(text, depth, 0, NULL, lone, err);
}

tsr_status tsr_json_check(tsr_str text, const tsr_host *host, tsr_error *err)
{
    size_t lone = 0;
    return check_document(text, host, &lone, err);
}

tsr_status tsr_json_parse(tsr_str text, const tsr_host *host, cJSON **out, tsr_error *err)
{
    size_t lone = 0;
    *out = NULL;
    TSR_TRY(check_document(text, host, &lone, err));
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
