/* The contract that a checkpoint is checked against: a document (tessera/document_read.h), or another checkpoint of any
 * format. */
#ifndef TSR_CLI_PROGRAM_CONTRACT_H
#define TSR_CLI_PROGRAM_CONTRACT_H

#include "cli/program/session.h"
#include "tessera/document_read.h"

typedef struct cli_contract {
    tsr_contract contract;
    tsr_store *store;
    tsr_bytes text;
    tsr_arena *arena;
    cli_session session;
} cli_contract;

/* After a failure, cli_contract_free must be called, too. */
tsr_status cli_contract_open(cli *program, const char *path, cli_contract *out, tsr_error *err);
void cli_contract_free(cli_contract *contract); /* accepts a zeroed one */

#endif
