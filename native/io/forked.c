/* See forked.h. */
#include "io/forked.h"

#include <pthread.h>
#include <unistd.h>

void tsr_process_init(tsr_process *process)
{
    atomic_init(&process->id, (int)getpid());
}

void tsr_process_enter(tsr_process *process, void (*begin)(void *ctx), void *ctx)
{
    static pthread_mutex_t beginning = PTHREAD_MUTEX_INITIALIZER;
    const int own = (int)getpid();
    if (atomic_load(&process->id) == own) return;
    pthread_mutex_lock(&beginning);
    if (atomic_load(&process->id) != own) {
        begin(ctx);
        atomic_store(&process->id, own);
    }
    pthread_mutex_unlock(&beginning);
}
