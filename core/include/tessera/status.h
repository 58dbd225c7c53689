/* Status codes and located errors.
 *
 * Every function that can fail returns a tsr_status and takes `tsr_error *err` last (NULL: the caller does not
 * care). The error is owned by the caller and starts zeroed: `tsr_error err = {0};`. The first error wins; outer
 * layers add where it happened with tsr_error_context. Thread rule: one tsr_error per thread.
 *
 * Example:
 *
 *     status = tsr_checkpoint_open(store, host, NULL, &checkpoint, &err);
 *     if (status != TSR_OK) {
 *         tsr_error_context(&err, "the checkpoint of step %d", 1000);
 *         fprintf(stderr, "%s: %s\n", tsr_status_name(status), err.message);
 *     } */
#ifndef TESSERA_STATUS_H
#define TESSERA_STATUS_H

#include <stdint.h>

#include "tessera/str.h"

TSR_API_BEGIN

typedef enum tsr_status {
    TSR_OK = 0,
    TSR_E_NOMEM,       /* the allocator failed, or a memory limit was reached */
    TSR_E_IO,          /* a read or write failed, or ended early */
    TSR_E_FORMAT,      /* malformed input */
    TSR_E_UNSUPPORTED, /* well-formed, but not something Tessera (as built) handles */
    TSR_E_LIMIT,       /* input exceeds a limit of tsr_limits */
    TSR_E_USAGE,       /* the caller asked for something that makes no sense */
    TSR_E_NOT_FOUND,   /* a name, file or entry that is not there */
    TSR_E_EXISTS,      /* a destination that already exists */
    TSR_E_CHANGED,     /* a source changed, or a plan is stale */
    TSR_E_CANCELLED,   /* the caller asked to stop */
    TSR_E_NOT_BUILT    /* this build lacks a library that it needs for this; the message names it and its package */
} tsr_status;

#define TSR_NO_POSITION        UINT64_MAX
#define TSR_NO_FILE            UINT32_MAX /* number of a file of a store or output that is not there */
#define TSR_ERROR_MESSAGE_SIZE 768

typedef struct tsr_error {
    tsr_status status;
    uint32_t names_subject; /* not 0: the message says what it is about, so that no path has to be put in front of it */
    uint64_t byte_position; /* in the file or document being parsed; TSR_NO_POSITION when none (or status is TSR_OK) */
    char message[TSR_ERROR_MESSAGE_SIZE]; /* UTF-8, NUL-terminated, one line, visible characters */
} tsr_error;

#if defined(__GNUC__)
#define TSR_PRINTF_LIKE(format_index, first_arg) __attribute__((format(printf, format_index, first_arg)))
#else
#define TSR_PRINTF_LIKE(format_index, first_arg)
#endif

/* Records an error unless `err` already holds one, and returns `status` so that it can be returned directly.
 * Long arguments are clipped to fit; what is not visible in the result is escaped (tsr_str_step). */
tsr_status tsr_raise(tsr_error *err, tsr_status status, uint64_t byte_position, const char *format, ...)
    TSR_PRINTF_LIKE(4, 5);

/* Appends ", in <context>" to a recorded error on each call, unless its message names the context already. Does nothing if there is
 * no error or `err` is NULL. */
void tsr_error_context(tsr_error *err, const char *format, ...) TSR_PRINTF_LIKE(2, 3);

/* A short stable word for a status: "malformed", "i/o", … */
const char *tsr_status_name(tsr_status status);

TSR_API_END

#endif
