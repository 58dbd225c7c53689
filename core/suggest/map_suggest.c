/* Chooses among the candidates, and writes the document. */
#include "base/line.h"
#include "suggest/map_suggest_parts.h"
#include "tessera/sys/check.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/json.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

/* ---- suggest rule ---- */

/* Writes candidates as rules of a map. */

const char *const tsr_captures[TSR_MOST_NUMBERS] = {"{layer}", "{index}", "{index2}", "{index3}"};

/* The family's name with captures. */
static tsr_str family_pattern(const tsr_name_family *family, const char *const *names, tsr_arena *arena, tsr_error *err)
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

/* The candidate as a rule of a map, one JSON object. */
static tsr_status candidate_rule(const tsr_map_candidate *c, const char *about, tsr_arena *arena, tsr_str *out,
                                 tsr_error *err)
{
    tsr_json json;
    tsr_vec text = tsr_vec_of(c->a->members.allocator, 1);
    const tsr_str from = family_pattern(c->a, tsr_captures, arena, err), to = family_pattern(c->b, tsr_captures, arena, err);
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

/* Returns the rule without its `parts` and `sizes`. If memory runs out, the data of its `whole` is NULL. */
static tsr_fused_rule fused_rule_of(const tsr_fused *f, bool splits, tsr_arena *arena, tsr_error *err)
{
    const tsr_entry *whole = ((const tsr_pattern_member *)f->whole->members.items)->entry;
    return (tsr_fused_rule){.whole = family_pattern(f->whole, tsr_captures, arena, err),
                            .shape = whole->shape + f->folded,
                            .ndim = whole->ndim - f->folded,
                            .dim = f->dim,
                            .runs = f->runs,
                            .folded = f->folded,
                            .turned = f->turned,
                            .splits = splits};
}

static tsr_status fused_rule_text(const tsr_fused_rule *rule, tsr_arena *arena, tsr_str *out, tsr_error *err)
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

/* ---- suggest notes ---- */

/* Writes the notes of a suggestion: what is left, and what shapes and names do not show. */

enum { NAMED = 4 };

static tsr_str shown(const tsr_suggester *s, const tsr_name_family *family)
{
    static const char *const any[TSR_MOST_NUMBERS] = {"*", "*", "*", "*"};
    return family_pattern(family, any, s->arena, s->err);
}

static tsr_status add_note(tsr_suggester *s, tsr_str text)
{
    tsr_str *note = text.data ? tsr_vec_push(&s->notes, s->err) : NULL;
    if (!note) return TSR_E_NOMEM;
    *note = text;
    return TSR_OK;
}

/* The notes. Errors: TSR_E_NOMEM. */
static tsr_status note_trimmed(tsr_suggester *s, const tsr_map_candidate *c)
{
    const tsr_entry *a = ((const tsr_pattern_member *)c->a->members.items)->entry,
                    *b = ((const tsr_pattern_member *)c->b->members.items)->entry;
    return add_note(
        s, tsr_arena_format(s->arena, s->err,
                            "'%.*s' of B has the first %llu of the %llu rows of '%.*s' of A; the rule leaves out the others",
                            TSR_STR_ARG(b->fqn), (unsigned long long)b->shape[0], (unsigned long long)a->shape[0],
                            TSR_STR_ARG(a->fqn)));
}

/* ---- joined tensors ---- */

/* Returns the names of the parts, in quotes. If memory runs out, its data is NULL. */
static tsr_str shown_parts(const tsr_suggester *s, const tsr_fused *f)
{
    tsr_str parts = TSR_STR("");
    for (uint32_t i = 0; i < f->count && parts.data; i++) {
        const tsr_str part = shown(s, f->parts[i]);
        if (!part.data) return part;
        parts = tsr_arena_format(s->arena, s->err, "%.*s%s'%.*s'", TSR_STR_ARG(parts), i ? ", " : "", TSR_STR_ARG(part));
    }
    return parts;
}

/* A joined tensor whose parts were chosen because its name has their order. */
static tsr_status note_joined(tsr_suggester *s, const tsr_fused *f, bool splits)
{
    const tsr_str whole = shown(s, f->whole), parts = shown_parts(s, f);
    if (!whole.data || !parts.data) return TSR_E_NOMEM;
    return add_note(
        s, tsr_arena_format(
               s->arena, s->err,
               "'%.*s' of %s is taken to be these of %s joined%s, in the order of its name, which shapes do not show: %.*s",
               TSR_STR_ARG(whole), splits ? "A" : "B", splits ? "B" : "A", f->turned ? " and transposed" : "",
               TSR_STR_ARG(parts)));
}

/* A tensor that could be joined in `ways` ways. */
static tsr_status note_joinable(tsr_suggester *s, const tsr_fused *f, unsigned ways, bool splits)
{
    const tsr_str whole = shown(s, f->whole), parts = shown_parts(s, f);
    if (!whole.data || !parts.data) return TSR_E_NOMEM;
    const bool all = tsr_joined_fits(f);
    f->whole->noted = true;
    for (uint32_t i = 0; i < f->count; i++) f->parts[i]->noted = all;
    return add_note(
        s, tsr_arena_format(s->arena, s->err,
                            "'%.*s' of %s could be %sthese of %s joined%s, but only values show in which order%s: %.*s",
                            TSR_STR_ARG(whole), splits ? "A" : "B", all ? "" : "some of ", splits ? "B" : "A",
                            f->turned && ways == 1 ? " and transposed" : "",
                            ways > 1 ? ", along which dim and whether transposed" : "", TSR_STR_ARG(parts)));
}

/* ---- what is open ---- */

static tsr_status note_more_rows(tsr_suggester *s, tsr_name_family *b)
{
    const tsr_entry *less = ((const tsr_pattern_member *)b->begins_with->members.items)->entry,
                    *more = ((const tsr_pattern_member *)b->members.items)->entry;
    return add_note(s, tsr_arena_format(s->arena, s->err,
                                        "'%.*s' of B has the rows of '%.*s' of A and %llu more, which are not zeros",
                                        TSR_STR_ARG(more->fqn), TSR_STR_ARG(less->fqn),
                                        (unsigned long long)(more->shape[0] - less->shape[0])));
}

/* Notes a family of B that is not decided, and the tensors of A that would fit. */
static tsr_status note_wanted(tsr_suggester *s, tsr_name_family *b)
{
    if (b->begins_with && !b->begins_with->decided) return note_more_rows(s, b);
    char names[400];
    tsr_line line = tsr_line_on(names, sizeof names);
    const tsr_map_candidate *all = s->candidates.items;
    size_t fitting = 0;
    for (size_t i = 0; i < s->candidates.count; i++) {
        if (all[i].b != b || all[i].a->decided) continue;
        const tsr_str name = shown(s, all[i].a);
        if (!name.data) return TSR_E_NOMEM;
        if (fitting++ < NAMED) tsr_line_format(&line, "%s'%.*s'", fitting > 1 ? ", " : "", TSR_STR_ARG(name));
    }
    const tsr_str name = shown(s, b);
    if (!name.data) return TSR_E_NOMEM;
    if (fitting == 1)
        return add_note(s, tsr_arena_format(s->arena, s->err,
                                            "'%.*s' of B could be %s of A, which fits other tensors of B as well",
                                            TSR_STR_ARG(name), names));
    if (fitting)
        return add_note(s, tsr_arena_format(s->arena, s->err, "'%.*s' of B could be any of %zu: %s%s", TSR_STR_ARG(name),
                                            fitting, names, fitting > NAMED ? ", …" : ""));
    return add_note(s, tsr_arena_format(s->arena, s->err, "nothing in A %s '%.*s' of B",
                                        s->values ? "has the values of" : "fits", TSR_STR_ARG(name)));
}

static tsr_status note_squares(tsr_suggester *s)
{
    if (!s->squares) return TSR_OK;
    const tsr_str square = shown(s, s->square);
    if (!square.data) return TSR_E_NOMEM;
    if (s->squares == 1)
        return add_note(s, tsr_arena_format(s->arena, s->err,
                                            "'%.*s' of B is square, so its shape does not show whether it is transposed",
                                            TSR_STR_ARG(square)));
    return add_note(
        s, tsr_arena_format(s->arena, s->err,
                            "'%.*s' of B and %llu more are square, so their shapes do not show whether they are transposed",
                            TSR_STR_ARG(square), (unsigned long long)s->squares - 1));
}

static tsr_status note_objects(tsr_suggester *s, const tsr_name_family *family)
{
    const size_t count = family->members.count;
    const tsr_str name = count > 1 ? shown(s, family) : ((const tsr_pattern_member *)family->members.items)->entry->fqn;
    if (!name.data) return TSR_E_NOMEM;
    if (count == 1)
        return add_note(s, tsr_arena_format(s->arena, s->err, "no rule applies to '%.*s' of A, which is not a tensor",
                                            TSR_STR_ARG(name)));
    return add_note(s, tsr_arena_format(s->arena, s->err, "no rule applies to '%.*s' of A: %zu objects that are not tensors",
                                        TSR_STR_ARG(name), count));
}

/* Notes objects. Maps can rename them, too, but nothing shows which object of B corresponds. */
static tsr_status note_all_objects(tsr_suggester *s)
{
    tsr_vec families = tsr_vec_of(s->rules.allocator, sizeof(tsr_name_family));
    tsr_status status = tsr_families_find(tsr_checkpoint_catalog(s->a), false, s->arena, &families, s->err);
    for (size_t i = 0; i < families.count && status == TSR_OK; i++)
        status = note_objects(s, (tsr_name_family *)families.items + i);
    tsr_families_free(&families);
    return status;
}

static tsr_status note_tensors(tsr_suggester *s)
{
    tsr_name_family *of_a = s->of_a.items, *of_b = s->of_b.items;
    for (size_t i = 0; i < s->of_b.count; i++)
        if (!of_b[i].decided && !of_b[i].noted) TSR_TRY(note_wanted(s, &of_b[i]));
    for (size_t i = 0; i < s->of_a.count; i++) {
        if (of_a[i].decided || of_a[i].noted) continue;
        const tsr_str name = shown(s, &of_a[i]);
        if (!name.data) return TSR_E_NOMEM;
        TSR_TRY(add_note(s, tsr_arena_format(s->arena, s->err, "no rule applies to '%.*s' of A", TSR_STR_ARG(name))));
    }
    return TSR_OK;
}

/* What is not decided: tensors, square matrices and objects. */
static tsr_status note_open(tsr_suggester *s)
{
    TSR_TRY(note_tensors(s));
    TSR_TRY(note_squares(s));
    return note_all_objects(s);
}

/* ---- suggest values ---- */

/* Whether a candidate's rule, applied to A, gives B's values. */

static tsr_status compare_all(tsr_checkpoint *mapped, tsr_checkpoint *b, tsr_ring *ring, bool *equal, tsr_error *err)
{
    static const tsr_tolerance bitwise = {.exact = true};
    const tsr_catalog *catalog = tsr_checkpoint_catalog(mapped);
    const tsr_value_comparison how = {.tolerance = &bitwise, .ring = ring};
    *equal = catalog->entry_count > 0;
    for (uint64_t i = 0; i < catalog->entry_count && *equal; i++) {
        const tsr_entry *made = &catalog->entries[i], *wanted = tsr_checkpoint_entry(b, made->fqn);
        tsr_diff_pair pair = {.a = made, .b = wanted};
        tsr_difference difference = {0};
        *equal = wanted && wanted->kind == TSR_ENTRY_TENSOR && made->dtype == wanted->dtype && made->ndim == wanted->ndim &&
                 (!made->ndim || !memcmp(made->shape, wanted->shape, made->ndim * sizeof *made->shape)) &&
                 tsr_pair_is_comparable(&pair);
        if (!*equal) continue;
        TSR_TRY(tsr_compare_pair(mapped, b, &pair, &how, &difference, err));
        *equal = !difference.differing;
    }
    return TSR_OK;
}

static tsr_status open_rule(tsr_checkpoint *a, tsr_str rule, tsr_arena *arena, tsr_checkpoint **out, tsr_error *err)
{
    const tsr_mapping_rules *rules;
    const tsr_str text = tsr_arena_format(
        arena, err, "{\"schema\":\"tessera.map/1\",\"unmatched\":\"drop\",\"rules\":[%.*s]}", TSR_STR_ARG(rule));
    if (!text.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_mapping_parse(text, tsr_checkpoint_host(a), arena, &rules, err));
    return tsr_mapping_open(a, rules, out, err);
}

/* Whether applying the candidate to A gives B's values. */
static tsr_status candidate_holds(tsr_checkpoint *a, tsr_checkpoint *b, const tsr_map_candidate *candidate, tsr_ring *ring,
                                  bool *holds, tsr_error *err)
{
    tsr_checkpoint *mapped = NULL;
    tsr_str rule;
    tsr_error unfit = {0};
    *holds = false;
    tsr_arena *arena = tsr_arena_new(tsr_checkpoint_host(a)->allocator, 0, err);
    tsr_status status = arena ? candidate_rule(candidate, NULL, arena, &rule, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = open_rule(a, rule, arena, &mapped, &unfit);
    const bool unfits = status == TSR_E_FORMAT || status == TSR_E_UNSUPPORTED;
    if (status == TSR_OK) status = compare_all(mapped, b, ring, holds, err);
    else if (unfit.status != TSR_OK && !unfits) *err = unfit;
    tsr_checkpoint_close(mapped);
    tsr_arena_free(arena);
    return unfits ? TSR_OK : status;
}

/* ---- suggest ---- */

static bool is_open(const tsr_map_candidate *c)
{
    return c->b && !c->a->decided && !c->b->decided;
}

static void count_square(tsr_suggester *s, const tsr_map_candidate *c)
{
    const tsr_entry *entry = ((const tsr_pattern_member *)c->b->members.items)->entry;
    const uint32_t ndim = entry->ndim;
    if (s->values || ndim < 2 || entry->shape[ndim - 1] != entry->shape[ndim - 2] || entry->shape[ndim - 1] == 1) return;
    if (!s->squares++) s->square = c->b;
}

static tsr_status choose(tsr_suggester *s, tsr_map_candidate *c, const char *about)
{
    tsr_str *rule = tsr_vec_push(&s->rules, s->err);
    if (!rule) return TSR_E_NOMEM;
    count_square(s, c);
    if (c->how == TSR_PAIR_TRIM) TSR_TRY(note_trimmed(s, c));
    c->a->decided = c->b->decided = true;
    return candidate_rule(c, about, s->arena, rule, s->err);
}

/* Among the open candidates that share a family with `c`: the best score, and how many there are. */
static size_t rivals_of(const tsr_suggester *s, const tsr_map_candidate *c, int *best)
{
    const tsr_map_candidate *all = s->candidates.items;
    size_t count = 0;
    *best = -1;
    for (size_t i = 0; i < s->candidates.count; i++) {
        const tsr_map_candidate *o = &all[i];
        if (o == c || !is_open(o) || (o->a != c->a && o->b != c->b)) continue;
        count++;
        if (o->score > *best) *best = o->score;
    }
    return count;
}

static const char *reason_of(const tsr_suggester *s, const tsr_map_candidate *c, size_t rivals)
{
    if (s->values) return rivals ? "equal values, which several have; the most alike name" : "equal values";
    if (rivals) return "the shape and the name fit";
    return c->contested ? "the only one left with this shape" : "the only one with this shape";
}

/* One pass over all candidates: chooses those without rivals and, with by_name, those that are more similar than every
 * rival. Equal values make this safe; without them, the names must also be similar in that one ends with the whole other
 * name. */
static tsr_status choose_some(tsr_suggester *s, bool by_name, bool *any)
{
    tsr_map_candidate *all = s->candidates.items;
    for (size_t i = 0; i < s->candidates.count; i++) {
        int best;
        if (!is_open(&all[i])) continue;
        const size_t rivals = rivals_of(s, &all[i], &best);
        const bool alike = all[i].score > best && (s->values || all[i].score >= TSR_SAME_NAME);
        if (rivals && !(by_name && alike)) continue;
        TSR_TRY(choose(s, &all[i], reason_of(s, &all[i], rivals)));
        *any = true;
        if (by_name) return TSR_OK;
    }
    return TSR_OK;
}

static tsr_status choose_all(tsr_suggester *s)
{
    bool any = true;
    int best;
    tsr_map_candidate *all = s->candidates.items;
    for (size_t i = 0; i < s->candidates.count; i++) all[i].contested = is_open(&all[i]) && rivals_of(s, &all[i], &best) > 0;
    while (any) {
        any = false;
        TSR_TRY(choose_some(s, false, &any));
        if (!any) TSR_TRY(choose_some(s, true, &any));
    }
    return TSR_OK;
}

/* Checks whether B has A's rows and then others that are not zeros; if so, a note will say it. */
static tsr_status check_first_rows(tsr_suggester *s, tsr_map_candidate *c, tsr_ring *ring)
{
    const tsr_map_candidate swapped = {.a = c->b,
                                       .b = c->a,
                                       .how = TSR_PAIR_TRIM,
                                       .number = ((const tsr_pattern_member *)c->a->members.items)->entry->shape[0]};
    bool holds = false;
    TSR_TRY(candidate_holds(s->b, s->a, &swapped, ring, &holds, s->err));
    if (holds) c->b->begins_with = c->a;
    return TSR_OK;
}

/* Checks the candidates from index `first` on, and rules out those whose values differ. Once one of them is confirmed, other
 * ways to combine the same two families need no check. */
static tsr_status check_values(tsr_suggester *s, size_t first)
{
    tsr_ring *ring = NULL;
    tsr_map_candidate *all = s->candidates.items;
    tsr_status status = tsr_ring_new(tsr_checkpoint_host(s->a), 0, &ring, s->err);
    const tsr_map_candidate *held = NULL;
    for (size_t i = first; i < s->candidates.count && status == TSR_OK; i++) {
        bool holds = false;
        const bool needless = held && held->a == all[i].a && held->b == all[i].b;
        if (!needless) status = candidate_holds(s->a, s->b, &all[i], ring, &holds, s->err);
        if (status == TSR_OK && !needless && !holds && all[i].how == TSR_PAIR_PAD)
            status = check_first_rows(s, &all[i], ring);
        if (holds) held = &all[i];
        else all[i].b = NULL;
    }
    tsr_ring_free(ring);
    return status;
}

/* ---- parts ---- */

static tsr_status choose_fused(tsr_suggester *s, const tsr_fused *f, bool splits, const char *about)
{
    tsr_str parts[TSR_MOST_PARTS];
    tsr_str *rule = tsr_vec_push(&s->rules, s->err);
    tsr_fused_rule how = fused_rule_of(f, splits, s->arena, s->err);
    how.parts = parts;
    how.sizes = f->sizes;
    how.count = f->count;
    how.about = about;
    if (!rule || !how.whole.data) return TSR_E_NOMEM;
    f->whole->decided = true;
    for (uint32_t i = 0; i < f->count; i++) {
        f->parts[i]->decided = true;
        parts[i] = family_pattern(f->parts[i], tsr_captures, s->arena, s->err);
        if (!parts[i].data) return TSR_E_NOMEM;
    }
    return fused_rule_text(&how, s->arena, rule, s->err);
}

/* Tries the families that are still open as parts of each other. With `splits`, the whole is in A. */
static tsr_status find_fused(tsr_suggester *s, bool splits)
{
    const tsr_fused_search search = {.of_whole = splits ? s->a : s->b,
                                     .of_parts = splits ? s->b : s->a,
                                     .parts = splits ? &s->of_b : &s->of_a,
                                     .err = s->err};
    const tsr_vec *wholes = splits ? &s->of_a : &s->of_b;
    for (size_t i = 0; i < wholes->count; i++) {
        tsr_fused fused;
        bool found;
        tsr_name_family *whole = (tsr_name_family *)wholes->items + i;
        if (whole->decided) continue;
        TSR_TRY(tsr_fused_find(&search, whole, &fused, &found));
        if (found) TSR_TRY(choose_fused(s, &fused, splits, "equal values"));
    }
    return TSR_OK;
}

/* A part of a joined tensor may be its first rows, so rows are left out only of what is not joined. */
static tsr_status decide_by_values(tsr_suggester *s)
{
    const tsr_selection all_tensors = {0};
    TSR_TRY(tsr_repeats_check_catalog(s->a, &all_tensors, s->err));
    TSR_TRY(tsr_repeats_check_catalog(s->b, &all_tensors, s->err));
    TSR_TRY(check_values(s, 0));
    TSR_TRY(choose_all(s));
    TSR_TRY(find_fused(s, false));
    TSR_TRY(find_fused(s, true));
    const size_t checked = s->candidates.count;
    TSR_TRY(tsr_candidates_find_rows(&s->of_a, &s->of_b, &s->candidates, s->err));
    TSR_TRY(check_values(s, checked));
    return choose_all(s);
}

/* ---- by shapes ---- */

/* Chooses a joined tensor whose name shows the order of its parts. The note says that nothing else does. */
static tsr_status choose_joined(tsr_suggester *s, const tsr_fused *f, bool splits)
{
    TSR_TRY(choose_fused(s, f, splits, "the shapes fit, and the name has this order"));
    return note_joined(s, f, splits);
}

static bool has_candidates(const tsr_suggester *s, const tsr_name_family *family)
{
    const tsr_map_candidate *all = s->candidates.items;
    for (size_t i = 0; i < s->candidates.count; i++)
        if (is_open(&all[i]) && (all[i].a == family || all[i].b == family)) return true;
    return false;
}

/* Looks for joined tensors. With `notes`, notes those whose names do not show the order; otherwise chooses the others. */
static tsr_status find_joined(tsr_suggester *s, bool splits, bool notes)
{
    const tsr_vec *wholes = splits ? &s->of_a : &s->of_b;
    for (size_t i = 0; i < wholes->count; i++) {
        tsr_name_family *whole = (tsr_name_family *)wholes->items + i;
        tsr_fused found;
        unsigned ways;
        bool ordered;
        if (whole->decided || has_candidates(s, whole)) continue;
        tsr_joined_find(whole, splits ? &s->of_b : &s->of_a, &found, &ways, &ordered);
        if (ordered && !notes) TSR_TRY(choose_joined(s, &found, splits));
        if (ways && notes) TSR_TRY(note_joinable(s, &found, ways, splits));
    }
    return TSR_OK;
}

/* What is chosen leaves less for the others, so that more of them may have no rivals. */
static tsr_status decide_by_shapes(tsr_suggester *s)
{
    TSR_TRY(choose_all(s));
    TSR_TRY(find_joined(s, false, false));
    TSR_TRY(find_joined(s, true, false));
    TSR_TRY(choose_all(s));
    TSR_TRY(find_joined(s, false, true));
    return find_joined(s, true, true);
}

/* ---- the document ---- */

static tsr_status write_document(tsr_suggester *s, tsr_map_suggestion *out)
{
    tsr_vec text = tsr_vec_of(s->rules.allocator, 1);
    const tsr_str
        *rules = s->rules.items,
        head = TSR_STR(
            "{\n  \"schema\": \"tessera.map/1\",\n  \"about\": \"suggested by tessera map suggest; check it before you use "
            "it\",\n  \"unmatched\": \"refuse\",\n  \"rules\": [");
    tsr_status status = TSR_OK;
    for (size_t i = 0; i <= s->rules.count + 1 && status == TSR_OK; i++) {
        const tsr_str lead = i == 0                ? head
                             : i <= s->rules.count ? (i > 1 ? TSR_STR(",\n    ") : TSR_STR("\n    "))
                                                   : TSR_STR("\n  ]\n}\n");
        const tsr_str body = i && i <= s->rules.count ? rules[i - 1] : TSR_STR("");
        status = tsr_vec_reserve(&text, lead.size + body.size, s->err);
        if (status != TSR_OK) break;
        memcpy((char *)text.items + text.count, lead.data, lead.size);
        if (body.size) memcpy((char *)text.items + text.count + lead.size, body.data, body.size);
        text.count += lead.size + body.size;
    }
    if (status == TSR_OK) out->document = tsr_arena_str(s->arena, (tsr_str){text.items, text.count}, s->err);
    tsr_vec_free(&text);
    return status == TSR_OK && !out->document.data ? TSR_E_NOMEM : status;
}

static tsr_status suggest(tsr_suggester *s, tsr_map_suggestion *out)
{
    TSR_TRY(tsr_families_find(tsr_checkpoint_catalog(s->a), true, s->arena, &s->of_a, s->err));
    TSR_TRY(tsr_families_find(tsr_checkpoint_catalog(s->b), true, s->arena, &s->of_b, s->err));
    TSR_FAIL_IF(s->of_a.count > TSR_MOST_PATTERNS || s->of_b.count > TSR_MOST_PATTERNS, s->err, TSR_E_LIMIT,
                "more than %d different patterns of names", TSR_MOST_PATTERNS);
    TSR_TRY(tsr_candidates_find(&s->of_a, &s->of_b, s->values, &s->candidates, s->err));
    TSR_TRY(s->values ? decide_by_values(s) : decide_by_shapes(s));
    TSR_TRY(note_open(s));
    TSR_TRY(write_document(s, out));
    tsr_str *notes = tsr_arena_array(s->arena, s->notes.count, sizeof *notes, s->err);
    if (!notes) return TSR_E_NOMEM;
    if (s->notes.count) memcpy(notes, s->notes.items, s->notes.count * sizeof *notes);
    out->notes = notes;
    out->note_count = s->notes.count;
    return TSR_OK;
}

tsr_status tsr_map_suggest(tsr_checkpoint *a, tsr_checkpoint *b, bool values, tsr_arena *arena, tsr_map_suggestion *out,
                           tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(a)->allocator;
    tsr_suggester s = {.a = a,
                       .b = b,
                       .arena = arena,
                       .of_a = tsr_vec_of(allocator, sizeof(tsr_name_family)),
                       .of_b = tsr_vec_of(allocator, sizeof(tsr_name_family)),
                       .candidates = tsr_vec_of(allocator, sizeof(tsr_map_candidate)),
                       .rules = tsr_vec_of(allocator, sizeof(tsr_str)),
                       .notes = tsr_vec_of(allocator, sizeof(tsr_str)),
                       .values = values,
                       .err = err};
    *out = (tsr_map_suggestion){.note_count = 0};
    const tsr_status status = suggest(&s, out);
    tsr_families_free(&s.of_a);
    tsr_families_free(&s.of_b);
    tsr_vec_free(&s.candidates);
    tsr_vec_free(&s.rules);
    tsr_vec_free(&s.notes);
    return status;
}
