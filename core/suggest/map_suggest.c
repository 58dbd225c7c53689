/* Chooses among the candidates, and writes the document. */
#include "suggest/map_suggest_parts.h"
#include "tessera/sys/repeats.h"
#include "tessera/sys/try.h"

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
    if (c->how == TSR_PAIR_TRIM) TSR_TRY(tsr_note_trimmed(s, c));
    c->a->decided = c->b->decided = true;
    return tsr_candidate_rule(c, about, s->arena, rule, s->err);
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
    TSR_TRY(tsr_candidate_holds(s->b, s->a, &swapped, ring, &holds, s->err));
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
        if (!needless) status = tsr_candidate_holds(s->a, s->b, &all[i], ring, &holds, s->err);
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
    tsr_fused_rule how = tsr_fused_rule_of(f, splits, s->arena, s->err);
    how.parts = parts;
    how.sizes = f->sizes;
    how.count = f->count;
    how.about = about;
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
    return tsr_note_joined(s, f, splits);
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
        if (ways && notes) TSR_TRY(tsr_note_joinable(s, &found, ways, splits));
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
    TSR_TRY(tsr_note_open(s));
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
