/* A digest that is computed from bytes as they arrive. */
#ifndef TSR_CHECK_DIGEST_H
#define TSR_CHECK_DIGEST_H

#include "tessera/check.h"
#include "tessera/sys/check_shared.h"

typedef struct tsr_running_digest {
    const tsr_digest_ops *ops;
    void *state;
} tsr_running_digest;

/* Fails with TSR_E_UNSUPPORTED if the host does not provide this digest. */
tsr_status tsr_digest_start(const tsr_host *host, tsr_digest_algorithm algorithm, tsr_running_digest *out, tsr_error *err);
/* Frees the digest, after writing the result if `status` is TSR_OK. Returns `status`. */
tsr_status tsr_digest_finish(const tsr_running_digest *digest, tsr_status status, tsr_digest *out);

#endif
