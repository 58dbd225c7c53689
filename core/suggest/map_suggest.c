/* Chooses among the candidates, and writes notes about the tensors that are left. */
#include "base/line.h"
#include "suggest/map_suggest_parts.h"
#include "tessera/sys/try.h"

enum { NAMED = 4 };

typedef struct suggester {
    tsr_checkpoint *a, *b;
    tsr_arena *arena;
    tsr_vec of_a, of_b;   /* of tsr_name_family */
    tsr_vec candidates;   /* of tsr_map_candidate; `b` is NULL for those that were ruled out */
    tsr_vec rules, notes; /* of tsr_str */
    bool values;
    uint64_t squares; /* chosen by shape, which does not show whether they are transposed */
    tsr_str square;   /* the first one, of B */
    tsr_error *err;
} suggester;

static tsr_str shown(const suggester *s, const tsr_name_family *family)
{
    static const char *const any[TSR_MOST_NUMBERS] = {"*", "*", "*", "*"};
    return tsr_family_pattern(family, any, s->arena, s->err);
}

static bool is_open(const tsr_map_candidate *c)
{
    return c->b && !c->a->decided && !c->b->decided;
}

static tsr_status count_square(suggester *s, const tsr_map_candidate *c)
{
    const tsr_entry *entry = ((const tsr_pattern_member *)c->b->members.items)->entry;
    const uint32_t ndim = entry->ndim;
    if (s->values || ndim < 2 || entry->shape[ndim - 1] != entry->shape[ndim - 2] || entry->shape[ndim - 1] == 1)
        return TSR_OK;
    if (!s->squares++) s->square = shown(s, c->b);
    return s->square.data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status choose(suggester *s, tsr_map_candidate *c, const char *about)
{
    tsr_str *rule = tsr_vec_push(&s->rules, s->err);
    if (!rule) return TSR_E_NOMEM;
    TSR_TRY(count_square(s, c));
    c->a->decided = c->b->decided = true;
    return tsr_candidate_rule(c, about, s->arena, rule, s->err);
}

/* Among the open candidates that share a family with `c`: the best score, and how many there are. */
static size_t rivals_of(const suggester *s, const tsr_map_candidate *c, int *best)
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

static const char *reason_of(const suggester *s, const tsr_map_candidate *c, size_t rivals)
{
    if (s->values) return rivals ? "equal values, which several have; the most alike name" : "equal values";
    if (rivals) return "the shape and the name fit";
    return c->contested ? "the only one left with this shape" : "the only one with this shape";
}

/* One pass over all candidates: chooses those without rivals and, with by_name, those that are more similar than every
 * rival. Equal values make this safe; without them, the names must also be similar in that one ends with the whole other
 * name. */
static tsr_status choose_some(suggester *s, bool by_name, bool *any)
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

static tsr_status choose_all(suggester *s)
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

/* Rules out candidates whose values differ. Once one of them is confirmed, other ways to combine the same two families need
 * no check. */
static tsr_status check_values(suggester *s)
{
    tsr_ring *ring = NULL;
    tsr_map_candidate *all = s->candidates.items;
    tsr_status status = tsr_ring_new(tsr_checkpoint_host(s->a), 0, &ring, s->err);
    const tsr_map_candidate *held = NULL;
    for (size_t i = 0; i < s->candidates.count && status == TSR_OK; i++) {
        bool holds = false;
        const bool needless = held && held->a == all[i].a && held->b == all[i].b;
        if (!needless) status = tsr_candidate_holds(s->a, s->b, &all[i], ring, &holds, s->err);
        if (holds) held = &all[i];
        else all[i].b = NULL;
    }
    tsr_ring_free(ring);
    return status;
}

/* ---- parts ---- */

static tsr_status choose_fused(suggester *s, const tsr_fused *f, bool splits, const char *about)
{
    tsr_str parts[TSR_MOST_PARTS];
    tsr_str *rule = tsr_vec_push(&s->rules, s->err);
    const tsr_fused_rule how = {.parts = parts,
                                .sizes = f->sizes,
                                .count = f->count,
                                .dim = f->dim,
                                .folded = f->folded,
                                .splits = splits,
                                .whole = tsr_family_pattern(f->whole, tsr_captures, s->arena, s->err),
                                .about = about,
                                .turned =
                                    f->turned ? ((const tsr_pattern_member *)f->parts[0]->members.items)->entry->ndim : 0};
    if (!rule || !how.whole.data) return TSR_E_NOMEM;
    f->whole->decided = true;
    for (uint32_t i = 0; i < f->count; i++) {
        f->parts[i]->decided = true;
        parts[i] = tsr_family_pattern(f->parts[i], tsr_captures, s->arena, s->err);
        if (!parts[i].data) return TSR_E_NOMEM;
    }
    return tsr_fused_rule_text(&how, s->arena, rule, s->err);
}

/* Tries the families that are still open as parts of each other. With `splits`, the whole is in A. */
static tsr_status find_fused(suggester *s, bool splits, tsr_ring *ring)
{
    const tsr_fused_search search = {.of_whole = splits ? s->a : s->b,
                                     .of_parts = splits ? s->b : s->a,
                                     .parts = splits ? &s->of_b : &s->of_a,
                                     .ring = ring,
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

static tsr_status find_all_fused(suggester *s)
{
    tsr_ring *ring = NULL;
    tsr_status status = tsr_ring_new(tsr_checkpoint_host(s->a), 0, &ring, s->err);
    if (status == TSR_OK) status = find_fused(s, false, ring);
    if (status == TSR_OK) status = find_fused(s, true, ring);
    tsr_ring_free(ring);
    return status;
}

/* ---- notes ---- */

static tsr_status add_note(suggester *s, tsr_str text)
{
    tsr_str *note = text.data ? tsr_vec_push(&s->notes, s->err) : NULL;
    if (!note) return TSR_E_NOMEM;
    *note = text;
    return TSR_OK;
}

/* Notes a family of B that is not decided, and the tensors of A that would fit. */
static tsr_status note_wanted(suggester *s, const tsr_name_family *b)
{
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

/* The names of the parts, in quotes. Its data is NULL if there is no memory. */
static tsr_str shown_parts(const suggester *s, const tsr_fused *f)
{
    tsr_str parts = TSR_STR("");
    for (uint32_t i = 0; i < f->count && parts.data; i++) {
        const tsr_str part = shown(s, f->parts[i]);
        if (!part.data) return part;
        parts = tsr_arena_format(s->arena, s->err, "%.*s%s'%.*s'", TSR_STR_ARG(parts), i ? ", " : "", TSR_STR_ARG(part));
    }
    return parts;
}

/* Chooses a joined tensor whose name shows the order of its parts. The note says that nothing else does. */
static tsr_status choose_joined(suggester *s, const tsr_fused *f, bool splits)
{
    const tsr_str whole = shown(s, f->whole), parts = shown_parts(s, f);
    if (!whole.data || !parts.data) return TSR_E_NOMEM;
    TSR_TRY(choose_fused(s, f, splits, "the shapes fit, and the name has this order"));
    return add_note(
        s, tsr_arena_format(
               s->arena, s->err,
               "'%.*s' of %s is taken to be these of %s joined%s, in the order of its name, which shapes do not show: %.*s",
               TSR_STR_ARG(whole), splits ? "A" : "B", splits ? "B" : "A", f->turned ? " and transposed" : "",
               TSR_STR_ARG(parts)));
}

static tsr_status note_joined(suggester *s, const tsr_fused *f, unsigned ways, bool splits)
{
    const tsr_str whole = shown(s, f->whole), parts = shown_parts(s, f);
    if (!whole.data || !parts.data) return TSR_E_NOMEM;
    const bool all = tsr_joined_size(f) == tsr_fused_total(f);
    f->whole->noted = true;
    for (uint32_t i = 0; i < f->count; i++) f->parts[i]->noted = all;
    return add_note(
        s, tsr_arena_format(s->arena, s->err,
                            "'%.*s' of %s could be %sthese of %s joined%s, but only values show in which order%s: %.*s",
                            TSR_STR_ARG(whole), splits ? "A" : "B", all ? "" : "some of ", splits ? "B" : "A",
                            f->turned && ways == 1 ? " and transposed" : "",
                            ways > 1 ? ", along which dim and whether transposed" : "", TSR_STR_ARG(parts)));
}

static bool has_candidates(const suggester *s, const tsr_name_family *family)
{
    const tsr_map_candidate *all = s->candidates.items;
    for (size_t i = 0; i < s->candidates.count; i++)
        if (is_open(&all[i]) && (all[i].a == family || all[i].b == family)) return true;
    return false;
}

/* Looks for joined tensors. With `notes`, notes those whose names do not show the order; otherwise chooses the others. */
static tsr_status find_joined(suggester *s, bool splits, bool notes)
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
        if (ways && notes) TSR_TRY(note_joined(s, &found, ways, splits));
    }
    return TSR_OK;
}

/* What is chosen leaves less for the others, so that more of them may have no rivals. */
static tsr_status find_all_joined(suggester *s)
{
    TSR_TRY(find_joined(s, false, false));
    TSR_TRY(find_joined(s, true, false));
    TSR_TRY(choose_all(s));
    TSR_TRY(find_joined(s, false, true));
    return find_joined(s, true, true);
}

static tsr_status note_squares(suggester *s)
{
    if (s->squares == 1)
        return add_note(s, tsr_arena_format(s->arena, s->err,
                                            "'%.*s' of B is square, so its shape does not show whether it is transposed",
                                            TSR_STR_ARG(s->square)));
    if (!s->squares) return TSR_OK;
    return add_note(
        s, tsr_arena_format(s->arena, s->err,
                            "'%.*s' of B and %llu more are square, so their shapes do not show whether they are transposed",
                            TSR_STR_ARG(s->square), (unsigned long long)s->squares - 1));
}

static tsr_status note_open(suggester *s)
{
    const tsr_name_family *of_a = s->of_a.items, *of_b = s->of_b.items;
    for (size_t i = 0; i < s->of_b.count; i++)
        if (!of_b[i].decided && !of_b[i].noted) TSR_TRY(note_wanted(s, &of_b[i]));
    for (size_t i = 0; i < s->of_a.count; i++) {
        if (of_a[i].decided || of_a[i].noted) continue;
        const tsr_str name = shown(s, &of_a[i]);
        if (!name.data) return TSR_E_NOMEM;
        TSR_TRY(add_note(s, tsr_arena_format(s->arena, s->err, "no rule takes '%.*s' of A", TSR_STR_ARG(name))));
    }
    return TSR_OK;
}

/* ---- the document ---- */

/* Notes objects. Maps can rename them, too, but nothing shows which object of B corresponds. */
static tsr_status add_objects(suggester *s)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(s->a);
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (entry->kind == TSR_ENTRY_TENSOR) continue;
        TSR_TRY(add_note(s, tsr_arena_format(s->arena, s->err, "no rule takes '%.*s' of A, which is not a tensor",
                                             TSR_STR_ARG(entry->fqn))));
    }
    return TSR_OK;
}

static tsr_status write_document(suggester *s, tsr_map_suggestion *out)
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

static tsr_status suggest(suggester *s, tsr_map_suggestion *out)
{
    TSR_TRY(tsr_families_find(tsr_checkpoint_catalog(s->a), s->arena, &s->of_a, s->err));
    TSR_TRY(tsr_families_find(tsr_checkpoint_catalog(s->b), s->arena, &s->of_b, s->err));
    TSR_TRY(tsr_candidates_find(&s->of_a, &s->of_b, s->values, &s->candidates, s->err));
    if (s->values) TSR_TRY(check_values(s));
    TSR_TRY(choose_all(s));
    if (s->values) TSR_TRY(find_all_fused(s));
    if (!s->values) TSR_TRY(find_all_joined(s));
    TSR_TRY(note_open(s));
    TSR_TRY(note_squares(s));
    TSR_TRY(add_objects(s));
    TSR_TRY(write_document(s, out));
    tsr_str *notes = tsr_arena_array(s->arena, s->notes.count, sizeof *notes, s->err);
    if (!notes) return TSR_E_NOMEM;
    if (s->notes.count) memcpy(notes, s->notes.items, s->notes.count * sizeof *notes);
    out->notes = notes;
    out->note_count = s->notes.count;
    out->rule_count = s->rules.count;
    return TSR_OK;
}

tsr_status tsr_map_suggest(tsr_checkpoint *a, tsr_checkpoint *b, bool values, tsr_arena *arena, tsr_map_suggestion *out,
                           tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(a)->allocator;
    suggester s = {.a = a,
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
