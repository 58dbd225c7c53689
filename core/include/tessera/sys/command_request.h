/* A request: a command with its options, as a document (tessera.request/1) and as a list of values.
 *
 * Plans contain the request that `tessera exec` carries out, and journals the values that tell whether a run continues an earlier one.
 *
 * Example:
 *
 *     const tsr_command_request request = {tsr_command_find(TSR_STR("convert")), {.dtype = "bfloat16"}};
 *     const tsr_option_value *values;
 *     size_t count;
 *     status = tsr_request_list(&request, arena, &values, &count, &err);
 *     if (status == TSR_OK && count) printf("%s = %s\n", values[0].option->name, values[0].text); */
#ifndef TESSERA_SYS_COMMAND_REQUEST_H
#define TESSERA_SYS_COMMAND_REQUEST_H

#include "tessera/sys/commands.h"

TSR_API_BEGIN

typedef struct tsr_command_request {
    const tsr_command *command;
    tsr_command_options options;
} tsr_command_request;

/* The value of an option, as tsr_option_set reads it; NULL for a flag. */
typedef struct tsr_option_value {
    const tsr_option *option;
    const char *text;
} tsr_option_value;
/* Lists what is given of the options of a request but those of TSR_OPTION_OF_RUN, in the order of the command's options; an option
 * whose values are a list occurs once per value. In `arena`. TSR_E_NOMEM. */
tsr_status tsr_request_list(const tsr_command_request *request, tsr_arena *arena, const tsr_option_value **out,
                            size_t *count, tsr_error *err);

/* Writes {"schema": "tessera.request/1", "command": "convert", "options": {"dtype": "bfloat16", "include": ["model.**"]}} with what
 * tsr_request_list lists. A flag is true, a number a number. */
void tsr_request_write(tsr_json *json, const tsr_command_request *request);
/* Sets in `out` the options of `command`, and those of every command, that are given in `given`, in place of those that `out` has. */
void tsr_options_override(const tsr_command *command, const tsr_command_options *given, tsr_command_options *out);
/* TSR_E_USAGE if an option is given that `command` does not have, or not in this form; `given` is by the options of `of`. */
tsr_status tsr_options_fit(const tsr_command *of, const tsr_command_options *given, const tsr_command *command,
                           tsr_error *err);

TSR_API_END

#endif
