/* The files with the settings of AWS's tools: ~/.aws/credentials and ~/.aws/config, or those named by
 * AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE. */
#ifndef TSR_OBJECT_STORE_AWS_PROFILE_H
#define TSR_OBJECT_STORE_AWS_PROFILE_H

#include "tessera/memory.h"

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

#endif
