/* The reader of what people and scripts write down to check checkpoints against. (Module trees are read by modules.h.) Thread rule: one arena, one thread.
 *
 * Example:
 *
 *     tsr_contract contract;
 *     status = tsr_contract_read(text, host, arena, &contract, &err);
 *     if (status == TSR_OK) {
 *         contract.match = tsr_glob_match;
 *         contract.called = "the layout";
 *         tsr_validate_options options = TSR_OPTIONS(tsr_validate_options);
 *         options.layout = &contract;
 *         status = tsr_validate(checkpoint, &options, &err);
 *     } */
#ifndef TESSERA_DOCUMENT_READ_H
#define TESSERA_DOCUMENT_READ_H

#include "tessera/host.h"
#include "tessera/shards.h"
#include "tessera/validate.h"

TSR_API_BEGIN

/* Reads a document that states what a checkpoint should hold. The result lives in `arena`; the caller sets `match`. The
 * document is one of these:
 *
 *   tessera.layout/1, tessera.manifest/1,
 *   tessera.inspect/1                     everything in them; digests if all are of one algorithm; "rules"
 *   tessera.modules/1                     what the model's state dict would hold: names, shapes, dtypes where given
 *   an index file with a weight_map       names
 *   text that is not JSON                  names, one per line; empty lines and those that begin with # do not count
 *
 * Errors: TSR_E_FORMAT, TSR_E_LIMIT, TSR_E_NOMEM, with the byte or the place in the document. */
tsr_status tsr_contract_read(tsr_str text, const tsr_host *host, tsr_arena *arena, tsr_contract *out, tsr_error *err);

TSR_API_END

#endif
