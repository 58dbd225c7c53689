/* See tessera/sys/chosen_names.h. */
#include "tessera/sys/chosen_names.h"

#include "tessera/glob.h"
#include "tessera/sys/try.h"

static bool any_matches(const tsr_texts *globs, tsr_str fqn)
{
    for (size_t i = 0; i < globs->count; i++)
        if (tsr_glob_match(tsr_str_from(globs->items[i]), fqn)) return true;
    return false;
}

bool tsr_globs_select(const void *globs, tsr_str fqn)
{
    const tsr_name_globs *g = globs;
    if (any_matches(&g->exclude, fqn)) return false;
    return g->include.count == 0 || any_matches(&g->include, fqn);
}

bool tsr_globs_want(void *globs, tsr_str fqn)
{
    return tsr_globs_select(globs, fqn);
}

tsr_status tsr_texts_list(const tsr_texts *texts, tsr_arena *arena, const tsr_str **out, size_t *count, tsr_error *err)
{
    tsr_str *items = tsr_arena_array(arena, texts->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (*count = 0; *count < texts->count; ++*count) items[*count] = tsr_str_from(texts->items[*count]);
    *out = items;
    return TSR_OK;
}

tsr_status tsr_renames_parse(const tsr_texts *texts, tsr_arena *arena, const tsr_rename **out, size_t *count, tsr_error *err)
{
    tsr_rename *renames = tsr_arena_array(arena, texts->count, sizeof *renames, err);
    if (!renames) return TSR_E_NOMEM;
    for (*count = 0; *count < texts->count; ++*count)
        TSR_TRY(tsr_rename_parse(tsr_str_from(texts->items[*count]), &renames[*count], err));
    *out = renames;
    return TSR_OK;
}

static tsr_status list_rules(const tsr_target_texts *target, tsr_arena *arena, tsr_name_choice *out, tsr_error *err)
{
    tsr_str *rules = tsr_arena_array(arena, target->rule_count, sizeof *rules, err);
    if (!rules) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < target->rule_count; i++) rules[i] = target->rules[i].match;
    out->rules = rules;
    out->rule_count = target->rule_count;
    return TSR_OK;
}

tsr_status tsr_choice_of(const tsr_catalog *catalog, const tsr_command_options *options, const tsr_target_texts *target,
                         tsr_arena *arena, tsr_name_choice *out, tsr_error *err)
{
    const tsr_name_globs *globs = &options->selection;
    *out = (tsr_name_choice){.catalog = catalog};
    TSR_TRY(tsr_texts_list(&globs->include, arena, &out->include, &out->include_count, err));
    TSR_TRY(tsr_texts_list(&globs->exclude, arena, &out->exclude, &out->exclude_count, err));
    TSR_TRY(tsr_texts_list(&options->no_quantize, arena, &out->no_quantize, &out->no_quantize_count, err));
    TSR_TRY(tsr_renames_parse(&options->renames, arena, &out->renames, &out->rename_count, err));
    return target ? list_rules(target, arena, out, err) : TSR_OK;
}
