/* --include and --exclude: see session.h. */
#include "cli/program/session.h"

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
