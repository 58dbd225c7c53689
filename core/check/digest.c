/* Running digests. */
#include "check/digest.h"

#include "tessera/sys/try.h"

typedef tsr_running_digest running;

tsr_status tsr_digest_start(const tsr_host *host, tsr_digest_algorithm algorithm, running *out, tsr_error *err)
{
    *out = (running){algorithm == TSR_DIGEST_SHA256 ? host->sha256 : host->xxh3, NULL};
    TSR_FAIL_IF(!out->ops, err, TSR_E_UNSUPPORTED, "built without %s", algorithm == TSR_DIGEST_SHA256 ? "sha256" : "xxh3");
    out->state = out->ops->start();
    TSR_FAIL_IF(!out->state, err, TSR_E_NOMEM, "out of memory for a digest");
    return TSR_OK;
}

tsr_status tsr_digest_finish(const running *digest, tsr_status status, tsr_digest *out)
{
    if (status != TSR_OK) {
        digest->ops->abandon(digest->state);
        return status;
    }
    out->size = digest->ops->size;
    digest->ops->finish(digest->state, out->bytes);
    return TSR_OK;
}
