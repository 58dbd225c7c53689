/* See thread_guards.h. */
#include "io/thread_guards.h"
#include "io/locked.h"

#include "tessera/sys/alloc.h"

typedef struct mutex {
    const tsr_allocator *allocator;
    pthread_mutex_t lock;
} mutex;

static void take(void *ctx)
{
    pthread_mutex_lock(&((mutex *)ctx)->lock);
}

static void release(void *ctx)
{
    pthread_mutex_unlock(&((mutex *)ctx)->lock);
}

static bool is_taken(void *ctx)
{
    return tsr_is_locked(&((mutex *)ctx)->lock);
}

static void free_mutex(void *ctx)
{
    mutex *m = ctx;
    pthread_mutex_destroy(&m->lock);
    tsr_free(m->allocator, m, 1, sizeof *m);
}

tsr_status tsr_thread_guards_new(const tsr_allocator *allocator, tsr_unguarded_read *read, void *ctx, tsr_guards **out,
                                 tsr_error *err)
{
    mutex *m = tsr_alloc(allocator, 1, sizeof *m, err);
    if (!m) return TSR_E_NOMEM;
    m->allocator = allocator;
    pthread_mutex_init(&m->lock, NULL);
    return tsr_guards_new(allocator, read, ctx, &(tsr_guards_lock){m, take, release, is_taken, free_mutex}, out, err);
}
