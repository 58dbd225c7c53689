/* Finds out which dequantized entries the layers above use, because only those may be refused. Also checks that no map
 * separates numbers from their scales. */
#include "mapping/mapping_companions.h"
#include "mapping/mapping_match.h"
#include "tessera/sys/scaled.h"
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

static bool is_used(const void *ctx, tsr_str fqn)
{
    return tsr_mapping_uses((void *)(uintptr_t)ctx, fqn);
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
    const tsr_arithmetic any = {.selection = {is_used, layer}};
    if (!done->found) TSR_TRY(tsr_check_arithmetic(layer, &any, err)); /* names numbers in an unsupported form */
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

/* Whether a rule gives these numbers another name or layout. */
static bool is_moved(const tsr_matcher *s, const tsr_entry *data)
{
    tsr_str values[TSR_MOST_CAPTURES];
    tsr_name_match found = {.rule = 0};
    if (!tsr_match_rule(s->m, s->m->rules, data->fqn, &found, values)) return false;
    const tsr_map_rule *rule = &s->m->rules->rules[found.rule];
    const bool same = !rule->step_count && found.pattern < rule->to_count &&
                      tsr_str_equal(rule->from[found.pattern].text, rule->to[found.pattern].text);
    return rule->to_count && !same;
}

/* Finds the numbers that have this scale, if a rule moves them; *data is NULL otherwise. */
static tsr_status find_parted(const tsr_matcher *s, const tsr_entry *scale, tsr_vec *text, const tsr_entry **data)
{
    *data = NULL;
    for (size_t i = 0; i < tsr_companion_count && !*data; i++) {
        TSR_TRY(tsr_companion_data(s->m->source, scale, &tsr_companions[i], text, data, s->err));
        if (*data && !is_moved(s, *data)) *data = NULL;
    }
    return TSR_OK;
}

static tsr_status check_parted(const tsr_matcher *s, tsr_vec *text)
{
    const tsr_entry *const *left = s->unmatched.items;
    for (size_t i = 0; i < s->unmatched.count; i++) {
        const tsr_entry *data;
        TSR_TRY(find_parted(s, left[i], text, &data));
        TSR_FAIL_IF(
            data, s->err, TSR_E_FORMAT,
            "the map takes '%.*s', but not '%.*s', by which it is scaled; pass --dequantize, or add a rule for the scale",
            TSR_STR_ARG(data->fqn), TSR_STR_ARG(left[i]->fqn));
    }
    return TSR_OK;
}

tsr_status tsr_parted_check(const tsr_matcher *s)
{
    tsr_vec text = tsr_vec_of(s->m->own->host->allocator, 1);
    const tsr_status status = check_parted(s, &text);
    tsr_vec_free(&text);
    return status;
}
