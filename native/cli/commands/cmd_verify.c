/* `tessera verify`: checks a checkpoint's values against their manifest, even if they are sharded differently. */
#include "cli/commands/commands.h"
#include "cli/program/map_options.h"
#include "cli/program/session.h"
#include "cli/text/report_text.h"
#include "tessera/check.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"

static tsr_status open_manifest(cli *program, const char *path, const char *allow, cli_contract *out, tsr_error *err)
{
    uint32_t bits;
    tsr_status status = tsr_leniency_parse(tsr_str_from(allow), &bits, err);
    if (status == TSR_OK) status = cli_contract_open(program, path, out, err);
    out->contract.allow |= bits;
    out->contract.called = "the manifest";
    if (status == TSR_OK && !out->contract.digests) {
        return tsr_fail(err, TSR_E_USAGE, "'%s' has no hashes; write a manifest with `tessera manifest`", path);
    }
    return status;
}

/* Whether the first operand is the manifest: people swap the two. */
static bool is_manifest(cli *program, const char *path)
{
    tsr_error ignored = {0};
    cli_contract contract = {0};
    const bool is = cli_contract_open(program, path, &contract, &ignored) == TSR_OK && contract.contract.digests;
    cli_contract_free(&contract);
    return is;
}

static tsr_status check_values(cli *program, const cli_session *session, const tsr_contract *manifest, tsr_error *err)
{
    cli_progress progress;
    cli_progress_start(&progress, program, "verifying");
    const tsr_validate_options options = {
        .size = sizeof options, .layout = manifest, .hashes = true, .comm = program->ranks, .progress = &progress.base};
    const tsr_status status = tsr_validate(session->checkpoint, &options, err);
    cli_progress_end(&progress);
    return status;
}

static int run(cli *program, const tsr_command_options *arguments)
{
    const char *path = program->operands.items[0], *at = program->operands.items[1];
    tsr_error err = {0};
    cli_session session = {0};
    cli_contract manifest = {0};
    cli_report report;
    int result = CLI_DONE;
    cli_allow_expansion(program, arguments->allow_expansion);
    tsr_status status = open_manifest(program, at, arguments->allow, &manifest, &err);
    if (status != TSR_OK && !program->ranks && is_manifest(program, path)) {
        cli_contract_free(&manifest);
        return cli_fail(program, "the manifest comes second: tessera verify %s %s", at, path);
    }
    const cli_map_options map = {.options = arguments};
    if (status == TSR_OK) status = cli_open_mapped(program, at = path, NULL, &map, &session, &err);
    if (status == TSR_OK) status = check_values(program, &session, &manifest.contract, &err);
    if (status == TSR_OK) status = cli_unchanged(&session, &err);
    if (status == TSR_OK) {
        const tsr_findings *findings = tsr_checkpoint_findings(session.checkpoint);
        cli_report_start(&report, program, arguments->json ? CLI_REPORT_JSON : arguments->format, &err);
        tsr_report_add(&report.base,
                       &(tsr_reported){.path = tsr_str_from(path), .catalog = session.catalog, .findings = findings});
        result = cli_report_status(findings, 0);
        status = cli_report_end(&report);
    }
    if (status != TSR_OK) result = cli_fail_error(program, at, &err);
    cli_close(&session);
    cli_contract_free(&manifest);
    return result;
}

const cli_command cli_verify = {
    .name = "verify",
    .examples = "tessera verify resharded/ manifest.json\nCheck that every name, dtype, shape and value is unchanged\n"
                "tessera verify model.safetensors manifest.json --allow missing\n"
                "Check a checkpoint that contains only some of the entries\n",
    .run = run,
};
