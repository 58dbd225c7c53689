/* `tessera prune`: removes old checkpoints of a run. */
#include <stdio.h>

#include "cli/commands/commands.h"
#include "cli/program/session.h"
#include "cli/program/term.h"
#include "tessera/sys/document.h"
#include "tessera/sys/prune_run.h"
#include "tessera/sys/try.h"

static tsr_status prune(cli *program, const tsr_command_options *arguments, const char *run, tsr_arena *arena,
                        tsr_prune_result *out, tsr_error *err)
{
    cli_deep_check deep = {.program = program};
    const tsr_prune_options options = {
        .size = sizeof options,
        .keep = arguments->keep,
        .keep_every = arguments->keep_every,
        .whole_directory = arguments->whole_directory,
        .dry_run = arguments->dry_run,
        .judging = {.size = sizeof options.judging, .check = arguments->deep ? cli_check_deep : NULL, .check_ctx = &deep}};
    const tsr_status status = tsr_prune_run(cli_host(program), cli_given_address(program, run), &options, arena, out, err);
    tsr_ring_free(deep.ring);
    return status;
}

/* Names the files of others that stay where a checkpoint was: a line for each directory. */
static tsr_status put_left(const cli *program, const tsr_prune_result *result, const tsr_pruned *pruned, tsr_str run,
                           tsr_arena *arena, tsr_error *err)
{
    enum { MOST = 20 };
    tsr_str path, names = TSR_STR("");
    tsr_status status = tsr_latest_path(run, pruned->path, arena, &path, err);
    for (size_t n = 0; n < pruned->left_count && n < MOST && status == TSR_OK; n++) {
        const tsr_str left = {pruned->left[n].data + pruned->path.size + 1, pruned->left[n].size - pruned->path.size - 1};
        names = tsr_arena_format(arena, err, "%.*s%s%.*s", TSR_STR_ARG(names), n ? ", " : "", TSR_STR_ARG(left));
        if (!names.data) status = TSR_E_NOMEM;
    }
    if (status != TSR_OK) return status;
    cli_warn(program, "%.*s: %s not part of the checkpoint%s%.*s, and %sstay%s: %.*s%s", TSR_STR_ARG(path),
             pruned->left_count == 1 ? "one file is" : "some files are", pruned->left_because.size ? ", " : "",
             TSR_STR_ARG(pruned->left_because), result->dry_run ? "would " : "",
             pruned->left_count == 1 && !result->dry_run ? "s" : "", TSR_STR_ARG(names),
             pruned->left_count > MOST ? ", … (--json lists all)" : "");
    return TSR_OK;
}

/* Names on stderr what is kept for another reason than the options, and the files that stay. */
static tsr_status put_notes(const cli *program, const tsr_prune_result *result, tsr_str run, tsr_arena *arena,
                            tsr_error *err)
{
    tsr_str path;
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < result->kept_count && status == TSR_OK; i++) {
        const tsr_prune_kept *kept = &result->kept[i];
        if (!kept->is_asked && (status = tsr_latest_path(run, kept->path, arena, &path, err)) == TSR_OK)
            cli_note(program, "%.*s is kept: %.*s", TSR_STR_ARG(path), TSR_STR_ARG(kept->reason));
    }
    for (size_t i = 0; i < result->removed_count && status == TSR_OK; i++)
        if (result->removed[i].left_count) status = put_left(program, result, &result->removed[i], run, arena, err);
    if (result->unlisted.size)
        cli_warn(program, "%.*s: '%.*s' cannot be listed, so checkpoints in it are not known: %.*s", TSR_STR_ARG(run),
                 TSR_STR_ARG(result->unlisted), TSR_STR_ARG(result->unlisted_why));
    if (!result->found_valid)
        cli_note(program, "%.*s: %s, so nothing is removed", TSR_STR_ARG(run),
                 result->kept_count ? "no checkpoint is without errors" : "there are no checkpoints");
    return status;
}

static tsr_status put_removed(const tsr_prune_result *result, tsr_str run, tsr_arena *arena, tsr_error *err)
{
    for (size_t i = 0; i < result->removed_count; i++) {
        const tsr_pruned *pruned = &result->removed[i];
        tsr_str path;
        TSR_TRY(tsr_latest_path(run, pruned->path, arena, &path, err));
        fputs(result->dry_run ? "would remove " : "removed ", stdout);
        cli_put(stdout, path);
        printf(" (%s, %s%s%s)\n", cli_plural(pruned->files, "file").text, cli_bytes(pruned->bytes).text,
               pruned->because == TSR_PRUNED_OLDER ? "" : "; ",
               pruned->because == TSR_PRUNED_OLDER     ? ""
               : pruned->because == TSR_PRUNED_DAMAGED ? "it has errors"
                                                       : "an earlier run had begun to remove it");
    }
    return TSR_OK;
}

static tsr_status put(cli *program, bool as_json, const tsr_prune_result *result, tsr_str run, tsr_arena *arena,
                      tsr_error *err)
{
    tsr_json json;
    tsr_status status = put_notes(program, result, run, arena, err);
    if (status == TSR_OK && !as_json) status = put_removed(result, run, arena, err);
    if (status != TSR_OK || !as_json) return status;
    cli_document_start(program, &json, err);
    status = tsr_document_prune(result, run, arena, &json, err);
    return status == TSR_OK ? tsr_json_finish(&json) : status;
}

static int run(cli *program, const tsr_command_options *arguments)
{
    const char *path = program->operands.items[0];
    tsr_prune_result result = {.found_valid = false};
    tsr_error err = {0};
    if (!arguments->keep) return cli_fail(program, "prune needs --keep N, the number of checkpoints to keep");
    tsr_arena *arena = tsr_arena_new(cli_host(program)->allocator, 0, &err);
    tsr_status status = arena ? prune(program, arguments, path, arena, &result, &err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = put(program, arguments->json, &result, tsr_str_from(path), arena, &err);
    const int code = status != TSR_OK ? cli_fail_error(program, path, &err) : result.found_valid ? CLI_DONE : CLI_DIFFERS;
    tsr_arena_free(arena);
    return code;
}

const cli_command cli_prune = {
    .name = "prune",
    .examples =
        "tessera prune run/ --keep 3 --dry-run\nShow what would be removed if only the three newest checkpoints that would "
        "load were kept\n"
        "tessera prune run/ --keep 3\nRemove the others, each marker first; files of other programs stay, and so does what a tracker "
        "file, a symbolic link or another checkpoint that stays refers to\n"
        "tessera prune run/ --keep 1 --keep-every 1000\nKeep every 1000th step as well\n"
        "tessera prune s3://bucket/run --keep 5 --deep\nRead every byte first, in an object store\n",
    .run = run,
};
