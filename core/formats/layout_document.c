/* Reads a tessera.layout/1 document, the contract that a checkpoint is checked against, into a catalog without files. */
#include "base/line.h"
#include "base/try.h"
#include "codec/json.h"
#include "tessera/box.h"
#include "tessera/document_read.h"

typedef struct layout_reader {
    const tsr_host *host;
    tsr_arena *arena;
    tsr_error *err;
} layout_reader;

static tsr_status copy_text(const layout_reader *r, const cJSON *item, tsr_str *out)
{
    *out = tsr_arena_str(r->arena, tsr_json_text_of(item), r->err);
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status read_numbers(const layout_reader *r, const cJSON *object, const char *key, const char *where,
                               const uint64_t **out, uint32_t *count)
{
    const cJSON *array, *item;
    TSR_TRY(tsr_json_get(object, key, TSR_JSON_ARRAY, where, &array, r->err));
    int size = cJSON_GetArraySize(array);
    TSR_FAIL_IF(size > (int)TSR_MAX_RANK, r->err, TSR_E_LIMIT, TSR_NO_POSITION, "layout: %d dimensions at %s; at most %u",
                size, where, TSR_MAX_RANK);
    uint64_t *numbers = tsr_arena_array(r->arena, (size_t)size, sizeof *numbers, r->err);
    if (!numbers) return TSR_E_NOMEM;
    *out = numbers;
    *count = (uint32_t)size;
    cJSON_ArrayForEach(item, array) TSR_TRY(tsr_json_to_u64(item, where, numbers++, r->err));
    return TSR_OK;
}

static tsr_status read_chunk(const layout_reader *r, const cJSON *item, const char *where, uint32_t rank, tsr_chunk *chunk)
{
    uint32_t offsets, sizes;
    TSR_TRY(tsr_json_expect(item, TSR_JSON_OBJECT, where, r->err));
    TSR_TRY(read_numbers(r, item, "offsets", where, &chunk->offsets, &offsets));
    TSR_TRY(read_numbers(r, item, "sizes", where, &chunk->sizes, &sizes));
    TSR_FAIL_IF(offsets != rank || sizes != rank, r->err, TSR_E_FORMAT, TSR_NO_POSITION,
                "layout: a chunk with %u offsets and %u sizes at %s; the shape has %u dimensions", offsets, sizes, where,
                rank);
    chunk->file = TSR_NO_FILE;
    return TSR_OK;
}

static tsr_status read_chunks(const layout_reader *r, const cJSON *array, const char *where, tsr_entry *entry)
{
    const cJSON *item;
    size_t count = (size_t)cJSON_GetArraySize(array);
    tsr_chunk *chunks = tsr_arena_array(r->arena, count, sizeof *chunks, r->err);
    if (!chunks) return TSR_E_NOMEM;
    entry->chunks = chunks;
    entry->chunk_count = count;
    cJSON_ArrayForEach(item, array) TSR_TRY(read_chunk(r, item, where, entry->rank, chunks++));
    return TSR_OK;
}

static tsr_status read_kind(const layout_reader *r, const cJSON *item, const char *where, tsr_entry *entry)
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
    return tsr_raise(r->err, TSR_E_FORMAT, TSR_NO_POSITION, "layout: kind '%s' at %s; it is tensor, object or opaque",
                     kind->valuestring, where);
}

static tsr_status read_entry(const layout_reader *r, const cJSON *item, size_t index, tsr_entry *entry)
{
    char where[64];
    tsr_line place = tsr_line_on(where, sizeof where);
    const cJSON *text, *chunks;
    tsr_line_format(&place, "entries[%zu]", index);
    TSR_TRY(tsr_json_expect(item, TSR_JSON_OBJECT, where, r->err));
    TSR_TRY(tsr_json_get(item, "fqn", TSR_JSON_STRING, where, &text, r->err));
    TSR_TRY(copy_text(r, text, &entry->fqn));
    TSR_TRY(read_kind(r, item, where, entry));
    if (entry->kind != TSR_ENTRY_TENSOR) {
        TSR_TRY(tsr_json_find(item, "type", TSR_JSON_STRING, where, &text, r->err));
        return text ? copy_text(r, text, &entry->type) : TSR_OK;
    }
    TSR_TRY(tsr_json_get(item, "dtype", TSR_JSON_STRING, where, &text, r->err));
    entry->dtype = tsr_dtype_from_name(tsr_json_text_of(text));
    TSR_FAIL_IF(entry->dtype == TSR_DTYPE_NONE, r->err, TSR_E_FORMAT, TSR_NO_POSITION, "layout: unknown dtype '%s' at %s",
                text->valuestring, where);
    TSR_TRY(read_numbers(r, item, "shape", where, &entry->shape, &entry->rank));
    TSR_TRY(tsr_json_find(item, "chunks", TSR_JSON_ARRAY, where, &chunks, r->err));
    return chunks ? read_chunks(r, chunks, where, entry) : TSR_OK;
}

static tsr_status read_document(const layout_reader *r, const cJSON *root, tsr_catalog *out)
{
    const cJSON *schema, *list, *item;
    size_t index = 0;
    TSR_TRY(tsr_json_get(root, "schema", TSR_JSON_STRING, "", &schema, r->err));
    TSR_FAIL_IF(
        strcmp(schema->valuestring, "tessera.layout/1") != 0 && strcmp(schema->valuestring, "tessera.inspect/1") != 0,
        r->err, TSR_E_FORMAT, TSR_NO_POSITION, "layout: schema '%s'; it must be tessera.layout/1", schema->valuestring);
    TSR_TRY(tsr_json_get(root, "entries", TSR_JSON_ARRAY, "", &list, r->err));
    size_t count = (size_t)cJSON_GetArraySize(list);
    tsr_entry *entries = tsr_arena_array(r->arena, count, sizeof *entries, r->err);
    if (!entries) return TSR_E_NOMEM;
    cJSON_ArrayForEach(item, list)
    {
        TSR_TRY(read_entry(r, item, index, &entries[index]));
        index++;
    }
    *out = (tsr_catalog){.entries = entries, .entry_count = count};
    return TSR_OK;
}

tsr_status tsr_layout_read(tsr_str json_text, const tsr_host *host, tsr_arena *arena, tsr_catalog *out, tsr_error *err)
{
    const layout_reader r = {host, arena, err};
    cJSON *root;
    TSR_TRY(tsr_json_parse(json_text, host, &root, err));
    tsr_status status = read_document(&r, root, out);
    cJSON_Delete(root);
    return status;
}
