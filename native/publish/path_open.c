/* Opens a checkpoint by its path. An HTTP server does not list directories. The data files that a remote checkpoint's
 * metadata names are therefore requested after it was read, and the checkpoint is opened again with all of them. */
#include "tessera/path.h"

#include "tessera/document_read.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/document.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/path.h"
#include "tessera/sys/store.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

/* The names that a server was asked for. */
typedef struct asking {
    tsr_arena *arena; /* holds the names: those that a checkpoint owns are freed when it is closed */
    tsr_map *asked;
    tsr_vec names; /* of tsr_str: to ask for next */
} asking;

/* `directory` is the checkpoint's directory below the root, or empty. */
static tsr_status add_names(asking *a, tsr_str directory, const tsr_str *names, size_t count, tsr_error *err)
{
    for (size_t i = 0; i < count; i++) {
        bool fresh;
        const tsr_str name = tsr_arena_format(a->arena, err, "%.*s%s%.*s", TSR_STR_ARG(directory), directory.size ? "/" : "",
                                              TSR_STR_ARG(names[i]));
        if (!name.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_map_put(a->asked, name, 1, NULL, &fresh, err));
        tsr_str *next = fresh ? tsr_vec_push(&a->names, err) : NULL;
        if (fresh && !next) return TSR_E_NOMEM;
        if (next) *next = name;
    }
    return TSR_OK;
}

/* Asks the server for files that the checkpoint lacks, and opens the checkpoint again. *done if there are none that it was
 * not asked for yet. */
static tsr_status open_again(asking *a, tsr_checkpoint **checkpoint, const tsr_open_options *options, bool *done,
                             tsr_error *err)
{
    tsr_store *store = tsr_checkpoint_given_store(*checkpoint);
    const tsr_host *host = tsr_checkpoint_host(*checkpoint);
    size_t count, added;
    const char *marker;
    const tsr_str *names = tsr_checkpoint_missing(*checkpoint, &count), step = tsr_checkpoint_step(*checkpoint, &marker);
    TSR_TRY(add_names(a, step, names, count, err));
    names = tsr_checkpoint_implied(*checkpoint, &count);
    TSR_TRY(add_names(a, step, names, count, err));
    *done = a->names.count == 0;
    if (*done) return TSR_OK;
    tsr_checkpoint_close(*checkpoint);
    *checkpoint = NULL;
    TSR_TRY(tsr_remote_store_add(store, a->names.items, a->names.count, &added, err));
    a->names.count = 0;
    *done = added == 0;
    return tsr_checkpoint_open(store, host, options, checkpoint, err);
}

/* A file that was found may imply others, such as Megatron files that its .metadata does not name. Until the server was
 * asked for all of them, the checkpoint may lack existing files; only then is it judged by its purpose. */
static tsr_status ask_for_all(tsr_checkpoint **checkpoint, const tsr_open_options *options, tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(*checkpoint)->allocator;
    asking a = {tsr_arena_new(allocator, 0, err), tsr_map_new(allocator, 0, err), tsr_vec_of(allocator, sizeof(tsr_str))};
    tsr_status status = a.arena && a.asked ? TSR_OK : TSR_E_NOMEM;
    bool done = false;
    while (status == TSR_OK && !done) status = open_again(&a, checkpoint, options, &done, err);
    tsr_vec_free(&a.names);
    tsr_map_free(a.asked);
    tsr_arena_free(a.arena);
    return status;
}

static tsr_status open_all(tsr_store *store, const tsr_host *host, const tsr_open_options *options, tsr_checkpoint **out,
                           tsr_error *err)
{
    tsr_open_options whole = *options;
    whole.purpose = TSR_FOR_FINDINGS;
    TSR_TRY(tsr_checkpoint_open(store, host, &whole, out, err));
    TSR_TRY(ask_for_all(out, &whole, err));
    return tsr_checkpoint_require(*out, options->purpose, err);
}

tsr_status tsr_remote_list_checkpoint(tsr_store *store, const tsr_host *host, tsr_error *err)
{
    const tsr_open_options options = {.skip_objects = true, .purpose = TSR_FOR_FINDINGS};
    tsr_checkpoint *checkpoint = NULL;
    const tsr_status status = open_all(store, host, &options, &checkpoint, err);
    tsr_checkpoint_close(checkpoint);
    return status;
}

static tsr_status open_store(const tsr_store_opener *opener, const char *const *paths, size_t count, tsr_store **out,
                             tsr_error *err)
{
    return count == 1 ? opener->open(opener, paths[0], out, err) : tsr_joined_store_open(opener, paths, count, out, err);
}

tsr_status tsr_paths_store_open(const char *const *paths, size_t count, const tsr_host *host, tsr_store **out,
                                tsr_error *err)
{
    const tsr_store_opener opener = {.open = tsr_path_store_open_by, .host = host};
    return open_store(&opener, paths, count, out, err);
}

tsr_status tsr_paths_open_by(const tsr_store_opener *opener, const char *const *paths, size_t count,
                             const tsr_open_options *options, tsr_checkpoint **out, tsr_error *err)
{
    tsr_store *store = NULL;
    *out = NULL;
    TSR_TRY(open_store(opener, paths, count, &store, err));
    const bool lists_nothing = count == 1 && tsr_is_address(paths[0]);
    const tsr_status status = (lists_nothing ? open_all : tsr_checkpoint_open)(store, opener->host, options, out, err);
    if (status == TSR_OK) return TSR_OK;
    tsr_checkpoint_close(*out);
    *out = NULL;
    store->close(store);
    return status;
}

tsr_status tsr_path_open(const char *path, const tsr_host *host, const tsr_open_options *options, tsr_checkpoint **out,
                         tsr_error *err)
{
    const tsr_store_opener opener = {.open = tsr_path_store_open_by, .host = host};
    return tsr_paths_open_by(&opener, &path, 1, options, out, err);
}

tsr_status tsr_path_open_compared(const tsr_store_opener *opener, const char *path, const tsr_open_options *options,
                                  tsr_checkpoint **out, tsr_error *err)
{
    tsr_error plain = {0};
    tsr_open_options whole = *options;
    whole.part = whole.step = (tsr_str){NULL, 0};
    const tsr_status status = tsr_paths_open_by(opener, &path, 1, options, out, err);
    if (status == TSR_OK || (!options->part.data && !options->step.data)) return status;
    if (tsr_paths_open_by(opener, &path, 1, &whole, out, &plain) != TSR_OK) return status;
    const bool has_parts = tsr_checkpoint_catalog(*out)->part_count != 0;
    const bool is_file = tsr_checkpoint_store(*out)->primary != TSR_NO_FILE;
    if (!has_parts && (is_file || !options->step.data)) return TSR_OK;
    tsr_path_close(*out);
    *out = NULL;
    return status;
}

/* A path for messages: URLs without their secrets. */
static tsr_status shown_path(const char *path, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    const tsr_str given = tsr_str_from(path);
    char *shown = tsr_arena_array(arena, given.size, 3, err);
    if (!shown) return TSR_E_NOMEM;
    *out = (tsr_str){shown, tsr_uri_redact(given, shown, 3 * given.size)};
    return TSR_OK;
}

tsr_status tsr_path_load_shards(const char *given, const tsr_host *host, tsr_arena *arena, tsr_shards *out, tsr_error *err)
{
    const tsr_shards *built_in = tsr_shards_built_in(tsr_str_from(given));
    tsr_error why = {0};
    tsr_str text, name;
    if (built_in) {
        *out = *built_in;
        return TSR_OK;
    }
    if (tsr_is_document(given)) name = TSR_STR("the map");
    else TSR_TRY(shown_path(given, arena, &name, err));
    tsr_status status = tsr_path_load(given, host, arena, &text, &why);
    if (status == TSR_OK) status = tsr_shards_read(text, host, arena, out, &why);
    out->name = name;
    out->document = text;
    if (status == TSR_OK) return TSR_OK;
    TSR_FAIL_IF(status == TSR_E_NOT_FOUND, err, status,
                "'%.*s' is neither a file nor one of the built-in maps meta-llama, megatron-gpt and vllm",
                TSR_STR_ARG(name));
    tsr_error_context(&why, "%.*s", TSR_STR_ARG(name));
    *err = why;
    return status;
}

void tsr_path_close(tsr_checkpoint *checkpoint)
{
    if (!checkpoint) return;
    tsr_store *store = tsr_checkpoint_given_store(checkpoint);
    tsr_checkpoint_close(checkpoint);
    store->close(store);
}

tsr_status tsr_path_load(const char *path, const tsr_host *host, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    tsr_store *store;
    tsr_bytes bytes = {0};
    TSR_TRY(tsr_document_store_open(host, path, &store, err));
    const uint32_t file = store->primary;
    tsr_status status = TSR_OK;
    if (file == TSR_NO_FILE) status = tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "'%s' is a directory, not a file", path);
    else status = tsr_range_load(tsr_whole_file(store, file), host, &bytes, err);
    if (status == TSR_OK) *out = tsr_arena_str(arena, bytes.data, err);
    if (status == TSR_OK && !out->data) status = TSR_E_NOMEM;
    tsr_bytes_free(&bytes);
    store->close(store);
    return status;
}
