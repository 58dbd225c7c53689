/* Reads a request inside another document. */
#ifndef TSR_COMMANDS_COMMAND_REQUEST_READ_H
#define TSR_COMMANDS_COMMAND_REQUEST_READ_H

#include "codec/json.h"
#include "tessera/sys/command_request.h"

/* Like tsr_request_read, for a parsed tessera.request/1 object. */
tsr_status tsr_request_of(const cJSON *root, tsr_arena *arena, tsr_command_request *out, tsr_error *err);

#endif
