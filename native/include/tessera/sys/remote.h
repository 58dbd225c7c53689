/* A store that reads ranges of files at http(s) URLs.
 *
 * Example:
 *
 *     if (tsr_is_address("https://example.org/step-1000/"))
 *         status = tsr_remote_store_open(host, "https://example.org/step-1000/", &store, &err); */
#ifndef TESSERA_SYS_REMOTE_H
#define TESSERA_SYS_REMOTE_H

#include "tessera/store.h"

TSR_API_BEGIN

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

/* Adds further files to the store by name (tsr_checkpoint_missing); files that the server does not have are left out.
 * *added: how many were found. Changes store->files: no checkpoint may be open over it. */
tsr_status tsr_remote_store_add(tsr_store *store, const tsr_str *names, size_t count, size_t *added, tsr_error *err);

/* Identifies the version of a file: its ETag, or otherwise its date. Empty if the server sent neither, or the store is not
 * remote. Borrowed until the store is closed. */
const char *tsr_remote_store_version(const tsr_store *store, uint32_t file);

TSR_API_END

#endif
