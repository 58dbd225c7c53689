/* Finds out which dequantized entries the layers above use, because only those may be refused. Also checks that no map
 * separates numbers from their scales. */
#include "mapping/mapping_match.h"
#include "tessera/sys/try.h"

/* Makes an array for one layer: which entries of its catalog are used. */
static bool *new_marks(const tsr_mapped *layer, tsr_checkpoint *of, tsr_error *err)
{
    const uint64_t count = of->catalog.entry_count;
    bool *marks = tsr_arena_array(layer->own->arena, count, sizeof *marks, err);
    if (marks) memset(marks, 0, count * sizeof *marks);
    return marks;
}

/* Marks the sources of the used rows of `layer`. The parts of an object are not in the catalog below, so they are
 * skipped. */
static void mark_sources(const tsr_mapped *layer, const bool *used, bool *below)
{
    const tsr_catalog *catalog = &layer->source->catalog;
    const tsr_mapped_row *rows = layer->rows.items;
    for (size_t i = 0; i < layer->rows.count; i++) {
        for (uint64_t k = 0; used[i] && k < rows[i].source_count; k++) {
            const tsr_entry *entry = tsr_checkpoint_entry(layer->source, rows[i].sources[k]->fqn);
            if (entry) below[entry - catalog->entries] = true;
        }
    }
}

tsr_status tsr_mapping_check_dequantized(tsr_checkpoint *layer, tsr_checkpoint *top, const tsr_open_options *options,
                                         tsr_error *err)
{
    const tsr_mapped *m = layer->state, *above = top->state;
    tsr_dequantized *done = m->ctx;
    bool *used = new_marks(m, top, err);
    if (!used) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < top->catalog.entry_count; i++)
        used[i] = !options || !options->selects || options->selects(options->selects_ctx, top->catalog.entries[i].fqn);
    for (; above != m; above = above->source->state) {
        bool *below = new_marks(m, above->source, err);
        if (!below) return TSR_E_NOMEM;
        mark_sources(above, used, below);
        used = below;
    }
    done->used = used;
    for (const tsr_dequantize_refusal *r = done->refused; r; r = r->next) {
        if (!tsr_mapping_uses(layer, r->fqn)) continue;
        if (err) *err = r->why;
        return r->why.status;
    }
    const char *method = tsr_mapped_quant_method(m);
    TSR_FAIL_IF(!done->found, err, TSR_E_UNSUPPORTED,
                "--dequantize: there are no float8, int8, MXFP4 or NVFP4 tensors with scales in the checkpoint%s%s%s",
                *method ? "; quant_method of config.json is '" : "", method, *method ? "'" : "");
    return TSR_OK;
}

bool tsr_mapping_uses(void *layer, tsr_str fqn)
{
    tsr_checkpoint *own = layer;
    const tsr_mapped *m = own->state;
    const tsr_dequantized *done = m->ctx;
    const tsr_entry *entry = tsr_checkpoint_entry(own, fqn);
    return !done->used || !entry || done->used[entry - own->catalog.entries];
}

/* ---- numbers and scales that a map would separate ---- */

static bool is_quantized(const tsr_entry *entry)
{
    return entry->kind == TSR_ENTRY_TENSOR && (tsr_mapped_is_scalable(entry->dtype) || entry->dtype == TSR_UINT8);
}

/* Finds the numbers that have this scale, if a rule gives them another name or layout; *data is NULL otherwise. */
static tsr_status find_parted(const tsr_matcher *s, const tsr_entry *scale, const tsr_entry **data)
{
    static const char *const endings[][2] = {
        {"_scale_inv", ""}, {"_scale", ""}, {"_scales", "_blocks"}, {"_scale", "_packed"}, {"_global_scale", "_packed"}};
    tsr_str values[TSR_MOST_CAPTURES];
    *data = NULL;
    for (size_t i = 0; i < sizeof endings / sizeof *endings && !*data; i++) {
        const tsr_str ending = tsr_str_from(endings[i][0]);
        tsr_name_match found = {.rule = 0};
        if (!tsr_str_ends(scale->fqn, ending)) continue;
        const tsr_str name = tsr_arena_format(s->arena, s->err, "%.*s%s", (int)(scale->fqn.size - ending.size),
                                              scale->fqn.data, endings[i][1]);
        if (!name.data) return TSR_E_NOMEM;
        const tsr_entry *entry = tsr_checkpoint_entry(s->m->source, name);
        if (!entry || !is_quantized(entry) || !tsr_match_rule(s->m, s->m->rules, name, &found, values)) continue;
        const tsr_map_rule *rule = &s->m->rules->rules[found.rule];
        const bool same = !rule->step_count && found.pattern < rule->to_count &&
                          tsr_str_equal(rule->from[found.pattern].text, rule->to[found.pattern].text);
        if (rule->to_count && !same) *data = entry;
    }
    return TSR_OK;
}

tsr_status tsr_parted_check(const tsr_matcher *s)
{
    const tsr_entry *const *left = s->unmatched.items;
    for (size_t i = 0; i < s->unmatched.count; i++) {
        const tsr_entry *data;
        TSR_TRY(find_parted(s, left[i], &data));
        TSR_FAIL_IF(
            data, s->err, TSR_E_FORMAT,
            "the map takes '%.*s', but not '%.*s', by which it is scaled; pass --dequantize, or add a rule for the scale",
            TSR_STR_ARG(data->fqn), TSR_STR_ARG(left[i]->fqn));
    }
    return TSR_OK;
}
