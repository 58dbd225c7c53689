/* See tessera/sys/path_store.h. */
#include "tessera/sys/path_store.h"

#include "tessera/sys/folder.h"
#include "tessera/sys/object_store.h"
#include "tessera/sys/pipe_store.h"
#include "tessera/sys/remote.h"
#include "tessera/sys/try.h"
#include "tessera/sys/uri.h"

bool tsr_is_url(const char *path)
{
    return tsr_is_object_url(path) || tsr_is_address(path);
}

tsr_status tsr_path_store_open_by(const tsr_store_opener *opener, const char *path, tsr_store **out, tsr_error *err)
{
    if (tsr_is_object_url(path)) return tsr_object_store_open(opener->host, path, out, err);
    if (tsr_is_address(path)) return tsr_remote_store_open(opener->host, path, out, err);
    return tsr_folder_store_open(opener->sys, opener->host->allocator, path, out, err);
}

tsr_status tsr_path_store_open(const tsr_host *host, const char *path, tsr_store **out, tsr_error *err)
{
    return tsr_path_store_open_by(&(tsr_store_opener){.host = host}, path, out, err);
}

tsr_status tsr_run_store_open(const tsr_host *host, const char *path, tsr_store **out, tsr_error *err)
{
    if (tsr_is_object_url(path)) return tsr_object_directory_open(host, path, out, err);
    TSR_FAIL_IF(
        tsr_is_address(path), err, TSR_E_USAGE,
        "an HTTP server does not list directories, so its checkpoints are unknown; name a directory, or the URL of an "
        "object store");
    TSR_TRY(tsr_folder_store_open(NULL, host->allocator, path, out, err));
    if ((*out)->primary == TSR_NO_FILE) return TSR_OK;
    (*out)->close(*out);
    *out = NULL;
    return tsr_fail(err, TSR_E_USAGE, "this is a file; name the directory of a run");
}

tsr_status tsr_document_store_open(const tsr_host *host, const char *path, tsr_store **out, tsr_error *err)
{
    const bool is_pipe = !tsr_is_url(path) && tsr_is_pipe(path);
    return is_pipe ? tsr_pipe_store_open(host->allocator, path, out, err) : tsr_path_store_open(host, path, out, err);
}

const char *tsr_path_store_version(const tsr_store *store, uint32_t file)
{
    const char *version = tsr_object_store_version(store, file);
    return *version ? version : tsr_remote_store_version(store, file);
}

tsr_hidden_names tsr_path_store_hidden(const tsr_store *store)
{
    const tsr_hidden_names hidden = tsr_object_store_hidden(store);
    return hidden.count ? hidden : tsr_folder_store_hidden(store);
}

static bool is_within(const char *inner, const char *outer)
{
    size_t size = strlen(outer);
    while (size && outer[size - 1] == '/') size--;
    return strncmp(inner, outer, size) == 0 && (inner[size] == '\0' || inner[size] == '/');
}

bool tsr_urls_overlap(const char *a, const char *b)
{
    return is_within(a, b) || is_within(b, a);
}

tsr_status tsr_path_must_be_local(const char *path, tsr_error *err)
{
    char shown[1024];
    if (!tsr_is_url(path)) return TSR_OK;
    shown[tsr_uri_redact(tsr_str_from(path), shown, sizeof shown - 1)] = '\0';
    return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "cannot write to '%s'; name a path on this machine", shown);
}
