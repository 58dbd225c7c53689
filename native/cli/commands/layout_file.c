/* See layout_file.h. */
#include "cli/commands/layout_file.h"

#include "cli/writing/out_file.h"
#include "tessera/sys/document.h"

static tsr_status write_layout(cli *program, const cli_session *session, const tsr_command_options *arguments, FILE *to,
                               tsr_error *err)
{
    tsr_json json;
    tsr_ring *ring = NULL;
    cli_progress progress;
    tsr_status status = arguments->hash ? tsr_ring_new(cli_host(program), 0, &ring, err) : TSR_OK;
    if (status != TSR_OK) return status;
    const bool is_manifest = strcmp(program->command->name, "manifest") == 0;
    cli_progress_start(&progress, program, "hashing");
    const tsr_layout_options options = {.selection = {cli_selects, &arguments->selection},
                                        .no_chunks = arguments->no_chunks || is_manifest,
                                        .is_manifest = is_manifest,
                                        .hash = (tsr_digest_algorithm)arguments->hash,
                                        .checkpoint = session->checkpoint,
                                        .ring = ring,
                                        .progress = &progress.base};
    tsr_json_start(&json, cli_write_file, to, 1, err);
    status = tsr_document_layout(session->catalog, &options, cli_host(program), &json, err);
    cli_progress_end(&progress);
    tsr_ring_free(ring);
    return status == TSR_OK ? tsr_json_finish(&json) : status;
}

static tsr_status write_unchanged(cli *program, const cli_session *session, const tsr_command_options *arguments, FILE *to,
                                  tsr_error *err)
{
    const tsr_status status = write_layout(program, session, arguments, to, err);
    return status == TSR_OK ? cli_unchanged(session, err) : status;
}

static tsr_status write_file(cli *program, const cli_session *session, const tsr_command_options *arguments, tsr_error *err)
{
    cli_out_file out;
    const tsr_status status = cli_out_open(arguments->output, session, &out, err);
    if (status != TSR_OK) return status;
    return cli_out_close(&out, write_unchanged(program, session, arguments, out.to, err), err);
}

int cli_write_layout(cli *program, const char *path, const tsr_command_options *arguments)
{
    tsr_error err = {0};
    cli_session session = {0};
    cli_allow_expansion(program, arguments->allow_expansion);
    const tsr_open_options used = {
        .skip_objects = !arguments->hash, .selects = cli_selects, .selects_ctx = &arguments->selection};
    cli_map_options map = cli_map_of(arguments);
    map.lists = !arguments->hash;
    tsr_status status = cli_open_mapped(program, path, &used, &map, &session, &err);
    if (status == TSR_OK) status = cli_check_selection(program, &session, &arguments->selection, NULL, true, &err);
    if (status == TSR_OK) {
        status = arguments->output ? write_file(program, &session, arguments, &err)
                                   : write_unchanged(program, &session, arguments, stdout, &err);
    }
    cli_close(&session);
    return status == TSR_OK ? CLI_DONE : cli_fail_error(program, path, &err);
}
