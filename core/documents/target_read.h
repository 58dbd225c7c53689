/* Reads the target inside another document. */
#ifndef TSR_DOCUMENTS_TARGET_READ_H
#define TSR_DOCUMENTS_TARGET_READ_H

#include "codec/json.h"
#include "tessera/document_read.h"
#include "tessera/sys/target_texts.h"

/* Like tsr_target_texts_read, for a parsed tessera.target/1 object. */
tsr_status tsr_target_texts_of(const cJSON *root, tsr_arena *arena, tsr_target_texts *out, tsr_error *err);

#endif
