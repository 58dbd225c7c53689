/* `tessera validate`: reports everything that is wrong with one or more checkpoints, for people and for CI. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands/commands.h"
#include "cli/program/cli.h"
#include "cli/program/map_options.h"
#include "cli/program/session.h"
#include "cli/program/term.h"
#include "cli/text/report_text.h"
#include "tessera/check.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/document.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/path.h"
#include "tessera/sys/store.h"
#include "tessera/sys/try.h"

/* ---- changed files ---- */

enum { MOST_LEVELS = 4 }; /* directories that are tried; no form has more levels */

/* Whether files of this format are a checkpoint only together. Ranks whose plain tensors differ may also be different models
 * that are in one directory. */
static bool needs_directory(tsr_format format)
{
    return format != TSR_FORMAT_SAFETENSORS && format != TSR_FORMAT_TORCH_ZIP && format != TSR_FORMAT_TORCH_LEGACY &&
           format != TSR_FORMAT_SHARDS;
}

/* Whether the opened directory is a checkpoint that the file `name` in it, or below it, belongs to. */
static tsr_status contains(cli_session *session, const char *name, bool *out, tsr_error *err)
{
    const char *marker;
    *out = false;
    if (!needs_directory(session->catalog->format) || tsr_checkpoint_step(session->checkpoint, &marker).data) return TSR_OK;
    if (!strchr(name, '/')) {
        *out = true;
        return TSR_OK;
    }
    bool *used = calloc(session->store->file_count + 1, sizeof *used);
    if (!used) return tsr_fail(err, TSR_E_NOMEM, "out of memory");
    const uint32_t file = tsr_store_find(session->store, tsr_str_from(name));
    tsr_checkpoint_used_files(session->checkpoint, used);
    *out = file != TSR_NO_FILE && used[file];
    free(used);
    return TSR_OK;
}

static bool opens(cli *program, const char *path, cli_session *session)
{
    tsr_error ignored = {0};
    const tsr_open_options any = {.purpose = TSR_FOR_FINDINGS};
    return cli_open_apart(program, path, &any, session, &ignored) == TSR_OK;
}

/* The checkpoint of several files that the file belongs to: the outermost directory; NULL if there is none. */
static tsr_status find_directory(cli *program, const char *file, tsr_arena *arena, const char **out, tsr_error *err)
{
    size_t end = strlen(file);
    *out = NULL;
    for (int level = 0; level < MOST_LEVELS && end; level++, end -= end > 0) {
        bool is_in = false;
        cli_session session;
        while (end && file[end - 1] != '/') end--; /* file[0, end) is a directory with its slash */
        const tsr_str directory = end ? tsr_arena_str(arena, (tsr_str){file, end > 1 ? end - 1 : end}, err) : TSR_STR(".");
        if (!directory.data) return TSR_E_NOMEM;
        tsr_status status = TSR_OK;
        if (opens(program, directory.data, &session)) status = contains(&session, file + end, &is_in, err);
        cli_close(&session);
        if (status != TSR_OK) return status;
        if (is_in) *out = directory.data;
    }
    return TSR_OK;
}

/* What the file means to a directory that does not open as a checkpoint, or to none. */
static tsr_file_role role_of(cli *program, const char *directory, const char *name)
{
    tsr_error ignored = {0};
    tsr_store *store = NULL;
    tsr_file_role role = TSR_ROLE_NONE;
    if (tsr_path_store_open(cli_host(program), directory, &store, &ignored) != TSR_OK) return TSR_ROLE_NONE;
    const uint32_t file = tsr_store_find(store, tsr_str_from(name));
    if (file == TSR_NO_FILE || tsr_store_file_role(store, file, &role, &ignored) != TSR_OK) role = TSR_ROLE_NONE;
    store->close(store);
    return role;
}

/* *out is NULL if the file belongs to no checkpoint. */
static tsr_status find_checkpoint(cli *program, const char *file, tsr_arena *arena, const char **out, tsr_error *err)
{
    cli_session session;
    tsr_status status = find_directory(program, file, arena, out, err);
    if (status != TSR_OK || *out) return status;
    const bool is_alone = opens(program, file, &session);
    cli_close(&session);
    if (is_alone || access(file, F_OK) != 0) {
        *out = file;
        return TSR_OK;
    }
    /* What cannot be opened is reported by validate: the file, or the directory that is nothing without this file. */
    const char *slash = strrchr(file, '/'), *name = slash ? slash + 1 : file;
    const tsr_str directory =
        slash ? tsr_arena_str(arena, (tsr_str){file, slash > file ? (size_t)(slash - file) : 1}, err) : TSR_STR(".");
    if (!directory.data) return TSR_E_NOMEM;
    const tsr_file_role role = role_of(program, directory.data, name);
    if (role == TSR_ROLE_MARKER || (role == TSR_ROLE_TENSORS && tsr_str_ends(tsr_str_from(name), TSR_STR(".distcp"))))
        *out = directory.data;
    else if (role == TSR_ROLE_TENSORS) *out = file;
    return TSR_OK;
}

static bool has(tsr_texts list, const char *path)
{
    for (size_t i = 0; i < list.count; i++) {
        if (strcmp(list.items[i], path) == 0) return true;
    }
    return false;
}

/* Fills `out` with the checkpoints that the files belong to, each once, in order. The checkpoint of a file is the outermost of
 * the directories in its path that opens as a checkpoint of several files and contains or uses the file; otherwise the file
 * itself. One that cannot be opened counts, too. A file that belongs to none is noted and left out. The texts are in `arena`.
 * Errors: TSR_E_NOMEM. */
static tsr_status cli_list_changed(cli *program, tsr_texts files, tsr_arena *arena, tsr_texts *out, tsr_error *err)
{
    *out = (tsr_texts){tsr_arena_array(arena, files.count + 1, sizeof *out->items, err), 0};
    if (!out->items) return TSR_E_NOMEM;
    for (size_t i = 0; i < files.count; i++) {
        const char *path;
        TSR_TRY(find_checkpoint(program, files.items[i], arena, &path, err));
        if (!path) cli_note(program, "'%s' does not belong to a checkpoint", files.items[i]);
        else if (!has(*out, path)) out->items[out->count++] = path;
    }
    return TSR_OK;
}

/* ---- cmd validate ---- */

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

static tsr_status load_contracts(cli *program, const tsr_command_options *arguments, contracts *out, tsr_error *err)
{
    uint32_t allow = 0;
    tsr_status status = cli_policy_open(program, TSR_POLICY_VALIDATE, arguments, &out->policy, err);
    if (status != TSR_OK) return status;
    status = tsr_leniency_parse(tsr_str_from(arguments->allow), &allow, err);
    if (status == TSR_OK && arguments->layout)
        status = cli_in_option(cli_contract_open(program, arguments->layout, &out->layout, err), "layout", arguments->layout,
                               err);
    if (status == TSR_OK && arguments->against)
        status = cli_in_option(cli_contract_open(program, arguments->against, &out->against, err), "against",
                               arguments->against, err);
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
    if (arguments->list_rules) {
        const tsr_policy_scope scope = TSR_POLICY_VALIDATE;
        return cli_put_rules(program, &scope);
    }
    if (program->operands.count == 0) return cli_fail(program, "validate needs PATH…; see tessera help validate");
    if (arguments->prefix && !arguments->against) return cli_fail(program, "--prefix needs --against FILE");
    if (arguments->allow && !arguments->against && !arguments->layout)
        return cli_fail(program, "--allow needs --layout FILE or --against FILE");
    tsr_status status = load_contracts(program, arguments, &all, &err);
    if (cli_agree(program, status, &err) != TSR_OK) {
        free_contracts(&all);
        return cli_fail_error(program, NULL, &err);
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
