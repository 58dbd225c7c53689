/* Writes the documents of inspect, layout and manifest. */
#include "request.h"
#include "tessera/sys/document.h"
#include "tessera/validate.h"

tsr_status tessera_write_inspect(call *c, tsr_json *json, tsr_error *err)
{
    const tsr_command_options *asked = &c->request.options;
    tsr_inspect_options options = {.path = c->path,
                                   .selection = {tsr_globs_select, &asked->selection},
                                   .hash = (tsr_digest_algorithm)asked->hash,
                                   .stats = asked->stats};
    tsr_status status =
        tsr_validate_catalog(tsr_checkpoint_catalog(c->checkpoint), &c->host, tsr_checkpoint_findings(c->checkpoint), err);
    if (status == TSR_OK && (options.hash || options.stats)) status = tessera_call_ring(c, err);
    options.ring = c->ring;
    return status == TSR_OK ? tsr_document_inspect(c->checkpoint, &options, json, err) : status;
}

static tsr_status write_layout(call *c, tsr_layout_options *options, tsr_json *json, tsr_error *err)
{
    tsr_name_choice choice;
    tsr_status status = tessera_name_choice(c, NULL, &choice, err);
    if (status == TSR_OK && options->hash) status = tessera_call_ring(c, err);
    if (status != TSR_OK) return status;
    options->selection = (tsr_selection){tsr_globs_select, &c->request.options.selection};
    options->checkpoint = c->checkpoint;
    options->ring = c->ring;
    return tsr_document_layout(tsr_checkpoint_catalog(c->checkpoint), options, &c->host, json, err);
}

tsr_status tessera_write_layout(call *c, tsr_json *json, tsr_error *err)
{
    const tsr_command_options *asked = &c->request.options;
    return write_layout(c, &(tsr_layout_options){.no_chunks = asked->no_chunks, .hash = (tsr_digest_algorithm)asked->hash},
                        json, err);
}

tsr_status tessera_write_manifest(call *c, tsr_json *json, tsr_error *err)
{
    const unsigned hash = c->request.options.hash;
    tsr_layout_options options = {.no_chunks = true, .is_manifest = true};
    options.hash = hash ? (tsr_digest_algorithm)hash : TSR_DIGEST_XXH3;
    return write_layout(c, &options, json, err);
}
