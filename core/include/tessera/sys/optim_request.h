/* Checks of a request for tessera optim that the command line makes before it opens anything (tessera/optim_convert.h).
 *
 * Example:
 *
 *     tsr_optim_request request = {.ring = ring};
 *     status = tsr_optim_action_find("to-fqn", &request.action, &err);
 *     if (status == TSR_OK) status = tsr_optim_request_check(&request, &err); */
#ifndef TESSERA_SYS_OPTIM_REQUEST_H
#define TESSERA_SYS_OPTIM_REQUEST_H

#include "tessera/optim_convert.h"

TSR_API_BEGIN

/* "flatten", "unflatten", "to-fqn", "to-id", "unshard", "shard", and NULL behind the last. */
extern const char *const tsr_optim_action_names[];
/* The action with a name: TSR_E_USAGE with a suggestion for other names. */
tsr_status tsr_optim_action_find(const char *name, tsr_optim_action *out, tsr_error *err);

/* Whether the options go together and what the action needs is given, before anything is opened: TSR_E_USAGE. */
tsr_status tsr_optim_request_check(const tsr_optim_request *request, tsr_error *err);

/* Whether the result is a directory of files, one per rank. */
bool tsr_optim_is_directory(const tsr_optim_job *job);

/* Keys of state that belongs to no parameter and was carried over (tsr_fsdp_full); complete once all files were written or
 * the store was made. Lives as long as the job. */
const tsr_str *tsr_optim_carried(const tsr_optim_job *job, size_t *count);

TSR_API_END

#endif
