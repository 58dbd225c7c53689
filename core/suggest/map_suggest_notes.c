/* Writes the notes of a suggestion: what is left, and what shapes and names do not show. */
#include "base/line.h"
#include "suggest/map_suggest_parts.h"
#include "tessera/sys/try.h"

enum { NAMED = 4 };

static tsr_str shown(const tsr_suggester *s, const tsr_name_family *family)
{
    static const char *const any[TSR_MOST_NUMBERS] = {"*", "*", "*", "*"};
    return tsr_family_pattern(family, any, s->arena, s->err);
}

static tsr_status add_note(tsr_suggester *s, tsr_str text)
{
    tsr_str *note = text.data ? tsr_vec_push(&s->notes, s->err) : NULL;
    if (!note) return TSR_E_NOMEM;
    *note = text;
    return TSR_OK;
}

tsr_status tsr_note_trimmed(tsr_suggester *s, const tsr_map_candidate *c)
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

tsr_status tsr_note_joined(tsr_suggester *s, const tsr_fused *f, bool splits)
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

tsr_status tsr_note_joinable(tsr_suggester *s, const tsr_fused *f, unsigned ways, bool splits)
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

tsr_status tsr_note_open(tsr_suggester *s)
{
    TSR_TRY(note_tensors(s));
    TSR_TRY(note_squares(s));
    return note_all_objects(s);
}
