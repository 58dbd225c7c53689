/* Compares the layers of a mapped checkpoint whose names a rule takes as they are, by {rest...}. No rule states which weights
 * such layers have, and layers may differ, as those with cross attention do. So a layer is noted, not refused, and only if it
 * has some of the names of another, but not all, while no layer has the same names as it, and another has those of the other. */
#include "mapping/mapped.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/try.h"

#include <stdlib.h>

/* More layers are not compared with each other. No model has as many. */
enum { MOST_LAYERS = 1000 };

typedef struct layer_name {
    tsr_str stack; /* such as "model.layers" */
    tsr_str index;
    tsr_str rest; /* what follows the index */
} layer_name;

typedef struct layer {
    const layer_name *names; /* in the order of `rest` */
    size_t count;
    bool has_twin; /* another layer has the same names */
} layer;

static bool is_taken_as_is(const tsr_mapped_row *row)
{
    const tsr_map_rule *rule = row->rule;
    if (!rule || rule->to_count != 1 || rule->step_count) return false;
    return rule->to->count && rule->to->components[rule->to->count - 1].rest;
}

/* Splits a name at its first component that is a number. */
static bool split(tsr_str fqn, layer_name *out)
{
    size_t start = 0;
    uint64_t number;
    for (size_t i = 0; i < fqn.size; i++) {
        if (fqn.data[i] != '.') continue;
        const tsr_str component = {fqn.data + start, i - start};
        if (start && tsr_index_parse(component, &number)) {
            *out = (layer_name){{fqn.data, start - 1}, component, {fqn.data + i + 1, fqn.size - i - 1}};
            return true;
        }
        start = i + 1;
    }
    return false;
}

static int name_order(const void *a, const void *b)
{
    const layer_name *x = a, *y = b;
    int order = tsr_str_compare(x->stack, y->stack);
    if (!order) order = tsr_str_compare(x->index, y->index);
    return order ? order : tsr_str_compare(x->rest, y->rest);
}

/* Returns how many names of `b` layer `a` lacks, and the first of them; SIZE_MAX if `a` has names that `b` does not have. */
static size_t lacks(const layer *a, const layer *b, tsr_str *first)
{
    size_t at = 0, count = 0;
    if (a->count > b->count) return SIZE_MAX;
    for (size_t i = 0; i < b->count; i++) {
        if (at < a->count && tsr_str_equal(a->names[at].rest, b->names[i].rest)) at++;
        else if (count++ == 0) *first = b->names[i].rest;
        if (count > b->count - a->count) return SIZE_MAX;
    }
    return at == a->count ? count : SIZE_MAX;
}

static tsr_status note(tsr_mapped *m, const layer *a, const layer *b, tsr_str first, size_t count, tsr_error *err)
{
    tsr_arena *arena = m->own->arena;
    tsr_str more = TSR_STR("");
    if (count > 1) more = tsr_arena_format(arena, err, " and %zu other names", count - 1);
    if (!more.data) return TSR_E_NOMEM;
    return tsr_mapped_add_note(
        m,
        tsr_arena_format(arena, err, "'%.*s.%.*s' may be incomplete: it lacks '%.*s'%.*s, but is otherwise like '%.*s.%.*s'",
                         TSR_STR_ARG(a->names->stack), TSR_STR_ARG(a->names->index), TSR_STR_ARG(first), TSR_STR_ARG(more),
                         TSR_STR_ARG(b->names->stack), TSR_STR_ARG(b->names->index)),
        err);
}

/* Compares the layers of one stack. */
static tsr_status compare(tsr_mapped *m, layer *layers, size_t count, tsr_error *err)
{
    tsr_str first = {0};
    if (count < 3 || count > MOST_LAYERS) return TSR_OK;
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < count && !layers[i].has_twin; j++)
            layers[i].has_twin = i != j && layers[i].count == layers[j].count && !lacks(&layers[i], &layers[j], &first);
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < count && !layers[i].has_twin; j++) {
            const size_t missing = layers[j].has_twin ? lacks(&layers[i], &layers[j], &first) : SIZE_MAX;
            if (missing == SIZE_MAX) continue;
            return note(m, &layers[i], &layers[j], first, missing, err); /* one such layer of a stack is enough */
        }
    return TSR_OK;
}

static tsr_status compare_all(tsr_mapped *m, const layer_name *names, size_t count, layer *layers, tsr_error *err)
{
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        const bool same_stack = i && tsr_str_equal(names[i].stack, names[i - 1].stack);
        if (!same_stack) {
            TSR_TRY(compare(m, layers, used, err));
            used = 0;
        }
        if (!same_stack || !tsr_str_equal(names[i].index, names[i - 1].index)) layers[used++] = (layer){names + i, 0, false};
        layers[used - 1].count++;
    }
    return compare(m, layers, used, err);
}

tsr_status tsr_mapping_compare_layers(tsr_checkpoint *mapped, tsr_error *err)
{
    tsr_mapped *m = (tsr_mapped *)(uintptr_t)tsr_mapped_state(mapped);
    if (!m || !m->rules || !m->rows.count) return TSR_OK;
    const tsr_mapped_row *rows = m->rows.items;
    layer_name *names = tsr_arena_array(m->own->arena, m->rows.count, sizeof *names, err);
    layer *layers = tsr_arena_array(m->own->arena, m->rows.count, sizeof *layers, err);
    if (!names || !layers) return TSR_E_NOMEM;
    size_t count = 0;
    for (size_t i = 0; i < m->rows.count; i++)
        if (is_taken_as_is(&rows[i]) && split(rows[i].entry.fqn, &names[count])) count++;
    if (count) qsort(names, count, sizeof *names, name_order);
    return compare_all(m, names, count, layers, err);
}
