/* A digest that runs over bytes as they come. */
#ifndef TSR_CHECK_DIGEST_H
#define TSR_CHECK_DIGEST_H

#include "tessera/check.h"
#include "tessera/sys/check_shared.h"

typedef struct tsr_running_digest {
    const tsr_digest_ops *ops;
    void *state;
} tsr_running_digest;

/* TSR_E_UNSUPPORTED where the host has no such digest. */
tsr_status tsr_digest_start(const tsr_host *host, tsr_digest_algorithm algorithm, tsr_running_digest *out, tsr_error *err);
/* Frees it, and writes the digest if `status`, which it returns, is TSR_OK. */
tsr_status tsr_digest_finish(const tsr_running_digest *digest, tsr_status status, tsr_digest *out);

#endif
