/* A store over files behind http(s) addresses, read by ranges.
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

/* Opens an address. A server lists no folders: "…/" is asked for the files that a checkpoint begins with (.metadata,
 * model.safetensors.index.json, pytorch_model.bin.index.json, model.safetensors, pytorch_model.bin), then for those of DeepSpeed,
 * Megatron, accelerate and verl, and for what a marker such as `latest` names; any other address is one file, which is `primary`
 * where files may stand beside it. tsr_remote_store_add names further files. Servers must give ranges (206), except for files of
 * at most 64 MiB, which are read whole. Redirects are followed; what may pass is tried again; TESSERA_HTTP_HEADERS (lines) and
 * ~/.netrc are heeded. Reads of a few bytes are served from blocks of 64 KiB. A file whose ETag or date changes while it is read
 * is TSR_E_CHANGED.
 * Errors: TSR_E_NOT_FOUND, TSR_E_IO, TSR_E_UNSUPPORTED (no libcurl, no ranges), TSR_E_NOMEM; messages name the address. */
tsr_status tsr_remote_store_open(const tsr_host *host, const char *address, tsr_store **out, tsr_error *err);

/* Files beside those that are there, by their names in the store (tsr_checkpoint_missing); those that the server does not
 * have are left out. *added: how many were found. Changes store->files: no checkpoint may be open over it. */
tsr_status tsr_remote_store_add(tsr_store *store, const tsr_host *host, const tsr_str *names, size_t count, size_t *added,
                                tsr_error *err);

/* What tells one version of a file from another: its ETag, else its date; empty when the server gave neither, or the store is
 * no remote one. Borrowed until the store is closed. */
const char *tsr_remote_store_version(const tsr_store *store, uint32_t file);

TSR_API_END

#endif
