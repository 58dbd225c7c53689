/* See endpoint.h. */
#include "object_store/endpoint.h"

#include "tessera/sys/try.h"

tsr_status tsr_endpoint_of(tsr_arena *arena, tsr_str given, const char *setting, const char **out, tsr_error *err)
{
    TSR_FAIL_IF(!tsr_str_starts(given, TSR_STR("http://")) && !tsr_str_starts(given, TSR_STR("https://")), err, TSR_E_USAGE,
                "%s must be an http or https URL", setting);
    while (given.data[given.size - 1] == '/') given.size--;
    *out = tsr_arena_str(arena, given, err).data;
    return *out ? TSR_OK : TSR_E_NOMEM;
}
