/* The address of a server that a setting gives. */
#ifndef TSR_OBJECT_STORE_ENDPOINT_H
#define TSR_OBJECT_STORE_ENDPOINT_H

#include "tessera/memory.h"

/* Returns `given` without trailing slashes, in `arena`. `setting` is its name in messages. Errors: TSR_E_USAGE unless it is
 * an http or https URL, TSR_E_NOMEM. */
tsr_status tsr_endpoint_of(tsr_arena *arena, tsr_str given, const char *setting, const char **out, tsr_error *err);

#endif
