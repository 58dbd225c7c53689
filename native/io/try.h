/* The two control-flow macros of the project, for native code: core's own are private to core. */
#ifndef TSR_NATIVE_TRY_H
#define TSR_NATIVE_TRY_H

#include "tessera/status.h"

#define TSR_TRY(call) \
    do { \
        tsr_status try_status_ = (call); \
        if (try_status_ != TSR_OK) return try_status_; \
    } while (0)

#define TSR_FAIL_IF(condition, err, status, ...) \
    do { \
        if (condition) return tsr_raise((err), (status), TSR_NO_POSITION, __VA_ARGS__); \
    } while (0)

#endif
