/* See layout_file.h. */
#include "cli/commands/layout_file.h"

#include "cli/writing/out_file.h"
#include "tessera/sys/document.h"

/* Writes to the output of the command, if `to` is NULL. */
static tsr_status write_layout(cli *program, const cli_session *session, const tsr_layout_options *layout, FILE *to,
                               tsr_error *err)
{
    tsr_json json;
    tsr_layout_options options = *layout;
    cli_progress progress;
    tsr_status status = options.hash ? tsr_ring_new(cli_host(program), 0, &options.ring, err) : TSR_OK;
    if (status != TSR_OK) return status;
    cli_progress_start(&progress, program, "hashing");
    options.checkpoint = session->checkpoint;
    options.progress = &progress.base;
    if (to) tsr_json_start(&json, cli_write_file, to, 1, err);
    else cli_document_start(program, &json, 1, err);
    status = tsr_document_layout(session->catalog, &options, cli_host(program), &json, err);
    cli_progress_end(&progress);
    tsr_ring_free(options.ring);
    if (status == TSR_OK) status = tsr_json_finish(&json);
    return status == TSR_OK ? cli_unchanged(session, err) : status;
}

static tsr_status write_file(cli *program, const cli_session *session, const char *path, const tsr_layout_options *layout,
                             tsr_error *err)
{
    cli_out_file out;
    const tsr_status status = cli_out_open(program, path, session, &out, err);
    if (status != TSR_OK) return status;
    return cli_out_close(&out, write_layout(program, session, layout, out.to, err), err);
}

int cli_write_layout(cli *program, const tsr_command_options *arguments, const tsr_layout_options *layout)
{
    const char *path = program->operands.items[0];
    tsr_error err = {0};
    cli_session session = {0};
    cli_allow_expansion(program, arguments->allow_expansion);
    const tsr_open_options used = {
        .skip_objects = !layout->hash, .selects = tsr_globs_select, .selects_ctx = &arguments->selection};
    const cli_map_options map = {.options = arguments, .lists = !layout->hash};
    tsr_status status = cli_open_mapped(program, path, &used, &map, &session, &err);
    if (status == TSR_OK) status = cli_check_selection(program, &session, arguments, NULL, true, &err);
    if (status == TSR_OK) {
        status = arguments->output ? write_file(program, &session, arguments->output, layout, &err)
                                   : write_layout(program, &session, layout, NULL, &err);
    }
    cli_close(&session);
    return status == TSR_OK ? CLI_DONE : cli_fail_error(program, path, &err);
}
