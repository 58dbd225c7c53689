/* Refuses arithmetic that would separate quantized numbers from their scales: see tessera/sys/mapping.h. */
#include "base/line.h"
#include "mapping/mapped.h"
#include "mapping/mapping_match.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

typedef struct search {
    tsr_checkpoint *checkpoint;
    const tsr_arithmetic *what;
    tsr_vec text;
    const tsr_entry *data;     /* the first one that is refused because of a scale */
    tsr_str scale;             /* the name of its scale */
    const tsr_entry *unscaled; /* the first float8 weight without one */
    uint64_t count, unscaled_count;
    tsr_error *err;
} search;

static bool is_wanted(const search *s, const tsr_entry *entry)
{
    return tsr_selection_keeps(&s->what->selection, entry->fqn);
}

/* Whether the numbers or the scale would change. Numbers that a cast cannot change (packed ones) cannot get the requested
 * dtype either, so they count, too. */
static bool is_touched(const search *s, const tsr_entry *data, const tsr_entry *scale)
{
    const tsr_dtype dtype = s->what->dtype;
    if (dtype == TSR_DTYPE_NONE) return is_wanted(s, data) || is_wanted(s, scale);
    if (is_wanted(s, data) && data->dtype != dtype) return true;
    return is_wanted(s, scale) && scale->dtype != dtype && tsr_cast_possible(scale->dtype, dtype);
}

static void refuse(search *s, const tsr_entry *data, tsr_str scale)
{
    if (s->count++) return;
    s->data = data;
    s->scale = scale;
}

bool tsr_is_float8_weight(const tsr_entry *entry)
{
    if (!tsr_mapped_is_scalable(entry->dtype) || entry->dtype == TSR_INT8) return false;
    return entry->ndim > 1 || tsr_str_equal(tsr_last_component(entry->fqn), TSR_STR("weight"));
}

static tsr_status is_scale(search *s, const tsr_entry *entry, bool *out)
{
    const tsr_entry *data = NULL;
    for (size_t i = 0; i < tsr_companion_count && !data; i++)
        TSR_TRY(tsr_companion_data(s->checkpoint, entry, &tsr_companions[i], &s->text, &data, s->err));
    *out = data != NULL;
    return TSR_OK;
}

static tsr_status check_tensor(search *s, const tsr_entry *data)
{
    bool scaled = false;
    for (size_t i = 0; i < tsr_companion_count; i++) {
        const tsr_entry *scale;
        TSR_TRY(tsr_companion_scale(s->checkpoint, data, &tsr_companions[i], &s->text, &scale, s->err));
        if (!scale) continue;
        scaled = true;
        if (!is_touched(s, data, scale)) continue;
        refuse(s, data, scale->fqn);
        return TSR_OK;
    }
    if (scaled || !tsr_is_float8_weight(data) || !is_wanted(s, data) || data->dtype == s->what->dtype) return TSR_OK;
    TSR_TRY(is_scale(s, data, &scaled));
    if (!scaled && !s->unscaled_count++) s->unscaled = data;
    return TSR_OK;
}

static bool names_scale(tsr_str key)
{
    return tsr_str_ends(key, TSR_STR("scale")) || tsr_str_ends(key, TSR_STR("scales")) ||
           tsr_str_ends(key, TSR_STR("scalers")); /* quantized_scalers of NF4 */
}

/* The key of the scale inside a tensor subclass, such as torchao's. The inner tensors are in a dictionary, which may be the
 * state of an object inside the value. */
static tsr_str inner_scale(const tsr_value *value)
{
    for (unsigned depth = 0; depth < 8; depth++) {
        const tsr_value *next = NULL;
        if (value->kind == TSR_VALUE_OBJECT) next = value->count ? value->items[value->count > 1] : NULL;
        for (size_t i = 0; value->kind == TSR_VALUE_DICT && i + 1 < value->count; i += 2) {
            const tsr_value *key = value->items[i], *item = value->items[i + 1];
            const bool named = key->kind == TSR_VALUE_STR;
            if (named && item->kind == TSR_VALUE_TENSOR && names_scale(key->text)) return key->text;
            const bool state = named && tsr_str_equal(key->text, TSR_STR("state"));
            if (!next && (state || item->kind == TSR_VALUE_OBJECT)) next = item;
        }
        if (!next) break;
        value = next;
    }
    return (tsr_str){NULL, 0};
}

static tsr_status check_entry(search *s, const tsr_entry *entry)
{
    if (entry->kind == TSR_ENTRY_TENSOR) return check_tensor(s, entry);
    if (entry->kind != TSR_ENTRY_OPAQUE || !entry->value || !is_wanted(s, entry)) return TSR_OK;
    const tsr_str scale = inner_scale(entry->value);
    if (scale.size) refuse(s, entry, scale);
    return TSR_OK;
}

/* ---- messages ---- */

/* What --dequantize has found out, if this is the checkpoint that it made; otherwise NULL. */
static const tsr_dequantized *dequantized(const search *s)
{
    const tsr_mapped *m = tsr_mapped_state(s->checkpoint);
    return m && m->step == tsr_step_name(TSR_STEP_DEQUANTIZE) ? m->ctx : NULL;
}

/* Why it cannot multiply these numbers; NULL if it has not found out. */
static const tsr_error *find_reason(const search *s, const tsr_entry *entry)
{
    const tsr_dequantized *done = dequantized(s);
    for (const tsr_dequantize_refusal *r = done ? done->refused : NULL; r; r = r->next)
        if (tsr_str_equal(r->fqn, entry->fqn)) return &r->why;
    return NULL;
}

/* " (and 3 more like it)" */
static void count_more(uint64_t count, char *text, size_t capacity)
{
    tsr_line line = tsr_line_on(text, capacity);
    if (count > 1) tsr_line_format(&line, " (and %llu more like it)", (unsigned long long)(count - 1));
}

static tsr_status report_unsupported(const search *s, const char *more)
{
    const char *const method = tsr_mapped_quant_method(s->checkpoint->state);
    return tsr_fail(s->err, TSR_E_UNSUPPORTED,
                    "'%.*s' is scaled by '%.*s'%s, in a form that --dequantize does not support%s%s%s",
                    TSR_STR_ARG(s->data->fqn), TSR_STR_ARG(s->scale), more,
                    *method ? "; quant_method of config.json is '" : "", method, *method ? "'" : "");
}

static tsr_status report_scaled(const search *s)
{
    const tsr_dtype dtype = s->what->dtype;
    const tsr_error *reason = find_reason(s, s->data);
    char more[64] = "";
    if (reason) {
        if (s->err) *s->err = *reason;
        return reason->status;
    }
    count_more(s->count, more, sizeof more);
    if (dequantized(s)) return report_unsupported(s, more);
    TSR_FAIL_IF(dtype == TSR_DTYPE_NONE, s->err, TSR_E_UNSUPPORTED,
                "'%.*s' is scaled by '%.*s'%s, which a sum of the stored numbers would not apply; pass --dequantize",
                TSR_STR_ARG(s->data->fqn), TSR_STR_ARG(s->scale), more);
    return tsr_fail(s->err, TSR_E_UNSUPPORTED,
                    "'%.*s' is scaled by '%.*s'%s, which a cast to %s would not apply; pass --dequantize to multiply them%s",
                    TSR_STR_ARG(s->data->fqn), TSR_STR_ARG(s->scale), more, tsr_dtype_describe(dtype)->name,
                    s->what->by_map ? "" : ", or --raw-cast to cast the stored numbers as they are");
}

static tsr_status report_unscaled(const search *s)
{
    const bool sums = s->what->dtype == TSR_DTYPE_NONE;
    char more[64] = "";
    bool quantized;
    TSR_TRY(tsr_config_is_quantized(s->checkpoint, &quantized, s->err));
    if (!quantized) return TSR_OK;
    count_more(s->unscaled_count, more, sizeof more);
    return tsr_fail(s->err, TSR_E_UNSUPPORTED, TSR_UNSCALED "%s", TSR_STR_ARG(s->unscaled->fqn), more,
                    tsr_dtype_describe(s->unscaled->dtype)->name, TSR_STR_ARG(s->unscaled->fqn),
                    sums || s->what->by_map ? "" : "; pass --raw-cast to cast them as they are");
}

static tsr_status finish(search *s, tsr_status status)
{
    if (status == TSR_OK && s->count) status = report_scaled(s);
    if (status == TSR_OK && s->unscaled_count) status = report_unscaled(s);
    tsr_vec_free(&s->text);
    return status;
}

static search search_in(tsr_checkpoint *checkpoint, const tsr_arithmetic *what, tsr_error *err)
{
    const tsr_vec text = tsr_vec_of(tsr_checkpoint_host(checkpoint)->allocator, 1);
    return (search){.checkpoint = checkpoint, .what = what, .text = text, .err = err};
}

tsr_status tsr_check_arithmetic(tsr_checkpoint *checkpoint, const tsr_arithmetic *what, tsr_error *err)
{
    search s = search_in(checkpoint, what, err);
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    tsr_status status = TSR_OK;
    for (uint64_t i = 0; i < catalog->entry_count && status == TSR_OK; i++) status = check_entry(&s, &catalog->entries[i]);
    return finish(&s, status);
}

static bool is_entry(const void *ctx, tsr_str fqn)
{
    const tsr_entry *entry = ctx;
    return tsr_str_equal(entry->fqn, fqn);
}

tsr_status tsr_check_arithmetic_on(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_arithmetic *what,
                                   tsr_error *err)
{
    tsr_arithmetic own = *what;
    own.selection = (tsr_selection){is_entry, entry};
    search s = search_in(checkpoint, &own, err);
    return finish(&s, check_entry(&s, entry));
}

tsr_status tsr_find_packed(tsr_checkpoint *checkpoint, tsr_str fqn, const tsr_entry **out, tsr_error *err)
{
    tsr_vec text = tsr_vec_of(tsr_checkpoint_host(checkpoint)->allocator, 1);
    tsr_status status = TSR_OK;
    *out = NULL;
    for (size_t i = 0; i < tsr_companion_count && !*out && status == TSR_OK; i++) {
        const tsr_companion *companion = &tsr_companions[i];
        const tsr_entry *scale = NULL, *data = NULL;
        if (!companion->data[0] || !strcmp(companion->data, "weight")) continue;
        const bool appended = companion->data[0] == '_';
        status = tsr_companion_named(checkpoint, fqn, appended ? "" : "weight", companion->data, &text, &data, err);
        if (status == TSR_OK && data) status = tsr_companion_scale(checkpoint, data, companion, &text, &scale, err);
        if (scale) *out = data;
    }
    tsr_vec_free(&text);
    return status;
}

/* ---- used ---- */

/* Finds out which dequantized entries the layers above use, because only those may be refused. Also checks that no map
 * separates numbers from their scales. */

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
                                         bool *plain, tsr_error *err)
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
    const bool is_plain = plain && !done->found && !*method;
    if (is_plain) *plain = true;
    TSR_FAIL_IF(!done->found && !is_plain, err, TSR_E_UNSUPPORTED,
                "--dequantize: there are no quantized tensors with scales in the checkpoint%s%s%s",
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
