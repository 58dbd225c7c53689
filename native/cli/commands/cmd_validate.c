/* `tessera validate`: reports everything that is wrong with one or more checkpoints, for people and for CI. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/commands/changed_files.h"
#include "cli/commands/commands.h"
#include "cli/program/contract.h"
#include "cli/program/policy_options.h"
#include "cli/program/term.h"
#include "cli/text/findings_text.h"
#include "cli/text/report_text.h"
#include "tessera/check.h"
#include "tessera/sys/contract_rules.h"
#include "tessera/sys/document.h"

/* What checkpoints are checked against: a layout, the target they are to be loaded into, both or neither; and the policy for
 * findings. */
typedef struct contracts {
    cli_contract layout, against;
    tsr_policy *policy;
} contracts;

static void free_contracts(contracts *all)
{
    cli_contract_free(&all->layout);
    cli_contract_free(&all->against);
    tsr_policy_free(all->policy);
}

static const tsr_contract *given(const char *option, const cli_contract *contract)
{
    return option ? &contract->contract : NULL;
}

static tsr_status load_contracts(cli *program, const tsr_command_options *arguments, contracts *out, const char **path,
                                 tsr_error *err)
{
    uint32_t allow = 0;
    tsr_status status = cli_policy_open(program, TSR_POLICY_VALIDATE, arguments, &out->policy, path, err);
    if (status != TSR_OK) return status;
    *path = NULL;
    status = tsr_leniency_parse(tsr_str_from(arguments->allow), &allow, err);
    if (status == TSR_OK && arguments->layout)
        status = cli_contract_open(program, *path = arguments->layout, &out->layout, err);
    if (status == TSR_OK && arguments->against)
        status = cli_contract_open(program, *path = arguments->against, &out->against, err);
    out->layout.contract.allow = allow;
    out->against.contract.allow |= allow | TSR_ANY_CHUNKS;
    out->against.contract.prefix = tsr_str_from(arguments->prefix ? arguments->prefix : "");
    out->layout.contract.names = out->against.contract.names = (tsr_selection){tsr_globs_select, &arguments->selection};
    return status;
}

static tsr_status check(cli *program, const tsr_command_options *arguments, const contracts *all, cli_session *session,
                        tsr_error *err)
{
    cli_progress progress;
    cli_progress_start(&progress, program, "checking");
    const tsr_validate_options options = {.size = sizeof options,
                                          .layout = given(arguments->layout, &all->layout),
                                          .against = given(arguments->against, &all->against),
                                          .deep = arguments->deep,
                                          .comm = program->ranks,
                                          .progress = &progress.base};
    const tsr_status status = tsr_validate(session->checkpoint, &options, err);
    cli_progress_end(&progress);
    return status == TSR_OK ? cli_agree(program, cli_unchanged(session, err), err) : status;
}

static int worse(int a, int b)
{
    return a > b ? a : b;
}

/* Splits a checkpoint's findings into those that the policy keeps and a count of the others. *left must be freed, also on
 * failure. */
static tsr_status apply_policy(cli *program, const tsr_policy *policy, const cli_session *session, tsr_findings **left,
                               tsr_policy_result *left_out, tsr_error *err)
{
    *left_out = (tsr_policy_result){0};
    *left = tsr_findings_new(cli_host(program)->allocator, 0, err);
    tsr_status status = *left ? TSR_OK : TSR_E_NOMEM;
    if (status == TSR_OK)
        status = tsr_policy_findings(policy, tsr_checkpoint_findings(session->checkpoint), *left, left_out, err);
    return cli_agree(program, status, err);
}

/* A deep check that could not read a file did not do what was asked. */
static bool could_not_read(const tsr_findings *findings)
{
    for (size_t i = 0; i < tsr_findings_count(findings); i++)
        if (strcmp(tsr_findings_at(findings, i)->rule->id, "file/io") == 0) return true;
    return false;
}

static int validate_path(cli *program, const tsr_command_options *arguments, const contracts *all, const char *path,
                         cli_report *report)
{
    tsr_error err = {0};
    cli_session session;
    const tsr_open_options any = {.purpose = TSR_FOR_FINDINGS};
    tsr_status status = cli_agree(program, cli_open(program, path, &any, &session, &err), &err);
    if (status == TSR_OK) status = check(program, arguments, all, &session, &err);
    int result;
    tsr_findings *left = NULL;
    tsr_policy_result left_out;
    if (status == TSR_OK) status = apply_policy(program, all->policy, &session, &left, &left_out, &err);
    if (status == TSR_OK) {
        tsr_report_add(&report->base, &(tsr_reported){.path = tsr_str_from(session.path),
                                                      .catalog = session.catalog,
                                                      .findings = left,
                                                      .policy = &left_out});
        result = arguments->deep && could_not_read(left) ? CLI_TROUBLE : cli_report_status(left, arguments->fail_on);
    } else {
        tsr_report_add(&report->base, &(tsr_reported){.path = tsr_str_from(path), .trouble = &err});
        result = cli_fail_error(program, path, &err);
    }
    tsr_findings_free(left);
    cli_close(&session);
    return result;
}

static int run(cli *program, const tsr_command_options *arguments)
{
    tsr_error err = {0};
    contracts all = {0};
    const char *path = NULL;
    if (arguments->list_rules) {
        const tsr_policy_scope scope = TSR_POLICY_VALIDATE;
        cli_put_rules(&program->out, &scope);
        return CLI_DONE;
    }
    if (program->operands.count == 0) return cli_fail(program, "validate needs PATH…; see tessera help validate");
    if (arguments->prefix && !arguments->against) return cli_fail(program, "--prefix needs --against FILE");
    if (arguments->allow && !arguments->against && !arguments->layout)
        return cli_fail(program, "--allow needs --layout FILE or --against FILE");
    tsr_status status = load_contracts(program, arguments, &all, &path, &err);
    if (cli_agree(program, status, &err) != TSR_OK) {
        free_contracts(&all);
        return cli_fail_error(program, path, &err);
    }
    tsr_arena *arena = NULL;
    tsr_texts paths = program->operands;
    if (arguments->changed_files) {
        arena = tsr_arena_new(cli_host(program)->allocator, 0, &err);
        status = arena ? cli_list_changed(program, program->operands, arena, &paths, &err) : TSR_E_NOMEM;
        if (cli_agree(program, status, &err) != TSR_OK) {
            tsr_arena_free(arena);
            free_contracts(&all);
            return cli_fail_error(program, NULL, &err);
        }
    }
    cli_report report;
    int result = CLI_DONE;
    const unsigned format = arguments->json ? CLI_REPORT_JSON : arguments->format;
    cli_report_start(&report, program, format, &err);
    for (size_t i = 0; i < paths.count; i++) {
        result = worse(result, validate_path(program, arguments, &all, paths.items[i], &report));
    }
    tsr_arena_free(arena);
    free_contracts(&all);
    if (format > CLI_REPORT_JSON) cli_note_left_out(program, &report.base.policy);
    if (cli_report_end(&report) != TSR_OK) return cli_fail_error(program, NULL, &err);
    return result;
}

const cli_command cli_validate = {
    .name = "validate",
    .examples =
        "tessera validate ckpt/\nCheck metadata, headers and file sizes, which is quick\n"
        "tessera validate --deep ckpt/\nRead and check every byte\n"
        "mpirun -n 8 tessera validate --deep ckpt/\nShare that work between eight processes\n"
        "tessera validate --layout layout.json ckpt/ --format github\nFail in CI when the layout has drifted\n"
        "tessera validate --against modules.json --prefix model. ckpt/\nFind out whether a model would load it: "
        "missing and unexpected names, different shapes\n"
        "tessera validate --deep ckpt/ --rule values/nan=error --rule 'index/*=off'\nTreat NaN values as errors, and "
        "report nothing about indexes\n"
        "tessera validate ckpt/ --baseline known.json\n"
        "Report only what is new since `tessera validate ckpt/ --json >known.json`\n"
        "tessera validate --list-rules\nList what is checked; `tessera explain RULE` explains a rule\n",
    .run = run,
};
