/* Credentials of AWS, as its own tools find them: the environment, then the profile, then the container's or the instance's
 * metadata service, whose credentials are renewed before they expire. */
#ifndef TSR_OBJECT_STORE_CREDENTIALS_H
#define TSR_OBJECT_STORE_CREDENTIALS_H

#include "object_store/aws_profile.h"
#include "io/transport.h"

typedef struct tsr_credentials {
    const char *id, *secret, *token; /* id NULL: there are none, and requests are not signed; token may be NULL */
    int64_t expires;                 /* seconds since 1970; 0: never */
} tsr_credentials;

/* Looks everywhere. The texts live in `arena`. Errors: TSR_E_UNSUPPORTED for a kind that is configured but not supported, which is
 * named; TSR_E_IO when a metadata service that is configured does not answer; TSR_E_NOMEM. */
tsr_status tsr_credentials_find(tsr_transport *transport, const tsr_aws_profile *profile, tsr_arena *arena, tsr_credentials *out,
                                tsr_error *err);

/* One request to a metadata service, repeated as others are. `*text` lives in `arena`. `*status` 0: nobody answered. */
typedef struct tsr_metadata_request {
    const char *method, *url;
    const char *const *headers; /* ends with NULL */
    unsigned connect_seconds;   /* 0: as long as usual; otherwise one attempt only */
} tsr_metadata_request;
tsr_status tsr_metadata_ask(tsr_transport *transport, const tsr_metadata_request *request, tsr_arena *arena, tsr_str *text, long *status,
                            tsr_error *err);
/* A text member of a JSON object, in `arena`; NULL: it is not there. `*number` (may be NULL) receives a number instead. */
const char *tsr_metadata_member(tsr_str json, const char *name, tsr_arena *arena, double *number);

#endif
