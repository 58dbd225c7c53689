/* `tessera layout`: the contract file that a repository commits and CI checks a checkpoint against. */
#include <stdio.h>

#include "cli/session.h"
#include "tessera/document.h"

typedef struct layout_arguments {
    const char *output;
    bool no_chunks, json;
    cli_selection selection;
} layout_arguments;

static tsr_status write_layout(cli *program, const cli_session *session, const layout_arguments *arguments, FILE *file,
                               tsr_error *err)
{
    tsr_json json;
    const tsr_selection selection = {cli_selects, &arguments->selection};
    tsr_json_start(&json, cli_write_file, file, 1, err);
    tsr_status status =
        tsr_document_layout(session->catalog, &selection, !arguments->no_chunks, cli_host(program), &json, err);
    return status == TSR_OK ? tsr_json_finish(&json) : status;
}

/* Written beside its place and renamed, so that a failed run leaves an earlier file as it was. */
static tsr_status write_file(cli *program, const cli_session *session, const layout_arguments *arguments, tsr_error *err)
{
    char temporary[4096];
    if (snprintf(temporary, sizeof temporary, "%s.tmp", arguments->output) >= (int)sizeof temporary) {
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "the name of the output is too long");
    }
    FILE *file = fopen(temporary, "wb");
    if (!file) return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "cannot create '%s'", temporary);
    tsr_status status = write_layout(program, session, arguments, file, err);
    if (fclose(file) != 0 && status == TSR_OK)
        status = tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "cannot write '%s'", temporary);
    if (status == TSR_OK && rename(temporary, arguments->output) != 0) {
        status = tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "cannot rename to '%s'", arguments->output);
    }
    if (status != TSR_OK) remove(temporary);
    return status;
}

static int run(cli *program, const void *given)
{
    const layout_arguments *arguments = given;
    tsr_error err = {0};
    cli_session session;
    const char *path = program->operands.items[0];
    tsr_status status = cli_open(program, path, &(tsr_open_options){.skip_objects = true}, &session, &err);
    if (status == TSR_OK) {
        status = arguments->output ? write_file(program, &session, arguments, &err)
                                   : write_layout(program, &session, arguments, stdout, &err);
    }
    if (status == TSR_OK) status = cli_unchanged(&session, &err);
    cli_close(&session);
    return status == TSR_OK ? CLI_DONE : cli_fail_error(program, path, &err);
}

static const cli_option options[] = {
    {"output", 'o', CLI_TEXT, "FILE", "write there instead of to standard output", offsetof(layout_arguments, output)},
    {"no-chunks", 0, CLI_FLAG, NULL, "leave the sharding out: only names, dtypes and shapes count then",
     offsetof(layout_arguments, no_chunks)},
    {"include", 0, CLI_LIST, "GLOB", "only names that match (repeatable)", offsetof(layout_arguments, selection.include)},
    {"exclude", 0, CLI_LIST, "GLOB", "no names that match (repeatable); beats --include",
     offsetof(layout_arguments, selection.exclude)},
    {"json", 0, CLI_FLAG, NULL, "the only form there is", offsetof(layout_arguments, json)},
    {0},
};

const cli_command cli_layout = {
    .name = "layout",
    .summary = "writes the layout as a contract file for CI",
    .operands = "PATH",
    .least = 1,
    .most = 1,
    .examples = "tessera layout ckpt/ -o layout.json\nto commit; `tessera validate --layout layout.json` checks against it\n"
                "tessera layout ckpt/ --no-chunks\nnames, dtypes and shapes, whatever the sharding\n",
    .options = options,
    .arguments_size = sizeof(layout_arguments),
    .run = run,
};
