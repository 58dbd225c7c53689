/* XXH3-128, for documents with digests and for finding equal tensors. The library is a single header, which is inlined
 * here. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "platform/lent.h"

static void *start(void)
{
    XXH3_state_t *state = XXH3_createState();
    if (state) XXH3_128bits_reset(state);
    return state;
}

static void update(void *state, const void *data, size_t size)
{
    XXH3_128bits_update(state, data, size);
}

static void abandon(void *state)
{
    XXH3_freeState(state);
}

static void finish(void *state, uint8_t *out)
{
    XXH128_canonicalFromHash((XXH128_canonical_t *)out, XXH3_128bits_digest(state));
    abandon(state);
}

const tsr_digest_ops tessera_xxh3 = {16, start, update, finish, abandon};
