/* The address of a server, as settings give it. */
#ifndef TSR_OBJECT_STORE_ENDPOINT_H
#define TSR_OBJECT_STORE_ENDPOINT_H

#include "tessera/memory.h"

/* `given` without the slashes at its end, in `arena`. `setting` names it in messages. Errors: TSR_E_USAGE for anything but an http or
 * https URL, TSR_E_NOMEM. */
tsr_status tsr_endpoint_of(tsr_arena *arena, tsr_str given, const char *setting, const char **out, tsr_error *err);

#endif
