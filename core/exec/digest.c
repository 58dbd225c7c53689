/* Digests of tensors: tiles are read ahead by threads, the digest runs over them in order. Of objects: over their JSON. */
#include "base/try.h"
#include "tessera/check.h"
#include "tessera/json.h"

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

static tsr_status start(const tsr_host *host, tsr_digest_algorithm algorithm, running *out, tsr_error *err)
{
    *out = (running){algorithm == TSR_DIGEST_SHA256 ? host->sha256 : host->xxh3, NULL};
    TSR_FAIL_IF(!out->ops, err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "built without %s",
                algorithm == TSR_DIGEST_SHA256 ? "sha256" : "xxh3");
    out->state = out->ops->start();
    TSR_FAIL_IF(!out->state, err, TSR_E_NOMEM, TSR_NO_POSITION, "out of memory for a digest");
    return TSR_OK;
}

static tsr_status finish(const running *digest, tsr_status status, tsr_digest *out)
{
    if (status != TSR_OK) {
        digest->ops->abandon(digest->state);
        return status;
    }
    out->size = digest->ops->size;
    digest->ops->finish(digest->state, out->bytes);
    return TSR_OK;
}

tsr_status tsr_tensor_digest(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_digest_algorithm algorithm,
                             tsr_ring *ring, tsr_digest *out, tsr_error *err)
{
    running digest;
    TSR_TRY(start(tsr_checkpoint_host(checkpoint), algorithm, &digest, err));
    return finish(&digest, tsr_stream_tensor(checkpoint, entry, ring, update, &digest, err), out);
}

static tsr_status take_text(void *ctx, const char *data, size_t size, tsr_error *err)
{
    return update(ctx, data, size, 0, err);
}

tsr_status tsr_object_digest(const tsr_host *host, const tsr_entry *entry, tsr_digest_algorithm algorithm, bool *there,
                             tsr_digest *out, tsr_error *err)
{
    running digest;
    tsr_json json;
    *there = entry->value && tsr_value_is_json(entry->value, 48, host->limits.expansion);
    if (!*there) return TSR_OK;
    TSR_TRY(start(host, algorithm, &digest, err));
    tsr_json_start(&json, take_text, &digest, 0, err);
    tsr_json_value(&json, entry->value);
    return finish(&digest, tsr_json_finish(&json), out);
}

const char *tsr_digest_text(const tsr_digest *digest, char *out)
{
    static const char hex[] = "0123456789abcdef";
    for (size_t i = 0; i < digest->size; i++) {
        out[2 * i] = hex[digest->bytes[i] >> 4];
        out[2 * i + 1] = hex[digest->bytes[i] & 15];
    }
    out[2 * digest->size] = 0;
    return out;
}
