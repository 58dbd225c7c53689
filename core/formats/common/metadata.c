/* See metadata.h. */
#include "formats/common/metadata.h"

#include "codec/json.h"
#include "formats/common/incomplete.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

#include <inttypes.h>

typedef struct common {
    tsr_text_pair pair; /* as the first list with this key has it */
    uint32_t lists;     /* that have the key */
    bool differs;       /* their values are not all equal */
} common;

static tsr_status add_pair(tsr_vec *found, tsr_map *numbers, const tsr_text_pair *pair, tsr_error *err)
{
    uint32_t *number;
    bool inserted;
    TSR_TRY(tsr_map_put(numbers, pair->key, (uint32_t)found->count, &number, &inserted, err));
    common *item = inserted ? tsr_vec_push(found, err) : (common *)found->items + *number;
    if (!item) return TSR_E_NOMEM;
    if (inserted) item->pair = *pair;
    item->lists++;
    item->differs = item->differs || !tsr_str_equal(item->pair.value, pair->value);
    return TSR_OK;
}

static tsr_status settle(tsr_checkpoint *checkpoint, const tsr_vec *found, uint32_t count, const char *what, tsr_error *err)
{
    const common *items = found->items;
    tsr_text_pair *kept = tsr_arena_array(checkpoint->arena, found->count, sizeof *kept, err);
    tsr_str *differing = tsr_arena_array(checkpoint->arena, found->count, sizeof *differing, err);
    size_t used = 0, left = 0;
    if (!kept || !differing) return TSR_E_NOMEM;
    for (size_t i = 0; i < found->count; i++) {
        if (items[i].lists == count && !items[i].differs) {
            kept[used++] = items[i].pair;
            continue;
        }
        differing[left++] = items[i].pair.key;
        TSR_TRY(tsr_finding_add(checkpoint->findings, "safetensors/metadata-differs", TSR_NOWHERE, err,
                                "the key '%.*s' of __metadata__ %s the %s", TSR_STR_ARG(items[i].pair.key),
                                items[i].differs ? "has different values in" : "is not in all of", what));
    }
    checkpoint->catalog.metadata = kept;
    checkpoint->catalog.metadata_count = used;
    checkpoint->catalog.differing_keys = differing;
    checkpoint->catalog.differing_count = left;
    return TSR_OK;
}

tsr_status tsr_metadata_join(tsr_checkpoint *checkpoint, const tsr_text_pairs *lists, uint32_t count, const char *what,
                             tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    tsr_vec found = tsr_vec_of(allocator, sizeof(common));
    tsr_map *numbers = tsr_map_new(allocator, 0, err);
    tsr_status status = numbers ? TSR_OK : TSR_E_NOMEM;
    for (uint32_t l = 0; l < count; l++)
        for (size_t i = 0; i < lists[l].count && status == TSR_OK; i++)
            status = add_pair(&found, numbers, &lists[l].pairs[i], err);
    if (status == TSR_OK) status = settle(checkpoint, &found, count, what, err);
    tsr_map_free(numbers);
    tsr_vec_free(&found);
    return status;
}

/* Reads index files, which say which file of the directory holds which tensor. The input is untrusted, so only bare file
 * names are accepted. */

static tsr_place in_index(const tsr_checkpoint *checkpoint, tsr_str fqn)
{
    return (tsr_place){checkpoint->store->files[checkpoint->files[0]].name, TSR_NO_POSITION, fqn};
}

static tsr_status check_bare(tsr_str key, tsr_str name, tsr_error *err)
{
    bool bare = name.size > 0 && !tsr_str_equal(name, TSR_STR(".")) && !tsr_str_equal(name, TSR_STR(".."));
    for (size_t i = 0; i < name.size; i++) bare = bare && name.data[i] != '/' && name.data[i] != '\\' && name.data[i] != ':';
    TSR_FAIL_IF(!bare, err, TSR_E_FORMAT,
                "index: weight_map places '%.*s' in '%.*s'; only the plain name of a file in the same directory is allowed",
                TSR_STR_ARG(key), TSR_STR_ARG(name));
    return TSR_OK;
}

tsr_str tsr_weight_file_name(tsr_str value)
{
    return tsr_str_starts(value, TSR_STR("./")) ? tsr_str_after(value, 2) : value;
}

typedef struct reader {
    tsr_checkpoint *checkpoint;
    tsr_map *names; /* file name → its number in `seen` */
    tsr_vec seen;   /* of tsr_weight: file_name and file */
    tsr_error *err;
} reader;

/* Looks each file name up in the store only once, however many tensors the file has. */
static tsr_status find_file(reader *r, tsr_weight *weight)
{
    uint32_t *number;
    bool inserted;
    TSR_TRY(tsr_map_put(r->names, weight->file_name, (uint32_t)r->seen.count, &number, &inserted, r->err));
    if (!inserted) {
        const tsr_weight *seen = (const tsr_weight *)r->seen.items + *number;
        weight->file_name = seen->file_name;
        weight->file = seen->file;
        return TSR_OK;
    }
    tsr_checkpoint *checkpoint = r->checkpoint;
    TSR_TRY(check_bare(weight->key, weight->file_name, r->err));
    weight->file = tsr_store_find(checkpoint->store, weight->file_name);
    weight->file_name = tsr_arena_str(checkpoint->arena, weight->file_name, r->err);
    tsr_weight *seen = tsr_vec_push(&r->seen, r->err);
    if (!weight->file_name.data || !seen) return TSR_E_NOMEM;
    *seen = *weight;
    if (weight->file != TSR_NO_FILE) return TSR_OK;
    TSR_TRY(tsr_checkpoint_lacks(checkpoint, weight->file_name, r->err));
    return tsr_finding_add(checkpoint->findings, "index/missing-file", in_index(checkpoint, (tsr_str){NULL, 0}), r->err,
                           "'%.*s' is named in the index but missing", TSR_STR_ARG(weight->file_name));
}

static tsr_status read_weights(reader *r, const cJSON *object, tsr_weight_map *out)
{
    const size_t count = tsr_json_count(object);
    char where[160];
    tsr_weight *weights = tsr_arena_array(r->checkpoint->arena, count, sizeof *weights, r->err);
    if (!weights) return TSR_E_NOMEM;
    out->weights = weights;
    out->count = count;
    for (const cJSON *member = object->child; member; member = member->next, weights++) {
        size_t shown = strlen(member->string) < 128 ? strlen(member->string) : 0;
        memcpy(where, "weight_map.", 11);
        memcpy(where + 11, member->string, shown);
        where[11 + shown] = 0;
        TSR_TRY(tsr_json_expect(member, TSR_JSON_STRING, where, r->err));
        weights->key = tsr_arena_str(r->checkpoint->arena, tsr_json_key_of(member), r->err);
        if (!weights->key.data) return TSR_E_NOMEM;
        weights->file_name = tsr_weight_file_name(tsr_json_text_of(member));
        TSR_TRY(find_file(r, weights));
    }
    return TSR_OK;
}

static tsr_status keep_files(reader *r, tsr_weight_map *out)
{
    const tsr_weight *seen = r->seen.items;
    uint32_t *files = tsr_arena_array(r->checkpoint->arena, r->seen.count, sizeof *files, r->err);
    if (!files) return TSR_E_NOMEM;
    for (size_t i = 0; i < r->seen.count; i++)
        if (seen[i].file != TSR_NO_FILE) files[out->file_count++] = seen[i].file;
    out->files = r->checkpoint->listed = files;
    r->checkpoint->listed_count = out->file_count;
    return TSR_OK;
}

static tsr_status read_texts(reader *r, const cJSON *metadata, tsr_weight_map *out)
{
    tsr_text_pair *pairs = tsr_arena_array(r->checkpoint->arena, tsr_json_count(metadata), sizeof *pairs, r->err);
    if (!pairs) return TSR_E_NOMEM;
    out->texts.pairs = pairs;
    for (const cJSON *member = metadata->child; member; member = member->next) {
        if (!cJSON_IsString(member)) continue;
        tsr_text_pair *pair = &pairs[out->texts.count++];
        pair->key = tsr_arena_str(r->checkpoint->arena, tsr_json_key_of(member), r->err);
        pair->value = tsr_arena_str(r->checkpoint->arena, tsr_json_text_of(member), r->err);
        if (!pair->key.data || !pair->value.data) return TSR_E_NOMEM;
    }
    return TSR_OK;
}

static tsr_status read_total(reader *r, const cJSON *root, tsr_weight_map *out)
{
    const cJSON *metadata;
    TSR_TRY(tsr_json_find(root, "metadata", TSR_JSON_OBJECT, "", &metadata, r->err));
    if (metadata) TSR_TRY(read_texts(r, metadata, out));
    const cJSON *total = metadata ? cJSON_GetObjectItemCaseSensitive(metadata, "total_size") : NULL;
    if (!total) return TSR_OK;
    out->has_total_size = tsr_json_to_u64(total, "metadata.total_size", &out->total_size, NULL) == TSR_OK;
    if (out->has_total_size) return TSR_OK;
    return tsr_finding_add(r->checkpoint->findings, "index/total-size", in_index(r->checkpoint, (tsr_str){NULL, 0}), r->err,
                           "metadata.total_size is not a number of bytes");
}

/* Rejects an index that names no tensor although there are files that may hold some: it would be opened as an empty
 * checkpoint. */
static tsr_status refuse_empty(const reader *r)
{
    const tsr_store *store = r->checkpoint->store;
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_str name = store->files[f].name;
        const bool shard = tsr_str_ends(name, TSR_STR(".safetensors")) || tsr_str_ends(name, TSR_STR(".bin"));
        TSR_FAIL_IF(shard && !memchr(name.data, '/', name.size), r->err, TSR_E_FORMAT,
                    "index: weight_map does not name any tensor, although '%.*s' exists", TSR_STR_ARG(name));
    }
    return TSR_OK;
}

static tsr_status read_document(reader *r, const cJSON *root, tsr_weight_map *out)
{
    const cJSON *weights;
    TSR_TRY(tsr_json_get(root, "weight_map", TSR_JSON_OBJECT, "", &weights, r->err));
    TSR_TRY(read_total(r, root, out));
    if (!weights->child) TSR_TRY(refuse_empty(r));
    TSR_TRY(read_weights(r, weights, out));
    return keep_files(r, out);
}

tsr_status tsr_weight_map_read(tsr_checkpoint *checkpoint, tsr_weight_map *out, tsr_error *err)
{
    const tsr_host *host = checkpoint->host;
    uint32_t file = checkpoint->files[0];
    tsr_bytes text;
    cJSON *root;
    *out = (tsr_weight_map){0};
    TSR_TRY(tsr_range_load(tsr_whole_file(checkpoint->store, file), host, &text, err));
    tsr_status status = tsr_json_parse(text.data, host, &root, err);
    tsr_bytes_free(&text);
    if (status == TSR_OK) {
        reader r = {.checkpoint = checkpoint, .err = err, .seen = tsr_vec_of(host->allocator, sizeof(tsr_weight))};
        r.names = tsr_map_new(host->allocator, 0, err);
        status = r.names ? read_document(&r, root, out) : TSR_E_NOMEM;
        tsr_map_free(r.names);
        tsr_vec_free(&r.seen);
        cJSON_Delete(root);
    }
    if (status != TSR_OK) tsr_error_context(err, "%.*s", TSR_STR_ARG(checkpoint->store->files[file].name));
    return status;
}

tsr_status tsr_weight_map_check_total(tsr_checkpoint *checkpoint, const tsr_weight_map *map, uint64_t bytes, tsr_error *err)
{
    if (!map->has_total_size || map->total_size == bytes) return TSR_OK;
    return tsr_finding_add(checkpoint->findings, "index/total-size", in_index(checkpoint, (tsr_str){NULL, 0}), err,
                           "metadata.total_size is %" PRIu64 ", but the tensors have %" PRIu64 " bytes", map->total_size,
                           bytes);
}

tsr_status tsr_weight_map_check_stray(tsr_checkpoint *checkpoint, const tsr_weight_map *map, tsr_str ending, tsr_error *err)
{
    const tsr_store *store = checkpoint->store;
    bool *named = tsr_alloc(checkpoint->host->allocator, store->file_count, sizeof *named, err);
    if (!named) return TSR_E_NOMEM;
    memset(named, 0, store->file_count * sizeof *named);
    for (uint32_t i = 0; i < map->file_count; i++) named[map->files[i]] = true;
    const tsr_str index = store->files[checkpoint->files[0]].name;
    tsr_status status = TSR_OK;
    for (uint32_t f = 0; f < store->file_count && status == TSR_OK; f++) {
        tsr_str name = store->files[f].name;
        if (named[f] || !tsr_str_ends(name, ending) || memchr(name.data, '/', name.size)) continue;
        const bool is_whole = index.size == name.size + strlen(TSR_INDEX_ENDING) && tsr_str_starts(index, name) &&
                              (tsr_str_starts(name, TSR_STR("model.")) || tsr_str_starts(name, TSR_STR("pytorch_model.")));
        status = tsr_finding_add(
            checkpoint->findings, "index/unreferenced-file", (tsr_place){name, TSR_NO_POSITION, {NULL, 0}}, err,
            "'%.*s' is not named in the index%s", TSR_STR_ARG(name),
            is_whole ? ", but transformers loads it instead of the files that are; remove the one that is out of date" : "");
    }
    tsr_free(checkpoint->host->allocator, named, store->file_count, sizeof *named);
    return status;
}
