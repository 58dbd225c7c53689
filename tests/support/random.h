/* A small fixed-seed generator, so that random tests repeat. */
#ifndef TESTS_SUPPORT_RANDOM_H
#define TESTS_SUPPORT_RANDOM_H

#include <stdint.h>

typedef struct random_source {
    uint64_t state;
} random_source;

static inline uint64_t random_next(random_source *source)
{
    uint64_t x = source->state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* In [low, high]. */
static inline uint64_t random_in(random_source *source, uint64_t low, uint64_t high)
{
    return low + random_next(source) % (high - low + 1);
}

#endif
