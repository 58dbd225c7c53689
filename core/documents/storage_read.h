/* Reads the storage description inside another document. */
#ifndef TSR_DOCUMENTS_STORAGE_READ_H
#define TSR_DOCUMENTS_STORAGE_READ_H

#include "codec/json.h"
#include "tessera/sys/storage_document.h"

/* Like tsr_storage_read, for a parsed tessera.storage/1 object. */
tsr_status tsr_storage_text_of(const cJSON *root, tsr_arena *arena, tsr_storage_text *out, tsr_error *err);

#endif
