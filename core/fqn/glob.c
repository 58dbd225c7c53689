/* GLOB patterns for FQNs, and renames.
 *
 * Matching remembers two positions for backtracking: the last "**" and, after it, the last "*". A character class never
 * matches a dot and "*" never crosses one, so in the part after a "**" the dots of pattern and name correspond one to one,
 * and the shortest match of each star is as good as any other. So earlier stars never have to be tried again. If a "*" has
 * failed up to the end of its component, it also fails for any "**" match that ends later in the component where the current
 * one ends. The next position to try is therefore the next dot, and long components are not scanned again from each of their
 * bytes. */
#include "tessera/glob.h"

#include "tessera/sys/glob.h"
#include "tessera/sys/try.h"

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

static bool in_class(tsr_str pattern, size_t open, size_t close, uint32_t code)
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
            if (c.code == '.' || !in_class(pattern, *p, close, c.code)) return false;
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
typedef struct star {
    bool set;
    size_t pattern_at;
    size_t name_at;
} star;

static size_t next_dot(tsr_str name, size_t at)
{
    const char *dot = at < name.size ? memchr(name.data + at, '.', name.size - at) : NULL;
    return dot ? (size_t)(dot - name.data) : name.size;
}

bool tsr_glob_match(tsr_str pattern, tsr_str name)
{
    star one = {false, 0, 0}, two = {false, 0, 0};
    size_t p = 0, n = 0;
    for (;;) {
        if (p < pattern.size && pattern.data[p] == '*') {
            size_t stars = 0;
            while (p < pattern.size && pattern.data[p] == '*') p++, stars++;
            *(stars > 1 ? &two : &one) = (star){true, p, n};
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

bool tsr_rename_fits(const tsr_rename *r, tsr_str name)
{
    if (!r->starred) return tsr_str_starts(name, r->from_head);
    return name.size >= r->from_head.size + r->from_tail.size && tsr_str_starts(name, r->from_head) &&
           tsr_str_ends(name, r->from_tail);
}

size_t tsr_rename_first(const tsr_rename *renames, size_t count, tsr_str name)
{
    size_t i = 0;
    while (i < count && !tsr_rename_fits(&renames[i], name)) i++;
    return i;
}

tsr_status tsr_rename_apply(const tsr_rename *renames, size_t count, tsr_str name, tsr_arena *arena, tsr_str *out,
                            tsr_error *err)
{
    const size_t at = tsr_rename_first(renames, count, name);
    *out = name;
    if (at == count) return TSR_OK;
    const tsr_rename *r = &renames[at];
    tsr_str kept = {name.data + r->from_head.size, name.size - r->from_head.size - (r->starred ? r->from_tail.size : 0)};
    *out = tsr_arena_format(arena, err, "%.*s%.*s%.*s", TSR_STR_ARG(r->to_head), TSR_STR_ARG(kept), TSR_STR_ARG(r->to_tail));
    return out->data ? TSR_OK : TSR_E_NOMEM;
}
