/* Checks that tensors have the shapes that rules state, and the sizes that config.json states. If dims are in the wrong order, a
 * square matrix does not show it, but other tensors with the same named dim do. */
#include "mapping/mapping_match.h"
#include "tessera/sys/try.h"

enum { MOST_NAMES = 32 };

/* A dim of a tensor, with the name that the map gives it. */
typedef struct named_dim {
    tsr_str name;
    const tsr_entry *entry;
    uint32_t dim;
} named_dim;

typedef struct checker {
    const tsr_mapped *m;
    named_dim first[MOST_NAMES]; /* the first dim found for each name */
    uint32_t count;
    tsr_error *err;
} checker;

static tsr_shape_text shape_of(const tsr_entry *entry)
{
    const tsr_mapped_tensor tensor = {.ndim = entry->ndim, .shape = (uint64_t *)(uintptr_t)entry->shape};
    return tsr_shape_of(&tensor);
}

/* Returns c->count if no dim has the name. */
static uint32_t find_named(const checker *c, tsr_str name)
{
    uint32_t i = 0;
    while (i < c->count && !tsr_str_equal(c->first[i].name, name)) i++;
    return i;
}

static tsr_status check_named(checker *c, named_dim here)
{
    const uint32_t i = find_named(c, here.name);
    TSR_FAIL_IF(i == MOST_NAMES, c->err, TSR_E_FORMAT, "the map names more than %u dims", (unsigned)MOST_NAMES);
    named_dim *there = &c->first[i];
    if (i == c->count) c->count++, *there = here;
    const uint64_t size = here.entry->shape[here.dim], other = there->entry->shape[there->dim];
    TSR_FAIL_IF(size != other, c->err, TSR_E_FORMAT,
                "the map's '%.*s' is %llu in '%.*s' %s, dim %u, but %llu in '%.*s' %s, dim %u", TSR_STR_ARG(here.name),
                (unsigned long long)other, TSR_STR_ARG(there->entry->fqn), shape_of(there->entry).text, (unsigned)there->dim,
                (unsigned long long)size, TSR_STR_ARG(here.entry->fqn), shape_of(here.entry).text, (unsigned)here.dim);
    return TSR_OK;
}

static tsr_status check_dim(checker *c, const tsr_map_number *stated, named_dim here)
{
    uint64_t size;
    if (here.name.size) return check_named(c, here);
    TSR_TRY(tsr_mapped_number(c->m, stated, &size, c->err));
    TSR_FAIL_IF(size != here.entry->shape[here.dim], c->err, TSR_E_FORMAT, "dim %u of '%.*s' %s must be %llu",
                (unsigned)here.dim, TSR_STR_ARG(here.entry->fqn), shape_of(here.entry).text, (unsigned long long)size);
    return TSR_OK;
}

/* Checks the shape of an entry that matches pattern number `pattern` of the map's target. */
static tsr_status check_entry(checker *c, const tsr_map_rule *rule, uint64_t pattern, const tsr_entry *entry)
{
    const tsr_map_shape *shape = &rule->shapes[rule->shape_count > 1 ? pattern : 0];
    if (entry->kind == TSR_ENTRY_OPAQUE && !entry->shape) return TSR_OK; /* its shape is not known */
    TSR_FAIL_IF(entry->kind == TSR_ENTRY_OBJECT || entry->ndim != shape->count, c->err, TSR_E_FORMAT,
                "'%.*s' %s must be a tensor of %u dims", TSR_STR_ARG(entry->fqn), shape_of(entry).text,
                (unsigned)shape->count);
    for (uint32_t d = 0; d < entry->ndim; d++)
        TSR_TRY(check_dim(c, &shape->sizes[d].number, (named_dim){shape->sizes[d].name, entry, d}));
    return TSR_OK;
}

static tsr_status check_row(checker *c, const tsr_mapped_row *row)
{
    if (!row->rule || !row->rule->shape_count) return TSR_OK;
    if (!row->rule->shape_of_from) return check_entry(c, row->rule, row->pattern, &row->entry);
    const uint64_t members = row->source_count / row->rule->from_count; /* per pattern */
    for (uint64_t i = 0; i < row->source_count; i++) TSR_TRY(check_entry(c, row->rule, i / members, row->sources[i]));
    return TSR_OK;
}

/* Whether the rule applies once per layer, and concerns experts. */
static bool is_of_experts(const tsr_map_rule *rule)
{
    uint32_t bound = 0;
    for (uint32_t c = 0; c < rule->capture_count; c++) {
        if (c == rule->folded || c == rule->unfolded) continue;
        if (bound++ || !tsr_str_equal(rule->captures[c], TSR_STR("layer"))) return false;
    }
    if (!bound) return false;
    for (uint32_t i = 0; i < rule->shape_count; i++)
        for (uint32_t d = 0; d < rule->shapes[i].count; d++)
            if (tsr_str_equal(rule->shapes[i].sizes[d].name, TSR_STR("experts"))) return true;
    return false;
}

/* Counts the bindings of the rule. The rows of one binding are adjacent and have the same sources. */
static uint64_t count_bindings(const tsr_mapped *m, const tsr_map_rule *rule)
{
    const tsr_mapped_row *rows = m->rows.items;
    uint64_t count = 0;
    for (size_t i = 0; i < m->rows.count; i++)
        count += rows[i].rule == rule && (!i || rows[i - 1].sources != rows[i].sources);
    return count;
}

/* A layer with a router has experts, and vice versa, so all rules with a {layer} that name the dim "experts" must apply
 * equally often. */
static tsr_status check_experts(const tsr_mapped *m, tsr_error *err)
{
    const tsr_map_rule *first = NULL;
    uint64_t places = 0;
    for (uint32_t r = 0; r < m->rules->count; r++) {
        const tsr_map_rule *rule = &m->rules->rules[r];
        if (!is_of_experts(rule)) continue;
        const uint64_t count = count_bindings(m, rule);
        if (!first) first = rule, places = count;
        TSR_FAIL_IF(count != places, err, TSR_E_FORMAT,
                    "experts are not whole: '%.*s' is there %llu times, but '%.*s' %llu times",
                    TSR_STR_ARG(first->from[0].text), (unsigned long long)places, TSR_STR_ARG(rule->from[0].text),
                    (unsigned long long)count);
    }
    return TSR_OK;
}

static bool is_expert(const tsr_map_rule *rule, uint32_t capture)
{
    return capture != TSR_NO_CAPTURE && tsr_str_equal(rule->captures[capture], TSR_STR("expert"));
}

/* Where a rule takes a stack of every {expert} apart, or makes one, the number of tensors must be the size of the dim
 * "experts". Rules that state the dim of the stack itself were checked before. */
static tsr_status check_members(const checker *c)
{
    const tsr_mapped_row *rows = c->m->rows.items;
    const uint32_t named = find_named(c, TSR_STR("experts"));
    if (named == c->count) return TSR_OK;
    const named_dim *there = &c->first[named];
    for (size_t i = 0, next; i < c->m->rows.count; i = next) {
        const tsr_map_rule *rule = rows[i].rule;
        for (next = i + 1; next < c->m->rows.count && rows[next].sources == rows[i].sources;) next++;
        const bool folds = rule && is_expert(rule, rule->folded);
        if (!rule || (!folds && !is_expert(rule, rule->unfolded))) continue;
        const uint64_t count = folds ? rows[i].source_count / rule->from_count : (next - i) / rule->to_count;
        TSR_FAIL_IF(count != there->entry->shape[there->dim], c->err, TSR_E_FORMAT,
                    "the map's 'experts' is %llu in '%.*s' %s, dim %u, but there are %llu for '%.*s'",
                    (unsigned long long)there->entry->shape[there->dim], TSR_STR_ARG(there->entry->fqn),
                    shape_of(there->entry).text, (unsigned)there->dim, (unsigned long long)count,
                    TSR_STR_ARG((folds ? rows[i].entry : *rows[i].sources[0]).fqn));
    }
    return TSR_OK;
}

/* Compares dims with config.json, after those of one name were compared with each other. */
static tsr_status check_stated(const checker *c)
{
    for (uint32_t d = 0; d < c->m->rules->dim_count; d++) {
        const tsr_map_dim *dim = &c->m->rules->dims[d];
        const uint32_t named = find_named(c, dim->name);
        tsr_dim_size stated = {.text = TSR_STR("")};
        if (named == c->count) continue;
        const named_dim *there = &c->first[named];
        const uint64_t size = there->entry->shape[there->dim];
        TSR_TRY(tsr_dim_evaluate(c->m, dim, false, &stated, c->err));
        TSR_FAIL_IF(stated.text.data && stated.value != size, c->err, TSR_E_FORMAT,
                    "the map's '%.*s' is %llu in %s (%.*s), but %llu in '%.*s' %s, dim %u", TSR_STR_ARG(dim->name),
                    (unsigned long long)stated.value, c->m->config_name, TSR_STR_ARG(stated.text), (unsigned long long)size,
                    TSR_STR_ARG(there->entry->fqn), shape_of(there->entry).text, (unsigned)there->dim);
    }
    return TSR_OK;
}

tsr_status tsr_shapes_check(const tsr_mapped *m, tsr_error *err)
{
    checker c = {.m = m, .err = err};
    const tsr_mapped_row *rows = m->rows.items;
    for (size_t i = 0; i < m->rows.count; i++) TSR_TRY(check_row(&c, &rows[i]));
    TSR_TRY(check_members(&c));
    TSR_TRY(check_experts(m, err));
    return check_stated(&c);
}
