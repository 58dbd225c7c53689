/* Reads environment variables. An empty one counts as not set. */
#ifndef TSR_OBJECT_STORE_SETTING_H
#define TSR_OBJECT_STORE_SETTING_H

#include <stdlib.h>

static inline const char *tsr_setting(const char *variable)
{
    const char *value = getenv(variable);
    return value && *value ? value : NULL;
}

#endif
