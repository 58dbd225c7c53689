/* The time in seconds, on a clock that never goes backwards, for progress and time limits. */
#ifndef TSR_NATIVE_IO_CLOCK_H
#define TSR_NATIVE_IO_CLOCK_H

#include <time.h>

static inline double tsr_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

#endif
