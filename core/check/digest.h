/* A digest that is computed from bytes as they arrive. */
#ifndef TSR_CHECK_DIGEST_H
#define TSR_CHECK_DIGEST_H

#include "tessera/check.h"
#include "tessera/sys/check.h"

typedef struct tsr_running_digest {
    const tsr_digest_ops *ops;
    void *state;
} tsr_running_digest;

#endif
