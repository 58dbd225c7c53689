/* What saving and loading share: the entries that a state dict becomes, and a buffer in halves. */
#include "live/saveload/saveload.h"

#include <inttypes.h>
#include <stdlib.h>

#include "live/tensor/state_dict.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

/* ---- flat ---- */

/* Follows torch/distributed/checkpoint/_nested_dict.py and _traverse.py of PyTorch 2.13. */

typedef struct flattening {
    const tsr_host *host;
    tsr_arena *arena;
    tsr_vec entries;
    tsr_map *names;
} flattening;

bool tsr_flat_opens(const tsr_value *value)
{
    return value->kind == TSR_VALUE_DICT || (value->kind == TSR_VALUE_LIST && !tsr_list_is_plain(value, TSR_FLAT_DEPTH));
}

static bool names_tensor(const tsr_value *value, uint32_t depth)
{
    bool found = value->kind == TSR_VALUE_TENSOR;
    for (size_t i = 0; depth && !found && i < value->count; i++) found = names_tensor(value->items[i], depth - 1);
    return found;
}

bool tsr_names_tensor(const tsr_value *value)
{
    return names_tensor(value, TSR_FLAT_DEPTH);
}

static tsr_status fill_path(const flattening *f, const tsr_step *at, tsr_flat_entry *entry, tsr_error *err)
{
    const uint32_t length = at ? at->depth : 0;
    tsr_path_item *path = tsr_arena_array(f->arena, length, sizeof *path, err);
    if (!path) return TSR_E_NOMEM;
    entry->path = path;
    entry->path_length = length;
    for (; at; at = at->up) {
        tsr_path_item *item = &path[at->depth - 1];
        *item = (tsr_path_item){.kind = TSR_PATH_INDEX, .integer = (int64_t)at->index};
        if (!at->key) continue;
        item->kind = TSR_PATH_KEY;
        item->key = at->key->text;
        if (at->key->kind == TSR_VALUE_INT) item->key = tsr_arena_format(f->arena, err, "%" PRId64, at->key->as.integer);
        if (at->key->kind == TSR_VALUE_INT && !item->key.data) return TSR_E_NOMEM;
    }
    return TSR_OK;
}

static tsr_str join_path(const flattening *f, const tsr_flat_entry *entry, tsr_error *err)
{
    tsr_str name = TSR_STR("");
    for (uint32_t i = 0; i < entry->path_length && name.data; i++) {
        const tsr_path_item *item = &entry->path[i];
        const char *dot = i ? "." : "";
        if (item->kind == TSR_PATH_INDEX)
            name = tsr_arena_format(f->arena, err, "%.*s%s%" PRId64, TSR_STR_ARG(name), dot, item->integer);
        else name = tsr_arena_format(f->arena, err, "%.*s%s%.*s", TSR_STR_ARG(name), dot, TSR_STR_ARG(item->key));
    }
    return name;
}

static tsr_status add_leaf(flattening *f, const tsr_value *value, const tsr_step *at, tsr_error *err)
{
    bool fresh;
    tsr_flat_entry *entry = tsr_vec_push(&f->entries, err);
    if (!entry) return TSR_E_NOMEM;
    entry->value = value;
    entry->tensor = tsr_tensor_of(value);
    TSR_TRY(fill_path(f, at, entry, err));
    entry->fqn = join_path(f, entry, err);
    if (!entry->fqn.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_map_put(f->names, entry->fqn, 0, NULL, &fresh, err));
    TSR_FAIL_IF(!fresh, err, TSR_E_USAGE, "two values of the state dict have the name '%.*s'", TSR_STR_ARG(entry->fqn));
    TSR_FAIL_IF(!entry->tensor && tsr_names_tensor(value), err, TSR_E_UNSUPPORTED,
                "'%.*s' is a %s that contains a tensor, which has no name of its own", TSR_STR_ARG(entry->fqn),
                tsr_python_type(value));
    return TSR_OK;
}

static tsr_status walk(flattening *f, const tsr_value *value, const tsr_step *at, tsr_error *err)
{
    const bool dict = value->kind == TSR_VALUE_DICT;
    if (!tsr_flat_opens(value)) return add_leaf(f, value, at, err);
    for (size_t i = 0; i < value->count; i += dict ? 2 : 1) {
        const tsr_step step = {at, dict ? value->items[i] : NULL, i, at ? at->depth + 1 : 1};
        TSR_TRY(tsr_step_check(&step, f->host, f->arena, err));
        TSR_TRY(walk(f, value->items[i + dict], &step, err));
    }
    return TSR_OK;
}

typedef struct numbered {
    tsr_str fqn;
    uint32_t number;
} numbered;

static int by_name(const void *a, const void *b)
{
    return tsr_str_compare(((const numbered *)a)->fqn, ((const numbered *)b)->fqn);
}

static tsr_status hand_out(flattening *f, tsr_flat *out, tsr_error *err)
{
    const size_t count = f->entries.count;
    numbered *order = tsr_arena_array(f->arena, count, sizeof *order, err);
    *out = (tsr_flat){tsr_arena_array(f->arena, count, sizeof *out->entries, err), count,
                      tsr_arena_array(f->arena, count, sizeof *out->sorted, err)};
    TSR_FAIL_IF(count > UINT32_MAX, err, TSR_E_LIMIT, "the state dict has too many entries");
    if (!order || !out->entries || !out->sorted) return TSR_E_NOMEM;
    if (count == 0) return TSR_OK;
    memcpy(out->entries, f->entries.items, count * sizeof *out->entries);
    for (size_t i = 0; i < count; i++) order[i] = (numbered){out->entries[i].fqn, (uint32_t)i};
    qsort(order, count, sizeof *order, by_name);
    for (size_t i = 0; i < count; i++) out->sorted[i] = order[i].number;
    return TSR_OK;
}

tsr_status tsr_flat_of(const tsr_value *state, const tsr_host *host, tsr_arena *arena, tsr_flat *out, tsr_error *err)
{
    TSR_FAIL_IF(state->kind != TSR_VALUE_DICT, err, TSR_E_USAGE, "the state dict to save must be a dict, not a %s",
                tsr_python_type(state));
    flattening f = {host, arena, tsr_vec_of(host->allocator, sizeof(tsr_flat_entry)), tsr_map_new(host->allocator, 0, err)};
    tsr_status status = f.names ? walk(&f, state, NULL, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = hand_out(&f, out, err);
    tsr_map_free(f.names);
    tsr_vec_free(&f.entries);
    return status;
}

/* ---- halves ---- */

size_t tsr_halves_room(const tsr_halves *halves)
{
    return halves->bytes / 2 / TSR_HALVES_ALIGNMENT * TSR_HALVES_ALIGNMENT;
}

tsr_status tsr_halves_wait(const tsr_halves *halves, tsr_error *err)
{
    const tsr_status status = tsr_device_wait(halves->device, err);
    if (status != TSR_OK) tsr_error_context(err, "copies so far");
    return status;
}

tsr_status tsr_halves_end(tsr_halves *halves, tsr_error *err)
{
    tsr_device *device = halves->device;
    const tsr_status status = tsr_halves_wait(halves, err);
    if (halves->is_pinned) device->unpin(device, halves->memory, halves->bytes);
    *halves = (tsr_halves){.memory = halves->memory, .bytes = halves->bytes};
    return status;
}

tsr_status tsr_halves_use(tsr_halves *halves, tsr_device *device, tsr_error *err)
{
    tsr_error ignored = {0};
    if (halves->device == device) return TSR_OK;
    TSR_TRY(tsr_halves_end(halves, err));
    halves->device = device;
    halves->is_pinned = device && device->pin && device->pin(device, halves->memory, halves->bytes, &ignored) == TSR_OK;
    return TSR_OK;
}
