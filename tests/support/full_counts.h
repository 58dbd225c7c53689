/* Whether to run the full number of iterations: with `tests/run --full`, or with TSR_TEST_FULL=1 for a single test
 * program. */
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
