/* See tessera/sys/name_choice.h. A pattern that matches nothing is most often too narrow ("*" does not match dots, or a prefix
 * is missing), so wider ones are tried before the most similar name is shown. */
#include "tessera/sys/name_choice.h"

#include "tessera/glob.h"
#include "tessera/sys/try.h"

enum { RULES_NAMED = 3 };

static const tsr_entry *first_match(const tsr_catalog *catalog, tsr_str glob)
{
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        if (tsr_glob_match(glob, catalog->entries[i].fqn)) return &catalog->entries[i];
    }
    return NULL;
}

/* How many bytes at the two ends of a pattern are the same in a name. */
static size_t common_ends(tsr_str pattern, tsr_str name)
{
    size_t head = 0, tail = 0;
    while (head < pattern.size && head < name.size && pattern.data[head] == name.data[head]) head++;
    while (head + tail < pattern.size && head + tail < name.size &&
           pattern.data[pattern.size - tail - 1] == name.data[name.size - tail - 1])
        tail++;
    return head + tail;
}

static tsr_str most_similar(const tsr_catalog *catalog, tsr_str pattern)
{
    tsr_str best = {NULL, 0};
    size_t most = 0;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const size_t common = common_ends(pattern, catalog->entries[i].fqn);
        if (common <= most) continue;
        most = common;
        best = catalog->entries[i].fqn;
    }
    return best;
}

/* Appends what the most similar name is. */
static tsr_status add_similar(const tsr_catalog *catalog, tsr_str pattern, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    const tsr_str similar = most_similar(catalog, pattern);
    if (!catalog->entry_count) return TSR_OK;
    *out = tsr_arena_format(arena, err, "%.*s; the %s is '%.*s'", TSR_STR_ARG(*out),
                            similar.data ? "most similar" : "first name",
                            TSR_STR_ARG(similar.data ? similar : catalog->entries[0].fqn));
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

/* The pattern with every "*" as "**". */
static tsr_str with_double_stars(tsr_str glob, tsr_arena *arena, tsr_error *err)
{
    char *text = tsr_arena_array(arena, glob.size * 2 + 1, 1, err);
    size_t size = 0;
    if (!text) return (tsr_str){NULL, 0};
    for (size_t i = 0; i < glob.size; i++) {
        const bool in_class = i && glob.data[i - 1] == '[', is_double = i && glob.data[i - 1] == '*';
        if (glob.data[i] == '*' && !in_class && !is_double) text[size++] = '*';
        if (!(glob.data[i] == '*' && is_double)) text[size++] = glob.data[i];
    }
    return (tsr_str){text, size};
}

/* Finds a wider pattern that matches something: *out, with the name *matched, which is NULL if there is none. */
static tsr_status widen(const tsr_catalog *catalog, tsr_str glob, tsr_arena *arena, tsr_str *out, const tsr_entry **matched,
                        tsr_error *err)
{
    static const char *const ends[][2] = {{"", ""}, {"", ".**"}, {"**.", ""}, {"**.", ".**"}};
    const tsr_str doubled = with_double_stars(glob, arena, err);
    *matched = NULL;
    if (!doubled.data) return TSR_E_NOMEM;
    for (size_t i = 0; i < sizeof ends / sizeof *ends && !*matched; i++) {
        *out = tsr_arena_format(arena, err, "%s%.*s%s", ends[i][0], TSR_STR_ARG(doubled), ends[i][1]);
        if (!out->data) return TSR_E_NOMEM;
        *matched = first_match(catalog, *out);
    }
    return TSR_OK;
}

/* If the pattern matches no name, *out is a warning; otherwise out->data is NULL. */
static tsr_status unmatched_glob(const tsr_catalog *catalog, const char *what, tsr_str glob, tsr_arena *arena, tsr_str *out,
                                 tsr_error *err)
{
    const tsr_entry *matched;
    tsr_str wider;
    *out = (tsr_str){NULL, 0};
    if (first_match(catalog, glob)) return TSR_OK;
    *out = tsr_arena_format(arena, err, "%s '%.*s' matches no name", what, TSR_STR_ARG(glob));
    if (!out->data) return TSR_E_NOMEM;
    TSR_TRY(widen(catalog, glob, arena, &wider, &matched, err));
    if (!matched) return add_similar(catalog, glob, arena, out, err);
    *out = tsr_arena_format(arena, err, "%.*s; '%.*s' would match '%.*s'", TSR_STR_ARG(*out), TSR_STR_ARG(wider),
                            TSR_STR_ARG(matched->fqn));
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

/* ---- renames ---- */

static bool any_match(const tsr_str *globs, size_t count, tsr_str name)
{
    for (size_t i = 0; i < count; i++) {
        if (tsr_glob_match(globs[i], name)) return true;
    }
    return false;
}

static bool selects(const tsr_name_choice *c, tsr_str name)
{
    if (any_match(c->exclude, c->exclude_count, name)) return false;
    return !c->include_count || any_match(c->include, c->include_count, name);
}

/* Warns if rename `at` changes no name. */
static tsr_status unused_rename(const tsr_name_choice *c, size_t at, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    const tsr_rename *r = &c->renames[at];
    const char *star = r->starred ? "*" : "";
    bool matches = false;
    *out = (tsr_str){NULL, 0};
    for (uint64_t i = 0; i < c->catalog->entry_count; i++) {
        const tsr_str name = c->catalog->entries[i].fqn;
        if (!tsr_rename_fits(r, name) || !selects(c, name)) continue;
        if (tsr_rename_first(c->renames, c->rename_count, name) == at) return TSR_OK;
        matches = true;
    }
    *out = tsr_arena_format(arena, err, "--rename '%.*s%s%.*s=%.*s%s%.*s' %s", TSR_STR_ARG(r->from_head), star,
                            TSR_STR_ARG(r->from_tail), TSR_STR_ARG(r->to_head), star, TSR_STR_ARG(r->to_tail),
                            matches ? "has no effect: an earlier one applies to every name that it matches"
                                    : "matches no selected name");
    if (!out->data) return TSR_E_NOMEM;
    return matches ? TSR_OK : add_similar(c->catalog, r->from_head.size ? r->from_head : r->from_tail, arena, out, err);
}

/* ---- all of them ---- */

static tsr_status add(tsr_vec *warnings, tsr_str text, tsr_error *err)
{
    tsr_str *own = text.data ? tsr_vec_push(warnings, err) : NULL;
    if (own) *own = text;
    return own || !text.data ? TSR_OK : TSR_E_NOMEM;
}

/* Whoever excludes everything may mean it, but is told. */
static tsr_status add_nothing(const tsr_name_choice *c, tsr_arena *arena, tsr_vec *warnings, tsr_error *err)
{
    if (!c->catalog->entry_count || !c->exclude_count) return TSR_OK;
    for (uint64_t i = 0; i < c->catalog->entry_count; i++) {
        if (selects(c, c->catalog->entries[i].fqn)) return TSR_OK;
    }
    const tsr_str text = tsr_arena_format(arena, err, "nothing is selected: --exclude leaves out every name%s",
                                          c->include_count ? " that --include matches" : "");
    return text.data ? add(warnings, text, err) : TSR_E_NOMEM;
}

/* A target may be written for many models, so only a few of its rules are named. */
static tsr_status add_rules(const tsr_name_choice *c, tsr_arena *arena, tsr_vec *warnings, tsr_error *err)
{
    unsigned unmatched = 0;
    tsr_str text;
    for (size_t i = 0; i < c->rule_count; i++) {
        if (first_match(c->catalog, c->rules[i]) || unmatched++ >= RULES_NAMED) continue;
        TSR_TRY(unmatched_glob(c->catalog, "the target's rule", c->rules[i], arena, &text, err));
        TSR_TRY(add(warnings, text, err));
    }
    if (unmatched <= RULES_NAMED) return TSR_OK;
    text = tsr_arena_format(arena, err, "%u more rules of the target match no name", unmatched - RULES_NAMED);
    return text.data ? add(warnings, text, err) : TSR_E_NOMEM;
}

tsr_status tsr_name_choice_warnings(const tsr_name_choice *c, tsr_arena *arena, tsr_vec *warnings, tsr_error *err)
{
    tsr_str text;
    const struct {
        const char *what;
        const tsr_str *globs;
        size_t count;
    } lists[] = {{"--include", c->include, c->include_count},
                 {"--exclude", c->exclude, c->exclude_count},
                 {"--no-quantize", c->no_quantize, c->no_quantize_count}};
    for (size_t l = 0; l < sizeof lists / sizeof *lists; l++) {
        for (size_t i = 0; i < lists[l].count; i++) {
            TSR_TRY(unmatched_glob(c->catalog, lists[l].what, lists[l].globs[i], arena, &text, err));
            TSR_TRY(add(warnings, text, err));
        }
    }
    for (size_t i = 0; i < c->rename_count; i++) {
        TSR_TRY(unused_rename(c, i, arena, &text, err));
        TSR_TRY(add(warnings, text, err));
    }
    TSR_TRY(add_nothing(c, arena, warnings, err));
    return add_rules(c, arena, warnings, err);
}

tsr_status tsr_name_choice_check(const tsr_name_choice *c, tsr_arena *arena, tsr_error *err)
{
    tsr_str text;
    if (!c->catalog->entry_count || !c->include_count) return TSR_OK;
    for (size_t i = 0; i < c->include_count; i++) {
        if (first_match(c->catalog, c->include[i])) return TSR_OK;
    }
    TSR_TRY(unmatched_glob(c->catalog, "--include", c->include[0], arena, &text, err));
    return tsr_fail(err, TSR_E_USAGE, "nothing is selected: %.*s", TSR_STR_ARG(text));
}
