/* Changes a few members of a config.json, and leaves the rest of its text as it is. */
#include "tessera/sys/mapping.h"

#include "codec/json.h"
#include "mapping/mapping_rules.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

enum { DEEPEST = 8 };

/* The text was parsed before, so it is well-formed. */
typedef struct editor {
    tsr_str text;
    const tsr_config_changes *changes;
    tsr_vec *out;
    bool states_tie, states_tokens; /* tie_word_embeddings, of the model itself; the vocabulary that has grown */
    tsr_error *err;
} editor;

static tsr_status put(editor *e, tsr_str text)
{
    const size_t used = e->out->count;
    TSR_TRY(tsr_vec_reserve(e->out, used + text.size, e->err));
    if (text.size) memcpy((char *)e->out->items + used, text.data, text.size);
    e->out->count = used + text.size;
    return TSR_OK;
}

static tsr_str slice(const editor *e, size_t from, size_t to)
{
    return (tsr_str){e->text.data + from, to - from};
}

static size_t skip_space(const editor *e, size_t at)
{
    while (at < e->text.size && strchr(" \t\r\n", e->text.data[at])) at++;
    return at;
}

/* Returns the position after the string that begins at `at`. */
static size_t skip_string(const editor *e, size_t at)
{
    for (at++; at < e->text.size && e->text.data[at] != '"'; at++)
        if (e->text.data[at] == '\\') at++;
    return at + 1;
}

/* Returns the position after the value that begins at `at`. */
static size_t skip_value(const editor *e, size_t at)
{
    size_t depth = 0;
    if (e->text.data[at] == '"') return skip_string(e, at);
    for (; at < e->text.size; at++) {
        const char c = e->text.data[at];
        if (c == '"') {
            at = skip_string(e, at) - 1;
            continue;
        }
        if (c == '{' || c == '[') depth++;
        const bool closes = c == '}' || c == ']';
        if (!depth && (closes || c == ',' || strchr(" \t\r\n", c))) return at;
        if (closes && !--depth) return at + 1;
    }
    return at;
}

static bool states_dtype(tsr_str key)
{
    return tsr_str_equal(key, TSR_STR("dtype")) || tsr_str_equal(key, TSR_STR("torch_dtype"));
}

static bool is_dropped(const editor *e, tsr_str key)
{
    const bool quantizes =
        tsr_str_equal(key, TSR_STR("quantization_config")) || tsr_str_equal(key, TSR_STR("compression_config"));
    return quantizes && (e->changes->unquantized || e->changes->quantization.size);
}

static tsr_status put_number(editor *e, uint64_t number)
{
    char digits[20];
    size_t at = sizeof digits;
    do digits[--at] = (char)('0' + number % 10);
    while (number /= 10);
    return put(e, (tsr_str){digits + at, sizeof digits - at});
}

static tsr_status put_object(editor *e, size_t at, unsigned depth);

/* Puts the value that is between these positions, as the member `key` has it now. */
static tsr_status put_value(editor *e, tsr_str key, size_t from, size_t to, unsigned depth)
{
    uint64_t tokens;
    if (states_dtype(key) && e->text.data[from] == '"' && e->changes->dtype != TSR_DTYPE_NONE) {
        TSR_TRY(put(e, TSR_STR("\"")));
        TSR_TRY(put(e, tsr_str_from(tsr_dtype_describe(e->changes->dtype)->name)));
        return put(e, TSR_STR("\""));
    }
    if (tsr_str_equal(key, TSR_STR("tie_word_embeddings")) && e->changes->untied) {
        e->states_tie |= !depth;
        return put(e, TSR_STR("false"));
    }
    if (tsr_str_equal(key, TSR_STR("vocab_size")) && e->changes->more_tokens &&
        tsr_component_number(slice(e, from, to), &tokens) && tokens == e->changes->tokens) {
        e->states_tokens = true;
        return put_number(e, e->changes->more_tokens);
    }
    const bool is_part = e->text.data[from] == '{' && tsr_str_ends(key, TSR_STR("_config")) &&
                         !tsr_str_equal(key, TSR_STR("quantization_config"));
    if (is_part && depth < DEEPEST) return put_object(e, from, depth + 1);
    return put(e, slice(e, from, to));
}

static tsr_status put_member(editor *e, const char *name, tsr_str value, bool *has_members)
{
    TSR_TRY(put(e, *has_members ? TSR_STR(",\n  \"") : TSR_STR("\n  \"")));
    TSR_TRY(put(e, tsr_str_from(name)));
    TSR_TRY(put(e, TSR_STR("\": ")));
    *has_members = true;
    return put(e, value);
}

/* Puts what the model has to state, and did not. */
static tsr_status put_new_members(editor *e, bool has_members)
{
    const tsr_config_changes *c = e->changes;
    if (c->untied && !e->states_tie) TSR_TRY(put_member(e, "tie_word_embeddings", TSR_STR("false"), &has_members));
    return c->quantization.size ? put_member(e, "quantization_config", c->quantization, &has_members) : TSR_OK;
}

/* Puts the object that begins at `at`. A member is put with the white space before it. */
static tsr_status put_object(editor *e, size_t at, unsigned depth)
{
    bool has_members = false;
    TSR_TRY(put(e, TSR_STR("{")));
    for (at++;;) {
        const size_t begin = at, name = skip_space(e, at);
        if (e->text.data[name] == '}') {
            at = begin;
            break;
        }
        const size_t name_end = skip_string(e, name), colon = skip_space(e, name_end), value = skip_space(e, colon + 1),
                     end = skip_value(e, value);
        const tsr_str key = slice(e, name + 1, name_end - 1);
        if (!is_dropped(e, key)) {
            if (has_members) TSR_TRY(put(e, TSR_STR(",")));
            has_members = true;
            TSR_TRY(put(e, slice(e, begin, value)));
            TSR_TRY(put_value(e, key, value, end, depth));
        }
        at = skip_space(e, end);
        if (e->text.data[at] != ',') {
            at = end;
            break;
        }
        at++;
    }
    if (!depth) TSR_TRY(put_new_members(e, has_members));
    const size_t close = skip_space(e, at);
    TSR_TRY(put(e, slice(e, at, close + 1)));
    return depth ? TSR_OK : put(e, slice(e, close + 1, e->text.size));
}

tsr_status tsr_config_rewrite(tsr_str text, const tsr_config_changes *changes, const tsr_host *host, tsr_vec *out,
                              tsr_error *err)
{
    editor e = {.text = text, .changes = changes, .out = out, .err = err};
    cJSON *parsed;
    TSR_TRY(tsr_json_parse(text, host, &parsed, err));
    const bool is_object = cJSON_IsObject(parsed);
    cJSON_Delete(parsed);
    TSR_FAIL_IF(!is_object, err, TSR_E_FORMAT, "config.json is not an object");
    const size_t begin = skip_space(&e, 0);
    TSR_TRY(put(&e, slice(&e, 0, begin)));
    TSR_TRY(put_object(&e, begin, 0));
    TSR_FAIL_IF(changes->more_tokens && !e.states_tokens, err, TSR_E_FORMAT,
                "config.json states no vocab_size of %llu, which the adapter changes to %llu",
                (unsigned long long)changes->tokens, (unsigned long long)changes->more_tokens);
    return TSR_OK;
}
