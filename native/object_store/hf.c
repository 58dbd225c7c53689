/* See service.h. Source: the Hub's API as huggingface_hub uses it. */
#include "object_store/service.h"

#include <cjson/cJSON.h>
#include <stdio.h>

#include "io/transport.h"
#include "object_store/exchange.h"
#include "tessera/sys/try.h"

enum { MOST_PAGE = 16 << 20, MOST_TOKEN = 512 };

typedef struct hf {
    tsr_service base; /* must be first */
    const char *endpoint;
    const char *repository; /* "datasets/ORG/REPO" for a data set, otherwise "ORG/REPO" */
    const char *api;        /* "https://huggingface.co/api/models/ORG/REPO" */
    const char *commit;
    const char *token; /* NULL: there is none */
} hf;

static tsr_status prepare(tsr_service *base, tsr_exchange *x, tsr_error *err)
{
    const hf *service = (hf *)base;
    x->transfer.url = x->request->url;
    if (!x->transfer.url) {
        const tsr_str key = tsr_url_encode(x->arena, x->request->key, true, err);
        if (!key.data) return TSR_E_NOMEM;
        x->transfer.url = tsr_arena_format(x->arena, err, "%s/%s/resolve/%s/%.*s", service->endpoint, service->repository,
                                           service->commit, TSR_STR_ARG(key))
                              .data;
        if (!x->transfer.url) return TSR_E_NOMEM;
    }
    if (!service->token) return TSR_OK;
    const tsr_str bearer = tsr_arena_format(x->arena, err, "Bearer %s", service->token);
    return bearer.data ? tsr_exchange_header(x, "Authorization", bearer.data, err) : TSR_E_NOMEM;
}

/* ---- listing ---- */

static tsr_status add_file(const cJSON *item, tsr_object_list *out, tsr_error *err)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(item, "type"),
                *path = cJSON_GetObjectItemCaseSensitive(item, "path"),
                *size = cJSON_GetObjectItemCaseSensitive(item, "size"), *id = cJSON_GetObjectItemCaseSensitive(item, "oid"),
                *lfs = cJSON_GetObjectItemCaseSensitive(item, "lfs");
    if (!cJSON_IsString(type) || strcmp(type->valuestring, "file") != 0) return TSR_OK; /* a directory */
    if (lfs && cJSON_IsString(cJSON_GetObjectItemCaseSensitive(lfs, "oid")))
        id = cJSON_GetObjectItemCaseSensitive(lfs, "oid");
    TSR_FAIL_IF(!cJSON_IsString(path) || !cJSON_IsNumber(size) || size->valuedouble < 0 ||
                    size->valuedouble > 9007199254740992.0,
                err, TSR_E_FORMAT, "the hub lists a file without a path or a size");
    const tsr_object object = {.key = tsr_arena_str(out->arena, tsr_str_from(path->valuestring), err),
                               .size = (uint64_t)size->valuedouble,
                               .version =
                                   tsr_arena_str(out->arena, tsr_str_from(cJSON_IsString(id) ? id->valuestring : ""), err)};
    return object.key.data && object.version.data ? tsr_object_list_add(out, object, err) : TSR_E_NOMEM;
}

static tsr_status read_page(tsr_str page, tsr_object_list *out, tsr_error *err)
{
    cJSON *root = cJSON_ParseWithLength(page.data, page.size);
    const cJSON *item;
    tsr_status status = cJSON_IsArray(root) ? TSR_OK : tsr_fail(err, TSR_E_FORMAT, "the hub's listing is not a JSON array");
    cJSON_ArrayForEach(item, root)
    {
        if (status == TSR_OK) status = add_file(item, out, err);
    }
    cJSON_Delete(root);
    return status;
}

/* Replaces *url by the target of `<URL>; rel="next"`, or by NULL after the last page. The target must be on the same server,
 * because the token is sent there. */
static tsr_status next_page(const hf *service, const char *link, tsr_arena *arena, const char **url, tsr_error *err)
{
    const char *asked = *url, *open = link ? strchr(link, '<') : NULL, *close = open ? strchr(open, '>') : NULL;
    *url = NULL;
    if (!close || !strstr(close, "rel=\"next\"")) return TSR_OK;
    const char *next = tsr_arena_str(arena, (tsr_str){open + 1, (size_t)(close - open - 1)}, err).data;
    if (!next) return TSR_E_NOMEM;
    TSR_FAIL_IF(!tsr_http_same_origin(next, service->endpoint), err, TSR_E_FORMAT,
                "%s: the listing continues on a server other than %s", service->base.shown, service->endpoint);
    TSR_FAIL_IF(strcmp(next, asked) == 0, err, TSR_E_FORMAT, "%s: the server's listing does not advance",
                service->base.shown);
    *url = next;
    return TSR_OK;
}

static tsr_status list_directory(hf *service, tsr_str directory, bool recursive, tsr_object_list *out, tsr_error *err)
{
    const tsr_str path = tsr_url_encode(out->arena, directory, false, err);
    const tsr_str first =
        tsr_arena_format(out->arena, err, "%s/tree/%s%s%.*s?recursive=%s&expand=false", service->api, service->commit,
                         path.size ? "/" : "", TSR_STR_ARG(path), recursive ? "true" : "false");
    const char *url = first.data;
    tsr_status status = url ? TSR_OK : TSR_E_NOMEM;
    while (url && status == TSR_OK) {
        tsr_exchange x;
        tsr_str page;
        status = tsr_exchange_text(&service->base, (tsr_request){.url = url, .key = directory, .on_bucket = !directory.size},
                                   MOST_PAGE, &x, &page, err);
        if (status == TSR_OK) status = read_page(page, out, err);
        if (status == TSR_OK) status = next_page(service, x.transfer.link, out->arena, &url, err);
        tsr_exchange_end(&x);
    }
    return status;
}

/* Lists all pages, because the hub's token is the address of the next page. */
static tsr_status list_pages(tsr_service *base, tsr_str prefix, bool flat, tsr_object_list *out, tsr_str *next,
                             tsr_error *err)
{
    (void)next;                     /* stays empty */
    if (prefix.size) prefix.size--; /* without the slash at its end */
    const tsr_status status = list_directory((hf *)base, prefix, flat, out, err);
    if (status != TSR_E_NOT_FOUND) return status;
    *err = (tsr_error){0}; /* there are no files below it */
    return TSR_OK;
}

static tsr_status stat_file(tsr_service *base, tsr_str key, tsr_object_list *out, tsr_error *err)
{
    tsr_object_list found = {0};
    tsr_str directory = key;
    while (directory.size && directory.data[directory.size - 1] != '/') directory.size--;
    if (directory.size) directory.size--;
    TSR_TRY(tsr_object_list_open(base->allocator, &found, err));
    tsr_status status = list_directory((hf *)base, directory, false, &found, err);
    bool is_there = false;
    for (size_t i = 0; i < found.items.count && status == TSR_OK; i++) {
        tsr_object object = ((tsr_object *)found.items.items)[i];
        if (!tsr_str_equal(object.key, key)) continue;
        object.key = tsr_arena_str(out->arena, object.key, err);
        object.version = tsr_arena_str(out->arena, object.version, err);
        status = object.key.data && object.version.data ? tsr_object_list_add(out, object, err) : TSR_E_NOMEM;
        is_there = true;
    }
    tsr_object_list_close(&found);
    if (status != TSR_OK || is_there) return status;
    return tsr_fail(err, TSR_E_NOT_FOUND, "%s/%.*s: the repository has no such file", base->shown, TSR_STR_ARG(key));
}

/* ---- opening ---- */

/* Reads HF_TOKEN, otherwise the file that `hf auth login` writes. */
static tsr_status find_token(hf *service, tsr_error *err)
{
    char line[MOST_TOKEN] = "";
    const char *given = tsr_setting("HF_TOKEN"), *place = tsr_setting("HF_HOME"), *home = tsr_setting("HOME");
    if (!given) {
        const tsr_str path = tsr_arena_format(service->base.arena, err, "%s%s/token",
                                              place  ? place
                                              : home ? home
                                                     : "",
                                              place ? "" : "/.cache/huggingface");
        FILE *file = path.data ? fopen(path.data, "re") : NULL;
        if (file && fgets(line, sizeof line, file)) given = line;
        if (file) fclose(file);
    }
    if (!given) return TSR_OK;
    given += strspn(given, " \t\r\n");
    const size_t size = strcspn(given, " \t\r\n");
    service->token = size ? tsr_arena_str(service->base.arena, (tsr_str){given, size}, err).data : NULL;
    return !size || service->token ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status find_commit(hf *service, tsr_str revision, tsr_error *err)
{
    const tsr_str name = tsr_url_encode(service->base.arena, revision, false, err);
    const tsr_str url = tsr_arena_format(service->base.arena, err, "%s/revision/%.*s", service->api, TSR_STR_ARG(name));
    tsr_exchange x;
    tsr_str text;
    if (!name.data || !url.data) return TSR_E_NOMEM;
    tsr_status status =
        tsr_exchange_text(&service->base, (tsr_request){.url = url.data, .on_bucket = true}, MOST_PAGE, &x, &text, err);
    cJSON *root = status == TSR_OK ? cJSON_ParseWithLength(text.data, text.size) : NULL;
    const cJSON *sha = cJSON_GetObjectItemCaseSensitive(root, "sha");
    const bool good = cJSON_IsString(sha) && strlen(sha->valuestring) >= 4 &&
                      strspn(sha->valuestring, "0123456789abcdef") == strlen(sha->valuestring);
    if (good) service->commit = tsr_arena_str(service->base.arena, tsr_str_from(sha->valuestring), err).data;
    if (status == TSR_OK && !good)
        status = tsr_fail(err, TSR_E_FORMAT, "%s: the hub does not state the commit", service->base.shown);
    if (status == TSR_OK && !service->commit) status = TSR_E_NOMEM;
    cJSON_Delete(root);
    tsr_exchange_end(&x);
    return status;
}

static tsr_status configure(hf *service, const tsr_location *location, tsr_error *err)
{
    const char *endpoint = tsr_setting("HF_ENDPOINT");
    TSR_TRY(tsr_endpoint_of(service->base.arena, tsr_str_from(endpoint ? endpoint : "https://huggingface.co"), "HF_ENDPOINT",
                            &service->endpoint, err));
    const tsr_str revision = location->revision.size ? location->revision : TSR_STR("main");
    const char *kind = location->is_dataset ? "datasets/" : "";
    service->repository = tsr_arena_format(service->base.arena, err, "%s%.*s", kind, TSR_STR_ARG(location->bucket)).data;
    service->api = tsr_arena_format(service->base.arena, err, "%s/api/%s/%.*s", service->endpoint,
                                    location->is_dataset ? "datasets" : "models", TSR_STR_ARG(location->bucket))
                       .data;
    service->base.shown =
        tsr_arena_format(service->base.arena, err, "hf://%s%.*s%s%.*s", kind, TSR_STR_ARG(location->bucket),
                         location->revision.size ? "@" : "", TSR_STR_ARG(location->revision))
            .data;
    if (!service->repository || !service->api || !service->base.shown) return TSR_E_NOMEM;
    TSR_TRY(find_token(service, err));
    service->base.credentials_hint = service->token ? "; the token gives no access to this repository"
                                                    : "; it does not exist or is private: set HF_TOKEN";
    return find_commit(service, revision, err);
}

tsr_status tsr_hf_open(const tsr_allocator *allocator, const tsr_location *location, tsr_transport *transport,
                       tsr_service **out, tsr_error *err)
{
    const tsr_service kind = {
        .allocator = allocator, .size = sizeof(hf), .prepare = prepare, .list_page = list_pages, .stat = stat_file};
    TSR_TRY(tsr_service_new(transport, &kind, out, err));
    return configure((hf *)*out, location, err);
}
