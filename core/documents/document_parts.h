/* What the documents have in common. */
#ifndef TSR_DOCUMENTS_DOCUMENT_PARTS_H
#define TSR_DOCUMENTS_DOCUMENT_PARTS_H

#include "tessera/sys/document.h"

/* One after the other inside an array. A path without data is not printed. */
void tsr_document_put_findings(tsr_json *json, tsr_str path, const tsr_findings *findings);

/* The members "left_out" and "turned_off" of a summary, where they have a meaning. */
void tsr_document_put_policy(tsr_json *json, const tsr_policy_result *result);

/* {"algorithm": …, "digest": hex} */
void tsr_document_put_digest(tsr_json *json, tsr_digest_algorithm algorithm, const tsr_digest *digest);

#endif
