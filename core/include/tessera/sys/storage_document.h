/* The document tessera.storage/1: the servers of a parallel file system, and where files begin.
 *
 * Example:
 *
 *     tsr_storage_text storage_text;
 *     tsr_storage storage;
 *     status = tsr_storage_read(text, host, arena, &storage_text, &err);
 *     if (status == TSR_OK) status = tsr_storage_of(&storage_text, catalog->store, host, arena, &storage, &err);
 *     if (status == TSR_OK) printf("file 0 begins on server %u\n", (unsigned)tsr_storage_server_at(&storage, 0, 0)); */
#ifndef TESSERA_SYS_STORAGE_DOCUMENT_H
#define TESSERA_SYS_STORAGE_DOCUMENT_H

#include "tessera/host.h"
#include "tessera/store.h"
#include "tessera/sys/json.h"
#include "tessera/sys/storage.h"

TSR_API_BEGIN

/* A tessera.storage/1 document, before it is known which files a store has. */
typedef struct tsr_storage_file {
    tsr_str name;
    tsr_striping striping;
} tsr_storage_file;
typedef struct tsr_storage_text {
    const tsr_storage_server *servers; /* NULL: there is no document */
    uint32_t server_count;
    tsr_striping usual; /* of files that are not listed */
    const tsr_storage_file *files;
    uint32_t file_count;
} tsr_storage_text;

/* Reads a document. Everything lives in `arena`. Errors: TSR_E_FORMAT with the fault and its position; TSR_E_NOMEM. */
tsr_status tsr_storage_read(tsr_str json_text, const tsr_host *host, tsr_arena *arena, tsr_storage_text *out,
                            tsr_error *err);
/* Writes it with everything spelled out; it reads back as the same. */
void tsr_storage_write(tsr_json *json, const tsr_storage_text *text);
/* The storage of a store's files, which the document names as the store does. Lives in `arena`, borrows the text. Errors:
 * TSR_E_USAGE when the document lists files and none of them is in the store; TSR_E_NOMEM. */
tsr_status tsr_storage_of(const tsr_storage_text *text, const tsr_store *store, const tsr_host *host, tsr_arena *arena,
                          tsr_storage *out, tsr_error *err);

TSR_API_END

#endif
