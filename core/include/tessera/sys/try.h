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

/* Most errors are about what the caller has opened, and whoever shows them puts its path in front of the message. Other messages name what
 * they are about themselves: a destination, or a document that an option gives. tsr_naming(err) records that, and returns `err`; it is the
 * argument of the function that raises the error. */
tsr_error *tsr_naming(tsr_error *err);
/* tsr_error_context where the context is what the error is about. */
void tsr_error_subject(tsr_error *err, const char *format, ...) TSR_PRINTF_LIKE(2, 3);
/* Whether the message names what it is about, because that was recorded, or because it contains `path`: in quotes, before a colon, or as
 * its first or last word. Otherwise the path belongs in front of it. Also true for NULL and "", which name nothing. */
bool tsr_error_names(const tsr_error *err, const char *path);
/* Raises an error that was caught, with all that it states. Returns `status`, also where the caught error is empty. */
tsr_status tsr_raise_again(tsr_error *err, tsr_status status, const tsr_error *caught);

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
