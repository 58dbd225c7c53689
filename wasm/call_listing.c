/* Writes the documents of inspect, layout and manifest. */
#include "request.h"
#include "tessera/sys/document.h"
#include "tessera/validate.h"

static tsr_status read_hash(call *c, tsr_digest_algorithm *out, tsr_error *err)
{
    unsigned hash;
    const tsr_status status = tessera_option_choice(&c->request, "hash", "sha256|xxh3", &hash, err);
    *out = (tsr_digest_algorithm)hash;
    return status;
}

tsr_status tessera_write_inspect(call *c, tsr_json *json, tsr_error *err)
{
    tsr_inspect_options options = {.path = c->path, .selection = {tessera_selects, &c->request}};
    options.stats = tessera_option_given(&c->request, "stats");
    tsr_status status = read_hash(c, &options.hash, err);
    if (status == TSR_OK)
        status = tsr_validate_catalog(tsr_checkpoint_catalog(c->checkpoint), &c->host,
                                      tsr_checkpoint_findings(c->checkpoint), err);
    if (status == TSR_OK && (options.hash || options.stats)) status = tessera_call_ring(c, err);
    options.ring = c->ring;
    return status == TSR_OK ? tsr_document_inspect(c->checkpoint, &options, json, err) : status;
}

static tsr_status write_layout(call *c, tsr_layout_options *options, tsr_json *json, tsr_error *err)
{
    tsr_name_choice choice;
    tsr_status status = tessera_name_choice(c, &choice, err);
    if (status == TSR_OK && options->hash) status = tessera_call_ring(c, err);
    if (status != TSR_OK) return status;
    options->selection = (tsr_selection){tessera_selects, &c->request};
    options->checkpoint = c->checkpoint;
    options->ring = c->ring;
    return tsr_document_layout(tsr_checkpoint_catalog(c->checkpoint), options, &c->host, json, err);
}

tsr_status tessera_write_layout(call *c, tsr_json *json, tsr_error *err)
{
    tsr_layout_options options = {.no_chunks = tessera_option_given(&c->request, "no-chunks")};
    const tsr_status status = read_hash(c, &options.hash, err);
    return status == TSR_OK ? write_layout(c, &options, json, err) : status;
}

tsr_status tessera_write_manifest(call *c, tsr_json *json, tsr_error *err)
{
    tsr_layout_options options = {.no_chunks = true, .is_manifest = true};
    const tsr_status status = read_hash(c, &options.hash, err);
    if (!options.hash) options.hash = TSR_DIGEST_XXH3;
    return status == TSR_OK ? write_layout(c, &options, json, err) : status;
}
