/* `tessera validate`: everything that is wrong with one or several checkpoints, for people and for CI. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/findings_text.h"
#include "cli/report.h"
#include "cli/session.h"
#include "cli/term.h"
#include "tessera/check.h"
#include "tessera/document.h"
#include "tessera/validate.h"

typedef struct validate_arguments {
    const char *layout;
    bool deep, json, list_rules;
    unsigned format;  /* a cli_report_format */
    unsigned fail_on; /* choice: error, warning, note */
} validate_arguments;

typedef struct contract { /* the layout to check against */
    tsr_store *store;
    tsr_bytes text;
    tsr_arena *arena;
    tsr_catalog catalog;
} contract;

static tsr_status load_contract(cli *program, const char *path, contract *out, tsr_error *err)
{
    const tsr_host *host = cli_host(program);
    tsr_status status = cli_load_file(program, path, &out->store, &out->text, err);
    if (status == TSR_OK && !(out->arena = tsr_arena_new(host->allocator, (size_t)host->limits.memory_bytes, err)))
        status = TSR_E_NOMEM;
    return status == TSR_OK ? tsr_layout_read(out->text.data, host, out->arena, &out->catalog, err) : status;
}

static void free_contract(contract *c)
{
    tsr_bytes_free(&c->text);
    if (c->store) c->store->close(c->store);
    tsr_arena_free(c->arena);
}

static tsr_status check_deep(cli *program, cli_session *session, tsr_ring *ring, tsr_error *err)
{
    cli_progress progress;
    cli_progress_start(&progress, program, "checking");
    tsr_status status = program->ranks
                            ? tsr_check_deep_shared(session->checkpoint, program->ranks, ring, &progress.base, err)
                            : tsr_check_deep(session->checkpoint, ring, &progress.base, err);
    cli_progress_end(&progress);
    return status;
}

static tsr_status check(cli *program, const validate_arguments *arguments, const contract *layout, cli_session *session,
                        tsr_error *err)
{
    const tsr_host *host = cli_host(program);
    tsr_findings *findings = tsr_checkpoint_findings(session->checkpoint);
    tsr_ring *ring = NULL;
    tsr_status status = tsr_validate_catalog(session->catalog, host, findings, err);
    if (status == TSR_OK && arguments->layout)
        status = tsr_validate_layout(session->catalog, &layout->catalog, host, findings, err);
    if (status == TSR_OK && arguments->deep) status = tsr_ring_new(host, 0, &ring, err);
    status = cli_agree(program, status, err);
    if (status == TSR_OK && arguments->deep) status = check_deep(program, session, ring, err);
    tsr_ring_free(ring);
    return status == TSR_OK ? cli_agree(program, cli_unchanged(session, err), err) : status;
}

static int worse(int a, int b)
{
    return a > b ? a : b;
}

static int validate_path(cli *program, const validate_arguments *arguments, const contract *layout, const char *path,
                         cli_report *report)
{
    tsr_error err = {0};
    cli_session session;
    tsr_status status = cli_agree(program, cli_open(program, path, NULL, &session, &err), &err);
    if (status == TSR_OK) status = check(program, arguments, layout, &session, &err);
    int result = CLI_DONE;
    if (status == TSR_OK) {
        const tsr_findings *findings = tsr_checkpoint_findings(session.checkpoint);
        cli_report_add(report, path, session.catalog, findings);
        int least = arguments->fail_on ? TSR_ERROR - ((int)arguments->fail_on - 1) : TSR_ERROR;
        for (int level = least; level <= TSR_ERROR; level++) {
            if (tsr_findings_total(findings, (tsr_level)level)) result = CLI_DIFFERS;
        }
    } else {
        cli_report_trouble(report, path, &err);
        result = cli_fail_error(program, path, &err);
    }
    cli_close(&session);
    return result;
}

static int run(cli *program, const void *given)
{
    const validate_arguments *arguments = given;
    tsr_error err = {0};
    contract layout = {0};
    if (arguments->list_rules) {
        cli_put_rules(&program->out);
        return CLI_DONE;
    }
    if (program->operands.count == 0) return cli_fail(program, "validate needs PATH…; see tessera help validate");
    tsr_status status = arguments->layout ? load_contract(program, arguments->layout, &layout, &err) : TSR_OK;
    if (cli_agree(program, status, &err) != TSR_OK) {
        free_contract(&layout);
        return cli_fail_error(program, arguments->layout, &err);
    }
    cli_report report;
    int result = CLI_DONE;
    unsigned format = arguments->json ? CLI_REPORT_JSON : arguments->format ? arguments->format : CLI_REPORT_TEXT;
    cli_report_start(&report, &program->out, (cli_report_format)format, program->operands.count, &err);
    for (size_t i = 0; i < program->operands.count; i++) {
        result = worse(result, validate_path(program, arguments, &layout, program->operands.items[i], &report));
    }
    free_contract(&layout);
    if (cli_report_end(&report) != TSR_OK) return cli_fail_error(program, NULL, &err);
    return result;
}

static const cli_option options[] = {
    {"deep", 0, CLI_FLAG, NULL, "read every byte: structure of every item, checksums, dtype and shape, copies, NaN",
     offsetof(validate_arguments, deep)},
    {"layout", 0, CLI_TEXT, "FILE", "check against a file that `tessera layout` wrote",
     offsetof(validate_arguments, layout)},
    {"format", 0, CLI_CHOICE, CLI_REPORT_FORMATS, "how to report (default text)", offsetof(validate_arguments, format)},
    {"json", 0, CLI_FLAG, NULL, "--format json", offsetof(validate_arguments, json)},
    {"fail-on", 0, CLI_CHOICE, "error|warning|note", "end with status 1 from this level on (default error)",
     offsetof(validate_arguments, fail_on)},
    {"list-rules", 0, CLI_FLAG, NULL, "all rules with their levels", offsetof(validate_arguments, list_rules)},
    {0},
};

const cli_command cli_validate = {
    .name = "validate",
    .summary = "finds what is broken: holes, overlaps, missing files, damaged bytes, drift from a layout",
    .operands = "PATH…",
    .least = 0,
    .most = UINT32_MAX,
    .examples = "tessera validate ckpt/\nmetadata, headers, sizes of files: quick\n"
                "tessera validate --deep ckpt/\nevery byte\n"
                "tessera validate --layout layout.json ckpt/ --format github\nin CI: fails when the layout has drifted\n"
                "tessera validate --list-rules\nwhat it looks for; `tessera explain RULE` tells more\n",
    .options = options,
    .arguments_size = sizeof(validate_arguments),
    .run = run,
};
