/* Runs the steps of a rule on the tensors of one binding. */
#include "base/cursor.h"
#include "codec/json.h"
#include "mapping/mapped.h"
#include "mapping/mapping_builtin.h"
#include "mapping/mapping_match.h"
#include "mapping/mapping_rules.h"
#include "tessera/box.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

/* ---- shapes ---- */

/* Checks that tensors have the shapes that rules state, and the sizes that config.json states. If dims are in the wrong order, a
 * square matrix does not show it, but other tensors with the same named dim do. */

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

typedef struct dim_size {
    uint64_t value;
    tsr_str text;
} dim_size;

/* What config.json says of a dim. `text` is empty at first, and becomes the numbers that it follows from, such
 * as "num_attention_heads 4, head_dim 16"; its data is NULL if config.json does not state them all. `inside` is false.
 * TSR_E_FORMAT if one of them is not a size; TSR_E_NOMEM. */
static tsr_status dim_evaluate(const tsr_mapped *m, const tsr_map_dim *dim, bool inside, dim_size *out, tsr_error *err);

/* Evaluates a term, and adds to out->text. A number that config.json does not state may follow from others; those must be
 * stated. */
static tsr_status find_term(const tsr_mapped *m, const tsr_map_term *term, bool inside, dim_size *out, tsr_error *err)
{
    out->value = term->value;
    if (!term->config.size) return TSR_OK;
    const cJSON *item = tsr_mapped_stated(m, term->config.data + 1);
    if (item) {
        const tsr_status status = tsr_json_to_u64(item, item->string, &out->value, err);
        if (status != TSR_OK) tsr_error_context(err, "%s", m->config_name);
        if (status != TSR_OK) return status;
        out->text = tsr_arena_format(m->own->arena, err, "%.*s%s%s %llu", TSR_STR_ARG(out->text), out->text.size ? ", " : "",
                                     item->string, (unsigned long long)out->value);
        return out->text.data ? TSR_OK : TSR_E_NOMEM;
    }
    for (uint32_t d = 0; d < m->rules->dim_count && !inside; d++)
        if (tsr_str_equal(m->rules->dims[d].name, term->config)) return dim_evaluate(m, &m->rules->dims[d], true, out, err);
    out->text.data = NULL;
    return TSR_OK;
}

static tsr_status dim_evaluate(const tsr_mapped *m, const tsr_map_dim *dim, bool inside, dim_size *out, tsr_error *err)
{
    uint64_t product = 1, sum = 0;
    for (uint32_t t = 0; t < dim->count; t++) {
        const enum tsr_term_operation operation = dim->terms[t].operation;
        TSR_TRY(find_term(m, &dim->terms[t], inside, out, err));
        if (operation == TSR_TERM_DIVIDE && !out->value) out->text.data = NULL;
        if (!out->text.data) return TSR_OK;
        sum += out->value;
        if (operation == TSR_TERM_PLUS) continue;
        if (operation == TSR_TERM_DIVIDE) product /= sum;
        else if (!tsr_mul_u64(product, sum, &product)) product = UINT64_MAX; /* no tensor has that size */
        sum = 0;
    }
    out->value = product;
    return TSR_OK;
}

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
        dim_size stated = {.text = TSR_STR("")};
        if (named == c->count) continue;
        const named_dim *there = &c->first[named];
        const uint64_t size = there->entry->shape[there->dim];
        TSR_TRY(dim_evaluate(c->m, dim, false, &stated, c->err));
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

/* ---- steps ---- */

typedef struct runner {
    tsr_mapped *m;
    const tsr_map_step *step;
    tsr_error *err;
} runner;

/* Finds the dim of the step. With `extra` 1, it may also be the position after the last dim. */
static tsr_status find_dim(const runner *r, const tsr_mapped_tensor *tensor, uint32_t extra, uint32_t *out)
{
    *out = 0;
    const int64_t count = (int64_t)tensor->ndim + extra, dim = r->step->dim < 0 ? r->step->dim + count : r->step->dim;
    TSR_FAIL_IF(dim < 0 || dim >= count, r->err, TSR_E_FORMAT, "'%.*s' %s: the step '%s' names dim %lld",
                TSR_STR_ARG(tensor->name), tsr_shape_of(tensor).text, tsr_step_name(r->step->kind), (long long)r->step->dim);
    *out = (uint32_t)dim;
    return TSR_OK;
}

static tsr_status misfit(const runner *r, const tsr_mapped_tensor *tensor, const char *what, uint64_t number)
{
    return tsr_fail(r->err, TSR_E_FORMAT, "'%.*s' %s: the step '%s' %s %llu", TSR_STR_ARG(tensor->name),
                    tsr_shape_of(tensor).text, tsr_step_name(r->step->kind), what, (unsigned long long)number);
}

static tsr_status read_numbers(const runner *r, const tsr_map_number *numbers, uint32_t count, uint64_t **out)
{
    *out = tsr_arena_array(r->m->own->arena, count, sizeof **out, r->err);
    if (!*out) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < count; i++) TSR_TRY(tsr_mapped_number(r->m, &numbers[i], &(*out)[i], r->err));
    return TSR_OK;
}

/* Returns the index of the number that is -1, or `count` if none is. */
static uint32_t find_rest(const tsr_map_number *numbers, uint32_t count)
{
    uint32_t i = 0;
    while (i < count && !numbers[i].rest) i++;
    return i;
}

/* ---- one tensor to one tensor ---- */

static tsr_status transpose(const runner *r, tsr_mapped_tensor *tensor)
{
    uint64_t *numbers;
    uint32_t order[TSR_MAX_NDIM];
    bool seen[TSR_MAX_NDIM] = {false};
    TSR_TRY(read_numbers(r, r->step->numbers, r->step->number_count, &numbers));
    if (r->step->number_count != tensor->ndim)
        return misfit(r, tensor, "has another number of dims:", r->step->number_count);
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        if (numbers[d] >= tensor->ndim || seen[numbers[d]])
            return misfit(r, tensor, "is not an order of the dims at", numbers[d]);
        seen[numbers[d]] = true;
        order[d] = (uint32_t)numbers[d];
    }
    return tsr_boxes_transpose(&r->m->maker, tensor, order, tensor);
}

/* Splits dim `dim` into `factors`, exchanges the last two, and merges all of them again. */
static tsr_status exchange(const runner *r, tsr_mapped_tensor *tensor, uint32_t dim, const uint64_t *factors, uint32_t count)
{
    uint32_t order[TSR_MAX_NDIM + 2];
    if (tensor->ndim + count > TSR_MAX_NDIM) return misfit(r, tensor, "needs more dims than", TSR_MAX_NDIM);
    TSR_TRY(tsr_boxes_split_dim(&r->m->maker, tensor, dim, factors, count, tensor));
    for (uint32_t d = 0; d < tensor->ndim; d++) order[d] = d;
    order[dim + count - 2] = dim + count - 1;
    order[dim + count - 1] = dim + count - 2;
    TSR_TRY(tsr_boxes_transpose(&r->m->maker, tensor, order, tensor));
    return tsr_boxes_merge_dims(&r->m->maker, tensor, dim, count, tensor);
}

static tsr_status interleave(const runner *r, tsr_mapped_tensor *tensor)
{
    uint32_t dim;
    uint64_t parts;
    TSR_TRY(find_dim(r, tensor, 0, &dim));
    TSR_TRY(tsr_mapped_number(r->m, &r->step->parts, &parts, r->err));
    if (!parts || tensor->shape[dim] % parts) return misfit(r, tensor, "cannot make equal parts; parts is", parts);
    const uint64_t each = tensor->shape[dim] / parts,
                   factors[] = {r->step->inverse ? each : parts, r->step->inverse ? parts : each};
    return exchange(r, tensor, dim, factors, 2);
}

/* If the number of heads comes from config.json, the size of a head must agree with config.json, too. */
static tsr_status check_heads(const runner *r, const tsr_mapped_tensor *tensor, uint64_t heads)
{
    uint64_t size;
    if (!r->step->parts.config.size || !tsr_mapped_head_dim(r->m, &size) || tensor->shape[0] / heads == size) return TSR_OK;
    return tsr_fail(r->err, TSR_E_FORMAT, "'%.*s' %s has %llu rows for each of %llu heads, but %s says %llu",
                    TSR_STR_ARG(tensor->name), tsr_shape_of(tensor).text, (unsigned long long)(tensor->shape[0] / heads),
                    (unsigned long long)heads, r->m->config_name, (unsigned long long)size);
}

static tsr_status permute_rope(const runner *r, tsr_mapped_tensor *tensor)
{
    uint64_t heads;
    TSR_TRY(tsr_mapped_number(r->m, &r->step->parts, &heads, r->err));
    if (!tensor->ndim || !heads || tensor->shape[0] % heads || tensor->shape[0] / heads % 2)
        return misfit(r, tensor, "needs an even number of rows for each head; heads is", heads);
    TSR_TRY(check_heads(r, tensor, heads));
    const uint64_t half = tensor->shape[0] / heads / 2;
    const uint64_t factors[] = {heads, r->step->inverse ? 2 : half, r->step->inverse ? half : 2};
    return exchange(r, tensor, 0, factors, 3);
}

/* Checks the sizes from dim `first` on against those that the step states for its inverse, which would otherwise make other
 * tensors. Only the inverse needs them, so numbers that config.json lacks are not checked. */
static tsr_status check_from(const runner *r, const tsr_mapped_tensor *tensor, uint32_t first)
{
    for (uint32_t d = 0; d < r->step->from_count && first + d < tensor->ndim; d++) {
        uint64_t size;
        if (r->step->from[d].rest || tsr_mapped_number(r->m, &r->step->from[d], &size, NULL) != TSR_OK) continue;
        if (tensor->shape[first + d] != size) return misfit(r, tensor, "states in \"from\" the size", size);
    }
    return TSR_OK;
}

/* Replaces -1 in the shape by the size that follows from the number of elements and the other sizes. */
static tsr_status set_rest(const runner *r, const tsr_mapped_tensor *tensor, uint64_t *shape)
{
    const uint32_t rest = find_rest(r->step->numbers, r->step->number_count);
    uint64_t elements = 1, others = 1;
    if (rest == r->step->number_count) return TSR_OK;
    for (uint32_t d = 0; d < tensor->ndim; d++) elements *= tensor->shape[d]; /* cannot overflow: it is a tensor */
    for (uint32_t d = 0; d < r->step->number_count; d++) {
        if (d == rest) continue;
        if (!shape[d] || elements % shape[d] || others > elements / shape[d])
            return misfit(r, tensor, "cannot divide its elements by", shape[d]);
        others *= shape[d];
    }
    if (!elements || elements % others) return misfit(r, tensor, "cannot divide its elements by", others);
    shape[rest] = elements / others;
    return TSR_OK;
}

static tsr_status reshape(const runner *r, tsr_mapped_tensor *tensor)
{
    uint64_t *shape;
    if (r->step->from_count && r->step->from_count != tensor->ndim)
        return misfit(r, tensor, "states in \"from\" another number of dims:", r->step->from_count);
    TSR_TRY(check_from(r, tensor, 0));
    TSR_TRY(read_numbers(r, r->step->numbers, r->step->number_count, &shape));
    TSR_TRY(set_rest(r, tensor, shape));
    return tsr_boxes_reshape(&r->m->maker, tensor, shape, r->step->number_count, tensor);
}

/* The dim of a step that changes a dim's size, and the size that it has then. */
static tsr_status find_resized(const runner *r, const tsr_mapped_tensor *tensor, uint32_t *dim, uint64_t *to)
{
    TSR_TRY(find_dim(r, tensor, 0, dim));
    TSR_TRY(tsr_mapped_number(r->m, &r->step->to, to, r->err));
    return check_from(r, tensor, *dim);
}

static tsr_status trim(const runner *r, tsr_mapped_tensor *tensor)
{
    uint32_t dim;
    uint64_t to;
    TSR_TRY(find_resized(r, tensor, &dim, &to));
    if (to > tensor->shape[dim]) return misfit(r, tensor, "keeps more elements than there are:", to);
    return tsr_boxes_slice(&r->m->maker, tensor, dim, (tsr_span){0, to}, tensor);
}

/* Makes a tensor that has the same number everywhere. The name, shape and dtype of `out` must be set. */
static tsr_status fill_with(tsr_mapped *m, double value, tsr_mapped_tensor *out, tsr_error *err)
{
    uint32_t file;
    const bool floats = tsr_cast_possible(TSR_FLOAT64, out->dtype);
    TSR_FAIL_IF(!floats && value != 0, err, TSR_E_UNSUPPORTED, "'%.*s' is %s, which can only be padded with 0",
                TSR_STR_ARG(out->name), tsr_dtype_describe(out->dtype)->name);
    tsr_computed *computed = tsr_mapped_add_file(m, out->dtype, &file, err);
    if (!computed) return TSR_E_NOMEM;
    computed->kind = TSR_COMPUTED_CONSTANT;
    if (floats) tsr_cast(TSR_FLOAT64, out->dtype, (const uint8_t *)&value, 1, computed->constant);
    return tsr_boxes_of_file(&m->maker, file, true, out);
}

static tsr_status pad(const runner *r, tsr_mapped_tensor *tensor)
{
    uint32_t dim;
    uint64_t to;
    TSR_TRY(find_resized(r, tensor, &dim, &to));
    if (to < tensor->shape[dim]) return misfit(r, tensor, "pads to fewer elements:", to);
    if (to == tensor->shape[dim]) return TSR_OK;
    tsr_mapped_tensor both[] = {*tensor, *tensor};
    both[1].shape = tsr_arena_array(r->m->own->arena, tensor->ndim, sizeof *tensor->shape, r->err);
    if (!both[1].shape) return TSR_E_NOMEM;
    memcpy(both[1].shape, tensor->shape, tensor->ndim * sizeof *tensor->shape);
    both[1].shape[dim] = to - tensor->shape[dim];
    TSR_TRY(fill_with(r->m, r->step->value, &both[1], r->err));
    return tsr_boxes_concat(&r->m->maker, both, 2, dim, tensor);
}

static tsr_status change_one(const runner *r, tsr_mapped_tensor *tensor)
{
    switch (r->step->kind) {
    case TSR_STEP_TRANSPOSE: return transpose(r, tensor);
    case TSR_STEP_INTERLEAVE: return interleave(r, tensor);
    case TSR_STEP_PERMUTE_ROPE: return permute_rope(r, tensor);
    case TSR_STEP_RESHAPE: return reshape(r, tensor);
    case TSR_STEP_TRIM: return trim(r, tensor);
    case TSR_STEP_PAD: return pad(r, tensor);
    case TSR_STEP_DEQUANTIZE: return TSR_OK; /* the tensors are already products */
    default: return tensor->dtype == r->step->dtype ? TSR_OK : tsr_mapped_cast(r->m, tensor, r->step->dtype, tensor, r->err);
    }
}

/* ---- several to one, one to several ---- */

/* Computes the sizes along `dim` of a step's parts, which are given as sizes or as a number of equal parts. */
static tsr_status part_sizes(const runner *r, const tsr_mapped_tensor *tensor, uint32_t dim, uint64_t **sizes,
                             uint32_t *count)
{
    uint64_t parts, sum = 0;
    *count = r->step->number_count;
    if (*count) {
        TSR_TRY(read_numbers(r, r->step->numbers, *count, sizes));
        for (uint32_t i = 0; i < *count; i++) {
            if ((*sizes)[i] > tensor->shape[dim] - sum)
                return misfit(r, tensor, "has sizes whose sum is more than", tensor->shape[dim]);
            sum += (*sizes)[i];
        }
        const uint32_t rest = find_rest(r->step->numbers, *count);
        if (rest < *count) {
            (*sizes)[rest] = tensor->shape[dim] - sum;
            return TSR_OK;
        }
        return sum == tensor->shape[dim] ? TSR_OK : misfit(r, tensor, "has sizes whose sum is", sum);
    }
    TSR_TRY(tsr_mapped_number(r->m, &r->step->parts, &parts, r->err));
    if (!parts || parts > 4096 || tensor->shape[dim] % parts)
        return misfit(r, tensor, "cannot make equal parts; parts is", parts);
    *count = (uint32_t)parts;
    *sizes = tsr_arena_array(r->m->own->arena, parts, sizeof **sizes, r->err);
    if (!*sizes) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < *count; i++) (*sizes)[i] = tensor->shape[dim] / parts;
    return TSR_OK;
}

static tsr_status concat_members(const runner *r, tsr_mapped_tensor *parts, uint32_t count, tsr_mapped_tensor *out)
{
    uint32_t dim, expected;
    uint64_t *sizes;
    TSR_TRY(find_dim(r, &parts[0], 0, &dim));
    TSR_TRY(tsr_boxes_concat(&r->m->maker, parts, count, dim, out));
    if (!r->step->number_count && !r->step->parts.value && !r->step->parts.config.size) return TSR_OK;
    TSR_TRY(part_sizes(r, out, dim, &sizes, &expected));
    if (expected != count) return misfit(r, out, "names another number of parts:", expected);
    for (uint32_t i = 0; i < count; i++)
        if (parts[i].shape[dim] != sizes[i]) return misfit(r, &parts[i], "expects the size", sizes[i]);
    return TSR_OK;
}

static tsr_status concat(const runner *r, tsr_map_slot *slots, uint32_t *slot_count)
{
    tsr_mapped_tensor *parts = tsr_arena_array(r->m->own->arena, *slot_count, sizeof *parts, r->err);
    if (!parts) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < slots[0].count; i++) {
        for (uint32_t s = 0; s < *slot_count; s++) parts[s] = slots[s].tensors[i];
        TSR_TRY(concat_members(r, parts, *slot_count, &slots[0].tensors[i]));
    }
    *slot_count = 1;
    return TSR_OK;
}

static tsr_map_slot *new_slots(const runner *r, uint32_t count, uint64_t members)
{
    tsr_map_slot *slots = tsr_arena_array(r->m->own->arena, count, sizeof *slots, r->err);
    for (uint32_t s = 0; slots && s < count; s++) {
        slots[s].count = members;
        slots[s].tensors = tsr_arena_array(r->m->own->arena, (size_t)members, sizeof *slots[s].tensors, r->err);
        if (!slots[s].tensors) return NULL;
    }
    return slots;
}

static tsr_status split(const runner *r, tsr_map_slot **slots, uint32_t *slot_count)
{
    const tsr_map_slot all = (*slots)[0];
    uint32_t dim, count, first = 0;
    uint64_t *sizes;
    TSR_FAIL_IF(*slot_count != 1, r->err, TSR_E_FORMAT, "'%.*s': the step 'split' takes one tensor, not %u",
                TSR_STR_ARG(all.tensors[0].name), (unsigned)*slot_count);
    for (uint64_t i = 0; i < all.count; i++) {
        uint64_t offset = 0;
        TSR_TRY(find_dim(r, &all.tensors[i], 0, &dim));
        TSR_TRY(part_sizes(r, &all.tensors[i], dim, &sizes, &count));
        if (i == 0) {
            first = count;
            *slots = new_slots(r, count, all.count);
            if (!*slots) return TSR_E_NOMEM;
        }
        for (uint32_t s = 0; s < first; s++, offset += sizes[s - 1])
            TSR_TRY(
                tsr_boxes_slice(&r->m->maker, &all.tensors[i], dim, (tsr_span){offset, sizes[s]}, &(*slots)[s].tensors[i]));
    }
    *slot_count = first;
    return TSR_OK;
}

static tsr_status stack(const runner *r, tsr_map_slot *slot)
{
    uint32_t dim = 0;
    for (uint64_t i = 0; i < slot->count; i++) {
        TSR_TRY(find_dim(r, &slot->tensors[i], 1, &dim));
        for (uint32_t d = 0; i && d < slot->tensors[0].ndim - 1; d++) {
            /* The first tensor already has its new dim. */
            const uint64_t size = slot->tensors[0].shape[d < dim ? d : d + 1];
            if (slot->tensors[i].ndim != slot->tensors[0].ndim - 1 || slot->tensors[i].shape[d] != size)
                return misfit(r, &slot->tensors[i],
                              "expects all tensors to have the shape of the first one; it differs at dim", d);
        }
        TSR_TRY(tsr_boxes_add_dim(&r->m->maker, &slot->tensors[i], dim, &slot->tensors[i]));
    }
    TSR_TRY(tsr_boxes_concat(&r->m->maker, slot->tensors, (size_t)slot->count, dim, &slot->tensors[0]));
    slot->count = 1;
    return TSR_OK;
}

static tsr_status unstack(const runner *r, tsr_map_slot *slot)
{
    uint32_t dim;
    const tsr_mapped_tensor all = slot->tensors[0];
    TSR_TRY(find_dim(r, &all, 0, &dim));
    if (!all.shape[dim]) return misfit(r, &all, "takes apart a dim of size", all.shape[dim]);
    if (all.shape[dim] > r->m->maker.left)
        return misfit(r, &all, "would make more tensors than are allowed:", all.shape[dim]);
    slot->count = all.shape[dim];
    slot->tensors = tsr_arena_array(r->m->own->arena, (size_t)slot->count, sizeof *slot->tensors, r->err);
    if (!slot->tensors) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < slot->count; i++) {
        TSR_TRY(tsr_boxes_slice(&r->m->maker, &all, dim, (tsr_span){i, 1}, &slot->tensors[i]));
        TSR_TRY(tsr_boxes_remove_dim(&r->m->maker, &slot->tensors[i], dim, &slot->tensors[i]));
    }
    return TSR_OK;
}

static tsr_status run_step(const runner *r, tsr_map_slot **slots, uint32_t *slot_count)
{
    const tsr_step_kind kind = r->step->kind;
    if (kind == TSR_STEP_CONCAT) return concat(r, *slots, slot_count);
    if (kind == TSR_STEP_SPLIT) return split(r, slots, slot_count);
    for (uint32_t s = 0; s < *slot_count; s++) {
        tsr_map_slot *slot = &(*slots)[s];
        if (kind == TSR_STEP_STACK) TSR_TRY(stack(r, slot));
        else if (kind == TSR_STEP_UNSTACK && slot->count == 1) TSR_TRY(unstack(r, slot));
        for (uint64_t i = 0; i < slot->count && kind != TSR_STEP_STACK && kind != TSR_STEP_UNSTACK; i++)
            TSR_TRY(change_one(r, &slot->tensors[i]));
    }
    return TSR_OK;
}

static tsr_status mapped_steps(tsr_mapped *m, const tsr_map_rule *rule, tsr_map_slot **slots, uint32_t *slot_count,
                               tsr_error *err)
{
    for (uint32_t i = 0; i < rule->step_count; i++) {
        const runner r = {m, &rule->steps[i], err};
        TSR_TRY(run_step(&r, slots, slot_count));
    }
    return TSR_OK;
}

/* ---- build ---- */

/* Makes the entries of one binding of a rule: runs its tensors through the steps and gives them the names of the target. */

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

static tsr_status name_slot(tsr_mapped *m, const tsr_map_binding *binding, uint32_t s, const tsr_map_slot *slot,
                            tsr_error *err)
{
    const tsr_map_rule *rule = binding->rule;
    for (uint64_t i = 0; i < slot->count; i++) {
        tsr_entry entry;
        if (rule->unfolded != TSR_NO_CAPTURE) {
            binding->values[rule->unfolded] = tsr_arena_format(m->own->arena, err, "%llu", (unsigned long long)i);
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
    TSR_TRY(mapped_steps(m, rule, &slots, &count, err));
    TSR_FAIL_IF(count != rule->to_count, err, TSR_E_FORMAT, "'%.*s': the steps make %u tensors, but the rule names %u",
                TSR_STR_ARG(binding->sources[0]->fqn), (unsigned)count, (unsigned)rule->to_count);
    for (uint32_t s = 0; s < count; s++) TSR_TRY(name_slot(m, binding, s, &slots[s], err));
    return TSR_OK;
}
