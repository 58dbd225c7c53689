/* Compares a checkpoint's names with those of a model or another checkpoint: finds the names that correspond, and the
 * renames that `convert` would need. */
#ifndef TSR_CLI_COMMANDS_FQN_AGAINST_H
#define TSR_CLI_COMMANDS_FQN_AGAINST_H

#include "cli/program/cli.h"
#include "tessera/fqn.h"
#include "tessera/sys/canonical_names.h"

/* One name of a side. */
typedef struct cli_known_name {
    tsr_str name;  /* as written in the checkpoint or model */
    tsr_str match; /* the canonical name, which is compared */
    bool is_tensor;
    uint32_t ndim;
    const uint64_t *shape;
} cli_known_name;

typedef struct cli_known_names {
    const cli_known_name *names;
    size_t count;
} cli_known_names;

typedef struct cli_against {
    tsr_rename_rule *rules;
    size_t rule_count;
    tsr_name_pair *pairs; /* one per name of the checkpoint */
    size_t pair_count;
    const tsr_str *missing; /* wanted names that have no counterpart */
    size_t missing_count;
} cli_against;

/* Pairs `have` with `want`, first by canonical name, then tensors of equal shape as `diff` detects renamed ones, and derives
 * renames. Everything lives in `arena`. Errors: TSR_E_NOMEM. */
tsr_status cli_compare_names(cli_known_names have, cli_known_names want, const tsr_host *host, tsr_arena *arena,
                             cli_against *out, tsr_error *err);
void cli_put_against_json(tsr_json *json, const cli_against *against);
void cli_put_against_text(const cli *program, const cli_against *against);

#endif
