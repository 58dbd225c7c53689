/* Single checks of tsr_validate_catalog (tessera/validate.h), for operations that need no others.
 *
 * Example:
 *
 *     status = tsr_validate_optimizers(catalog, host, findings, &err);
 *     if (status == TSR_OK && tsr_findings_total(findings, TSR_ERROR)) puts("the optimizer's state is broken"); */
#ifndef TESSERA_SYS_VALIDATE_H
#define TESSERA_SYS_VALIDATE_H

#include "tessera/validate.h"

TSR_API_BEGIN

/* Adds findings about the states of optimizers: optim/state-incomplete, optim/state-shape, optim/state-missing,
 * optim/ids-are-texts. Objects that were not read are passed over. TSR_E_NOMEM. */
tsr_status tsr_validate_optimizers(const tsr_catalog *catalog, const tsr_host *host, tsr_findings *findings, tsr_error *err);

TSR_API_END

#endif
