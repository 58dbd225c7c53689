/* Reading the option structs of callers, who may have been compiled with an earlier or a later version of the struct
 * (TSR_OPTIONS in tessera/api.h).
 *
 * Example:
 *
 *     const tsr_open_options given = TSR_OPTIONS(tsr_open_options);
 *     tsr_open_options own;
 *     status = TSR_OPTIONS_COPY(&own, &given, tsr_open_options, &err); */
#ifndef TESSERA_SYS_OPTIONS_H
#define TESSERA_SYS_OPTIONS_H

#include "tessera/status.h"

TSR_API_BEGIN

/* Copies the option struct `given` to `own`, which has own_size bytes; NULL is all zeros, and so are fields that the caller does
 * not know. Both begin with a size_t, which is own_size afterwards. Errors: TSR_E_UNSUPPORTED, naming `type`, when a field is
 * set that this library does not know; TSR_E_USAGE when the size was not initialized. */
tsr_status tsr_options_copy(void *own, size_t own_size, const void *given, const char *type, tsr_error *err);
#define TSR_OPTIONS_COPY(own, given, type, err) tsr_options_copy((own), sizeof(type), (given), #type, (err))

TSR_API_END

#endif
