/* The two control-flow macros of the project. */
#ifndef TSR_BASE_TRY_H
#define TSR_BASE_TRY_H

#include "tessera/status.h"

/* Returns the status of a failed call. */
#define TSR_TRY(call)                          \
    do {                                       \
        tsr_status try_status_ = (call);       \
        if (try_status_ != TSR_OK) return try_status_; \
    } while (0)

/* Raises and returns when the condition holds: TSR_FAIL_IF(n > max, err, TSR_E_LIMIT, at, "…", …). */
#define TSR_FAIL_IF(condition, err, status, position, ...)                       \
    do {                                                                         \
        if (condition) return tsr_raise((err), (status), (position), __VA_ARGS__); \
    } while (0)

#endif
