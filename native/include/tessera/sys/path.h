/* What a path or URL names, and the store behind it. */
#ifndef TESSERA_SYS_PATH_H
#define TESSERA_SYS_PATH_H

#include "tessera/api.h"
#include "tessera/memory.h"
#include "tessera/path.h"
#include "tessera/shards.h"
#include "tessera/store.h"
#include "tessera/sys/directory.h"

TSR_API_BEGIN

/* Opens the store that a PATH names: a file or a directory, an http(s) URL, or the URL of an object store.
 *
 * Example:
 *
 *     status = tsr_path_store_open(host, "s3://bucket/step-1000", &store, &err); */

/* Whether a path is a URL of one of these kinds. */
bool tsr_is_url(const char *path);
/* Calls tsr_directory_store_open, tsr_remote_store_open or tsr_object_store_open, depending on the scheme. Errors: those of the
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
/* tsr_path_store_open for a document, which may also come from a pipe (tessera/sys/path.h), or be given in place of a path.
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

/* Opening paths with more choices: other system calls, a checkpoint to compare with, a map of ranks.
 *
 * Example:
 *
 *     const tsr_store_opener opener = {.open = tsr_path_store_open_by, .host = host};
 *     const tsr_open_options options = {.part = TSR_STR("model")};
 *     status = tsr_path_open_compared(&opener, "model.safetensors", &options, &checkpoint, &err); */

/* As tsr_path_open, with the host and the system calls of `opener`, which must outlive the checkpoint, and for a checkpoint whose
 * files may be in several directories: those of `paths` count as one. A name that is in more than one of them must have equal bytes in
 * all. Errors: also TSR_E_USAGE for one of several paths that is not a directory. */
tsr_status tsr_paths_open_by(const tsr_store_opener *opener, const char *const *paths, size_t count,
                             const tsr_open_options *options, tsr_checkpoint **out, tsr_error *err);
/* The store with the files of all `paths`, without opening a checkpoint. The caller closes it. */
tsr_status tsr_paths_store_open(const char *const *paths, size_t count, const tsr_host *host, tsr_store **out,
                                tsr_error *err);
/* For a store of a server that lists no directories: asks it for all files of the checkpoint in the store. Names that the checkpoint
 * lists and the server does not have are left out. Errors: those of opening the checkpoint. */
tsr_status tsr_remote_list_checkpoint(tsr_store *store, const tsr_host *host, tsr_error *err);
/* Like tsr_paths_open_by, for a checkpoint that another one is compared with. The part and the step in `options` were chosen
 * for the other one, so here they are used only if this one has parts or steps: a checkpoint without parts is opened as it
 * is despite a part, and a file despite a step. */
tsr_status tsr_path_open_compared(const tsr_store_opener *opener, const char *path, const tsr_open_options *options,
                                  tsr_checkpoint **out, tsr_error *err);
/* Reads the map of ranks that `given` names: a built-in map, or a tessera.shards/1 document at that path. The result is in
 * `arena`. Errors: those of tsr_path_load and tsr_shards_read. */
tsr_status tsr_path_load_shards(const char *given, const tsr_host *host, tsr_arena *arena, tsr_shards *out, tsr_error *err);

/* Reads documents from pipes, such as those that a shell makes of `<(command)`.
 *
 * Example:
 *
 *     if (tsr_is_pipe("/dev/fd/63")) status = tsr_pipe_store_open(host->allocator, "/dev/fd/63", &store, &err); */

/* Whether a path is a pipe or a character device. */
bool tsr_is_pipe(const char *path);
/* Reads all that comes from it, until its writers close it, and makes it the one file of a store. A pipe can be read once only.
 * Borrows `path` and `allocator`. Errors: TSR_E_IO, TSR_E_LIMIT (more than 1 GiB), TSR_E_NOMEM. */
tsr_status tsr_pipe_store_open(const tsr_allocator *allocator, const char *path, tsr_store **out, tsr_error *err);

/* A store that reads ranges of files at http(s) URLs.
 *
 * Example:
 *
 *     if (tsr_is_address("https://example.org/step-1000/"))
 *         status = tsr_remote_store_open(host, "https://example.org/step-1000/", &store, &err); */

bool tsr_is_address(const char *path); /* http://… or https://… */

/* Opens a URL. A server cannot list directories: for "…/", it is asked for the files that most checkpoints have (.metadata,
 * model.safetensors, model.safetensors.index.json, pytorch_model.bin, pytorch_model.bin.index.json), then for those of
 * DeepSpeed, Megatron, accelerate and verl, and for the files that a marker such as `latest` leads to. Any other URL is a
 * single file, which is `primary` if other files may belong to it. tsr_remote_store_add adds further files by name. Servers
 * must support ranges (206), except for files of at most 64 MiB, which are read whole. Redirects are followed; temporary
 * failures are retried; TESSERA_HTTP_HEADERS (lines) and ~/.netrc are used. Reads of a few bytes are served from blocks of
 * 64 KiB. A file whose ETag or date changes while it is read is TSR_E_CHANGED. Errors: TSR_E_NOT_FOUND, TSR_E_IO,
 * TSR_E_UNSUPPORTED (no libcurl, no ranges), TSR_E_NOMEM; messages contain the URL. */
tsr_status tsr_remote_store_open(const tsr_host *host, const char *address, tsr_store **out, tsr_error *err);

/* Adds further files to the store by name (tsr_checkpoint_missing); files that the server does not have are left out. with_first: the request for
 * the size of each also gets its first bytes, at most 64 KiB, which need not be requested again; otherwise one byte, which is all that listing needs
 * of files whose places of tensors are known. *added: how many were found. Changes store->files: no checkpoint may be open over it. */
tsr_status tsr_remote_store_add(tsr_store *store, const tsr_str *names, size_t count, bool with_first, size_t *added,
                                tsr_error *err);

/* Identifies the version of a file: its ETag, or otherwise its date. Empty if the server sent neither, or the store is not
 * remote. Borrowed until the store is closed. */
const char *tsr_remote_store_version(const tsr_store *store, uint32_t file);

/* The libraries with which this build serves core (tessera/native_host.h), by name.
 *
 * Example:
 *
 *     const tsr_native_parts parts = tsr_native_parts_built();
 *     printf("CRC-32: %s\n", parts.crc32); */

/* Names of the libraries in use, for `tessera doctor`, like "isa-l" and "libcrypto"; "portable" is core's own code. `zstd` is NULL
 * without libzstd. */
typedef struct tsr_native_parts {
    const char *crc32;
    const char *sha256;
    const char *xxh3;
    const char *zstd;
} tsr_native_parts;
tsr_native_parts tsr_native_parts_built(void);

TSR_API_END

#endif
