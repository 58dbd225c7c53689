/* --against: refuses to write a checkpoint that could not be loaded. */
#include "cli/program/contract.h"
#include "cli/writing/writing_parts.h"
#include "tessera/sys/casts.h"

tsr_status cli_check_against(const cli_writing *w, tsr_error *err)
{
    cli_contract against;
    tsr_status status = cli_contract_open(w->program, w->against, &against, err);
    if (status != TSR_OK) tsr_error_context(err, "--against '%s'", w->against);
    else status = tsr_conversion_check(&w->conversion, &against.contract, cli_host(w->program), err);
    cli_contract_free(&against);
    return status;
}
