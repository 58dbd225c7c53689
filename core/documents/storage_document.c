/* tessera.storage/1: describes the servers of a parallel file system, and how its files are distributed over them. */
#include "base/line.h"
#include "codec/json.h"
#include "documents/document_parts.h"
#include "tessera/sys/try.h"

#include "tessera/sys/containers.h"

#define MOST_SERVERS ((uint64_t)65536)
#define MOST_STRIPE  ((uint64_t)1 << 40)
#define USUAL_STRIPE ((uint64_t)1 << 20)

typedef struct storage_reader {
    tsr_arena *arena;
    tsr_error *err;
    tsr_storage_text *out;
} storage_reader;

/* ---- numbers ---- */

/* Reads a whole number within `bounds`. *out is unchanged if the member is absent. */
static tsr_status read_count(const storage_reader *r, const cJSON *object, const char *key, const char *where,
                             const uint64_t *bounds, uint64_t *out)
{
    const cJSON *item;
    TSR_TRY(tsr_json_find(object, key, TSR_JSON_NUMBER, where, &item, r->err));
    if (!item) return TSR_OK;
    TSR_TRY(tsr_json_to_u64(item, key, out, r->err));
    TSR_FAIL_IF(*out < bounds[0] || *out > bounds[1], r->err, TSR_E_FORMAT,
                "storage: %s%s%s is %llu; expected a number from %llu to %llu", where, *where ? "." : "", key,
                (unsigned long long)*out, (unsigned long long)bounds[0], (unsigned long long)bounds[1]);
    return TSR_OK;
}

/* Reads a rate or a duration. */
static tsr_status read_amount(const storage_reader *r, const cJSON *object, const char *key, const char *where, double *out)
{
    const cJSON *item;
    TSR_TRY(tsr_json_find(object, key, TSR_JSON_NUMBER, where, &item, r->err));
    if (!item) return TSR_OK;
    *out = item->valuedouble;
    const bool rate = key[0] == 'b';
    TSR_FAIL_IF(!(rate ? *out >= 1 : *out >= 0) || *out > 1e18, r->err, TSR_E_FORMAT, "storage: %s%s%s must be %s", where,
                *where ? "." : "", key, rate ? "at least 1 byte per second" : "at least 0 seconds");
    return TSR_OK;
}

/* ---- servers ---- */

static tsr_status read_server(const storage_reader *r, const cJSON *item, uint32_t number, tsr_storage_server *server)
{
    char where[32];
    tsr_line place = tsr_line_on(where, sizeof where);
    const cJSON *name = NULL;
    tsr_line_format(&place, "servers[%u]", (unsigned)number);
    if (item) {
        TSR_TRY(tsr_json_expect(item, TSR_JSON_OBJECT, where, r->err));
        TSR_TRY(tsr_json_find(item, "name", TSR_JSON_STRING, where, &name, r->err));
        TSR_TRY(read_amount(r, item, "bandwidth", where, &server->bandwidth));
        TSR_TRY(read_amount(r, item, "latency", where, &server->latency));
    }
    server->name = name ? tsr_arena_str(r->arena, tsr_json_text_of(name), r->err)
                        : tsr_arena_format(r->arena, r->err, "%u", (unsigned)number);
    if (!server->name.data) return TSR_E_NOMEM;
    TSR_FAIL_IF(server->bandwidth == 0, r->err, TSR_E_FORMAT,
                "storage: %s has no bandwidth; state it there or for all servers, in bytes per second", where);
    return TSR_OK;
}

/* Reads "servers": their number, or a list of {name, bandwidth, latency}. */
static tsr_status read_servers(const storage_reader *r, const cJSON *root)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "servers");
    const bool is_list = cJSON_IsArray(list);
    tsr_storage_server usual = {.bandwidth = 0};
    uint64_t count = is_list ? (uint64_t)cJSON_GetArraySize(list) : 0;
    if (!is_list) TSR_TRY(tsr_json_get(root, "servers", TSR_JSON_NUMBER, "", &list, r->err));
    if (!is_list) TSR_TRY(tsr_json_to_u64(list, "servers", &count, r->err));
    TSR_FAIL_IF(count < 1 || count > MOST_SERVERS, r->err, TSR_E_FORMAT, "storage: %llu servers; expected 1 to %llu",
                (unsigned long long)count, (unsigned long long)MOST_SERVERS);
    TSR_TRY(read_amount(r, root, "bandwidth", "", &usual.bandwidth));
    TSR_TRY(read_amount(r, root, "latency", "", &usual.latency));
    tsr_storage_server *servers = tsr_arena_array(r->arena, count, sizeof *servers, r->err);
    if (!servers) return TSR_E_NOMEM;
    const cJSON *item = is_list ? list->child : NULL;
    for (uint32_t i = 0; i < count; i++, item = item ? item->next : NULL) {
        servers[i] = usual;
        TSR_TRY(read_server(r, item, i, &servers[i]));
    }
    r->out->servers = servers;
    r->out->server_count = (uint32_t)count;
    return TSR_OK;
}

/* ---- stripes ---- */

static tsr_status read_list(const storage_reader *r, const cJSON *list, const char *where, tsr_striping *s)
{
    const cJSON *item;
    const int count = cJSON_GetArraySize(list);
    uint32_t *servers = tsr_arena_array(r->arena, (size_t)count, sizeof *servers, r->err);
    if (!servers) return TSR_E_NOMEM;
    TSR_FAIL_IF(!count, r->err, TSR_E_FORMAT, "storage: %s.servers is empty", where);
    s->stripe_count = 0;
    cJSON_ArrayForEach(item, list)
    {
        uint64_t server;
        TSR_TRY(tsr_json_to_u64(item, where, &server, r->err));
        TSR_FAIL_IF(server >= r->out->server_count, r->err, TSR_E_FORMAT,
                    "storage: %s.servers lists server %llu, but there are %u, counted from 0", where,
                    (unsigned long long)server, (unsigned)r->out->server_count);
        servers[s->stripe_count++] = (uint32_t)server;
    }
    s->servers = servers;
    return TSR_OK;
}

static tsr_status read_striping(const storage_reader *r, const cJSON *object, const char *where, tsr_striping *s)
{
    const uint64_t servers = r->out->server_count, sizes[] = {1, MOST_STRIPE}, counts[] = {1, servers};
    uint64_t count = s->stripe_count;
    TSR_TRY(read_count(r, object, "stripe_size", where, sizes, &s->stripe_size));
    TSR_TRY(read_count(r, object, "stripe_count", where, counts, &count));
    s->stripe_count = (uint32_t)count;
    return TSR_OK;
}

/* Reads {"file": NAME, "first": 3} or {"file": NAME, "servers": [3, 7, 1]}, with stripe_size and stripe_count if they differ
 * from the usual ones. */
static tsr_status read_file(const storage_reader *r, const cJSON *item, const char *where, tsr_storage_file *file)
{
    const cJSON *name, *list, *first, *stripes;
    const uint64_t numbers[] = {0, r->out->server_count - 1};
    uint64_t begin = 0;
    file->striping = r->out->usual;
    TSR_TRY(tsr_json_expect(item, TSR_JSON_OBJECT, where, r->err));
    TSR_TRY(tsr_json_get(item, "file", TSR_JSON_STRING, where, &name, r->err));
    TSR_TRY(tsr_json_find(item, "first", TSR_JSON_NUMBER, where, &first, r->err));
    TSR_TRY(tsr_json_find(item, "servers", TSR_JSON_ARRAY, where, &list, r->err));
    TSR_TRY(tsr_json_find(item, "stripe_count", TSR_JSON_NUMBER, where, &stripes, r->err));
    TSR_FAIL_IF(!first == !list, r->err, TSR_E_FORMAT,
                "storage: %s must have either `first`, the server of its first stripe, or a list of `servers`", where);
    TSR_FAIL_IF(list && stripes, r->err, TSR_E_FORMAT,
                "storage: %s has both `servers` and `stripe_count`; the length of the list is the count", where);
    TSR_TRY(read_striping(r, item, where, &file->striping));
    TSR_TRY(read_count(r, item, "first", where, numbers, &begin));
    file->striping.first = (uint32_t)begin;
    file->name = tsr_arena_str(r->arena, tsr_json_text_of(name), r->err);
    if (!file->name.data) return TSR_E_NOMEM;
    return list ? read_list(r, list, where, &file->striping) : TSR_OK;
}

static tsr_status read_files(const storage_reader *r, const cJSON *root)
{
    const cJSON *list, *item;
    TSR_TRY(tsr_json_find(root, "files", TSR_JSON_ARRAY, "", &list, r->err));
    if (!list) return TSR_OK;
    tsr_storage_file *files = tsr_arena_array(r->arena, (size_t)cJSON_GetArraySize(list), sizeof *files, r->err);
    if (!files) return TSR_E_NOMEM;
    r->out->files = files;
    cJSON_ArrayForEach(item, list)
    {
        char where[32];
        tsr_line place = tsr_line_on(where, sizeof where);
        tsr_line_format(&place, "files[%u]", (unsigned)r->out->file_count);
        TSR_TRY(read_file(r, item, where, &files[r->out->file_count++]));
    }
    return TSR_OK;
}

tsr_status tsr_storage_text_of(const cJSON *root, tsr_arena *arena, tsr_storage_text *out, tsr_error *err)
{
    const storage_reader r = {arena, err, out};
    const cJSON *schema;
    *out = (tsr_storage_text){.usual = {.stripe_size = USUAL_STRIPE, .stripe_count = 1}};
    TSR_TRY(tsr_json_get(root, "schema", TSR_JSON_STRING, "", &schema, err));
    TSR_FAIL_IF(strcmp(schema->valuestring, "tessera.storage/1") != 0, err, TSR_E_FORMAT,
                "storage: unexpected schema '%s'; expected tessera.storage/1", schema->valuestring);
    TSR_TRY(read_servers(&r, root));
    TSR_TRY(read_striping(&r, root, "", &out->usual));
    return read_files(&r, root);
}

tsr_status tsr_storage_read(tsr_str json_text, const tsr_host *host, tsr_arena *arena, tsr_storage_text *out, tsr_error *err)
{
    cJSON *root;
    TSR_TRY(tsr_json_parse(json_text, host, &root, err));
    const tsr_status status = tsr_storage_text_of(root, arena, out, err);
    cJSON_Delete(root);
    return status;
}

/* ---- writing ---- */

static void put_file(tsr_json *json, const tsr_storage_file *file)
{
    const tsr_striping *s = &file->striping;
    tsr_json_object(json);
    tsr_json_put_str(json, "file", file->name);
    if (s->servers) {
        tsr_json_put_array(json, "servers");
        for (uint32_t i = 0; i < s->stripe_count; i++) tsr_json_uint(json, s->servers[i]);
        tsr_json_array_end(json);
    } else {
        tsr_json_put_uint(json, "first", s->first);
        tsr_json_put_uint(json, "stripe_count", s->stripe_count);
    }
    tsr_json_put_uint(json, "stripe_size", s->stripe_size);
    tsr_json_object_end(json);
}

void tsr_storage_write(tsr_json *json, const tsr_storage_text *text)
{
    tsr_json_object(json);
    tsr_json_put_text(json, "schema", "tessera.storage/1");
    tsr_json_put_array(json, "servers");
    for (uint32_t i = 0; i < text->server_count; i++) {
        tsr_json_object(json);
        tsr_json_put_str(json, "name", text->servers[i].name);
        tsr_json_put_double(json, "bandwidth", text->servers[i].bandwidth);
        tsr_json_put_double(json, "latency", text->servers[i].latency);
        tsr_json_object_end(json);
    }
    tsr_json_array_end(json);
    tsr_json_put_uint(json, "stripe_size", text->usual.stripe_size);
    tsr_json_put_uint(json, "stripe_count", text->usual.stripe_count);
    tsr_json_put_array(json, "files");
    for (uint32_t i = 0; i < text->file_count; i++) put_file(json, &text->files[i]);
    tsr_json_array_end(json);
    tsr_json_object_end(json);
}

/* ---- the files of a store ---- */

static tsr_status index_names(const tsr_storage_text *text, tsr_map *map, tsr_error *err)
{
    for (uint32_t i = 0; i < text->file_count; i++) {
        uint32_t *existing = NULL;
        bool inserted = true;
        TSR_TRY(tsr_map_put(map, text->files[i].name, i, &existing, &inserted, err));
        TSR_FAIL_IF(!inserted, err, TSR_E_FORMAT, "storage: files lists '%.*s' twice", TSR_STR_ARG(text->files[i].name));
    }
    return TSR_OK;
}

static tsr_status place_files(const tsr_storage_text *text, const tsr_store *store, const tsr_map *map, tsr_storage *out,
                              tsr_error *err)
{
    tsr_striping *files = (tsr_striping *)out->files;
    uint32_t assumed = 0;
    for (uint32_t f = 0; f < store->file_count; f++) {
        const uint32_t listed = tsr_map_get(map, store->files[f].name, UINT32_MAX);
        files[f] = listed == UINT32_MAX ? text->usual : text->files[listed].striping;
        files[f].assumed = listed == UINT32_MAX;
        if (files[f].assumed) files[f].first = assumed++ % out->server_count;
    }
    TSR_FAIL_IF(text->file_count && assumed == store->file_count, err, TSR_E_USAGE,
                "storage: none of the %u files that it lists is in the checkpoint (the first is '%.*s'); name them as "
                "`tessera plan --json` does",
                (unsigned)text->file_count, TSR_STR_ARG(text->files[0].name));
    return TSR_OK;
}

tsr_status tsr_storage_of(const tsr_storage_text *text, const tsr_store *store, const tsr_host *host, tsr_arena *arena,
                          tsr_storage *out, tsr_error *err)
{
    *out = (tsr_storage){.servers = text->servers, .server_count = text->server_count, .file_count = store->file_count};
    for (uint32_t i = 0; i < text->server_count; i++)
        out->fastest = text->servers[i].bandwidth > out->fastest ? text->servers[i].bandwidth : out->fastest;
    out->files = tsr_arena_array(arena, store->file_count, sizeof *out->files, err);
    tsr_map *map = out->files ? tsr_map_new(host->allocator, text->file_count, err) : NULL;
    tsr_status status = map ? index_names(text, map, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = place_files(text, store, map, out, err);
    tsr_map_free(map);
    return status;
}
