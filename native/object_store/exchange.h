/* Requests with their repetitions, redirects and messages. */
#ifndef TSR_OBJECT_STORE_EXCHANGE_H
#define TSR_OBJECT_STORE_EXCHANGE_H

#include "object_store/service.h"

/* Performs all requests, many at once: what may pass is tried again, a wrong region is answered by asking the right one, and
 * redirects are followed, without any secret where they lead to another host or port. `exchanges` has room for as many and is
 * filled; each ends answered, with any status that repeating does not help, or lost (tsr_request.once). Errors: TSR_E_IO where there is no answer in the
 * end, TSR_E_NOMEM, those of prepare. tsr_exchange_end frees each in any case. */
tsr_status tsr_exchange_perform(tsr_service *service, const tsr_request *requests, tsr_exchange *exchanges, size_t count,
                                tsr_error *err);
void tsr_exchange_end(tsr_exchange *exchange); /* takes a zeroed one */

/* "s3://bucket/key" for messages, without what may be a secret: a signature that was pasted behind the key. */
typedef struct tsr_shown_key {
    char text[1024];
} tsr_shown_key;
tsr_shown_key tsr_shown_key_of(const tsr_service *service, tsr_str key);

/* The error that an answer of 300 or more stands for: TSR_E_NOT_FOUND for 404, otherwise TSR_E_IO. Only the server's error code
 * is shown of what it said, because its message may repeat what was sent. */
tsr_status tsr_exchange_error(const tsr_service *service, const tsr_exchange *exchange, tsr_error *err);

/* One request whose answer, of any size up to `most` bytes, is wanted as text. `*text` lives in the exchange's arena. Statuses of
 * 300 and more are errors. */
tsr_status tsr_exchange_text(tsr_service *service, tsr_request request, size_t most, tsr_exchange *exchange, tsr_str *text,
                             tsr_error *err);

/* For prepare: appends "name: value"; `sets` the URL. TSR_E_NOMEM. */
tsr_status tsr_exchange_header(tsr_exchange *exchange, const char *name, const char *value, tsr_error *err);

#endif
