/* Opens the store that a PATH names: a file or a directory, an http(s) URL, or the URL of an object store.
 *
 * Example:
 *
 *     status = tsr_path_store_open(host, "s3://bucket/step-1000", &store, &err); */
#ifndef TESSERA_SYS_PATH_STORE_H
#define TESSERA_SYS_PATH_STORE_H

#include "tessera/store.h"
#include "tessera/sys/folder.h"

TSR_API_BEGIN

/* Whether a path is a URL of one of these kinds. */
bool tsr_is_url(const char *path);
/* Calls tsr_folder_store_open, tsr_remote_store_open or tsr_object_store_open, depending on the scheme. Errors: those of the
 * function called. */
tsr_status tsr_path_store_open(const tsr_host *host, const char *path, tsr_store **out, tsr_error *err);
/* Opens the directory of a training run. In an object store it may be empty, because directories are not made there. TSR_E_USAGE for
 * a file, and for an HTTP server, which does not list directories; other errors as above. */
tsr_status tsr_run_store_open(const tsr_host *host, const char *path, tsr_store **out, tsr_error *err);
/* Whether what is given as the path of a document is the document itself. A file whose name begins in this way is "./{…". */
static inline bool tsr_is_document(const char *path)
{
    return *path == '{';
}
/* tsr_path_store_open for a document, which may also come from a pipe (tessera/sys/pipe_store.h), or be given in place of a path.
 * Borrows `path`. */
tsr_status tsr_document_store_open(const tsr_host *host, const char *path, tsr_store **out, tsr_error *err);
/* tsr_path_store_open with the host and the system calls of `opener`. Can be used as the `open` of an opener. */
tsr_status tsr_path_store_open_by(const tsr_store_opener *opener, const char *path, tsr_store **out, tsr_error *err);
/* The version of a remote file (its ETag or modification time); empty for files of this machine. Borrowed until the store is closed. */
const char *tsr_path_store_version(const tsr_store *store, uint32_t file);
/* The files that the store does not list because their names are like those of unfinished outputs. */
tsr_hidden_names tsr_path_store_hidden(const tsr_store *store);
/* TSR_E_USAGE if a destination in an object store is, contains or is inside one of the sources, judged by their text. */
tsr_status tsr_urls_refuse_overlap(const char *const *sources, size_t count, const char *destination, tsr_error *err);
/* TSR_E_UNSUPPORTED if `path` is a URL although only files of this machine can be written. */
tsr_status tsr_path_must_be_local(const char *path, tsr_error *err);

TSR_API_END

#endif
