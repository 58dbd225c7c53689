/* For assertions in debug and fuzz builds: a function that is called under a lock says so by assert(tsr_is_locked(&lock)). */
#ifndef TSR_IO_LOCKED_H
#define TSR_IO_LOCKED_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>

/* Whether some thread holds the lock. If none does this one holds it afterwards, which a failed assertion makes harmless. */
static inline bool tsr_is_locked(pthread_mutex_t *lock)
{
    return pthread_mutex_trylock(lock) == EBUSY;
}

#endif
