/* The storage of a document that holds one. */
#ifndef TSR_DOCUMENTS_STORAGE_READ_H
#define TSR_DOCUMENTS_STORAGE_READ_H

#include "codec/json.h"
#include "tessera/sys/storage_document.h"

/* As tsr_storage_read, of a parsed tessera.storage/1 object. */
tsr_status tsr_storage_text_of(const cJSON *root, tsr_arena *arena, tsr_storage_text *out, tsr_error *err);

#endif
