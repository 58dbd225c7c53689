/* Whether the full counts are wanted: `tests/run --full`, or TSR_TEST_FULL=1 before a program of tests. */
#ifndef TSR_SUPPORT_FULL_COUNTS_H
#define TSR_SUPPORT_FULL_COUNTS_H

#include <stdbool.h>
#include <stdlib.h>

static inline bool full_counts(void)
{
    const char *full = getenv("TSR_TEST_FULL");
    return full && *full;
}

#endif
