/* For assertions in debug and fuzz builds: a function that must be called under a lock contains
 * assert(tsr_is_locked(&lock)). */
#ifndef TSR_IO_LOCKED_H
#define TSR_IO_LOCKED_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>

/* Whether some thread holds the lock. If none does, this thread holds it afterwards, which is harmless because the assertion
 * fails. */
static inline bool tsr_is_locked(pthread_mutex_t *lock)
{
    return pthread_mutex_trylock(lock) == EBUSY;
}

#endif
