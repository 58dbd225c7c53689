/* Documents that people and scripts write, read in: layouts to check against, targets to reshard for. (Module trees and flat
 * parameters are read by modules.h and flat_params.h.) Thread rule: one arena, one thread.
 *
 * Example:
 *
 *     tsr_contract contract;
 *     status = tsr_contract_read(text, host, arena, &contract, &err);
 *     if (status == TSR_OK) {
 *         contract.match = tsr_glob_match;
 *         contract.called = "the layout";
 *         status = tsr_validate_contract(catalog, &contract, host, findings, &err);
 *     } */
#ifndef TESSERA_DOCUMENT_READ_H
#define TESSERA_DOCUMENT_READ_H

#include "tessera/validate.h"
#include "tessera/host.h"

TSR_API_BEGIN

/* What a document says that a checkpoint should hold, in `arena`; `match` is left to the caller. It is
 *
 *   tessera.layout/1, tessera.inspect/1   everything that they say; digests where all are of one algorithm; "rules"
 *   tessera.modules/1                     what the model's state dict would hold: names, shapes, dtypes where told
 *   an index file with a weight_map       names
 *   text that is no JSON                  names, one a line; empty lines and those that begin with # do not count
 *
 * Errors: TSR_E_FORMAT, TSR_E_LIMIT, TSR_E_NOMEM, with the byte or the place in the document. */
tsr_status tsr_contract_read(tsr_str text, const tsr_host *host, tsr_arena *arena, tsr_contract *out, tsr_error *err);

/* A tessera.target/1 document as it stands: texts that mesh.h reads. All live in `arena`. */
typedef struct tsr_target_rule_text {
    tsr_str match;
    tsr_str placements; /* "shard(0),replicate" */
} tsr_target_rule_text;
typedef struct tsr_target_texts {
    tsr_str mesh; /* "dp=4,tp=2" */
    const tsr_target_rule_text *rules;
    uint32_t rule_count;
    tsr_str default_placements; /* empty when the document has none: replicate */
    bool fsdp1;                 /* "strategy": {"name": "fsdp1", …}: flat ranges in place of placements (target.h) */
    bool use_orig_params;
    const tsr_str *units; /* GLOBs of wrapped modules' parameters, innermost first */
    uint32_t unit_count;
    const tsr_str *ignored; /* GLOBs of what is not flattened (buffers, ignored modules): whole on every rank */
    uint32_t ignored_count;
} tsr_target_texts;
tsr_status tsr_target_texts_read(tsr_str json_text, const tsr_host *host, tsr_arena *arena, tsr_target_texts *out,
                                 tsr_error *err);

TSR_API_END

#endif
