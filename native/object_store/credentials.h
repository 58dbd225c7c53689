/* Finds AWS credentials where AWS's own tools look for them: in the environment, then in the profile, then at the metadata
 * service of the container or instance. The credentials of a metadata service are renewed before they expire. */
#ifndef TSR_OBJECT_STORE_CREDENTIALS_H
#define TSR_OBJECT_STORE_CREDENTIALS_H

#include "io/transport.h"
#include "tessera/memory.h"

/* The files with the settings of AWS's tools: ~/.aws/credentials and ~/.aws/config, or those named by
 * AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE. */

typedef struct tsr_aws_profile {
    const char *name; /* AWS_PROFILE, otherwise "default" */
    /* The lines of the profile's sections in the credentials file and in the configuration; empty: no such section. */
    tsr_str credentials;
    tsr_str config;
} tsr_aws_profile;

/* Reads both files if they exist. TSR_E_NOT_FOUND if neither has the profile that AWS_PROFILE names. */
tsr_status tsr_aws_profile_read(tsr_arena *arena, tsr_aws_profile *out, tsr_error *err);
/* The value of a setting. The credentials file takes precedence over the configuration. NULL data: not set. */
tsr_str tsr_aws_profile_get(const tsr_aws_profile *profile, const char *setting);

typedef struct tsr_credentials {
    const char *id, *secret, *token; /* id NULL: there are none, so requests are not signed; token may be NULL */
    int64_t expires;                 /* seconds since 1970; 0: never */
} tsr_credentials;

/* Searches all places. The texts live in `arena`. Errors: TSR_E_UNSUPPORTED, which names the kind, for credentials that are
 * configured but not supported; TSR_E_IO if a configured metadata service does not answer; TSR_E_NOMEM. */
tsr_status tsr_credentials_find(tsr_transport *transport, const tsr_aws_profile *profile, tsr_arena *arena,
                                tsr_credentials *out, tsr_error *err);

/* Sends a request to a metadata service, with the same retries as other requests. `*text` lives in `arena`. `*status` 0:
 * nobody answered. */
typedef struct tsr_metadata_request {
    const char *method, *url;
    const char *const *headers; /* ends with NULL */
    unsigned connect_seconds;   /* limit for connecting, with a single attempt; 0: the usual limit and retries */
} tsr_metadata_request;
tsr_status tsr_metadata_ask(tsr_transport *transport, const tsr_metadata_request *request, tsr_arena *arena, tsr_str *text,
                            long *status, tsr_error *err);
/* The string with this name in a JSON object, in `arena`; NULL if there is none. If `number` is not NULL, it receives the
 * value if that is a number. */
const char *tsr_metadata_member(tsr_str json, const char *name, tsr_arena *arena, double *number);

#endif
