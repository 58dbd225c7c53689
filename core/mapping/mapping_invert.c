/* Makes the inverse of a map: exchanges the sides of its rules, and inverts their steps in reverse order. */
#include "mapping/mapping_rules.h"
#include "tessera/sys/try.h"

bool tsr_map_number_given(const tsr_map_number *number)
{
    return number->value || number->config.size;
}

static tsr_status no_inverse(const tsr_map_rule *rule, const tsr_map_step *step, const char *hint, tsr_error *err)
{
    return tsr_fail(err, TSR_E_UNSUPPORTED, "the map has no inverse: the step '%s' of '%.*s' %s", tsr_step_name(step->kind),
                    TSR_STR_ARG(rule->from[0].text), hint);
}

static tsr_status invert_transpose(tsr_map_step *step, tsr_arena *arena, tsr_error *err)
{
    tsr_map_number *back = tsr_arena_array(arena, step->number_count, sizeof *back, err);
    if (!back) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < step->number_count; i++)
        if (step->numbers[i].value < step->number_count) back[step->numbers[i].value].value = i;
    step->numbers = back;
    return TSR_OK;
}

/* Returns the shape that a tensor has before step `at`, if the steps before it determine that, or NULL. */
static const tsr_map_number *shape_before(const tsr_map_rule *rule, uint32_t at, uint32_t *count, tsr_arena *arena,
                                          tsr_error *err)
{
    uint32_t first = at;
    while (first && rule->steps[first - 1].kind == TSR_STEP_TRANSPOSE) first--;
    if (!first || rule->steps[first - 1].kind != TSR_STEP_RESHAPE) return NULL;
    const tsr_map_number *shape = rule->steps[first - 1].numbers;
    *count = rule->steps[first - 1].number_count;
    for (uint32_t s = first; s < at; s++) {
        tsr_map_number *next = tsr_arena_array(arena, *count, sizeof *next, err);
        if (!next || rule->steps[s].number_count != *count) return NULL;
        for (uint32_t d = 0; d < *count; d++) {
            if (rule->steps[s].numbers[d].value >= *count) return NULL;
            next[d] = shape[rule->steps[s].numbers[d].value];
        }
        shape = next;
    }
    return shape;
}

static tsr_status invert_reshape(const tsr_map_rule *rule, uint32_t at, tsr_map_step *step, tsr_arena *arena, tsr_error *err)
{
    uint32_t count = step->from_count;
    const tsr_map_number *before = count ? step->from : shape_before(rule, at, &count, arena, err);
    if (!before) return no_inverse(rule, step, "does not say what the shape was before; add \"from\": [...]", err);
    tsr_map_number *copy = tsr_arena_array(arena, count, sizeof *copy, err);
    if (!copy) return TSR_E_NOMEM;
    memcpy(copy, before, count * sizeof *copy);
    step->from = step->numbers;
    step->from_count = step->number_count;
    step->numbers = copy;
    step->number_count = count;
    return TSR_OK;
}

static tsr_status invert_fit(const tsr_map_rule *rule, tsr_map_step *step, tsr_error *err)
{
    if (step->from_count != 1) return no_inverse(rule, step, "does not say what the size was before; add \"from\": N", err);
    const bool trims = step->kind == TSR_STEP_TRIM;
    if (trims && !step->has_value) return no_inverse(rule, step, "gives up values; add \"value\": X to pad with", err);
    const tsr_map_number size = step->from[0];
    step->from[0] = step->to;
    step->to = size;
    step->kind = trims ? TSR_STEP_PAD : TSR_STEP_TRIM;
    return TSR_OK;
}

static tsr_status invert_step(const tsr_map_rule *rule, uint32_t at, tsr_map_step *step, tsr_arena *arena, tsr_error *err)
{
    switch (step->kind) {
    case TSR_STEP_CONCAT:
        if (!step->number_count && !step->parts.value && !step->parts.config.size)
            return no_inverse(rule, step,
                              "does not say how long the parts are; add \"sizes\": [...] or, for equal ones, \"parts\": N",
                              err);
        step->kind = TSR_STEP_SPLIT;
        return TSR_OK;
    case TSR_STEP_SPLIT: step->kind = TSR_STEP_CONCAT; return TSR_OK;
    case TSR_STEP_STACK: step->kind = TSR_STEP_UNSTACK; return TSR_OK;
    case TSR_STEP_UNSTACK: step->kind = TSR_STEP_STACK; return TSR_OK;
    case TSR_STEP_INTERLEAVE:
    case TSR_STEP_PERMUTE_ROPE: step->inverse = !step->inverse; return TSR_OK;
    case TSR_STEP_TRANSPOSE: return invert_transpose(step, arena, err);
    case TSR_STEP_RESHAPE: return invert_reshape(rule, at, step, arena, err);
    case TSR_STEP_TRIM:
    case TSR_STEP_PAD: return invert_fit(rule, step, err);
    default: return no_inverse(rule, step, "loses precision or does not say what the dtype was", err);
    }
}

static tsr_status invert_rule(const tsr_map_rule *rule, tsr_arena *arena, tsr_map_rule *out, tsr_error *err)
{
    tsr_map_step *steps = tsr_arena_array(arena, rule->step_count, sizeof *steps, err);
    if (!steps) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < rule->step_count; i++) {
        tsr_map_step *step = &steps[rule->step_count - 1 - i];
        *step = rule->steps[i];
        tsr_map_number *from = tsr_arena_array(arena, step->from_count, sizeof *from, err); /* the rule keeps its own */
        if (!from) return TSR_E_NOMEM;
        if (step->from_count) memcpy(from, step->from, step->from_count * sizeof *from);
        step->from = from;
        TSR_TRY(invert_step(rule, i, step, arena, err));
    }
    *out = *rule;
    out->forward = rule;
    out->from = rule->to, out->from_count = rule->to_count;
    out->to = rule->from, out->to_count = rule->from_count;
    out->shape_of_from = !rule->shape_of_from;
    out->folded = rule->unfolded, out->unfolded = rule->folded;
    out->steps = steps;
    return TSR_OK;
}

static tsr_status invert_rules(const tsr_mapping_rules *rules, tsr_arena *arena, tsr_mapping_rules **out, tsr_error *err)
{
    tsr_mapping_rules *back = *out = TSR_ARENA_NEW(arena, tsr_mapping_rules, err);
    tsr_map_rule *list = tsr_arena_array(arena, rules->count, sizeof *list, err);
    if (!back || !list) return TSR_E_NOMEM;
    *back = (tsr_mapping_rules){.rules = list,
                                .unmatched = rules->unmatched,
                                .forward = rules,
                                .dims = rules->dims,
                                .dim_count = rules->dim_count,
                                .text = rules->text,
                                .normalizes = rules->normalizes};
    for (uint32_t i = 0; i < rules->count; i++) {
        /* What a rule dropped is not in the target, so it has no inverse. */
        if (rules->rules[i].to_count && !rules->rules[i].one_way)
            TSR_TRY(invert_rule(&rules->rules[i], arena, &list[back->count++], err));
    }
    return TSR_OK;
}

tsr_status tsr_mapping_invert(const tsr_mapping_rules *rules, tsr_arena *arena, const tsr_mapping_rules **out,
                              tsr_error *err)
{
    tsr_mapping_rules *back, *first;
    TSR_TRY(invert_rules(rules, arena, &back, err));
    *out = back;
    if (!rules->before) return TSR_OK;
    TSR_TRY(invert_rules(rules->before, arena, &first, err));
    first->before = back; /* what was done first is undone last */
    *out = first;
    return TSR_OK;
}
