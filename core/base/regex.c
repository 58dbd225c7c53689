/* Regular expressions: compiled to the instructions of a machine that follows all ways to match at the same time. */
#include "tessera/sys/text.h"

#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

enum { MOST_STEPS = 4096, MOST_NESTED = 64, MOST_REPEATS = 1 << 16 };

typedef enum step_kind { CHARACTER, ANY, SET, FORK, JUMP, START, END, VERY_END, EDGE, NO_EDGE, FOUND } step_kind;

/* One step of the machine. Targets are relative to the step, so that steps can be copied and moved as they are. */
typedef struct step {
    step_kind kind;
    uint32_t character; /* CHARACTER */
    int32_t to;         /* FORK: the second way, after the next step; JUMP */
    uint32_t set[4];    /* SET: a bit for each ASCII character */
} step;

struct tsr_regex {
    const step *steps;
    uint32_t count;
    /* Steps to follow at a character, and at the next one: which, in order, and the mark of the last character that added each. */
    uint32_t *now, *next, *rest, *marks;
};

/* ---- compiling ---- */

typedef struct parser {
    tsr_str text;
    size_t at;
    tsr_vec steps; /* of step */
    unsigned nested;
    tsr_error *err;
} parser;

static int peek(const parser *p)
{
    return p->at < p->text.size ? (unsigned char)p->text.data[p->at] : -1;
}

static bool take(parser *p, char c)
{
    if (peek(p) != (unsigned char)c) return false;
    p->at++;
    return true;
}

static tsr_status refuse(const parser *p, const char *what)
{
    return tsr_fail(p->err, TSR_E_UNSUPPORTED, "a regular expression with %s is not supported", what);
}

static tsr_status invalid(const parser *p, const char *what)
{
    return tsr_fail(p->err, TSR_E_UNSUPPORTED, "not a regular expression that Python accepts: %s", what);
}

static tsr_status add(parser *p, const step *one)
{
    TSR_FAIL_IF(p->steps.count >= MOST_STEPS, p->err, TSR_E_LIMIT, "the regular expression is too large");
    return tsr_vec_append(&p->steps, one, 1, p->err);
}

/* Inserts a step at `at`. Steps from there on must not be the targets of steps before it. */
static tsr_status insert(parser *p, size_t at, const step *one)
{
    TSR_TRY(add(p, one));
    step *steps = p->steps.items;
    memmove(steps + at + 1, steps + at, (p->steps.count - 1 - at) * sizeof *steps);
    steps[at] = *one;
    return TSR_OK;
}

static bool is_letter(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
static bool is_word(int c)
{
    return is_letter(c) || tsr_is_digit(c) || c == '_';
}
static bool is_space(int c)
{
    return c == ' ' || (c >= 9 && c <= 13) || (c >= 28 && c <= 31);
}

static void put(step *set, uint32_t c)
{
    set->set[c / 32] |= 1u << c % 32;
}
static bool has(const step *set, uint32_t c)
{
    return set->set[c / 32] >> c % 32 & 1;
}

/* Adds the characters of \d, \w, \s or, in capitals, all others. False for any other letter. */
static bool put_class(step *set, int letter)
{
    const int lower = letter | 32;
    if (lower != 'd' && lower != 'w' && lower != 's') return false;
    for (int c = 0; c < 128; c++) {
        const bool in = lower == 'd' ? tsr_is_digit(c) : lower == 'w' ? is_word(c) : is_space(c);
        if (in == (letter == lower)) put(set, (uint32_t)c);
    }
    return true;
}

/* Reads a number of `digits` digits in base 8 or 16; for base 8, of at most so many. */
static tsr_status read_code(parser *p, unsigned base, unsigned digits, uint32_t *out)
{
    *out = 0;
    for (unsigned i = 0; i < digits; i++) {
        const int c = peek(p), lower = c | 32;
        const int value = tsr_is_digit(c) ? c - '0' : is_letter(c) ? lower - 'a' + 10 : 99;
        if (value >= (int)base) {
            if (base == 8) break;
            return invalid(p, "an escape that is not complete");
        }
        *out = *out * base + (uint32_t)value;
        p->at++;
    }
    return *out < 128 ? TSR_OK : refuse(p, "characters that are not ASCII");
}

/* Reads what follows a backslash and stands for one character, outside or inside of a set. */
static tsr_status read_escape(parser *p, bool in_set, uint32_t *out)
{
    static const char letters[] = "abfnrtv", characters[] = "\a\b\f\n\r\t\v";
    const int c = peek(p);
    if (c < 0) return invalid(p, "a backslash at its end");
    const char *letter = is_letter(c) ? strchr(letters, c) : NULL;
    p->at++;
    if (c == 'x') return read_code(p, 16, 2, out);
    if (c == 'u') return read_code(p, 16, 4, out);
    if (c == 'U') return read_code(p, 16, 8, out);
    if (c == '0') return read_code(p, 8, 2, out);
    if (c == 'N') return refuse(p, "names of characters");
    if (tsr_is_digit(c)) {
        const int second = p->at < p->text.size ? p->text.data[p->at] : -1;
        const int third = p->at + 1 < p->text.size ? p->text.data[p->at + 1] : -1;
        const bool octal = c < '8' && (in_set || (second >= '0' && second < '8' && third >= '0' && third < '8'));
        if (!octal) return in_set ? invalid(p, "an unknown escape in a set") : refuse(p, "a reference to a group");
        p->at--;
        return read_code(p, 8, 3, out);
    }
    if (is_letter(c) && !letter) return invalid(p, "an unknown escape");
    *out = letter ? (unsigned char)characters[letter - letters] : (uint32_t)c;
    return *out < 128 ? TSR_OK : refuse(p, "characters that are not ASCII");
}

/* Reads a member of a set: a character, or a class, which is added to the set (*is_class). */
static tsr_status read_member(parser *p, step *set, uint32_t *character, bool *is_class)
{
    const int c = peek(p);
    *is_class = false;
    if (c < 0) return invalid(p, "a set without ']'");
    p->at++;
    if (c != '\\') {
        *character = (uint32_t)c;
        return c < 128 ? TSR_OK : refuse(p, "characters that are not ASCII");
    }
    *is_class = put_class(set, peek(p));
    if (*is_class) {
        p->at++;
        return TSR_OK;
    }
    return read_escape(p, true, character);
}

/* Reads a set, after its '['. */
static tsr_status read_set(parser *p)
{
    step set = {.kind = SET};
    const bool inverted = take(p, '^');
    for (bool first = true; first || peek(p) != ']'; first = false) {
        uint32_t low = 0, high;
        bool is_class, is_range_class;
        TSR_TRY(read_member(p, &set, &low, &is_class));
        high = low;
        const size_t dash = p->at;
        if (take(p, '-')) {
            if (peek(p) == ']') p->at = dash; /* the last character of the set */
            else {
                TSR_TRY(read_member(p, &set, &high, &is_range_class));
                if (is_class || is_range_class || high < low) return invalid(p, "a range that is not one");
            }
        }
        for (uint32_t c = low; c <= high && !is_class; c++) put(&set, c);
    }
    p->at++;
    for (unsigned i = 0; inverted && i < 4; i++) set.set[i] = ~set.set[i];
    return add(p, &set);
}

static tsr_status read_alternatives(parser *p);

/* Reads a group, after its '('. */
static tsr_status read_group(parser *p)
{
    if (take(p, '?') && !take(p, ':')) {
        if (!take(p, 'P')) {
            const int c = peek(p);
            if (c == '=' || c == '!') return refuse(p, "a lookahead");
            if (c == '<') return refuse(p, "a lookbehind");
            if (c == '>') return refuse(p, "an atomic group");
            return c == '(' ? refuse(p, "a condition") : c == '#' ? refuse(p, "a comment") : refuse(p, "flags");
        }
        if (!take(p, '<')) return refuse(p, "a reference to a group");
        const size_t name = p->at;
        while (is_word(peek(p))) p->at++;
        if (p->at == name || tsr_is_digit(p->text.data[name]) || !take(p, '>')) return invalid(p, "a bad name of a group");
    }
    if (++p->nested > MOST_NESTED) return refuse(p, "groups that are nested so deep");
    TSR_TRY(read_alternatives(p));
    p->nested--;
    return take(p, ')') ? TSR_OK : invalid(p, "a group without ')'");
}

static tsr_status read_escaped(parser *p)
{
    step one = {.kind = SET};
    const int c = peek(p);
    p->at++;
    if (c >= 0 && put_class(&one, c)) return add(p, &one);
    one.kind = c == 'A' ? START : c == 'Z' ? VERY_END : c == 'b' ? EDGE : c == 'B' ? NO_EDGE : CHARACTER;
    if (one.kind != CHARACTER) return add(p, &one);
    p->at--;
    TSR_TRY(read_escape(p, false, &one.character));
    return add(p, &one);
}

/* Reads the digits of a bound; without any, *out is `otherwise`. */
static uint32_t read_bound(parser *p, uint32_t otherwise)
{
    uint32_t value = 0;
    if (!tsr_is_digit(peek(p))) return otherwise;
    for (; tsr_is_digit(peek(p)); p->at++)
        if (value < MOST_REPEATS) value = value * 10 + (uint32_t)(peek(p) - '0');
    return value;
}

/* Reads a repetition. False, at the same place, if there is none: then a '{' is an ordinary character. */
static bool read_repetition(parser *p, uint32_t *least, uint32_t *most)
{
    const size_t start = p->at;
    *least = 0, *most = UINT32_MAX;
    if (take(p, '*')) return true;
    if (take(p, '+')) return *least = 1, true;
    if (take(p, '?')) return *most = 1, true;
    if (!take(p, '{')) return false;
    if (peek(p) != '}') {
        *least = read_bound(p, 0);
        *most = take(p, ',') ? read_bound(p, UINT32_MAX) : *least;
        if (take(p, '}')) return true;
    }
    p->at = start;
    return false;
}

static tsr_status copy(parser *p, const step *steps, size_t count)
{
    for (size_t i = 0; i < count; i++) TSR_TRY(add(p, &steps[i]));
    return TSR_OK;
}

/* Writes out `item` between `least` and `most` times. */
static tsr_status repeat(parser *p, const step *item, size_t count, uint32_t least, uint32_t most)
{
    const int32_t past = (int32_t)count + 1;
    for (uint32_t i = 0; i < least; i++) TSR_TRY(copy(p, item, count));
    if (most == UINT32_MAX) {
        TSR_TRY(add(p, &(step){.kind = FORK, .to = past + 1}));
        TSR_TRY(copy(p, item, count));
        return add(p, &(step){.kind = JUMP, .to = -past});
    }
    for (uint32_t i = least; i < most; i++) {
        TSR_TRY(add(p, &(step){.kind = FORK, .to = past}));
        TSR_TRY(copy(p, item, count));
    }
    return TSR_OK;
}

/* Repeats the steps from `from` on as the text states, if it does. */
static tsr_status read_repeated(parser *p, size_t from, bool is_anchor)
{
    uint32_t least, most;
    if (!read_repetition(p, &least, &most)) return TSR_OK;
    if (is_anchor) return invalid(p, "nothing to repeat");
    if (least > most) return invalid(p, "a smallest number of repetitions above the largest");
    if (take(p, '+')) return refuse(p, "possessive repetition");
    take(p, '?'); /* whether it takes more or less does not matter for whether it matches */
    const size_t again = p->at;
    uint32_t ignored;
    if (read_repetition(p, &ignored, &ignored)) return invalid(p, "multiple repeat");
    p->at = again;
    tsr_vec item = tsr_vec_of(p->steps.allocator, sizeof(step));
    tsr_status status = TSR_OK;
    if (p->steps.count > from) status = tsr_vec_append(&item, (step *)p->steps.items + from, p->steps.count - from, p->err);
    p->steps.count = from;
    /* Without a step there is nothing to count, however often it is repeated. */
    if (status == TSR_OK && item.count) status = repeat(p, item.items, item.count, least, most);
    tsr_vec_free(&item);
    return status;
}

static tsr_status read_item(parser *p)
{
    const size_t from = p->steps.count;
    uint32_t least, most;
    if (read_repetition(p, &least, &most)) return invalid(p, "nothing to repeat");
    const int c = peek(p);
    bool is_anchor = c == '^' || c == '$';
    p->at++;
    if (c == '(') TSR_TRY(read_group(p));
    else if (c == '[') TSR_TRY(read_set(p));
    else if (c == '\\') {
        const int letter = peek(p);
        is_anchor = letter == 'A' || letter == 'Z' || letter == 'b' || letter == 'B';
        TSR_TRY(read_escaped(p));
    } else {
        if (c >= 128) return refuse(p, "characters that are not ASCII");
        const step_kind kind = c == '.' ? ANY : c == '^' ? START : c == '$' ? END : CHARACTER;
        TSR_TRY(add(p, &(step){.kind = kind, .character = (uint32_t)c}));
    }
    return read_repeated(p, from, is_anchor);
}

/* Reads alternatives up to a ')' or the end. Each but the last ends with a jump to the end; they are linked until that is known. */
static tsr_status read_alternatives(parser *p)
{
    size_t from = p->steps.count, last = SIZE_MAX;
    for (;;) {
        while (peek(p) >= 0 && peek(p) != '|' && peek(p) != ')') TSR_TRY(read_item(p));
        if (!take(p, '|')) break;
        TSR_TRY(insert(p, from, &(step){.kind = FORK, .to = (int32_t)(p->steps.count - from) + 2}));
        TSR_TRY(add(p, &(step){.kind = JUMP, .to = last == SIZE_MAX ? 0 : (int32_t)(p->steps.count - last)}));
        last = p->steps.count - 1;
        from = p->steps.count;
    }
    while (last != SIZE_MAX) {
        step *jump = (step *)p->steps.items + last;
        const size_t before = jump->to ? last - (size_t)jump->to : SIZE_MAX;
        jump->to = (int32_t)(p->steps.count - last);
        last = before;
    }
    return TSR_OK;
}

tsr_status tsr_regex_compile(tsr_str pattern, const tsr_allocator *allocator, tsr_arena *arena, tsr_regex **out,
                             tsr_error *err)
{
    parser p = {.text = pattern, .steps = tsr_vec_of(allocator, sizeof(step)), .err = err};
    *out = NULL;
    tsr_status status = read_alternatives(&p);
    if (status == TSR_OK && p.at < pattern.size) status = invalid(&p, "a ')' without '('");
    if (status == TSR_OK) status = add(&p, &(step){.kind = FOUND});
    tsr_regex *regex = status == TSR_OK ? tsr_arena_array(arena, 1, sizeof *regex, err) : NULL;
    step *steps = regex ? tsr_arena_array(arena, p.steps.count, sizeof *steps, err) : NULL;
    uint32_t *lists = steps ? tsr_arena_array(arena, p.steps.count * 4, sizeof *lists, err) : NULL;
    if (lists) {
        const size_t count = p.steps.count;
        memcpy(steps, p.steps.items, count * sizeof *steps);
        *regex = (tsr_regex){steps, (uint32_t)count, lists, lists + count, lists + 2 * count, lists + 3 * count};
        *out = regex;
    }
    tsr_vec_free(&p.steps);
    return status != TSR_OK ? status : lists ? TSR_OK : TSR_E_NOMEM;
}

/* ---- matching ---- */

typedef struct position {
    tsr_str text;
    size_t at;
} position;

static bool word_at(const position *place, size_t at)
{
    return at < place->text.size && is_word((unsigned char)place->text.data[at]);
}

/* Whether the way goes on behind an anchor. */
static bool holds(const step *anchor, const position *place)
{
    const size_t left = place->text.size - place->at;
    const bool edge = word_at(place, place->at) != (place->at && word_at(place, place->at - 1));
    switch (anchor->kind) {
    case START: return place->at == 0;
    case END: return left == 0 || (left == 1 && place->text.data[place->at] == '\n');
    case VERY_END: return left == 0;
    case EDGE: return edge;
    default: return !edge;
    }
}

/* Adds a step, and all that can be reached from it without a character, to the steps at `place`. Returns whether FOUND is among
 * them. */
static bool reach(tsr_regex *regex, uint32_t from, const position *place, uint32_t *list, uint32_t *count)
{
    const uint32_t mark = (uint32_t)place->at + 1;
    uint32_t *rest = regex->rest, waiting = 0;
    bool found = false;
    if (regex->marks[from] == mark) return false;
    regex->marks[from] = mark;
    rest[waiting++] = from;
    while (waiting) {
        const uint32_t number = rest[--waiting];
        const step *one = &regex->steps[number];
        uint32_t ways[2], way_count = 0;
        if (one->kind == FOUND) found = true;
        else if (one->kind == CHARACTER || one->kind == ANY || one->kind == SET) list[(*count)++] = number;
        else if (one->kind == JUMP) ways[way_count++] = number + (uint32_t)one->to;
        else if (one->kind == FORK) ways[way_count++] = number + (uint32_t)one->to, ways[way_count++] = number + 1;
        else if (holds(one, place)) ways[way_count++] = number + 1;
        while (way_count) {
            const uint32_t way = ways[--way_count];
            if (regex->marks[way] == mark) continue;
            regex->marks[way] = mark;
            rest[waiting++] = way;
        }
    }
    return found;
}

static bool accepts(const step *one, uint32_t c)
{
    return one->kind == CHARACTER ? one->character == c : one->kind == ANY ? c != '\n' : has(one, c);
}

tsr_status tsr_regex_match(tsr_regex *regex, tsr_str text, uint64_t *work, bool *matches, tsr_error *err)
{
    position place = {text, 0};
    uint32_t count = 0;
    for (size_t i = 0; i < text.size; i++)
        TSR_FAIL_IF((unsigned char)text.data[i] >= 128, err, TSR_E_UNSUPPORTED,
                    "'%.*s' is not ASCII, so regular expressions are not applied to it", TSR_STR_ARG(text));
    TSR_FAIL_IF(text.size >= *work / regex->count || text.size > INT32_MAX, err, TSR_E_LIMIT,
                "the names are too long for so many regular expressions of this size");
    *work -= (text.size + 1) * regex->count;
    memset(regex->marks, 0, regex->count * sizeof *regex->marks);
    *matches = reach(regex, 0, &place, regex->now, &count);
    while (!*matches && count && place.at < text.size) {
        const uint32_t c = (unsigned char)text.data[place.at++];
        uint32_t next = 0;
        for (uint32_t i = 0; i < count; i++)
            if (accepts(&regex->steps[regex->now[i]], c))
                *matches |= reach(regex, regex->now[i] + 1, &place, regex->next, &next);
        uint32_t *swapped = regex->now;
        regex->now = regex->next, regex->next = swapped;
        count = next;
    }
    return TSR_OK;
}
