/* Makes the entries of one binding of a rule: runs its tensors through the steps and gives them the names of the target. */
#include "base/line.h"
#include "mapping/mapped.h"
#include "tessera/sys/cast.h"
#include "tessera/sys/scaled.h"
#include "tessera/sys/try.h"

static tsr_status add_row(tsr_mapped *m, const tsr_map_binding *binding, uint32_t pattern, const tsr_entry *entry,
                          tsr_error *err)
{
    tsr_mapped_row *row = tsr_vec_push(&m->rows, err);
    if (!row) return TSR_E_NOMEM;
    *row = (tsr_mapped_row){.entry = *entry,
                            .order = binding->order,
                            .rule = binding->rule,
                            .sources = binding->sources,
                            .source_count = binding->members * (binding->rule ? binding->rule->from_count : 1),
                            .pattern = pattern,
                            .other = binding->other};
    return TSR_OK;
}

/* A source that only gets another name keeps everything else: objects, ties, and the CRCs that the source states. */
static tsr_status rename_entry(tsr_mapped *m, const tsr_map_binding *binding, uint32_t at, tsr_str name, tsr_error *err)
{
    const tsr_entry *source = binding->sources[at];
    tsr_entry entry = *source;
    tsr_mapped_tensor tensor;
    if (source->kind == TSR_ENTRY_TENSOR) {
        TSR_TRY(tsr_boxes_of_entry(&m->maker, source, &tensor));
        TSR_TRY(tsr_mapped_entry(m, &tensor, source, name, &entry, err));
        entry.storage_id = source->storage_id;
        entry.is_second_name = source->is_second_name;
        entry.distribution = source->distribution;
        entry.path = source->path;
        entry.path_length = source->path_length;
    }
    entry.fqn = name;
    if (!tsr_str_equal(name, source->fqn)) entry.path = NULL, entry.path_length = 0;
    return add_row(m, binding, at, &entry, err);
}

tsr_status tsr_mapped_keep(tsr_mapped *m, const tsr_entry *entry, uint64_t order, tsr_error *err)
{
    const tsr_entry **sources = TSR_ARENA_NEW(m->own->arena, const tsr_entry *, err);
    if (!sources) return TSR_E_NOMEM;
    *sources = entry;
    const tsr_map_binding binding = {.sources = sources, .members = 1, .order = order};
    return rename_entry(m, &binding, 0, entry->fqn, err);
}

static tsr_status rename_all(tsr_mapped *m, const tsr_map_binding *binding, tsr_error *err)
{
    const tsr_map_rule *rule = binding->rule;
    TSR_FAIL_IF(rule->from_count != rule->to_count, err, TSR_E_FORMAT, "'%.*s': %u tensors cannot become %u without a step",
                TSR_STR_ARG(binding->sources[0]->fqn), (unsigned)rule->from_count, (unsigned)rule->to_count);
    for (uint32_t i = 0; i < rule->to_count; i++) {
        const tsr_str name = tsr_pattern_expand(&rule->to[i], binding->values, rule->to[i].count, m->own->arena, err);
        if (!name.data) return TSR_E_NOMEM;
        TSR_TRY(rename_entry(m, binding, i, name, err));
    }
    return TSR_OK;
}

static tsr_status check_dense(const tsr_entry *entry, tsr_error *err)
{
    TSR_FAIL_IF(entry->kind != TSR_ENTRY_TENSOR || !tsr_dtype_size(entry->dtype), err, TSR_E_UNSUPPORTED,
                "'%.*s' is not a dense tensor of whole bytes, so a map can only rename it", TSR_STR_ARG(entry->fqn));
    return TSR_OK;
}

/* For a rule that dequantizes: makes the products of one of the binding's tensors and its scale. */
static tsr_status multiply(tsr_mapped *m, const tsr_map_binding *binding, uint64_t tensor, tsr_mapped_tensor *out,
                           tsr_error *err)
{
    const tsr_map_rule *rule = binding->rule;
    const tsr_map_step *step = &rule->steps[0];
    const uint64_t tensors = (rule->from_count - rule->scale_count) * binding->members;
    const tsr_entry *entry = binding->sources[tensor], *scale = binding->sources[tensors + tensor];
    tsr_scaling how = {.scheme = step->scheme, .dtype = step->dtype, .divides = step->divides};
    if (step->tensor_scales.count) how.tensor_scale = binding->sources[2 * tensors + tensor];
    if (how.dtype == TSR_DTYPE_NONE) how.dtype = tsr_mapped_product_dtype(m);
    TSR_TRY(check_dense(scale, err));
    if (how.tensor_scale) TSR_TRY(check_dense(how.tensor_scale, err));
    TSR_TRY(tsr_mapped_block(m, how.block, err));
    for (uint32_t i = 0; i < step->number_count; i++) TSR_TRY(tsr_mapped_number(m, &step->numbers[i], &how.block[i], err));
    TSR_FAIL_IF(!how.block[0] || !how.block[1], err, TSR_E_FORMAT, "'%.*s': the step 'dequantize' has a block of size 0",
                TSR_STR_ARG(entry->fqn));
    TSR_FAIL_IF(!tsr_cast_possible(TSR_FLOAT32, how.dtype), err, TSR_E_FORMAT, "'%.*s': scaled numbers cannot become %s",
                TSR_STR_ARG(entry->fqn), tsr_dtype_describe(how.dtype)->name);
    return tsr_mapped_multiply(m, &how, entry, scale, out, err);
}

static tsr_status fill_slots(tsr_mapped *m, const tsr_map_binding *binding, tsr_map_slot **out, tsr_error *err)
{
    const uint32_t count = binding->rule->from_count - binding->rule->scale_count;
    tsr_map_slot *slots = *out = tsr_arena_array(m->own->arena, count, sizeof *slots, err);
    if (!slots) return TSR_E_NOMEM;
    for (uint32_t s = 0; s < count; s++) {
        slots[s].count = binding->members;
        slots[s].tensors = tsr_arena_array(m->own->arena, (size_t)binding->members, sizeof *slots[s].tensors, err);
        if (!slots[s].tensors) return TSR_E_NOMEM;
        for (uint64_t i = 0; i < binding->members; i++) {
            const tsr_entry *entry = binding->sources[s * binding->members + i];
            TSR_TRY(check_dense(entry, err));
            if (binding->rule->scale_count)
                TSR_TRY(multiply(m, binding, s * binding->members + i, &slots[s].tensors[i], err));
            else TSR_TRY(tsr_boxes_of_entry(&m->maker, entry, &slots[s].tensors[i]));
        }
    }
    return TSR_OK;
}

static tsr_str decimal(uint64_t number, tsr_arena *arena, tsr_error *err)
{
    return tsr_arena_format(arena, err, "%llu", (unsigned long long)number);
}

static tsr_status name_slot(tsr_mapped *m, const tsr_map_binding *binding, uint32_t s, const tsr_map_slot *slot,
                            tsr_error *err)
{
    const tsr_map_rule *rule = binding->rule;
    for (uint64_t i = 0; i < slot->count; i++) {
        tsr_entry entry;
        if (rule->unfolded != TSR_NO_CAPTURE) {
            binding->values[rule->unfolded] = decimal(i, m->own->arena, err);
            if (!binding->values[rule->unfolded].data) return TSR_E_NOMEM;
        }
        const tsr_str name = tsr_pattern_expand(&rule->to[s], binding->values, rule->to[s].count, m->own->arena, err);
        if (!name.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_mapped_entry(m, &slot->tensors[i], binding->sources[0], name, &entry, err));
        TSR_TRY(add_row(m, binding, s, &entry, err));
    }
    return TSR_OK;
}

/* Refuses to cast numbers without their scales, and to pad them with a number that their scales would multiply. */
static tsr_status check_scales(const tsr_mapped *m, const tsr_map_binding *binding, tsr_error *err)
{
    const tsr_map_rule *rule = binding->rule;
    for (uint32_t i = 0; i < rule->step_count && !rule->scale_count; i++) {
        const tsr_map_step *step = &rule->steps[i];
        const bool casts = step->kind == TSR_STEP_CAST, pads = step->kind == TSR_STEP_PAD && step->value != 0;
        const tsr_arithmetic what = {.dtype = casts ? step->dtype : TSR_DTYPE_NONE, .by_map = true};
        for (uint64_t k = 0; (casts || pads) && k < binding->members * rule->from_count; k++)
            TSR_TRY(tsr_check_arithmetic_on(m->source, binding->sources[k], &what, err));
    }
    return TSR_OK;
}

tsr_status tsr_mapped_build(tsr_mapped *m, const tsr_map_binding *binding, tsr_error *err)
{
    const tsr_map_rule *rule = binding->rule;
    tsr_map_slot *slots;
    uint32_t count = rule->from_count - rule->scale_count;
    if (!rule->step_count) return rename_all(m, binding, err);
    TSR_TRY(check_scales(m, binding, err));
    TSR_TRY(fill_slots(m, binding, &slots, err));
    TSR_TRY(tsr_mapped_steps(m, rule, &slots, &count, err));
    TSR_FAIL_IF(count != rule->to_count, err, TSR_E_FORMAT, "'%.*s': the steps make %u tensors, but the rule names %u",
                TSR_STR_ARG(binding->sources[0]->fqn), (unsigned)count, (unsigned)rule->to_count);
    for (uint32_t s = 0; s < count; s++) TSR_TRY(name_slot(m, binding, s, &slots[s], err));
    return TSR_OK;
}
