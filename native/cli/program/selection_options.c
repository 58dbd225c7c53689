/* --include and --exclude: see session.h. */
#include "cli/program/session.h"
#include "tessera/glob.h"

static bool any_matches(const tsr_texts *globs, tsr_str fqn)
{
    for (size_t i = 0; i < globs->count; i++) {
        if (tsr_glob_match(tsr_str_from(globs->items[i]), fqn)) return true;
    }
    return false;
}

bool cli_selects(const void *selection, tsr_str fqn)
{
    const tsr_name_globs *s = selection;
    if (any_matches(&s->exclude, fqn)) return false;
    return s->include.count == 0 || any_matches(&s->include, fqn);
}

tsr_status cli_list_globs(const tsr_texts *globs, tsr_arena *arena, const tsr_str **out, size_t *count, tsr_error *err)
{
    tsr_str *items = tsr_arena_array(arena, globs->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (*count = 0; *count < globs->count; ++*count) items[*count] = tsr_str_from(globs->items[*count]);
    *out = items;
    return TSR_OK;
}

tsr_status cli_name_choice(const tsr_catalog *catalog, const tsr_name_globs *selection, tsr_arena *arena,
                           tsr_name_choice *out, tsr_error *err)
{
    *out = (tsr_name_choice){.catalog = catalog};
    const tsr_status status = cli_list_globs(&selection->include, arena, &out->include, &out->include_count, err);
    return status == TSR_OK ? cli_list_globs(&selection->exclude, arena, &out->exclude, &out->exclude_count, err) : status;
}

tsr_status cli_warn_name_choice(const cli *program, const tsr_name_choice *choice, tsr_arena *arena, tsr_vec *warnings,
                                tsr_error *err)
{
    const size_t before = warnings->count;
    const tsr_status status = tsr_name_choice_warnings(choice, arena, warnings, err);
    const tsr_str *texts = warnings->items;
    for (size_t i = before; i < warnings->count; i++) cli_warn(program, "%.*s", TSR_STR_ARG(texts[i]));
    return status;
}

tsr_status cli_list_rules(const tsr_target_texts *target, tsr_arena *arena, tsr_name_choice *out, tsr_error *err)
{
    tsr_str *rules = tsr_arena_array(arena, target->rule_count, sizeof *rules, err);
    if (!rules) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < target->rule_count; i++) rules[i] = target->rules[i].match;
    out->rules = rules;
    out->rule_count = target->rule_count;
    return TSR_OK;
}

tsr_status cli_check_selection(cli *program, const cli_session *session, const tsr_name_globs *selection,
                               const tsr_target_texts *target, bool needs_names, tsr_error *err)
{
    tsr_name_choice choice;
    tsr_vec warnings = tsr_vec_of(&tsr_allocator_libc, sizeof(tsr_str));
    if (!selection->include.count && !selection->exclude.count && !target) return TSR_OK;
    tsr_arena *arena = tsr_arena_new(cli_host(program)->allocator, 0, err);
    tsr_status status = arena ? cli_name_choice(session->catalog, selection, arena, &choice, err) : TSR_E_NOMEM;
    if (status == TSR_OK && target) status = cli_list_rules(target, arena, &choice, err);
    if (status == TSR_OK && needs_names) status = tsr_name_choice_check(&choice, arena, err);
    if (status == TSR_OK) status = cli_warn_name_choice(program, &choice, arena, &warnings, err);
    tsr_vec_free(&warnings);
    tsr_arena_free(arena);
    return status;
}
