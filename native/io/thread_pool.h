/* A pool of threads for tsr_host.parallel_for. The caller works, too. A loop that is started while another is running
 * (nested, or from another thread) is executed by its caller alone, so nothing ever waits for the pool itself. */
#ifndef TSR_NATIVE_THREAD_POOL_H
#define TSR_NATIVE_THREAD_POOL_H

#include "tessera/host.h"

typedef struct tsr_pool tsr_pool;

/* `threads` includes the caller: threads − 1 are started with the first loop. NULL if memory runs out. */
tsr_pool *tsr_pool_new(uint32_t threads);
void tsr_pool_free(tsr_pool *pool); /* accepts NULL; no loop may be running */
/* Whether the system gives this process another thread. */
bool tsr_threads_exist(void);

/* A tsr_parallel_for; `ctx` is the pool. */
void tsr_pool_run(void *ctx, size_t count, void (*body)(void *arg, size_t index), void *arg);

#endif
