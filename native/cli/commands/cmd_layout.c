/* `tessera layout` and `tessera manifest`. The first writes the layout file that a repository commits and that CI checks checkpoints
 * against; the second, checksums of a checkpoint's values, which do not depend on its sharding or format: its file is like a layout
 * without chunks but with hashes. */
#include "cli/commands/commands.h"
#include "cli/program/map_options.h"
#include "cli/writing/writing.h"
#include "tessera/sys/document.h"
#include "tessera/sys/try.h"

/* Writes to the output of the command, if `to` is NULL. */
static tsr_status write_layout(cli *program, const cli_session *session, const tsr_layout_options *layout, FILE *to,
                               tsr_error *err)
{
    tsr_json json;
    tsr_layout_options options = *layout;
    cli_progress progress;
    tsr_status status =
        options.hash ? tsr_ring_new(tsr_checkpoint_host(session->checkpoint), 0, &options.ring, err) : TSR_OK;
    if (status != TSR_OK) return status;
    cli_progress_start(&progress, program, "hashing");
    options.checkpoint = session->checkpoint;
    options.progress = &progress.base;
    if (to) tsr_json_start(&json, cli_write_file, to, 1, err);
    else cli_document_start(program, &json, err);
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
    TSR_TRY(cli_out_open(program, path, session, &out, err));
    return cli_out_close(&out, write_layout(program, session, layout, out.to, err), err);
}

/* Writes the tessera.layout/1 or tessera.manifest/1 document of PATH. `layout` says which, without what is needed to read the
 * checkpoint. Returns the exit status. */
static int write_for_command(cli *program, const tsr_command_options *arguments, const tsr_layout_options *layout)
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

static int run_layout(cli *program, const tsr_command_options *arguments)
{
    const tsr_layout_options layout = {.selection = {tsr_globs_select, &arguments->selection},
                                       .no_chunks = arguments->no_chunks,
                                       .hash = (tsr_digest_algorithm)arguments->hash};
    return write_for_command(program, arguments, &layout);
}

const cli_command cli_layout = {
    .name = "layout",
    .examples = "tessera layout ckpt/ -o layout.json\n"
                "Write a file to commit; `tessera validate --layout layout.json` checks against it\n"
                "tessera layout ckpt/ --no-chunks\nRecord names, dtypes and shapes, for any sharding\n",
    .run = run_layout,
};

static int run_manifest(cli *program, const tsr_command_options *arguments)
{
    const tsr_digest_algorithm usual = cli_host(program)->xxh3 ? TSR_DIGEST_XXH3 : TSR_DIGEST_SHA256;
    const tsr_layout_options manifest = {.selection = {tsr_globs_select, &arguments->selection},
                                         .no_chunks = true,
                                         .is_manifest = true,
                                         .hash = arguments->hash ? (tsr_digest_algorithm)arguments->hash : usual};
    return write_for_command(program, arguments, &manifest);
}

const cli_command cli_manifest = {
    .name = "manifest",
    .examples = "tessera manifest ckpt/ -o manifest.json\nWrite a manifest; `tessera verify` checks against it\n"
                "cmp <(tessera manifest on-8-ranks/) <(tessera manifest on-64-ranks/)\n"
                "Compare two checkpoints by their manifests\n",
    .run = run_manifest,
};
