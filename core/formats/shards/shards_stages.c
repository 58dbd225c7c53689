/* See shards_stages.h. */
#include "formats/shards/shards_cut.h"

#include <inttypes.h>

#include "tessera/glob.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/shard_names.h"
#include "tessera/sys/try.h"

static const char layer_capture[] = "{layer}", rest_capture[] = "{rest...}";

/* The index of the first `part` in `text`; text.size if there is none. */
static size_t find(tsr_str text, tsr_str part)
{
    size_t at = 0;
    while (at + part.size <= text.size && memcmp(text.data + at, part.data, part.size) != 0) at++;
    return at + part.size <= text.size ? at : text.size;
}

static bool has_brace(tsr_str text)
{
    return text.size && (memchr(text.data, '{', text.size) || memchr(text.data, '}', text.size));
}

/* Splits a pattern into the text before {layer}, the text between it and {rest...}, and whether it ends with {rest...}. */
static bool split(tsr_str pattern, tsr_str *head, tsr_str *tail, bool *rest)
{
    const tsr_str capture = tsr_str_from(layer_capture), suffix = tsr_str_from(rest_capture);
    const size_t at = find(pattern, capture);
    if (at == pattern.size) return false;
    *head = (tsr_str){pattern.data, at};
    *tail = (tsr_str){pattern.data + at + capture.size, pattern.size - at - capture.size};
    *rest = tsr_str_ends(*tail, suffix);
    if (*rest) tail->size -= suffix.size;
    return !has_brace(*head) && !has_brace(*tail);
}

const char *tsr_shards_stages_wrong(tsr_str pattern)
{
    tsr_str head, tail;
    bool rest;
    if (!split(pattern, &head, &tail, &rest))
        return "must contain {layer} once, may end in {rest...}, and must not contain other braces";
    const bool before = !head.size || head.data[head.size - 1] == '.', after = !tail.size || tail.data[0] == '.';
    return before && after ? NULL : "must contain {layer} as a whole component between dots";
}

tsr_status tsr_shards_stages_of(tsr_str pattern, tsr_arena *arena, tsr_shards_stages *out, tsr_error *err)
{
    tsr_str tail;
    bool rest;
    split(pattern, &out->head, &tail, &rest);
    out->tail = rest ? tsr_arena_format(arena, err, "%.*s**", TSR_STR_ARG(tail)) : tail;
    return out->tail.data ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_shards_stages_number(tsr_shards_stages *stages, tsr_arena *arena, tsr_error *err)
{
    uint64_t *first = tsr_arena_array(arena, stages->count, sizeof *first, err);
    if (!first) return TSR_E_NOMEM;
    for (uint32_t s = 1; s < stages->count; s++) first[s] = first[s - 1] + stages->layers[s - 1];
    stages->first = first;
    return TSR_OK;
}

static bool is_number(tsr_str text, uint64_t *number)
{
    *number = 0;
    for (size_t i = 0; i < text.size; i++) {
        if (text.data[i] < '0' || text.data[i] > '9' || i == 9) return false;
        *number = *number * 10 + (uint64_t)(text.data[i] - '0');
    }
    return text.size > 0;
}

bool tsr_shards_layer_of(const tsr_shards_stages *stages, tsr_str name, tsr_str *digits, uint64_t *layer)
{
    if (!stages->head.size && !stages->tail.size) return false;
    for (size_t from = 0; from < name.size;) {
        const char *dot = memchr(name.data + from, '.', name.size - from);
        const size_t end = dot ? (size_t)(dot - name.data) : name.size;
        *digits = (tsr_str){name.data + from, end - from};
        const tsr_str before = {name.data, from}, after = {name.data + end, name.size - end};
        if (is_number(*digits, layer) && tsr_glob_match(stages->head, before) && tsr_glob_match(stages->tail, after))
            return true;
        from = end + 1;
    }
    return false;
}

/* Replaces the `size` digits at `at` in a text. */
static tsr_str replace(tsr_str text, size_t at, size_t size, uint64_t layer, tsr_arena *arena, tsr_error *err)
{
    const tsr_str before = {text.data, at}, after = {text.data + at + size, text.size - at - size};
    return tsr_arena_format(arena, err, "%.*s%" PRIu64 "%.*s", TSR_STR_ARG(before), layer, TSR_STR_ARG(after));
}

/* Replaces the number in the path item that contains it. `at` is an index into the FQN, which consists of the texts of the
 * items, joined by dots. */
static tsr_status renumber_path(tsr_entry *entry, size_t at, size_t size, uint64_t layer, tsr_arena *arena, tsr_error *err)
{
    tsr_path_item *path = tsr_arena_array(arena, entry->path_length, sizeof *path, err);
    if (!path) return TSR_E_NOMEM;
    memcpy(path, entry->path, entry->path_length * sizeof *path);
    entry->path = path;
    size_t from = 0;
    for (uint32_t i = 0; i < entry->path_length; i++) {
        const size_t length = tsr_path_item_size(&path[i]);
        if (at >= from && at < from + length) {
            if (path[i].kind != TSR_PATH_KEY) path[i].integer = (int64_t)layer;
            else path[i].key = replace(path[i].key, at - from, size, layer, arena, err);
            return path[i].kind != TSR_PATH_KEY || path[i].key.data ? TSR_OK : TSR_E_NOMEM;
        }
        from += length + 1;
    }
    return TSR_OK;
}

static tsr_status renumber(tsr_entry *entry, tsr_str digits, uint64_t layer, tsr_arena *arena, tsr_error *err)
{
    const size_t at = (size_t)(digits.data - entry->fqn.data);
    if (entry->path_length) TSR_TRY(renumber_path(entry, at, digits.size, layer, arena, err));
    entry->fqn = replace(entry->fqn, at, digits.size, layer, arena, err);
    return entry->fqn.data ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_shards_rename(const tsr_shards_stages *stages, uint32_t stage, tsr_arena *arena, tsr_entry *entry,
                             tsr_error *err)
{
    tsr_str digits;
    uint64_t layer;
    if (!tsr_shards_layer_of(stages, entry->fqn, &digits, &layer)) return TSR_OK;
    TSR_FAIL_IF(layer >= stages->layers[stage], err, TSR_E_FORMAT,
                "'%.*s' is layer %" PRIu64 " of pipeline stage %u, which has only %" PRIu64 " layers",
                TSR_STR_ARG(entry->fqn), layer, stage, stages->layers[stage]);
    if (!stages->first[stage]) return TSR_OK;
    return renumber(entry, digits, layer + stages->first[stage], arena, err);
}

tsr_status tsr_shards_rename_back(const tsr_shards_stages *stages, uint32_t stage, tsr_arena *arena, tsr_entry *entry,
                                  bool *holds, tsr_error *err)
{
    tsr_str digits;
    uint64_t layer;
    *holds = true;
    if (!tsr_shards_layer_of(stages, entry->fqn, &digits, &layer)) return TSR_OK;
    const uint32_t last = stages->count - 1;
    TSR_FAIL_IF(layer >= stages->first[last] + stages->layers[last], err, TSR_E_USAGE,
                "'%.*s' is layer %" PRIu64 ", but the stages have only %" PRIu64 " layers in total", TSR_STR_ARG(entry->fqn),
                layer, stages->first[last] + stages->layers[last]);
    *holds = layer >= stages->first[stage] && layer - stages->first[stage] < stages->layers[stage];
    return *holds && stages->first[stage] ? renumber(entry, digits, layer - stages->first[stage], arena, err) : TSR_OK;
}
