/* See tessera/sys/names.h. A pattern that matches nothing is most often too narrow ("*" does not match dots, or a prefix
 * is missing), so wider ones are tried before the most similar name is shown. */
#include "tessera/glob.h"
#include "tessera/sys/names.h"
#include "tessera/sys/try.h"

/* ---- glob ---- */

/* GLOB patterns for FQNs, and renames.
 *
 * Matching remembers two positions for backtracking: the last "**" and, after it, the last "*". A character class never
 * matches a dot and "*" never crosses one, so in the part after a "**" the dots of pattern and name correspond one to one,
 * and the shortest match of each star is as good as any other. So earlier stars never have to be tried again. If a "*" has
 * failed up to the end of its component, it also fails for any "**" match that ends later in the component where the current
 * one ends. The next position to try is therefore the next dot, and long components are not scanned again from each of their
 * bytes. */

typedef struct rune {
    uint32_t code;
    size_t size; /* bytes */
} rune;

/* One UTF-8 code point. A byte that does not begin one becomes a code beyond Unicode. */
static rune rune_at(tsr_str s, size_t at)
{
    const uint8_t *p = (const uint8_t *)s.data + at;
    size_t size = p[0] < 0x80                   ? 1
                  : p[0] >= 0xf0 && p[0] < 0xf8 ? 4
                  : p[0] >= 0xe0 && p[0] < 0xf0 ? 3
                  : p[0] >= 0xc0 && p[0] < 0xe0 ? 2
                                                : 0;
    if (size == 1) return (rune){p[0], 1};
    if (size == 0 || size > s.size - at) return (rune){0x110000u + p[0], 1};
    uint32_t code = p[0] & (0x7fu >> size);
    for (size_t i = 1; i < size; i++) {
        if ((p[i] & 0xc0) != 0x80) return (rune){0x110000u + p[0], 1};
        code = code << 6 | (p[i] & 0x3fu);
    }
    return (rune){code, size};
}

/* Position of the "]" that closes the class opened at `open`, or the pattern's size. */
static size_t class_end(tsr_str pattern, size_t open)
{
    size_t at = open + 1;
    if (at < pattern.size && (pattern.data[at] == '!' || pattern.data[at] == '^')) at++;
    if (at < pattern.size && pattern.data[at] == ']') at++;
    while (at < pattern.size && pattern.data[at] != ']') at++;
    return at;
}

static bool glob_in_class(tsr_str pattern, size_t open, size_t close, uint32_t code)
{
    size_t at = open + 1;
    bool negated = pattern.data[at] == '!' || pattern.data[at] == '^', found = false;
    at += negated;
    while (at < close) {
        rune low = rune_at(pattern, at), high = low;
        at += low.size;
        if (at + 1 < close && pattern.data[at] == '-') {
            high = rune_at(pattern, at + 1);
            at += 1 + high.size;
        }
        found = found || (low.code <= code && code <= high.code);
    }
    return found != negated;
}

/* Matches one item of the pattern that is not a star, and advances both positions on success. */
static bool step(tsr_str pattern, size_t *p, tsr_str name, size_t *n)
{
    if (*p == pattern.size || *n == name.size) return false;
    rune c = rune_at(name, *n);
    if (pattern.data[*p] == '[') {
        size_t close = class_end(pattern, *p);
        if (close < pattern.size) {
            if (c.code == '.' || !glob_in_class(pattern, *p, close, c.code)) return false;
            *p = close + 1;
            *n += c.size;
            return true;
        }
    }
    rune want = rune_at(pattern, *p);
    if (want.code == '?' ? c.code == '.' : want.code != c.code) return false;
    *p += want.size;
    *n += c.size;
    return true;
}

/* A star: the position after it in the pattern, and the end of its match in the name. */
typedef struct glob_star {
    bool set;
    size_t pattern_at;
    size_t name_at;
} glob_star;

static size_t next_dot(tsr_str name, size_t at)
{
    const char *dot = at < name.size ? memchr(name.data + at, '.', name.size - at) : NULL;
    return dot ? (size_t)(dot - name.data) : name.size;
}

bool tsr_glob_match(tsr_str pattern, tsr_str name)
{
    glob_star one = {false, 0, 0}, two = {false, 0, 0};
    size_t p = 0, n = 0;
    for (;;) {
        if (p < pattern.size && pattern.data[p] == '*') {
            size_t stars = 0;
            while (p < pattern.size && pattern.data[p] == '*') p++, stars++;
            *(stars > 1 ? &two : &one) = (glob_star){true, p, n};
            if (stars > 1) one.set = false;
        } else if (p == pattern.size && n == name.size) {
            return true;
        } else if (step(pattern, &p, name, &n)) {
            continue;
        } else if (one.set && one.name_at < name.size && name.data[one.name_at] != '.') {
            one.name_at += rune_at(name, one.name_at).size;
            p = one.pattern_at;
            n = one.name_at;
        } else if (two.set && two.name_at < name.size && !(one.set && one.name_at == name.size)) {
            two.name_at += rune_at(name, two.name_at).size;
            if (one.set) two.name_at = next_dot(name, two.name_at);
            p = two.pattern_at;
            n = two.name_at;
            one.set = false;
        } else {
            return false;
        }
    }
}

/* Splits `text` at its only "*". Returns false if it has none. */
static bool split_star(tsr_str text, tsr_str *head, tsr_str *tail)
{
    const char *at = text.size ? memchr(text.data, '*', text.size) : NULL;
    *head = at ? (tsr_str){text.data, (size_t)(at - text.data)} : text;
    *tail = at ? (tsr_str){at + 1, text.size - head->size - 1} : (tsr_str){text.data + text.size, 0};
    return at != NULL;
}

tsr_status tsr_rename_parse(tsr_str text, tsr_rename *out, tsr_error *err)
{
    const char *equals = text.size ? memchr(text.data, '=', text.size) : NULL;
    TSR_FAIL_IF(!equals, err, TSR_E_USAGE, "the rename '%.*s' does not have the form FROM=TO", TSR_STR_ARG(text));
    tsr_str from = {text.data, (size_t)(equals - text.data)}, to = {equals + 1, text.size - from.size - 1};
    tsr_rename r;
    r.starred = split_star(from, &r.from_head, &r.from_tail);
    bool placed = split_star(to, &r.to_head, &r.to_tail);
    bool more = (r.from_tail.size && memchr(r.from_tail.data, '*', r.from_tail.size)) ||
                (r.to_tail.size && memchr(r.to_tail.data, '*', r.to_tail.size));
    TSR_FAIL_IF(r.starred != placed || more, err, TSR_E_USAGE, "the rename '%.*s' needs one '*' on each side, or none",
                TSR_STR_ARG(text));
    *out = r;
    return TSR_OK;
}

/* Whether a rename changes a name. */
static bool rename_fits(const tsr_rename *r, tsr_str name)
{
    if (!r->starred) return tsr_str_starts(name, r->from_head);
    return name.size >= r->from_head.size + r->from_tail.size && tsr_str_starts(name, r->from_head) &&
           tsr_str_ends(name, r->from_tail);
}

tsr_status tsr_rename_apply(const tsr_rename *renames, size_t count, tsr_str name, tsr_arena *arena, tsr_str *out,
                            tsr_error *err)
{
    *out = name;
    for (const tsr_rename *r = renames; r < renames + count; r++) {
        if (!rename_fits(r, *out)) continue;
        const tsr_str kept = {out->data + r->from_head.size,
                              out->size - r->from_head.size - (r->starred ? r->from_tail.size : 0)};
        *out = tsr_arena_format(arena, err, "%.*s%.*s%.*s", TSR_STR_ARG(r->to_head), TSR_STR_ARG(kept),
                                TSR_STR_ARG(r->to_tail));
        if (!out->data) return TSR_E_NOMEM;
    }
    return TSR_OK;
}

/* ---- name choice ---- */

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

tsr_str tsr_name_most_similar(const tsr_catalog *catalog, tsr_str pattern, size_t *common)
{
    tsr_str best = {NULL, 0};
    *common = 0;
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const size_t found = common_ends(pattern, catalog->entries[i].fqn);
        if (found <= *common) continue;
        *common = found;
        best = catalog->entries[i].fqn;
    }
    return best;
}

/* Appends what the most similar name is. */
static tsr_status add_similar(const tsr_catalog *catalog, tsr_str pattern, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    size_t common;
    const tsr_str similar = tsr_name_most_similar(catalog, pattern, &common);
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

/* Warns if rename `at` changes no name that those before it leave. */
static tsr_status unused_rename(const tsr_name_choice *c, size_t at, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    const tsr_rename *r = &c->renames[at];
    const char *star = r->starred ? "*" : "";
    bool matches = false;
    *out = (tsr_str){NULL, 0};
    for (uint64_t i = 0; i < c->catalog->entry_count; i++) {
        tsr_str name = c->catalog->entries[i].fqn;
        if (!selects(c, name)) continue;
        matches = matches || rename_fits(r, name);
        TSR_TRY(tsr_rename_apply(c->renames, at, name, arena, &name, err));
        if (rename_fits(r, name)) return TSR_OK;
    }
    *out = tsr_arena_format(arena, err, "--rename '%.*s%s%.*s=%.*s%s%.*s' %s", TSR_STR_ARG(r->from_head), star,
                            TSR_STR_ARG(r->from_tail), TSR_STR_ARG(r->to_head), star, TSR_STR_ARG(r->to_tail),
                            matches ? "has no effect: earlier ones rename every name that it matches"
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
