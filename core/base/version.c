#include "tessera/version.h"

const char *tsr_version(void)
{
    return TSR_VERSION;
}
