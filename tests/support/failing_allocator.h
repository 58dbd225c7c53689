/* An allocator that fails at its n-th allocation and counts the blocks that were not freed, to test that "every allocation
 * failure ends in a clean error and leaks nothing". Increase n from 0 until a run makes fewer allocations:
 *
 *   for (size_t n = 0;; n++) {
 *       failing_allocator failing;
 *       failing_start(&failing, n);
 *       … use &failing.allocator; on failure expect TSR_E_NOMEM …
 *       assert_int_equal(failing.live, 0);
 *       if (!failing.failed) break;
 *   } */
#ifndef TESTS_SUPPORT_FAILING_ALLOCATOR_H
#define TESTS_SUPPORT_FAILING_ALLOCATOR_H

#include <stdlib.h>

#include "tessera/memory.h"

typedef struct failing_allocator {
    tsr_allocator allocator; /* its ctx must be set: use failing_start */
    size_t fail_at;
    size_t calls;
    size_t live;
    bool failed;
} failing_allocator;

static void *failing_resize(void *ctx, void *pointer, size_t old_size, size_t new_size)
{
    failing_allocator *self = ctx;
    (void)old_size;
    if (new_size == 0) {
        if (pointer) self->live--;
        free(pointer);
        return NULL;
    }
    if (self->calls++ == self->fail_at) {
        self->failed = true;
        return NULL;
    }
    void *result = realloc(pointer, new_size);
    if (result && !pointer) self->live++;
    return result;
}

static inline void failing_start(failing_allocator *self, size_t fail_at)
{
    *self = (failing_allocator){{failing_resize, self}, fail_at, 0, 0, false};
}

/* Restarts counting: after `successes` more allocations, the next one fails. SIZE_MAX: none fails. */
static inline void failing_after(failing_allocator *self, size_t successes)
{
    self->fail_at = successes == SIZE_MAX ? SIZE_MAX : self->calls + successes;
}

#endif
