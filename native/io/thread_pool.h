/* A pool of threads behind tsr_host.parallel_for. The caller works too; a loop started while another runs (nested, or
 * from another thread) is done by its caller alone, so that nothing ever waits for the pool itself. */
#ifndef TSR_NATIVE_THREAD_POOL_H
#define TSR_NATIVE_THREAD_POOL_H

#include "tessera/host.h"

typedef struct tsr_pool tsr_pool;

/* `threads` counts the caller: threads − 1 are started, at the first loop. NULL when memory is short. */
tsr_pool *tsr_pool_new(uint32_t threads);
void tsr_pool_free(tsr_pool *pool); /* takes NULL; no loop may be running */
/* A tsr_parallel_for; `ctx` is the pool. */
void tsr_pool_run(void *ctx, size_t count, void (*body)(void *arg, size_t index), void *arg);

#endif
