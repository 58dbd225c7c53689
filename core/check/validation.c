/* All checks of a checkpoint in one call: by its catalog, against contracts, and of its bytes. */
#include "formats/common/reader.h"
#include "tessera/check.h"
#include "tessera/sys/check.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/options.h"
#include "tessera/sys/try.h"

static tsr_status check_catalog(tsr_checkpoint *checkpoint, const tsr_validate_options *options, tsr_error *err)
{
    const tsr_contract *const contracts[] = {options->layout, options->against};
    TSR_TRY(tsr_validate_catalog(&checkpoint->catalog, checkpoint->host, checkpoint->findings, err));
    for (size_t i = 0; i < sizeof contracts / sizeof *contracts; i++)
        if (contracts[i])
            TSR_TRY(tsr_validate_contract(&checkpoint->catalog, contracts[i], checkpoint->host, checkpoint->findings, err));
    return TSR_OK;
}

static tsr_status check_bytes(tsr_checkpoint *checkpoint, const tsr_validate_options *o, bool hashes, tsr_error *err)
{
    if (o->deep && o->comm) TSR_TRY(tsr_check_deep_shared(checkpoint, o->comm, o->ring, o->progress, err));
    else if (o->deep) TSR_TRY(tsr_check_deep(checkpoint, o->ring, o->progress, err));
    if (!hashes) return TSR_OK;
    return o->comm ? tsr_check_digests_shared(checkpoint, o->layout, o->comm, o->ring, o->progress, err)
                   : tsr_check_digests(checkpoint, o->layout, o->ring, o->progress, err);
}

tsr_status tsr_validate(tsr_checkpoint *checkpoint, const tsr_validate_options *options, tsr_error *err)
{
    tsr_validate_options o;
    tsr_ring *own = NULL;
    TSR_TRY(TSR_OPTIONS_COPY(&o, options, tsr_validate_options, err));
    const bool hashes = o.layout && o.layout->digests && (o.deep || o.hashes);
    tsr_status status = check_catalog(checkpoint, &o, err);
    if (status == TSR_OK && !o.ring && (o.deep || hashes))
        status = tsr_ring_new(o.deep ? checkpoint->given_host : checkpoint->host, 0, &own, err);
    if (own) o.ring = own;
    if (o.comm) status = tsr_comm_agree(o.comm, status, err);
    if (status == TSR_OK) status = check_bytes(checkpoint, &o, hashes, err);
    tsr_ring_free(own);
    return status;
}
