/* "dims" of a map: what the dims that "shape" names are in terms of config.json, such as
 *
 *   {"heads": ["$num_attention_heads", "$head_dim"], "$head_dim": ["$hidden_size", "/$num_attention_heads"]}
 *
 * A list is a product that begins with "$name"; "/$name" divides and rounds down; a list inside it is a sum. A key with a $ states
 * what that number of config.json is where config.json does not state it. */
#include "base/cursor.h"
#include "codec/json.h"
#include "mapping/mapped.h"
#include "tessera/sys/try.h"

/* Reads "$name" or, after the first term, a number and, outside of sums, "/$name". */
static tsr_status read_term(tsr_arena *arena, const cJSON *item, tsr_map_dim *dim, enum tsr_term_operation operation,
                            tsr_error *err)
{
    tsr_map_term *term = &dim->terms[dim->count++];
    term->operation = operation;
    if (cJSON_IsNumber(item) && dim->count > 1) return tsr_json_to_u64(item, dim->where, &term->value, err);
    TSR_TRY(tsr_json_expect(item, TSR_JSON_STRING, dim->where, err));
    const char *text = item->valuestring;
    if (operation == TSR_TERM_TIMES && dim->count > 1 && *text == '/') term->operation = TSR_TERM_DIVIDE, text++;
    TSR_FAIL_IF(text[0] != '$' || !text[1], err, TSR_E_FORMAT,
                "%s: '%s' is not a number; a number of config.json is written \"$name\"", dim->where, item->valuestring);
    term->config = tsr_arena_str(arena, tsr_str_from(text), err);
    return term->config.data ? TSR_OK : TSR_E_NOMEM;
}

/* Reads a product, or a sum inside it. */
static tsr_status read_terms(tsr_arena *arena, const cJSON *list, tsr_map_dim *dim, bool sum, tsr_error *err)
{
    TSR_TRY(tsr_json_expect(list, TSR_JSON_ARRAY, dim->where, err));
    const cJSON *item = list->child;
    do {
        TSR_FAIL_IF(!item || dim->count == TSR_MOST_TERMS, err, TSR_E_FORMAT, "%s must have 1 to %u numbers", dim->where,
                    (unsigned)TSR_MOST_TERMS);
        const enum tsr_term_operation operation = !sum ? TSR_TERM_TIMES : item->next ? TSR_TERM_PLUS : TSR_TERM_END_OF_SUM;
        if (cJSON_IsArray(item) && !sum) TSR_TRY(read_terms(arena, item, dim, true, err));
        else TSR_TRY(read_term(arena, item, dim, operation, err));
        item = item->next;
    } while (item);
    return TSR_OK;
}

static bool shapes_use(const tsr_mapping_rules *rules, tsr_str name)
{
    for (uint32_t r = 0; r < rules->count; r++)
        for (uint32_t s = 0; s < rules->rules[r].shape_count; s++)
            for (uint32_t d = 0; d < rules->rules[r].shapes[s].count; d++)
                if (tsr_str_equal(rules->rules[r].shapes[s].sizes[d].name, name)) return true;
    return false;
}

/* Whether the size of a dim depends on "$name". */
static bool dims_use(const tsr_mapping_rules *rules, tsr_str name)
{
    for (uint32_t d = 0; d < rules->dim_count; d++)
        for (uint32_t t = 0; t < rules->dims[d].count && *rules->dims[d].name.data != '$'; t++)
            if (tsr_str_equal(name, rules->dims[d].terms[t].config)) return true;
    return false;
}

tsr_status tsr_dims_parse(const cJSON *root, tsr_arena *arena, tsr_mapping_rules *rules, tsr_error *err)
{
    const cJSON *object;
    TSR_TRY(tsr_json_find(root, "dims", TSR_JSON_OBJECT, "", &object, err));
    tsr_map_dim *dims = tsr_arena_array(arena, (size_t)cJSON_GetArraySize(object), sizeof *dims, err);
    if (!dims) return TSR_E_NOMEM;
    rules->dims = dims;
    for (const cJSON *item = object ? object->child : NULL; item; item = item->next) {
        tsr_map_dim *dim = &dims[rules->dim_count++];
        dim->where = tsr_arena_format(arena, err, "dims.%s", item->string).data;
        if (!dim->where) return TSR_E_NOMEM;
        dim->name = tsr_str_from(dim->where + strlen("dims."));
        TSR_TRY(read_terms(arena, item, dim, false, err));
    }
    for (uint32_t d = 0; d < rules->dim_count; d++)
        TSR_FAIL_IF(!dims[d].name.size || (!dims_use(rules, dims[d].name) && !shapes_use(rules, dims[d].name)), err,
                    TSR_E_FORMAT, "%s is not used by any \"shape\" or other dim", dims[d].where);
    return TSR_OK;
}

/* Evaluates a term, and adds to out->text. A number that config.json does not state may follow from others; those must be
 * stated. */
static tsr_status find_term(const tsr_mapped *m, const tsr_map_term *term, bool inside, tsr_dim_size *out, tsr_error *err)
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
        if (tsr_str_equal(m->rules->dims[d].name, term->config))
            return tsr_dim_evaluate(m, &m->rules->dims[d], true, out, err);
    out->text.data = NULL;
    return TSR_OK;
}

tsr_status tsr_dim_evaluate(const tsr_mapped *m, const tsr_map_dim *dim, bool inside, tsr_dim_size *out, tsr_error *err)
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
