/* Reads a file without tensors as a value: a JSON document, or a file that contains just one pickle. */
#include <math.h>

#include "codec/json.h"
#include "formats/common/expansion.h"
#include "formats/parts/mount.h"
#include "formats/torch/torch_build.h"
#include "formats/torch/torch_verdict.h"
#include "tessera/sys/try.h"
#include "tessera/sys/value_walk.h"

/* ---- JSON ---- */

/* cJSON turns every number into a double and does not know NaN, which Python writes (a Trainer's log contains one as soon as a
 * loss is not finite). Therefore each number is also read from the text, where the numbers have the same order as in cJSON's
 * tree. */
typedef struct reading {
    const tsr_host *host;
    tsr_arena *arena;
    tsr_str text; /* the file's contents */
    size_t at;    /* after the last number that was read */
    tsr_error *err;
} reading;

/* A number, NaN, or an infinity in the text. */
typedef struct token {
    size_t begin, size; /* a size of 0 means that there is none left */
} token;

static bool is_of_number(char c)
{
    return (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.' || c == 'e' || c == 'E';
}

static size_t word_at(tsr_str text, size_t at)
{
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    for (size_t i = 0; i < 3; i++)
        if (tsr_str_starts((tsr_str){text.data + at, text.size - at}, tsr_str_from(words[i]))) return strlen(words[i]);
    return 0;
}

static size_t skip_string(tsr_str text, size_t at)
{
    for (at++; at < text.size && text.data[at] != '"'; at++)
        if (text.data[at] == '\\') at++;
    return at + 1;
}

/* The next number after `at` that is not inside a string. */
static token next_number(tsr_str text, size_t at)
{
    while (at < text.size) {
        const char c = text.data[at];
        const size_t word = c == 'N' || c == 'I' || c == '-' ? word_at(text, at) : 0;
        if (word) return (token){at, word};
        if (c == '-' || (c >= '0' && c <= '9')) {
            size_t end = at;
            while (end < text.size && is_of_number(text.data[end])) end++;
            return (token){at, end - at};
        }
        at = c == '"' ? skip_string(text, at) : at + 1;
    }
    return (token){text.size, 0};
}

/* Replaces NaN and the infinities by 0 in a copy of the text, because cJSON rejects them. */
static void hide_words(char *copy, tsr_str text)
{
    for (token t = next_number(text, 0); t.size; t = next_number(text, t.begin + t.size)) {
        if (!word_at(text, t.begin)) continue;
        memset(copy + t.begin, ' ', t.size);
        copy[t.begin] = '0';
    }
}

static const tsr_value *number_of(reading *r, const cJSON *item)
{
    const token t = next_number(r->text, r->at);
    const tsr_str text = {r->text.data + t.begin, t.size};
    r->at = t.begin + t.size;
    if (text.size == 0) return tsr_value_float(r->arena, item->valuedouble, r->err);
    if (tsr_str_equal(text, TSR_STR("NaN"))) return tsr_value_float(r->arena, NAN, r->err);
    if (tsr_str_equal(text, TSR_STR("Infinity"))) return tsr_value_float(r->arena, INFINITY, r->err);
    if (tsr_str_equal(text, TSR_STR("-Infinity"))) return tsr_value_float(r->arena, -INFINITY, r->err);
    const bool real =
        memchr(text.data, '.', text.size) || memchr(text.data, 'e', text.size) || memchr(text.data, 'E', text.size);
    /* 2^53: beyond it, a double may differ from the integer. */
    const bool exact = fabs(item->valuedouble) < 9007199254740992.0;
    if (!real && exact) return tsr_value_int(r->arena, (int64_t)item->valuedouble, r->err);
    return tsr_value_float(r->arena, item->valuedouble, r->err);
}

static const tsr_value *text_value(reading *r, const char *text)
{
    const tsr_str copy = tsr_arena_str(r->arena, tsr_str_from(text), r->err);
    return copy.data ? tsr_value_str(r->arena, copy, r->err) : NULL;
}

/* The recursion is bounded: cJSON parses at most 1,000 levels. */
static const tsr_value *value_of(reading *r, const cJSON *item)
{
    if (cJSON_IsNumber(item)) return number_of(r, item);
    if (cJSON_IsString(item)) return text_value(r, item->valuestring);
    if (cJSON_IsBool(item)) return tsr_value_bool(r->arena, cJSON_IsTrue(item), r->err);
    if (!cJSON_IsArray(item) && !cJSON_IsObject(item)) return tsr_value_none(r->arena, r->err);
    const bool dict = cJSON_IsObject(item);
    const size_t count = (size_t)cJSON_GetArraySize(item) * (dict ? 2 : 1);
    const tsr_value **items = tsr_arena_array(r->arena, count, sizeof *items, r->err);
    size_t at = 0;
    if (!items) return NULL;
    for (const cJSON *member = item->child; member; member = member->next) {
        if (dict && !(items[at++] = text_value(r, member->string))) return NULL;
        if (!(items[at++] = value_of(r, member))) return NULL;
    }
    return tsr_value_items(r->arena, dict ? TSR_VALUE_DICT : TSR_VALUE_LIST, items, count, r->err);
}

static tsr_status read_text(reading *r, char *copy, const tsr_value **out)
{
    cJSON *root;
    if (r->text.size) memcpy(copy, r->text.data, r->text.size);
    hide_words(copy, r->text);
    TSR_TRY(tsr_json_parse((tsr_str){copy, r->text.size}, r->host, &root, r->err));
    *out = value_of(r, root);
    cJSON_Delete(root);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_json_file_value(tsr_checkpoint *checkpoint, uint32_t file, const tsr_value **out, tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    const tsr_store_file *from = &checkpoint->store->files[file];
    tsr_bytes bytes;
    TSR_TRY(tsr_range_load(tsr_whole_file(checkpoint->store, file), checkpoint->host, &bytes, err));
    reading r = {.host = checkpoint->host, .arena = checkpoint->arena, .text = bytes.data, .err = err};
    char *copy = tsr_alloc(allocator, bytes.data.size, 1, err);
    const tsr_status status = copy ? read_text(&r, copy, out) : TSR_E_NOMEM;
    if (status != TSR_OK) tsr_error_context(err, "%.*s", TSR_STR_ARG(from->name));
    tsr_free(allocator, copy, bytes.data.size, 1);
    tsr_bytes_free(&bytes);
    return status;
}

/* ---- pickle ---- */

static tsr_status build_value(tsr_torch_build *build, size_t consumed, const tsr_value **out, tsr_error *err)
{
    TSR_TRY(tsr_torch_build_open(build, err));
    TSR_TRY(tsr_torch_values(build, tsr_pickle_root(build->pickle), out, err));
    TSR_FAIL_AT(build->storages.count, err, TSR_E_FORMAT, 0, "a bare pickle with tensors, whose bytes are not in the file");
    return tsr_torch_verdict_on_end(build, consumed, build->pickle_bytes.size, err);
}

static tsr_status read_value(tsr_checkpoint *checkpoint, uint32_t file, tsr_str bytes, const tsr_value **out, tsr_error *err)
{
    tsr_pickle *pickle;
    size_t consumed;
    const tsr_store_file *named = &checkpoint->store->files[file];
    TSR_TRY(tsr_pickle_parse(bytes, checkpoint->host, &tsr_torch_names, &pickle, &consumed, err));
    tsr_torch_build build = {.pickle = pickle,
                             .pickle_bytes = bytes,
                             .host = checkpoint->host,
                             .arena = checkpoint->arena,
                             .findings = checkpoint->findings,
                             .file_name = named->name,
                             .file = file};
    const tsr_status status = build_value(&build, consumed, out, err);
    tsr_torch_build_close(&build);
    tsr_pickle_free(pickle);
    return status;
}

tsr_status tsr_pickle_file_value(tsr_checkpoint *checkpoint, uint32_t file, const tsr_value **out, tsr_error *err)
{
    const tsr_store_file *from = &checkpoint->store->files[file];
    tsr_bytes bytes;
    TSR_TRY(tsr_range_load(tsr_whole_file(checkpoint->store, file), checkpoint->host, &bytes, err));
    const tsr_str kept = tsr_arena_str(checkpoint->arena, bytes.data, err); /* the texts of the value point into it */
    tsr_status status = kept.data ? read_value(checkpoint, file, kept, out, err) : TSR_E_NOMEM;
    tsr_bytes_free(&bytes);
    if (status == TSR_OK) tsr_expansion_add(&checkpoint->expansion, from->size);
    else tsr_error_context(err, "%.*s", TSR_STR_ARG(from->name));
    return status;
}
