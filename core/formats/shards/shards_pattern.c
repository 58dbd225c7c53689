/* See shards_pattern.h. Captures are greedy: they match as many digits as possible. */
#include "formats/shards/shards_pattern.h"

#include "tessera/sys/shard_names.h"

#include <string.h>

enum { MAX_DIGITS = 9 };

static const char *const captures[TSR_CAPTURES] = {"{tp}", "{pp}", "{part}"};

/* The capture at the beginning of a pattern, or TSR_CAPTURES if there is none. */
static tsr_shards_capture capture_at(tsr_str pattern, size_t *size)
{
    tsr_shards_capture c = TSR_CAPTURE_TP;
    while (c < TSR_CAPTURES && !tsr_str_starts(pattern, tsr_str_from(captures[c]))) c++;
    *size = c < TSR_CAPTURES ? strlen(captures[c]) : 1;
    return c;
}

static tsr_str after(tsr_str text, size_t size)
{
    return (tsr_str){text.data + size, text.size - size};
}

static size_t digits_at(tsr_str text, uint32_t *number)
{
    size_t size = 0;
    for (*number = 0; size < text.size && text.data[size] >= '0' && text.data[size] <= '9'; size++) {
        if (size == MAX_DIGITS) return 0;
        *number = *number * 10 + (uint32_t)(text.data[size] - '0');
    }
    return size;
}

bool tsr_shards_match(tsr_str pattern, tsr_str name, tsr_shards_numbers *out)
{
    bool known[TSR_CAPTURES] = {false};
    *out = (tsr_shards_numbers){{0}};
    while (pattern.size) {
        size_t size, taken = 1;
        const tsr_shards_capture c = capture_at(pattern, &size);
        if (c < TSR_CAPTURES) {
            uint32_t number;
            taken = digits_at(name, &number);
            if (!taken || (known[c] && out->of[c] != number)) return false;
            known[c] = true;
            out->of[c] = number;
        } else if (!name.size || name.data[0] != pattern.data[0]) {
            return false;
        }
        pattern = after(pattern, size);
        name = after(name, taken);
    }
    return name.size == 0;
}

tsr_str tsr_shards_name(tsr_str pattern, const tsr_shards_numbers *numbers, const unsigned *widths, tsr_arena *arena,
                        tsr_error *err)
{
    tsr_str name = TSR_STR("");
    while (pattern.size && name.data) {
        size_t size;
        const tsr_shards_capture c = capture_at(pattern, &size);
        name = c < TSR_CAPTURES ? tsr_arena_format(arena, err, "%.*s%0*u", TSR_STR_ARG(name), (int)widths[c], numbers->of[c])
                                : tsr_arena_format(arena, err, "%.*s%c", TSR_STR_ARG(name), pattern.data[0]);
        pattern = after(pattern, size);
    }
    return name;
}

const char *tsr_shards_ranks_wrong(tsr_str ranks)
{
    bool counted = false, after_capture = false;
    if (ranks.size && ranks.data[0] == '/') return "must be relative to the checkpoint's directory";
    while (ranks.size) {
        size_t size;
        const tsr_shards_capture c = capture_at(ranks, &size);
        const bool captures_number = c < TSR_CAPTURES;
        if (!captures_number && (ranks.data[0] == '{' || ranks.data[0] == '}'))
            return "may contain only {tp}, {pp} and {part} in braces";
        if (captures_number && after_capture) return "needs text between two numbers";
        counted = counted || c == TSR_CAPTURE_TP || c == TSR_CAPTURE_PP;
        after_capture = captures_number;
        ranks = after(ranks, size);
    }
    return counted ? NULL : "needs {tp} or {pp}, the number of a rank";
}
