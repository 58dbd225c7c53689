/* Performs requests, including retries, redirects and error messages. */
#ifndef TSR_OBJECT_STORE_EXCHANGE_H
#define TSR_OBJECT_STORE_EXCHANGE_H

#include "object_store/service.h"

/* Performs all requests, many at the same time. Temporary failures are retried, a request to a wrong region is sent to the
 * right one, and redirects are followed, without secrets if they lead to another host or port. `exchanges` has room for
 * `count` exchanges and is filled. In the end each is answered, with any status that a retry cannot change, or lost
 * (tsr_request.once). Errors: TSR_E_IO if there is no answer after all retries, TSR_E_NOMEM, those of prepare.
 * tsr_exchange_end must be called for each in any case. */
tsr_status tsr_exchange_perform(tsr_service *service, const tsr_request *requests, tsr_exchange *exchanges, size_t count,
                                tsr_error *err);
void tsr_exchange_end(tsr_exchange *exchange); /* accepts a zeroed one */

/* "s3://bucket/key" for messages, without anything that may be secret, such as a signature pasted after the key. */
typedef struct tsr_shown_key {
    char text[1024];
} tsr_shown_key;
tsr_shown_key tsr_shown_key_of(const tsr_service *service, tsr_str key);

/* Raises the error for an answer with status 300 or more: TSR_E_NOT_FOUND for 404, otherwise TSR_E_IO. Of the server's text,
 * only its error code is shown, because its message may repeat what was sent. */
tsr_status tsr_exchange_error(const tsr_service *service, const tsr_exchange *exchange, tsr_error *err);

/* Sends one request whose answer is wanted as text of at most `most` bytes. `*text` lives in the exchange's arena. A status
 * of 300 or more is an error. */
tsr_status tsr_exchange_text(tsr_service *service, tsr_request request, size_t most, tsr_exchange *exchange, tsr_str *text,
                             tsr_error *err);

/* For `prepare`: appends the header "name: value". Errors: TSR_E_NOMEM. */
tsr_status tsr_exchange_header(tsr_exchange *exchange, const char *name, const char *value, tsr_error *err);

#endif
