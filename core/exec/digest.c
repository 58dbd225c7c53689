/* Digests of tensors: tiles are read ahead by threads, the digest runs over them in order. */
#include "base/try.h"
#include "tessera/check.h"

typedef struct running {
    const tsr_digest_ops *ops;
    void *state;
} running;

static tsr_status update(void *ctx, const void *data, size_t size, uint64_t byte_at, tsr_error *err)
{
    const running *digest = ctx;
    (void)byte_at;
    (void)err;
    digest->ops->update(digest->state, data, size);
    return TSR_OK;
}

tsr_status tsr_tensor_digest(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_digest_algorithm algorithm,
                             tsr_ring *ring, tsr_digest *out, tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(checkpoint);
    running digest = {algorithm == TSR_DIGEST_SHA256 ? host->sha256 : host->xxh3, NULL};
    TSR_FAIL_IF(!digest.ops, err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "built without %s",
                algorithm == TSR_DIGEST_SHA256 ? "sha256" : "xxh3");
    digest.state = digest.ops->start();
    TSR_FAIL_IF(!digest.state, err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory for a digest");
    tsr_status status = tsr_stream_tensor(checkpoint, entry, ring, update, &digest, err);
    if (status != TSR_OK) {
        digest.ops->abandon(digest.state);
        return status;
    }
    out->size = digest.ops->size;
    digest.ops->finish(digest.state, out->bytes);
    return TSR_OK;
}
