/* Options that give a file or a document, and those that choose names. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/program/map_options.h"
#include "cli/program/session.h"
#include "cli/program/term.h"
#include "tessera/glob.h"
#include "tessera/sys/path.h"
#include "tessera/sys/try.h"

tsr_status cli_load_file(cli *program, const char *path, tsr_store **store, tsr_bytes *bytes, tsr_error *err)
{
    const tsr_host *host = cli_host(program);
    TSR_TRY(tsr_document_store_open(host, cli_given_address(program, path), store, err));
    uint32_t file = (*store)->primary != TSR_NO_FILE ? (*store)->primary : 0;
    if ((*store)->primary == TSR_NO_FILE && (*store)->file_count != 1) {
        return tsr_fail(err, TSR_E_USAGE, "'%s' is a directory; a file is expected", path);
    }
    return tsr_range_load((tsr_range){*store, file, 0, (*store)->files[file].size}, host, bytes, err);
}

tsr_status cli_in_option(tsr_status status, const char *option, const char *given, tsr_error *err)
{
    if (status != TSR_OK) tsr_error_subject(err, "--%s %s", option, tsr_is_document(given) ? "document" : given);
    return status;
}

/* ---- shards ---- */

typedef struct cli_shards {
    tsr_arena *arena;
    tsr_shards map;
} cli_shards;

tsr_status cli_read_shards(cli *program, const tsr_shards **out, tsr_error *err)
{
    const char *given = program->options.source.shards;
    *out = NULL;
    if (!given) return TSR_OK;
    if (!program->shards) {
        cli_shards *shards = calloc(1, sizeof *shards);
        program->shards = shards;
        if (shards) shards->arena = tsr_arena_new(cli_host(program)->allocator, 0, err);
        if (!shards || !shards->arena) return tsr_fail(err, TSR_E_NOMEM, "out of memory");
        const tsr_status status =
            tsr_path_load_shards(cli_given_address(program, given), cli_host(program), shards->arena, &shards->map, err);
        if (status != TSR_OK) {
            cli_free_shards(program);
            return status;
        }
    }
    *out = &program->shards->map;
    return TSR_OK;
}

void cli_free_shards(cli *program)
{
    if (!program->shards) return;
    tsr_arena_free(program->shards->arena);
    free(program->shards);
    program->shards = NULL;
}

/* ---- target options ---- */

/* Loads the JSON document of an option and parses it with `read`, which stores the result in `out`. */
static tsr_status read_file(cli *program, const char *option, const char *path, tsr_arena *arena,
                            tsr_status (*read)(tsr_str, const tsr_host *, tsr_arena *, void *, tsr_error *), void *out,
                            tsr_error *err)
{
    tsr_store *store = NULL;
    tsr_bytes bytes = {0};
    tsr_status status = cli_load_file(program, path, &store, &bytes, err);
    if (status == TSR_OK) status = read(bytes.data, cli_host(program), arena, out, err);
    tsr_bytes_free(&bytes);
    if (store) store->close(store);
    return cli_in_option(status, option, path, err);
}

static tsr_status read_target(tsr_str text, const tsr_host *host, tsr_arena *arena, void *out, tsr_error *err)
{
    return tsr_target_texts_read(text, host, arena, out, err);
}

static tsr_status read_storage(tsr_str text, const tsr_host *host, tsr_arena *arena, void *out, tsr_error *err)
{
    return tsr_storage_read(text, host, arena, out, err);
}

tsr_status cli_read_storage(cli *program, const char *path, tsr_arena *arena, tsr_storage_text *out, tsr_error *err)
{
    *out = (tsr_storage_text){.servers = NULL};
    return path ? read_file(program, "storage", path, arena, read_storage, out, err) : TSR_OK;
}

tsr_status cli_read_target(cli *program, const tsr_command_options *options, tsr_arena *arena, tsr_target_texts *texts,
                           tsr_target *out, tsr_error *err)
{
    if (options->target ? options->mesh || options->placements : !options->mesh || !options->placements) {
        return tsr_fail(err, TSR_E_USAGE, "pass either --target FILE or --mesh with --placements");
    }
    *texts =
        (tsr_target_texts){.mesh = tsr_str_from(options->mesh), .default_placements = tsr_str_from(options->placements)};
    tsr_status status =
        options->target ? read_file(program, "target", options->target, arena, read_target, texts, err) : TSR_OK;
    return status == TSR_OK ? tsr_target_from_texts(texts, tsr_glob_match, arena, out, err) : status;
}

/* ---- policy options ---- */

static tsr_status load_baseline(cli *program, const char *path, tsr_policy *policy, tsr_error *err)
{
    tsr_store *store = NULL;
    tsr_bytes text = {0};
    tsr_status status = cli_load_file(program, path, &store, &text, err);
    if (status == TSR_OK) status = tsr_policy_baseline(policy, text.data, err);
    tsr_bytes_free(&text);
    if (store) store->close(store);
    return cli_in_option(status, "baseline", path, err);
}

tsr_status cli_policy_open(cli *program, tsr_policy_scope scope, const tsr_command_options *options, tsr_policy **out,
                           tsr_error *err)
{
    *out = tsr_policy_new(scope, cli_host(program), err);
    tsr_status status = *out ? TSR_OK : TSR_E_NOMEM;
    if (*out) tsr_policy_names(*out, (tsr_selection){tsr_globs_select, &options->selection});
    for (size_t i = 0; i < options->rules.count && status == TSR_OK; i++)
        status = tsr_policy_rule(*out, options->rules.items[i], err);
    if (status == TSR_OK && options->baseline) status = load_baseline(program, options->baseline, *out, err);
    if (status == TSR_OK) return TSR_OK;
    tsr_policy_free(*out);
    *out = NULL;
    return status;
}

static const char *left_out_text(const tsr_policy_result *result, char *out, size_t capacity)
{
    int used = 0;
    out[0] = '\0';
    if (result->has_baseline)
        used = snprintf(out, capacity, "%s left out by the baseline", cli_number(result->left_out).text);
    if (result->has_rules_off)
        snprintf(out + used, capacity - (size_t)used, "%s%s turned off", used ? ", " : "",
                 cli_number(result->turned_off).text);
    return out;
}

void cli_put_left_out(const tsr_policy_result *result)
{
    char text[128];
    if (*left_out_text(result, text, sizeof text)) printf("; %s", text);
}

void cli_note_left_out(const cli *program, const tsr_policy_result *result)
{
    char text[128];
    if (*left_out_text(result, text, sizeof text)) cli_note(program, "%s", text);
}

/* ---- selection ---- */

tsr_status cli_warn_name_choice(const cli *program, const tsr_name_choice *choice, tsr_arena *arena, tsr_vec *warnings,
                                tsr_error *err)
{
    const size_t before = warnings->count;
    const tsr_status status = tsr_name_choice_warnings(choice, arena, warnings, err);
    const tsr_str *texts = warnings->items;
    for (size_t i = before; i < warnings->count; i++) cli_warn(program, "%.*s", TSR_STR_ARG(texts[i]));
    return status;
}

tsr_status cli_check_selection(cli *program, const cli_session *session, const tsr_command_options *options,
                               const tsr_target_texts *target, bool needs_names, tsr_error *err)
{
    tsr_name_choice choice;
    tsr_vec warnings = tsr_vec_of(&tsr_allocator_libc, sizeof(tsr_str));
    if (!options->selection.include.count && !options->selection.exclude.count && !target) return TSR_OK;
    tsr_arena *arena = tsr_arena_new(cli_host(program)->allocator, 0, err);
    tsr_status status = arena ? tsr_choice_of(session->catalog, options, target, arena, &choice, err) : TSR_E_NOMEM;
    if (status == TSR_OK && needs_names) status = tsr_name_choice_check(&choice, arena, err);
    if (status == TSR_OK) status = cli_warn_name_choice(program, &choice, arena, &warnings, err);
    tsr_vec_free(&warnings);
    tsr_arena_free(arena);
    return status;
}
