/* Writes candidates as rules of a map. */
#include "suggest/map_suggest_parts.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/json.h"
#include "tessera/sys/try.h"

const char *const tsr_captures[TSR_MOST_NUMBERS] = {"{layer}", "{index}", "{index2}", "{index3}"};

tsr_str tsr_family_pattern(const tsr_name_family *family, const char *const *names, tsr_arena *arena, tsr_error *err)
{
    tsr_str out = TSR_STR("");
    uint32_t number = 0;
    for (size_t at = 0, end; at < family->key.size; at = end) {
        for (end = at; end < family->key.size && family->key.data[end] != TSR_NUMBER_MARK;) end++;
        const bool counts = end < family->key.size && number < family->numbers;
        out = tsr_arena_format(arena, err, "%.*s%.*s%s", TSR_STR_ARG(out), (int)(end - at), family->key.data + at,
                               counts ? names[number] : "");
        if (!out.data) return out;
        number += counts;
        end += end < family->key.size;
    }
    return out;
}

/* Exchanges the last two of `ndim` dims. */
static void put_transpose(tsr_json *json, uint32_t ndim)
{
    const uint64_t order[] = {0, 2, 1}, turned[] = {1, 0};
    tsr_json_object(json);
    tsr_json_put_u64s(json, "transpose", ndim == 3 ? order : turned, ndim == 3 ? 3 : 2);
    tsr_json_object_end(json);
}

static void put_fold(tsr_json *json, const char *step)
{
    tsr_json_object(json);
    tsr_json_put_uint(json, step, 0);
    tsr_json_object_end(json);
}

static void put_rope(tsr_json *json, uint64_t heads)
{
    tsr_json_object(json);
    tsr_json_put_object(json, "permute_rope");
    tsr_json_put_uint(json, "heads", heads);
    tsr_json_object_end(json);
    tsr_json_object_end(json);
}

/* The inverse of a trim is not stated, since the rows that it leaves out need not be zeros. */
static void put_rows(tsr_json *json, const tsr_map_candidate *c)
{
    const bool pads = c->how == TSR_PAIR_PAD;
    tsr_json_object(json);
    tsr_json_put_uint(json, pads ? "pad" : "trim", 0);
    tsr_json_put_uint(json, "to", c->number);
    if (pads) {
        tsr_json_put_uint(json, "from", ((const tsr_pattern_member *)c->a->members.items)->entry->shape[0]);
        tsr_json_put_uint(json, "value", 0);
    }
    tsr_json_object_end(json);
}

static void put_steps(tsr_json *json, const tsr_map_candidate *c)
{
    if (c->how == TSR_PAIR_PLAIN) return;
    tsr_json_put_array(json, "do");
    if (c->how == TSR_PAIR_TRANSPOSE) put_transpose(json, ((const tsr_pattern_member *)c->a->members.items)->entry->ndim);
    if (c->how == TSR_PAIR_TURN_AND_STACK) put_transpose(json, 2);
    if (c->how == TSR_PAIR_STACK || c->how == TSR_PAIR_TURN_AND_STACK) put_fold(json, "stack");
    if (c->how == TSR_PAIR_UNSTACK || c->how == TSR_PAIR_UNSTACK_AND_TURN) put_fold(json, "unstack");
    if (c->how == TSR_PAIR_UNSTACK_AND_TURN) put_transpose(json, 2);
    if (c->how == TSR_PAIR_ROPE) put_rope(json, c->number);
    if (c->how == TSR_PAIR_TRIM || c->how == TSR_PAIR_PAD) put_rows(json, c);
    tsr_json_array_end(json);
}

/* Copies the written text into the arena. */
static tsr_status finish(tsr_json *json, tsr_vec *text, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    tsr_status status = tsr_json_finish(json);
    while (text->count && ((char *)text->items)[text->count - 1] == '\n') text->count--;
    if (status == TSR_OK) *out = tsr_arena_str(arena, (tsr_str){text->items, text->count}, err);
    if (status == TSR_OK && !out->data) status = TSR_E_NOMEM;
    tsr_vec_free(text);
    return status;
}

tsr_status tsr_candidate_rule(const tsr_map_candidate *c, const char *about, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    tsr_json json;
    tsr_vec text = tsr_vec_of(c->a->members.allocator, 1);
    const tsr_str from = tsr_family_pattern(c->a, tsr_captures, arena, err),
                  to = tsr_family_pattern(c->b, tsr_captures, arena, err);
    if (!from.data || !to.data) return TSR_E_NOMEM;
    tsr_json_start(&json, tsr_vec_write, &text, 0, err);
    tsr_json_object(&json);
    tsr_json_put_strs(&json, "from", &from, 1);
    tsr_json_put_strs(&json, "to", &to, 1);
    put_steps(&json, c);
    if (about) tsr_json_put_text(&json, "about", about);
    tsr_json_object_end(&json);
    return finish(&json, &text, arena, out, err);
}

/* ---- concatenated parts ---- */

/* A shape of the whole or of a part: size `at` is `rest`, or comes as `runs` and `rest`. */
static void put_shape(tsr_json *json, const char *key, const tsr_fused_rule *rule, bool in_runs)
{
    tsr_json_put_array(json, key);
    for (uint32_t d = 0; d < rule->ndim; d++) {
        if (d == rule->dim && in_runs) tsr_json_uint(json, rule->runs);
        if (d == rule->dim) tsr_json_int(json, -1);
        else tsr_json_uint(json, rule->shape[d]);
    }
    tsr_json_array_end(json);
}

/* Cuts the dim into its runs, or makes them one dim again. */
static void put_reshape(tsr_json *json, const tsr_fused_rule *rule, bool into_runs)
{
    if (rule->runs == 1) return;
    tsr_json_object(json);
    put_shape(json, "reshape", rule, into_runs);
    put_shape(json, "from", rule, !into_runs);
    tsr_json_object_end(json);
}

static void put_fused_steps(tsr_json *json, const tsr_fused_rule *rule)
{
    tsr_json_put_array(json, "do");
    if (rule->folded && rule->splits) put_fold(json, "unstack");
    if (rule->turned && !rule->splits) put_transpose(json, rule->ndim);
    put_reshape(json, rule, true);
    tsr_json_object(json);
    tsr_json_put_uint(json, rule->splits ? "split" : "concat", rule->dim + (rule->runs > 1));
    tsr_json_put_u64s(json, "sizes", rule->sizes, rule->count);
    tsr_json_object_end(json);
    put_reshape(json, rule, false);
    if (rule->turned && rule->splits) put_transpose(json, rule->ndim);
    if (rule->folded && !rule->splits) put_fold(json, "stack");
    tsr_json_array_end(json);
}

tsr_fused_rule tsr_fused_rule_of(const tsr_fused *f, bool splits, tsr_arena *arena, tsr_error *err)
{
    const tsr_entry *whole = ((const tsr_pattern_member *)f->whole->members.items)->entry;
    return (tsr_fused_rule){.whole = tsr_family_pattern(f->whole, tsr_captures, arena, err),
                            .shape = whole->shape + f->folded,
                            .ndim = whole->ndim - f->folded,
                            .dim = f->dim,
                            .runs = f->runs,
                            .folded = f->folded,
                            .turned = f->turned,
                            .splits = splits};
}

tsr_status tsr_fused_rule_text(const tsr_fused_rule *rule, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    tsr_json json;
    tsr_vec text = tsr_vec_of(tsr_arena_allocator(arena), 1);
    tsr_json_start(&json, tsr_vec_write, &text, 0, err);
    tsr_json_object(&json);
    if (rule->splits) tsr_json_put_strs(&json, "from", &rule->whole, 1);
    else tsr_json_put_strs(&json, "from", rule->parts, rule->count);
    if (rule->splits) tsr_json_put_strs(&json, "to", rule->parts, rule->count);
    else tsr_json_put_strs(&json, "to", &rule->whole, 1);
    put_fused_steps(&json, rule);
    if (rule->about) tsr_json_put_text(&json, "about", rule->about);
    tsr_json_object_end(&json);
    return finish(&json, &text, arena, out, err);
}
