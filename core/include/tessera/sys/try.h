/* The control-flow macros of the project: what to do with a call or a condition that fails.
 *
 * Example:
 *
 *     #include "tessera/sys/try.h"
 *
 *     tsr_status check_count(size_t count, tsr_error *err);
 *     tsr_status check_count(size_t count, tsr_error *err)
 *     {
 *         TSR_FAIL_IF(count > 2, err, TSR_E_USAGE, "%zu paths are too many", count);
 *         return TSR_OK;
 *     } */
#ifndef TESSERA_SYS_TRY_H
#define TESSERA_SYS_TRY_H

#include "tessera/status.h"

TSR_API_BEGIN

/* Returns the status of a call that failed. */
#define TSR_TRY(call) \
    do { \
        const tsr_status try_status_ = (call); \
        if (try_status_ != TSR_OK) return try_status_; \
    } while (0)

/* tsr_raise without a position. */
tsr_status tsr_fail(tsr_error *err, tsr_status status, const char *format, ...) TSR_PRINTF_LIKE(3, 4);

/* Raises an error and returns its status where a condition holds: TSR_FAIL_IF(n > most, err, TSR_E_LIMIT, "…", …). */
#define TSR_FAIL_IF(condition, err, status, ...) \
    do { \
        if (condition) return tsr_fail((err), (status), __VA_ARGS__); \
    } while (0)

/* The same with the byte of the input where the error is. */
#define TSR_FAIL_AT(condition, err, status, position, ...) \
    do { \
        if (condition) return tsr_raise((err), (status), (position), __VA_ARGS__); \
    } while (0)

TSR_API_END

#endif
