/* Reads the request inside a plan. */
#ifndef TSR_COMMANDS_COMMAND_REQUEST_READ_H
#define TSR_COMMANDS_COMMAND_REQUEST_READ_H

#include "codec/json.h"
#include "tessera/sys/commands.h"

/* Reads a parsed tessera.request/1 object. Texts are in `arena`. Errors: TSR_E_FORMAT, naming what is not as it should be; TSR_E_USAGE for
 * values that options do not take; TSR_E_NOMEM. */
tsr_status tsr_request_of(const cJSON *root, tsr_arena *arena, tsr_command_request *out, tsr_error *err);

#endif
