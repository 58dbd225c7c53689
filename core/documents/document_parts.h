/* What several documents have in common. */
#ifndef TSR_DOCUMENTS_DOCUMENT_PARTS_H
#define TSR_DOCUMENTS_DOCUMENT_PARTS_H

#include "codec/json.h"
#include "tessera/document_read.h"
#include "tessera/sys/document.h"

/* Writes the findings as members of an open array. If `path` has no data, it is not written. */
void tsr_document_put_findings(tsr_json *json, tsr_str path, const tsr_findings *findings);

/* Writes the members "left_out" and "turned_off" of a summary, if the policy can have such findings. */
void tsr_document_put_policy(tsr_json *json, const tsr_policy_result *result);

/* Writes the members "kind" and, for a tensor, "dtype" and "shape", or otherwise "type". */
void tsr_document_put_type(tsr_json *json, const tsr_entry *entry);

/* {"algorithm": …, "digest": hex} */
void tsr_document_put_digest(tsr_json *json, tsr_digest_algorithm algorithm, const tsr_digest *digest);

/* ---- Reads the storage description inside another document. ---- */

/* Like tsr_storage_read, for a parsed tessera.storage/1 object. */
tsr_status tsr_storage_text_of(const cJSON *root, tsr_arena *arena, tsr_storage_text *out, tsr_error *err);

/* ---- Reads the target inside another document. ---- */

/* Like tsr_target_texts_read, for a parsed tessera.target/1 object. */
tsr_status tsr_target_texts_of(const cJSON *root, tsr_arena *arena, tsr_target_texts *out, tsr_error *err);

#endif
