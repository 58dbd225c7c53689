/* Checkpoints in object stores as stores: s3://BUCKET/KEY, gs://BUCKET/KEY, az://ACCOUNT/CONTAINER/KEY and
 * hf://[datasets/]ORG/REPO[@REVISION][/PATH].
 *
 * Example:
 *
 *     if (tsr_is_object_url("s3://bucket/step-1000"))
 *         status = tsr_object_store_open(host, "s3://bucket/step-1000", &store, &err); */
#ifndef TESSERA_SYS_OBJECT_STORE_H
#define TESSERA_SYS_OBJECT_STORE_H

#include "tessera/store.h"
#include "tessera/sys/folder.h"

TSR_API_BEGIN

/* Whether a path begins with one of these four schemes. */
bool tsr_is_object_url(const char *path);

/* Opens an object or all objects below a URL, as tsr_folder_store_open opens a path. An object called
 * ".metadata" or "….json" is `primary` among the objects next to it. Opening lists; it reads no object. Credentials and endpoints
 * come from the environment and the files that each vendor's own tools use, never from the URL.
 *
 * Reads of up to 256 KiB are served from blocks of 64 KiB; larger ones are divided into requests of 4 MiB, of which
 * host->io_depth are in flight. Sequential reads of an object are served by a read-ahead of 8 MiB. Transient failures are
 * retried. An object that changes is TSR_E_CHANGED. The store keeps host->allocator and host->io_depth, not the host. Errors:
 * TSR_E_NOT_FOUND, TSR_E_IO, TSR_E_USAGE, TSR_E_LIMIT (more than 2^20 objects), TSR_E_UNSUPPORTED (no libcurl, a kind of
 * credentials), TSR_E_NOMEM; messages name the URL and no secret. */
tsr_status tsr_object_store_open(const tsr_host *host, const char *url, tsr_store **out, tsr_error *err);

/* The same for a directory, which may be empty: only the bucket or repository has to exist. */
tsr_status tsr_object_directory_open(const tsr_host *host, const char *url, tsr_store **out, tsr_error *err);

/* Identifies the version of an object: its ETag or generation, or the commit of a repository. Empty if the store is not an
 * object store. Borrowed until the store is closed. */
const char *tsr_object_store_version(const tsr_store *store, uint32_t file);
/* Whether something happened in this process that its user should be warned of, which is then forgotten: a server refused checksums.
 * Thread-safe. */
bool tsr_object_store_take_warning(char *out, size_t size);
/* As tsr_folder_store_hidden, of objects. */
tsr_hidden_names tsr_object_store_hidden(const tsr_store *store);

TSR_API_END

#endif
