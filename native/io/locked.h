/* For assertions in debug and fuzz builds: a function that must be called under a lock contains
 * assert(tsr_is_locked(&lock)). */
#ifndef TSR_IO_LOCKED_H
#define TSR_IO_LOCKED_H

#include "tessera/sys/store.h"
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>

/* Whether some thread holds the lock. If none does, this thread holds it afterwards, which is harmless because the assertion
 * fails. */
static inline bool tsr_is_locked(pthread_mutex_t *lock)
{
    return pthread_mutex_trylock(lock) == EBUSY;
}

/* ---- guards of threads ---- */

/* Guards for a store that several threads read. */

/* tsr_guards_new with a mutex. Borrows `ctx`. */
tsr_status tsr_thread_guards_new(const tsr_allocator *allocator, tsr_unguarded_read *read, void *ctx, tsr_guards **out,
                                 tsr_error *err);

#endif
