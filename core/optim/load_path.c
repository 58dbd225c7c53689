/* Finds the paths of optimizer state. DCP and torch.save store them; other formats only have flat names, which are split
 * here:
 *
 *   optim . state . layers.0.fc.weight . exp_avg          a parameter's FQN has dots, the name of a state has none
 *   optim . param_groups . 0 . lr
 *
 * The model's FQNs decide where a parameter's name ends, so that names of states may also have dots. */
#include "optim/load_path.h"

#include <inttypes.h>

#include "tessera/sys/try.h"

enum { MOST_DIGITS = 9, MOST_NAMES = 6 };

static bool skip_prefix(tsr_str *text, tsr_str prefix)
{
    if (text->size <= prefix.size || memcmp(text->data, prefix.data, prefix.size) != 0) return false;
    *text = (tsr_str){text->data + prefix.size, text->size - prefix.size};
    return true;
}

/* Skips "key." in "key.rest". */
static bool skip_key(tsr_str *text, tsr_str key)
{
    tsr_str rest = *text;
    if (!skip_prefix(&rest, key) || !skip_prefix(&rest, TSR_STR("."))) return false;
    *text = rest;
    return true;
}

static tsr_str first_part(tsr_str name)
{
    const char *dot = name.size ? memchr(name.data, '.', name.size) : NULL;
    return dot ? (tsr_str){name.data, (size_t)(dot - name.data)} : name;
}

/* Where the parameter's FQN ends in "fc.weight.exp_avg"; 0 if there is no dot after one. */
static size_t parameter_end(tsr_str text, const tsr_map *parameters)
{
    size_t last = 0;
    for (size_t at = text.size; at-- > 1;) {
        if (text.data[at] != '.' || at + 1 == text.size) continue;
        if (last == 0) last = at;
        if (tsr_map_get(parameters, (tsr_str){text.data, at}, UINT32_MAX) != UINT32_MAX) return at;
    }
    return last;
}

static bool read_position(tsr_str digits, int64_t *position)
{
    *position = 0;
    if (digits.size == 0 || digits.size > MOST_DIGITS) return false;
    for (size_t i = 0; i < digits.size; i++) {
        if (digits.data[i] < '0' || digits.data[i] > '9') return false;
        *position = *position * 10 + (digits.data[i] - '0');
    }
    return true;
}

static tsr_path_item key_item(tsr_str key)
{
    return (tsr_path_item){.kind = TSR_PATH_KEY, .key = key};
}

/* Splits what follows the key in a flat name into at most three items, and returns their number. */
static uint32_t split(tsr_str rest, const tsr_map *parameters, tsr_path_item *items)
{
    tsr_str below = rest;
    int64_t position;
    items[0] = key_item(rest);
    if (skip_key(&below, TSR_STR("state"))) {
        const size_t end = parameter_end(below, parameters);
        items[0] = key_item(TSR_STR("state"));
        items[1] = key_item(end ? (tsr_str){below.data, end} : below);
        if (end) items[2] = key_item((tsr_str){below.data + end + 1, below.size - end - 1});
        return end ? 3 : 2;
    }
    if (!skip_key(&below, TSR_STR("param_groups"))) return 1;
    const tsr_str digits = first_part(below);
    if (digits.size + 1 >= below.size || !read_position(digits, &position)) return 1;
    items[0] = key_item(TSR_STR("param_groups"));
    items[1] = (tsr_path_item){.kind = TSR_PATH_INDEX, .integer = position};
    items[2] = key_item((tsr_str){below.data + digits.size + 1, below.size - digits.size - 1});
    return 3;
}

static bool is_key(const tsr_path_item *item, tsr_str key)
{
    return item->kind == TSR_PATH_KEY && tsr_str_equal(item->key, key);
}

tsr_status tsr_optim_path_of(const tsr_entry *entry, tsr_str key, const tsr_map *parameters, tsr_arena *arena,
                             tsr_optim_path *out, tsr_error *err)
{
    *out = (tsr_optim_path){NULL, 0};
    if (entry->path_length && is_key(&entry->path[0], key)) {
        *out = (tsr_optim_path){entry->path, entry->path_length};
        return TSR_OK;
    }
    tsr_str name = entry->path_length ? entry->path[0].key : entry->fqn;
    if (entry->path_length > 1 || (entry->path_length && entry->path[0].kind != TSR_PATH_KEY)) return TSR_OK;
    const bool is_whole = tsr_str_equal(name, key);
    if (!is_whole && !skip_key(&name, key)) return TSR_OK;
    tsr_path_item *items = tsr_arena_array(arena, 4, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    items[0] = key_item(key);
    *out = (tsr_optim_path){items, 1 + (is_whole ? 0 : split(name, parameters, items + 1))};
    return TSR_OK;
}

tsr_status tsr_optim_raise_no_key(const tsr_catalog *catalog, tsr_str key, tsr_arena *arena, tsr_error *err)
{
    tsr_str names[MOST_NAMES], text = TSR_STR("");
    size_t count = 0;
    for (uint64_t i = 0; i < catalog->entry_count && count < MOST_NAMES; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        const bool has_path = entry->path_length && entry->path[0].kind == TSR_PATH_KEY;
        const tsr_str name = has_path && entry->path_length > 1 ? entry->path[0].key : first_part(entry->fqn);
        size_t at = 0;
        while (at < count && !tsr_str_equal(names[at], name)) at++;
        if (at < count) continue;
        names[count++] = name;
        text = tsr_arena_format(arena, err, "%.*s%s'%.*s'", TSR_STR_ARG(text), count > 1 ? ", " : "", TSR_STR_ARG(name));
        if (!text.data) return TSR_E_NOMEM;
    }
    if (count == 0) text = TSR_STR("nothing");
    return tsr_fail(err, TSR_E_NOT_FOUND,
                    "optim: the checkpoint has no entries under the key '%.*s'; at its top it has %.*s%s", TSR_STR_ARG(key),
                    TSR_STR_ARG(text), count == MOST_NAMES ? ", …" : "");
}
