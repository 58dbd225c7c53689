/* Checks that the options which choose or rename entries by name have an effect, as the command does. */
#include "request.h"

tsr_status tessera_name_choice(const call *c, tsr_name_choice *out, tsr_error *err)
{
    *out = (tsr_name_choice){.catalog = tsr_checkpoint_catalog(c->checkpoint)};
    tsr_status status = tessera_option_list(&c->request, "include", c->arena, &out->include, &out->include_count, err);
    if (status == TSR_OK)
        status = tessera_option_list(&c->request, "exclude", c->arena, &out->exclude, &out->exclude_count, err);
    return status == TSR_OK ? tsr_name_choice_check(out, c->arena, err) : status;
}

tsr_status tessera_name_choice_warnings(const call *c, tsr_name_choice *choice, const tsr_target_texts *target,
                                        tsr_vec *warnings, tsr_error *err)
{
    tsr_str *rules = tsr_arena_array(c->arena, target->rule_count, sizeof *rules, err);
    if (!rules) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < target->rule_count; i++) rules[i] = target->rules[i].match;
    choice->rules = rules;
    choice->rule_count = target->rule_count;
    const tsr_status status =
        tessera_option_list(&c->request, "no-quantize", c->arena, &choice->no_quantize, &choice->no_quantize_count, err);
    return status == TSR_OK ? tsr_name_choice_warnings(choice, c->arena, warnings, err) : status;
}
