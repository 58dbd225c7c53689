/* Reads what a checkpoint is checked against: a layout with its rules and digests, a module tree, an index file, or a list
 * of names. */
#include "base/line.h"
#include "codec/json.h"
#include "tessera/box.h"
#include "tessera/document_read.h"
#include "tessera/fqn.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/names.h"
#include "tessera/sys/try.h"

typedef struct contract_reader {
    const tsr_host *host;
    tsr_arena *arena;
    tsr_error *err;
} contract_reader;

static tsr_status read_numbers(const contract_reader *r, const cJSON *object, const char *key, const char *where,
                               const uint64_t **out, uint32_t *count)
{
    const cJSON *array, *item;
    TSR_TRY(tsr_json_get(object, key, TSR_JSON_ARRAY, where, &array, r->err));
    int size = cJSON_GetArraySize(array);
    TSR_FAIL_IF(size > (int)TSR_MAX_NDIM, r->err, TSR_E_LIMIT, "layout: %d dimensions at %s; at most %u", size, where,
                TSR_MAX_NDIM);
    uint64_t *numbers = tsr_arena_array(r->arena, (size_t)size, sizeof *numbers, r->err);
    if (!numbers) return TSR_E_NOMEM;
    *out = numbers;
    *count = (uint32_t)size;
    cJSON_ArrayForEach(item, array) TSR_TRY(tsr_json_to_u64(item, where, numbers++, r->err));
    return TSR_OK;
}

static tsr_status read_chunk(const contract_reader *r, const cJSON *item, const char *where, uint32_t ndim, tsr_chunk *chunk)
{
    uint32_t offsets, sizes;
    TSR_TRY(tsr_json_expect(item, TSR_JSON_OBJECT, where, r->err));
    TSR_TRY(read_numbers(r, item, "offsets", where, &chunk->offsets, &offsets));
    TSR_TRY(read_numbers(r, item, "sizes", where, &chunk->sizes, &sizes));
    TSR_FAIL_IF(offsets != ndim || sizes != ndim, r->err, TSR_E_FORMAT,
                "layout: a chunk has %u offsets and %u sizes at %s, but the shape has %u dimensions", offsets, sizes, where,
                ndim);
    chunk->file = TSR_NO_FILE;
    return TSR_OK;
}

static tsr_status read_chunks(const contract_reader *r, const cJSON *array, const char *where, tsr_entry *entry)
{
    const cJSON *item;
    size_t count = (size_t)cJSON_GetArraySize(array);
    tsr_chunk *chunks = tsr_arena_array(r->arena, count, sizeof *chunks, r->err);
    if (!chunks) return TSR_E_NOMEM;
    entry->chunks = chunks;
    entry->chunk_count = count;
    cJSON_ArrayForEach(item, array) TSR_TRY(read_chunk(r, item, where, entry->ndim, chunks++));
    return TSR_OK;
}

static tsr_status read_kind(const contract_reader *r, const cJSON *item, const char *where, tsr_entry *entry)
{
    static const struct {
        const char *name;
        tsr_entry_kind kind;
    } kinds[] = {{"tensor", TSR_ENTRY_TENSOR}, {"object", TSR_ENTRY_OBJECT}, {"opaque", TSR_ENTRY_OPAQUE}};
    const cJSON *kind;
    TSR_TRY(tsr_json_get(item, "kind", TSR_JSON_STRING, where, &kind, r->err));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(kind->valuestring, kinds[i].name) != 0) continue;
        entry->kind = kinds[i].kind;
        return TSR_OK;
    }
    return tsr_fail(r->err, TSR_E_FORMAT, "layout: unknown kind '%s' at %s; expected tensor, object or opaque",
                    kind->valuestring, where);
}

static tsr_status read_entry(const contract_reader *r, const cJSON *item, size_t index, tsr_entry *entry)
{
    char where[64];
    tsr_line place = tsr_line_on(where, sizeof where);
    const cJSON *text, *chunks;
    tsr_line_format(&place, "entries[%zu]", index);
    TSR_TRY(tsr_json_expect(item, TSR_JSON_OBJECT, where, r->err));
    TSR_TRY(tsr_json_get(item, "fqn", TSR_JSON_STRING, where, &text, r->err));
    TSR_TRY(tsr_json_copy_text(text, r->arena, &entry->fqn, r->err));
    TSR_TRY(read_kind(r, item, where, entry));
    if (entry->kind != TSR_ENTRY_TENSOR) {
        TSR_TRY(tsr_json_find(item, "type", TSR_JSON_STRING, where, &text, r->err));
        return text ? tsr_json_copy_text(text, r->arena, &entry->type, r->err) : TSR_OK;
    }
    TSR_TRY(tsr_json_get(item, "dtype", TSR_JSON_STRING, where, &text, r->err));
    entry->dtype = tsr_dtype_from_name(tsr_json_text_of(text));
    TSR_FAIL_IF(entry->dtype == TSR_DTYPE_NONE, r->err, TSR_E_FORMAT, "layout: unknown dtype '%s' at %s", text->valuestring,
                where);
    TSR_TRY(read_numbers(r, item, "shape", where, &entry->shape, &entry->ndim));
    TSR_TRY(tsr_json_find(item, "chunks", TSR_JSON_ARRAY, where, &chunks, r->err));
    return chunks ? read_chunks(r, chunks, where, entry) : TSR_OK;
}

/* ---- digests ---- */

static tsr_status read_algorithm(const contract_reader *r, const cJSON *item, const char *where, tsr_digest_algorithm *out)
{
    const char *name = item->valuestring;
    *out = strcmp(name, "sha256") == 0 ? TSR_DIGEST_SHA256 : TSR_DIGEST_XXH3;
    TSR_FAIL_IF(*out == TSR_DIGEST_XXH3 && strcmp(name, "xxh3") != 0, r->err, TSR_E_FORMAT,
                "layout: unknown digest algorithm '%s' at %s; expected sha256 or xxh3", name, where);
    return TSR_OK;
}

/* Reads the optional member "hash" of an entry. */
static tsr_status read_digest(const contract_reader *r, const cJSON *item, size_t index, tsr_contract *out, tsr_str *digests)
{
    char where[64];
    tsr_line place = tsr_line_on(where, sizeof where);
    const cJSON *hash, *name, *digest;
    tsr_digest_algorithm algorithm;
    tsr_line_format(&place, "entries[%zu].hash", index);
    TSR_TRY(tsr_json_find(item, "hash", TSR_JSON_OBJECT, where, &hash, r->err));
    if (!hash) return TSR_OK;
    TSR_TRY(tsr_json_get(hash, "algorithm", TSR_JSON_STRING, where, &name, r->err));
    TSR_TRY(tsr_json_get(hash, "digest", TSR_JSON_STRING, where, &digest, r->err));
    TSR_TRY(read_algorithm(r, name, where, &algorithm));
    TSR_FAIL_IF(out->digests && algorithm != out->algorithm, r->err, TSR_E_FORMAT,
                "layout: the digest algorithm at %s differs from the one before; a document must use a single algorithm",
                where);
    out->algorithm = algorithm;
    out->digests = digests;
    return tsr_json_copy_text(digest, r->arena, &digests[index], r->err);
}

/* ---- rules ---- */

static tsr_status read_allowed(const contract_reader *r, const cJSON *list, const char *where, uint32_t *out)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, list)
    {
        TSR_TRY(tsr_json_expect(item, TSR_JSON_STRING, where, r->err));
        const uint32_t bit = tsr_leniency_from_word(tsr_json_text_of(item));
        TSR_FAIL_IF(!bit, r->err, TSR_E_FORMAT,
                    "layout: '%s' at %s cannot be allowed; choose missing, extra, dtype, shape, chunks or value",
                    item->valuestring, where);
        *out |= bit;
    }
    return TSR_OK;
}

static tsr_status read_dtypes(const contract_reader *r, const cJSON *list, const char *where, tsr_contract_rule *rule)
{
    const cJSON *item;
    tsr_dtype *dtypes = tsr_arena_array(r->arena, (size_t)cJSON_GetArraySize(list), sizeof *dtypes, r->err);
    if (!dtypes) return TSR_E_NOMEM;
    rule->dtypes = dtypes;
    cJSON_ArrayForEach(item, list)
    {
        TSR_TRY(tsr_json_expect(item, TSR_JSON_STRING, where, r->err));
        dtypes[rule->dtype_count] = tsr_dtype_from_name(tsr_json_text_of(item));
        TSR_FAIL_IF(dtypes[rule->dtype_count++] == TSR_DTYPE_NONE, r->err, TSR_E_FORMAT, "layout: unknown dtype '%s' at %s",
                    item->valuestring, where);
    }
    return TSR_OK;
}

static tsr_status read_rule(const contract_reader *r, const cJSON *item, size_t index, tsr_contract_rule *rule)
{
    char where[64];
    tsr_line place = tsr_line_on(where, sizeof where);
    const cJSON *match, *list;
    tsr_line_format(&place, "rules[%zu]", index);
    TSR_TRY(tsr_json_expect(item, TSR_JSON_OBJECT, where, r->err));
    TSR_TRY(tsr_json_get(item, "match", TSR_JSON_STRING, where, &match, r->err));
    TSR_TRY(tsr_json_copy_text(match, r->arena, &rule->match, r->err));
    TSR_TRY(tsr_json_find(item, "allow", TSR_JSON_ARRAY, where, &list, r->err));
    if (list) TSR_TRY(read_allowed(r, list, where, &rule->allow));
    TSR_TRY(tsr_json_find(item, "dtypes", TSR_JSON_ARRAY, where, &list, r->err));
    return list ? read_dtypes(r, list, where, rule) : TSR_OK;
}

static tsr_status read_rules(const contract_reader *r, const cJSON *root, tsr_contract *out)
{
    const cJSON *list, *item;
    TSR_TRY(tsr_json_find(root, "rules", TSR_JSON_ARRAY, "", &list, r->err));
    if (!list) return TSR_OK;
    tsr_contract_rule *rules = tsr_arena_array(r->arena, (size_t)cJSON_GetArraySize(list), sizeof *rules, r->err);
    if (!rules) return TSR_E_NOMEM;
    out->rules = rules;
    cJSON_ArrayForEach(item, list)
    {
        TSR_TRY(read_rule(r, item, out->rule_count, &rules[out->rule_count]));
        out->rule_count++;
    }
    return TSR_OK;
}

/* ---- documents ---- */

static tsr_status read_layout(const contract_reader *r, const cJSON *root, tsr_contract *out)
{
    const cJSON *list, *item;
    size_t index = 0;
    TSR_TRY(tsr_json_get(root, "entries", TSR_JSON_ARRAY, "", &list, r->err));
    size_t count = (size_t)cJSON_GetArraySize(list);
    tsr_entry *entries = tsr_arena_array(r->arena, count, sizeof *entries, r->err);
    tsr_str *digests = entries ? tsr_arena_array(r->arena, count, sizeof *digests, r->err) : NULL;
    if (!digests) return TSR_E_NOMEM;
    cJSON_ArrayForEach(item, list)
    {
        TSR_TRY(read_entry(r, item, index, &entries[index]));
        TSR_TRY(read_digest(r, item, index, out, digests));
        index++;
    }
    out->called = "the layout";
    out->expected = (tsr_catalog){.entries = entries, .entry_count = count};
    return read_rules(r, root, out);
}

static tsr_status add_name(const contract_reader *r, tsr_vec *names, tsr_str name)
{
    tsr_entry *entry = tsr_vec_push(names, r->err);
    if (!entry) return TSR_E_NOMEM;
    entry->kind = TSR_ENTRY_TENSOR;
    entry->fqn = tsr_arena_str(r->arena, name, r->err);
    return entry->fqn.data ? TSR_OK : TSR_E_NOMEM;
}

/* Copies the entries gathered so far into the arena. */
static tsr_status take_entries(const contract_reader *r, const tsr_vec *list, const char *called, tsr_contract *out)
{
    tsr_entry *entries = tsr_arena_array(r->arena, list->count, sizeof *entries, r->err);
    if (!entries) return TSR_E_NOMEM;
    if (list->count) memcpy(entries, list->items, list->count * sizeof *entries);
    out->called = called;
    out->expected = (tsr_catalog){.entries = entries, .entry_count = list->count};
    return TSR_OK;
}

static tsr_status read_index(const contract_reader *r, const cJSON *map, tsr_vec *names, tsr_contract *out)
{
    const cJSON *item;
    TSR_TRY(tsr_json_expect(map, TSR_JSON_OBJECT, "weight_map", r->err));
    cJSON_ArrayForEach(item, map) TSR_TRY(add_name(r, names, tsr_json_key_of(item)));
    out->any_kind = true;
    return take_entries(r, names, "the index", out);
}

/* A module tree whose state is listed. */
typedef struct tree_list {
    const contract_reader *reader;
    const tsr_modules *modules;
    tsr_vec *list;
} tree_list;

/* Adds an entry under the name that state dicts have for `raw`. */
static tsr_status add_canonical(const tree_list *t, tsr_str raw, tsr_entry **out)
{
    tsr_name name;
    TSR_TRY(tsr_fqn_resolve(t->modules, raw, NULL, t->reader->arena, &name, t->reader->err));
    TSR_TRY(add_name(t->reader, t->list, name.fqns[0]));
    *out = &((tsr_entry *)t->list->items)[t->list->count - 1];
    return TSR_OK;
}

/* Adds an original of a flat parameter. `unit` is the raw name of the flat parameter's module, with a dot at its end. */
static tsr_status add_original(const tree_list *t, tsr_str unit, tsr_str fqn, const tsr_flat_original *original,
                               tsr_dtype dtype)
{
    tsr_entry *entry;
    const tsr_str raw = tsr_arena_format(t->reader->arena, t->reader->err, "%.*s%.*s", TSR_STR_ARG(unit), TSR_STR_ARG(fqn));
    if (!raw.data) return TSR_E_NOMEM;
    TSR_TRY(add_canonical(t, raw, &entry));
    entry->dtype = dtype;
    entry->ndim = original ? original->ndim : 0;
    entry->shape = original ? original->shape : NULL;
    return TSR_OK;
}

static tsr_status add_shared(const tree_list *t, tsr_str unit, const tsr_module_flat *flat, tsr_dtype dtype, tsr_map *seen)
{
    tsr_error *err = t->reader->err;
    for (size_t i = 0; i < flat->param_count; i++)
        TSR_TRY(tsr_map_put(seen, flat->params[i].fqn, (uint32_t)i, NULL, NULL, err));
    for (size_t i = 0; i < flat->shared_count; i++) {
        const uint32_t at = tsr_map_get(seen, flat->shared[i].of, UINT32_MAX);
        const tsr_flat_original *original = at == UINT32_MAX ? NULL : &flat->params[at];
        TSR_TRY(add_original(t, unit, flat->shared[i].fqn, original, original ? dtype : TSR_DTYPE_NONE));
    }
    return TSR_OK;
}

/* State dicts hold the originals of a flat parameter, tied ones under each of their names. */
static tsr_status add_originals(const tree_list *t, const tsr_state_item *item, const tsr_module_flat *flat)
{
    const tsr_str unit = {item->raw.data, item->raw.size - item->tensor->name.size};
    for (size_t i = 0; i < flat->param_count; i++)
        TSR_TRY(add_original(t, unit, flat->params[i].fqn, &flat->params[i], item->tensor->dtype));
    if (!flat->shared_count) return TSR_OK;
    tsr_map *seen = tsr_map_new(t->reader->host->allocator, flat->param_count, t->reader->err);
    const tsr_status status = seen ? add_shared(t, unit, flat, item->tensor->dtype, seen) : TSR_E_NOMEM;
    tsr_map_free(seen);
    return status;
}

static tsr_status add_item(const tree_list *t, const tsr_state_item *item)
{
    tsr_name name;
    tsr_entry *entry;
    TSR_TRY(tsr_fqn_resolve(t->modules, item->raw, NULL, t->reader->arena, &name, t->reader->err));
    if (name.flat && item->tensor) return add_originals(t, item, name.flat);
    TSR_TRY(add_canonical(t, item->raw, &entry));
    if (item->kind == TSR_STATE_EXTRA) entry->kind = TSR_ENTRY_OBJECT;
    if (!item->tensor) return TSR_OK;
    entry->ndim = item->tensor->ndim;
    entry->shape = item->tensor->shape;
    entry->dtype = item->tensor->dtype;
    return TSR_OK;
}

static tsr_status read_modules(const contract_reader *r, tsr_str text, tsr_vec *list, tsr_contract *out)
{
    tsr_modules_document document;
    tsr_modules *modules = NULL;
    tsr_state_item *items = NULL;
    size_t count = 0;
    tsr_status status = tsr_modules_parse(text, r->host, r->arena, &document, r->err);
    if (status == TSR_OK) status = tsr_modules_new(document.root, r->host, &modules, r->err);
    if (status == TSR_OK) status = tsr_fqn_state_keys(modules, r->host, r->arena, &items, &count, r->err);
    const tree_list tree = {r, modules, list};
    for (size_t i = 0; i < count && status == TSR_OK; i++) status = add_item(&tree, &items[i]);
    tsr_modules_free(modules);
    out->object_trees = true;
    return status == TSR_OK ? take_entries(r, list, "the module tree", out) : status;
}

/* `seen`: each name counts once, however often it is listed. */
static tsr_status read_lines(const contract_reader *r, tsr_str text, tsr_map *seen, tsr_vec *names)
{
    for (size_t at = 0; at < text.size;) {
        const char *end = memchr(text.data + at, '\n', text.size - at);
        tsr_str line = {text.data + at, end ? (size_t)(end - text.data) - at : text.size - at};
        at += line.size + 1;
        if (line.size && line.data[line.size - 1] == '\r') line.size--;
        TSR_FAIL_AT(memchr(line.data, 0, line.size), r->err, TSR_E_FORMAT, at - line.size - 1,
                    "expected a JSON document or a list of names, one per line; found a NUL character");
        bool is_new = line.size && line.data[0] != '#';
        if (is_new) TSR_TRY(tsr_map_put(seen, line, 0, NULL, &is_new, r->err));
        if (is_new) TSR_TRY(add_name(r, names, line));
    }
    return TSR_OK;
}

static tsr_status read_names(const contract_reader *r, tsr_str text, tsr_vec *names, tsr_contract *out)
{
    tsr_map *seen = tsr_map_new(r->host->allocator, 0, r->err);
    const tsr_status status = seen ? read_lines(r, text, seen, names) : TSR_E_NOMEM;
    tsr_map_free(seen);
    out->any_kind = true;
    return status == TSR_OK ? take_entries(r, names, "the list", out) : status;
}

static tsr_status read_json(const contract_reader *r, tsr_str text, const cJSON *root, tsr_vec *list, tsr_contract *out)
{
    const cJSON *schema, *map = cJSON_IsObject(root) ? cJSON_GetObjectItemCaseSensitive(root, "weight_map") : NULL;
    if (map) return read_index(r, map, list, out);
    TSR_TRY(tsr_json_get(root, "schema", TSR_JSON_STRING, "", &schema, r->err));
    const char *name = schema->valuestring;
    if (strcmp(name, "tessera.modules/1") == 0) return read_modules(r, text, list, out);
    TSR_FAIL_IF(strcmp(name, "tessera.layout/1") != 0 && strcmp(name, "tessera.manifest/1") != 0 &&
                    strcmp(name, "tessera.inspect/1") != 0,
                r->err, TSR_E_FORMAT,
                "layout: unexpected schema '%s'; expected tessera.layout/1, tessera.manifest/1 or tessera.modules/1", name);
    return read_layout(r, root, out);
}

static bool is_json(tsr_str text)
{
    size_t at = 0;
    while (at < text.size && strchr(" \t\r\n", text.data[at]) && text.data[at]) at++;
    return at < text.size && (text.data[at] == '{' || text.data[at] == '[');
}

tsr_status tsr_contract_read(tsr_str text, const tsr_host *host, tsr_arena *arena, tsr_contract *out, tsr_error *err)
{
    const contract_reader r = {host, arena, err};
    tsr_vec list = tsr_vec_of(host->allocator, sizeof(tsr_entry));
    cJSON *root = NULL;
    tsr_status status;
    *out = (tsr_contract){0};
    if (is_json(text)) {
        status = tsr_json_parse(text, host, &root, err);
        if (status == TSR_OK) status = read_json(&r, text, root, &list, out);
        cJSON_Delete(root);
    } else {
        status = read_names(&r, text, &list, out);
    }
    tsr_vec_free(&list);
    return status;
}
