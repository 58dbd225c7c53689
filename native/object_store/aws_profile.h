/* The files that AWS's tools keep their settings in: ~/.aws/credentials and ~/.aws/config, or what AWS_SHARED_CREDENTIALS_FILE and
 * AWS_CONFIG_FILE name. */
#ifndef TSR_OBJECT_STORE_AWS_PROFILE_H
#define TSR_OBJECT_STORE_AWS_PROFILE_H

#include "tessera/memory.h"

typedef struct tsr_aws_profile {
    const char *name;    /* AWS_PROFILE, otherwise "default" */
    tsr_str credentials; /* the lines of its section, one file each; empty: no such section */
    tsr_str config;
} tsr_aws_profile;

/* Reads both files as far as they exist. A profile that AWS_PROFILE names has to be in one of them (TSR_E_NOT_FOUND). */
tsr_status tsr_aws_profile_read(tsr_arena *arena, tsr_aws_profile *out, tsr_error *err);
/* The value of a setting, from the credentials file before the configuration; NULL data: not set. */
tsr_str tsr_aws_profile_get(const tsr_aws_profile *profile, const char *setting);

#endif
