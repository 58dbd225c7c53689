/* Reads a header in a single pass, because the largest header that the format allows has a million tensors.
 *
 *   {"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},…}
 *
 * Names and shapes are copied compactly (recent shapes are shared), so that the header can be freed. */
#include "formats/safetensors/safetensors.h"

#include <inttypes.h>

#include "base/cursor.h"
#include "base/utf8.h"
#include "codec/json.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

/* Counted from inside a tensor's object; the reference reader's limit is 128. */
enum { SHAPE_CACHE = 256, TEXT_BLOCK = 16384, MAX_JSON_DEPTH = 125 };

typedef struct scanner {
    tsr_safetensors_scan *scan;
    const uint8_t *data;
    size_t size, at;
    tsr_vec dims; /* the shape being read */
    tsr_vec text; /* the escaped string being decoded */
    struct {
        const uint64_t *dims;
        size_t ndim;
    } shapes[SHAPE_CACHE];
    char *block; /* where the next copied text goes */
    size_t block_left;
    size_t key_at, value_at; /* of the last pair of metadata: where its texts begin, with their quotes */
    tsr_error *err;
} scanner;

static tsr_status fail_at(const scanner *s, size_t at, const char *what)
{
    return tsr_raise(s->err, TSR_E_FORMAT, s->scan->byte_base + at, "safetensors: %s", what);
}

static int peek(const scanner *s)
{
    return s->at < s->size ? s->data[s->at] : -1;
}

static void skip_space(scanner *s)
{
    while (s->at < s->size &&
           (s->data[s->at] == ' ' || s->data[s->at] == '\n' || s->data[s->at] == '\r' || s->data[s->at] == '\t'))
        s->at++;
}

static tsr_status fail(const scanner *s, const char *expected)
{
    int found = peek(s);
    const char *format = found < 0                      ? "safetensors: the header ends where %s is expected"
                         : found > 0x20 && found < 0x7F ? "safetensors: expected %s in the header, found '%c'"
                                                        : "safetensors: expected %s in the header, found byte 0x%02x";
    return tsr_raise(s->err, TSR_E_FORMAT, s->scan->byte_base + s->at, format, expected, found);
}

static tsr_status expect(scanner *s, char byte, const char *name)
{
    skip_space(s);
    if (peek(s) != byte) return fail(s, name);
    s->at++;
    return TSR_OK;
}

/* After a member: sets *more if another one follows. */
static tsr_status next_member(scanner *s, char close, const char *expected, bool *more)
{
    skip_space(s);
    *more = peek(s) == ',';
    if (!*more && peek(s) != close) return fail(s, expected);
    s->at++;
    return TSR_OK;
}

/* After an opening bracket: whether there is a first member. If not, skips the closing bracket. */
static bool has_members(scanner *s, char close)
{
    skip_space(s);
    if (peek(s) != close) return true;
    s->at++;
    return false;
}

static tsr_status append_text(scanner *s, const char *data, size_t size)
{
    TSR_TRY(tsr_vec_reserve(&s->text, size, s->err));
    if (size) memcpy((char *)s->text.items + s->text.count, data, size);
    s->text.count += size;
    return TSR_OK;
}

static tsr_status decode_unicode(scanner *s)
{
    char bytes[4];
    uint32_t scalar;
    const char *wrong;
    size_t length = tsr_json_unicode_escape((tsr_str){(const char *)s->data, s->size}, s->at, &scalar, &wrong);
    TSR_FAIL_AT(length == 0, s->err, TSR_E_FORMAT, s->scan->byte_base + s->at, "safetensors: %s in a string", wrong);
    s->at += length;
    return append_text(s, bytes, tsr_utf8_put(scalar, bytes));
}

static tsr_status decode_escape(scanner *s)
{
    static const char escapes[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
    int kind = s->at + 1 < s->size ? s->data[s->at + 1] : -1;
    if (kind == 'u') return decode_unicode(s);
    for (const char *pair = escapes; *pair; pair += 2)
        if (*pair == kind) {
            s->at += 2;
            return append_text(s, pair + 1, 1);
        }
    return fail_at(s, s->at, "an unknown escape in a string");
}

/* Skips to the next byte of a string that ends it, begins an escape, or is not valid. */
static void skip_plain(scanner *s)
{
    while (s->at < s->size) {
        uint8_t byte = s->data[s->at];
        if (byte == '"' || byte == '\\' || byte < 0x20) return;
        size_t length = byte < 0x80 ? 1 : tsr_utf8_length((tsr_str){(const char *)s->data + s->at, s->size - s->at});
        if (length == 0) return;
        s->at += length;
    }
}

/* *out borrows the header, or, if there are escapes, a buffer that the next string overwrites. */
static tsr_status read_string(scanner *s, const char *expected, tsr_str *out)
{
    skip_space(s);
    if (peek(s) != '"') return fail(s, expected);
    size_t from = ++s->at;
    s->text.count = 0;
    bool escaped = false;
    for (;;) {
        size_t run = s->at;
        skip_plain(s);
        if (escaped) TSR_TRY(append_text(s, (const char *)s->data + run, s->at - run));
        int byte = peek(s);
        if (byte == '"') break;
        if (byte != '\\')
            return byte < 0      ? fail_at(s, s->at, "the header ends inside a string")
                   : byte < 0x20 ? fail(s, "printable text")
                                 : fail(s, "UTF-8");
        if (!escaped) TSR_TRY(append_text(s, (const char *)s->data + from, s->at - from));
        escaped = true;
        TSR_TRY(decode_escape(s));
    }
    *out = escaped ? (tsr_str){s->text.items, s->text.count} : (tsr_str){(const char *)s->data + from, s->at - from};
    s->at++;
    return TSR_OK;
}

/* Copies a text compactly into the arena. */
static tsr_status keep_text(scanner *s, tsr_str text, tsr_str *out)
{
    if (text.size > s->block_left) {
        size_t size = text.size > TEXT_BLOCK ? text.size : TEXT_BLOCK;
        s->block = tsr_arena_array(s->scan->arena, size, 1, s->err);
        if (!s->block) return TSR_E_NOMEM;
        s->block_left = size;
    }
    *out = TSR_STR("");
    if (text.size == 0) return TSR_OK;
    *out = (tsr_str){memcpy(s->block, text.data, text.size), text.size};
    s->block += text.size;
    s->block_left -= text.size;
    return TSR_OK;
}

static tsr_status read_unsigned(scanner *s, uint64_t *out)
{
    skip_space(s);
    size_t from = s->at;
    uint64_t value = 0;
    for (; s->at < s->size && tsr_is_digit(s->data[s->at]); s->at++) {
        unsigned digit = s->data[s->at] - '0';
        if (value > (UINT64_MAX - digit) / 10) return fail_at(s, from, "an integer beyond 64 bits");
        value = value * 10 + digit;
    }
    if (s->at == from) return fail(s, "a non-negative integer");
    if (s->data[from] == '0' && s->at > from + 1) return fail_at(s, from, "an integer with a leading zero");
    *out = value;
    return TSR_OK;
}

static tsr_status intern_shape(scanner *s, const uint64_t **shape)
{
    const uint64_t *dims = s->dims.items;
    size_t ndim = s->dims.count, bytes = ndim * sizeof *dims;
    size_t slot = ndim ? tsr_hash_bytes(dims, bytes, 0) % SHAPE_CACHE : 0;
    if (s->shapes[slot].dims && s->shapes[slot].ndim == ndim &&
        (ndim == 0 || memcmp(s->shapes[slot].dims, dims, bytes) == 0)) {
        *shape = s->shapes[slot].dims;
        return TSR_OK;
    }
    uint64_t *copy = tsr_arena_array(s->scan->arena, ndim, sizeof *copy, s->err);
    if (!copy) return TSR_E_NOMEM;
    if (ndim) memcpy(copy, dims, bytes);
    s->shapes[slot].dims = *shape = copy;
    s->shapes[slot].ndim = ndim;
    return TSR_OK;
}

static tsr_status read_shape(scanner *s, tsr_safetensors_tensor *tensor)
{
    bool more;
    s->dims.count = 0;
    TSR_TRY(expect(s, '[', "'[' of a shape"));
    for (more = has_members(s, ']'); more;) {
        uint64_t *dim = tsr_vec_push(&s->dims, s->err);
        if (!dim) return TSR_E_NOMEM;
        TSR_TRY(read_unsigned(s, dim));
        TSR_TRY(next_member(s, ']', "',' or ']'", &more));
    }
    tensor->ndim = (uint32_t)s->dims.count;
    return intern_shape(s, &tensor->shape);
}

static tsr_status read_offsets(scanner *s, tsr_safetensors_tensor *tensor)
{
    TSR_TRY(expect(s, '[', "'[' of data_offsets"));
    TSR_TRY(read_unsigned(s, &tensor->begin));
    TSR_TRY(expect(s, ',', "',' between two data_offsets"));
    TSR_TRY(read_unsigned(s, &tensor->end));
    return expect(s, ']', "']' after two data_offsets");
}

static tsr_status read_dtype(scanner *s, tsr_safetensors_tensor *tensor)
{
    tsr_str name;
    size_t at = s->at;
    TSR_TRY(read_string(s, "the name of a dtype", &name));
    tensor->dtype = tsr_dtype_from_safetensors(name);
    TSR_FAIL_AT(tensor->dtype == TSR_DTYPE_NONE, s->err, TSR_E_FORMAT, s->scan->byte_base + at,
                "safetensors: '%.*s' has the unknown dtype '%.*s'", TSR_STR_ARG(tensor->name), TSR_STR_ARG(name));
    return TSR_OK;
}

/* Checks and skips a value of a field that the format does not define. */
static tsr_status skip_value(scanner *s, tsr_str field, tsr_str tensor_name)
{
    tsr_error inner = {0};
    size_t at = s->at;
    tsr_place place = {s->scan->file_name, s->scan->byte_base + at, tensor_name};
    if (s->scan->findings)
        TSR_TRY(tsr_finding_add(s->scan->findings, "safetensors/unknown-field", place, s->err, "unknown field '%.*s'",
                                TSR_STR_ARG(field)));
    tsr_status status = tsr_json_skip((tsr_str){(const char *)s->data, s->size}, &s->at, MAX_JSON_DEPTH, &inner);
    return status == TSR_OK
               ? TSR_OK
               : tsr_raise(s->err, status, s->scan->byte_base + inner.byte_position, "safetensors: %s", inner.message);
}

enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_OFFSETS = 4, HAS_ALL = 7 };

static tsr_status read_field(scanner *s, tsr_safetensors_tensor *tensor, unsigned *seen)
{
    tsr_str field;
    skip_space(s);
    size_t at = s->at;
    TSR_TRY(read_string(s, "the name of a field", &field));
    unsigned which = tsr_str_equal(field, TSR_STR("dtype"))          ? HAS_DTYPE
                     : tsr_str_equal(field, TSR_STR("shape"))        ? HAS_SHAPE
                     : tsr_str_equal(field, TSR_STR("data_offsets")) ? HAS_OFFSETS
                                                                     : 0;
    TSR_FAIL_AT(*seen & which, s->err, TSR_E_FORMAT, s->scan->byte_base + at,
                "safetensors: '%.*s' has the field '%.*s' twice", TSR_STR_ARG(tensor->name), TSR_STR_ARG(field));
    *seen |= which;
    TSR_TRY(expect(s, ':', "':' after the name of a field"));
    if (which == HAS_DTYPE) return read_dtype(s, tensor);
    if (which == HAS_SHAPE) return read_shape(s, tensor);
    return which == HAS_OFFSETS ? read_offsets(s, tensor) : skip_value(s, field, tensor->name);
}

static tsr_status check_bytes(const scanner *s, const tsr_safetensors_tensor *tensor)
{
    uint64_t elements = 1, bits, at = tensor->position;
    bool fits = true;
    for (uint32_t d = 0; d < tensor->ndim; d++) fits = fits && tsr_mul_u64(elements, tensor->shape[d], &elements);
    fits = fits && tsr_mul_u64(elements, tsr_dtype_describe(tensor->dtype)->bits, &bits);
    TSR_FAIL_AT(!fits, s->err, TSR_E_FORMAT, at, "safetensors: the shape of '%.*s' overflows 64 bits",
                TSR_STR_ARG(tensor->name));
    TSR_FAIL_AT(bits % 8, s->err, TSR_E_FORMAT, at,
                "safetensors: '%.*s' has %" PRIu64 " bits, which is not a whole number of bytes", TSR_STR_ARG(tensor->name),
                bits);
    TSR_FAIL_AT(tensor->end < tensor->begin, s->err, TSR_E_FORMAT, at,
                "safetensors: data_offsets of '%.*s' end at %" PRIu64 ", before they begin at %" PRIu64,
                TSR_STR_ARG(tensor->name), tensor->end, tensor->begin);
    TSR_FAIL_AT(tensor->end - tensor->begin != bits / 8, s->err, TSR_E_FORMAT, at,
                "safetensors: data_offsets of '%.*s' span %" PRIu64 " bytes, its shape and dtype need %" PRIu64,
                TSR_STR_ARG(tensor->name), tensor->end - tensor->begin, bits / 8);
    return TSR_OK;
}

static tsr_status check_name(const scanner *s, const tsr_safetensors_tensor *tensor)
{
    tsr_place place = {s->scan->file_name, tensor->position, tensor->name};
    if (!s->scan->findings) return TSR_OK;
    if (tensor->name.size == 0)
        return tsr_finding_add(s->scan->findings, "safetensors/empty-name", place, s->err, "a tensor has an empty name");
    if (memchr(tensor->name.data, 0, tensor->name.size))
        return tsr_finding_add(s->scan->findings, "safetensors/nul-in-name", place, s->err,
                               "a tensor's name contains a NUL");
    return TSR_OK;
}

static tsr_status read_tensor(scanner *s, tsr_str name, size_t at)
{
    unsigned seen = 0;
    bool more;
    TSR_FAIL_AT(s->scan->tensors.count >= s->scan->max_entries, s->err, TSR_E_LIMIT, s->scan->byte_base + at,
                "safetensors: more than %" PRIu64 " tensors", s->scan->max_entries);
    tsr_safetensors_tensor *tensor = tsr_vec_push(&s->scan->tensors, s->err);
    if (!tensor) return TSR_E_NOMEM;
    tensor->position = s->scan->byte_base + at;
    TSR_TRY(keep_text(s, name, &tensor->name));
    TSR_TRY(expect(s, '{', "'{' of a tensor"));
    for (more = has_members(s, '}'); more;) {
        TSR_TRY(read_field(s, tensor, &seen));
        TSR_TRY(next_member(s, '}', "',' or '}'", &more));
    }
    TSR_FAIL_AT(seen != HAS_ALL, s->err, TSR_E_FORMAT, tensor->position, "safetensors: '%.*s' lacks %s",
                TSR_STR_ARG(tensor->name),
                !(seen & HAS_DTYPE)   ? "dtype"
                : !(seen & HAS_SHAPE) ? "shape"
                                      : "data_offsets");
    TSR_TRY(check_bytes(s, tensor));
    return check_name(s, tensor);
}

static tsr_status read_null_metadata(scanner *s)
{
    tsr_place place = {s->scan->file_name, s->scan->byte_base + s->at, {NULL, 0}};
    if (s->size - s->at < 4 || memcmp(s->data + s->at, "null", 4) != 0) return fail(s, "an object as __metadata__");
    s->at += 4;
    if (!s->scan->findings) return TSR_OK;
    return tsr_finding_add(s->scan->findings, "safetensors/metadata-null", place, s->err, "__metadata__ is null");
}

static tsr_status read_metadata(scanner *s)
{
    bool more;
    tsr_str text;
    skip_space(s);
    if (s->scan->has_metadata) return fail_at(s, s->at, "__metadata__ occurs twice");
    s->scan->has_metadata = true;
    if (peek(s) == 'n') return read_null_metadata(s);
    TSR_TRY(expect(s, '{', "an object as __metadata__"));
    for (more = has_members(s, '}'); more;) {
        tsr_text_pair *pair = tsr_vec_push(&s->scan->metadata, s->err);
        if (!pair) return TSR_E_NOMEM;
        skip_space(s);
        s->key_at = s->at;
        TSR_TRY(read_string(s, "a key of __metadata__", &text));
        TSR_TRY(keep_text(s, text, &pair->key));
        TSR_TRY(expect(s, ':', "':' after a key of __metadata__"));
        skip_space(s);
        s->value_at = s->at;
        TSR_TRY(read_string(s, "a string in __metadata__", &text));
        TSR_TRY(keep_text(s, text, &pair->value));
        TSR_TRY(next_member(s, '}', "',' or '}'", &more));
    }
    return TSR_OK;
}

static size_t differing(const uint8_t *a, const char *b, size_t size)
{
    size_t count = 0;
    for (size_t i = 0; i < size; i++) count += a[i] != (uint8_t)b[i];
    return count;
}

/* Whether the last pair of the metadata, which is the last member, is the file's checksum. Compares the bytes as they are
 * stored: an escape in them is damage. */
static tsr_safetensors_sum find_sum(const scanner *s)
{
    static const char key[] = "\"" TSR_SAFETENSORS_SUM "\"";
    enum { KEY = sizeof key - 1, DIGITS = sizeof TSR_SAFETENSORS_NO_SUM - 1 };
    const uint8_t *digits = s->data + s->value_at + 1;
    bool are_digits = s->value_at + 1 + DIGITS < s->size && digits[DIGITS] == '"';
    for (size_t i = 0; are_digits && i < DIGITS; i++)
        are_digits = tsr_is_digit(digits[i]) || (digits[i] >= 'a' && digits[i] <= 'f');
    const size_t wrong = s->size - s->key_at < KEY ? KEY : differing(s->data + s->key_at, key, KEY);
    tsr_safetensors_sum sum = {.position = s->scan->byte_base + s->value_at + 1};
    if (wrong == 0) sum.kind = are_digits ? TSR_SUM_STATED : TSR_SUM_NOT_DIGITS;
    /* As Tessera writes it, without space, so that the position of the key follows from that of the digits. */
    else if (wrong == 1 && are_digits && s->value_at == s->key_at + KEY + 1) sum.kind = TSR_SUM_MISSPELT;
    return sum;
}

static tsr_status read_member(scanner *s)
{
    tsr_str name;
    skip_space(s);
    size_t at = s->at;
    TSR_TRY(read_string(s, "the name of a tensor", &name));
    bool is_metadata = tsr_str_equal(name, TSR_STR("__metadata__"));
    TSR_TRY(expect(s, ':', "':' after a name"));
    s->scan->sum.kind = TSR_SUM_NONE;
    if (!is_metadata) return read_tensor(s, name, at);
    TSR_TRY(read_metadata(s));
    if (s->scan->metadata.count) s->scan->sum = find_sum(s);
    return TSR_OK;
}

static tsr_status read_header(scanner *s)
{
    bool more;
    skip_space(s);
    if (s->at && s->scan->findings) {
        tsr_place place = {s->scan->file_name, s->scan->byte_base, {NULL, 0}};
        TSR_TRY(tsr_finding_add(s->scan->findings, "safetensors/leading-space", place, s->err,
                                "%zu byte%s of white space before the header's '{'", s->at, TSR_PLURAL(s->at)));
    }
    TSR_TRY(expect(s, '{', "'{'"));
    for (more = has_members(s, '}'); more;) {
        TSR_TRY(read_member(s));
        TSR_TRY(next_member(s, '}', "',' or '}'", &more));
    }
    skip_space(s);
    return s->at == s->size ? TSR_OK : fail(s, "white space after the object");
}

tsr_status tsr_safetensors_scan_header(tsr_safetensors_scan *scan, tsr_error *err)
{
    scanner s = {.scan = scan, .data = (const uint8_t *)scan->header.data, .size = scan->header.size, .err = err};
    s.dims = tsr_vec_of(scan->tensors.allocator, sizeof(uint64_t));
    s.text = tsr_vec_of(scan->tensors.allocator, 1);
    tsr_status status = read_header(&s);
    tsr_vec_free(&s.dims);
    tsr_vec_free(&s.text);
    return status;
}
