/* See deepspeed_parts.h. */
#include "formats/deepspeed/deepspeed_parts.h"

#include "formats/deepspeed/deepspeed_files.h"
#include "formats/deepspeed/deepspeed_weights.h"
#include "formats/pickle/torch_names.h"
#include "formats/torch/torch_file.h"
#include "formats/torch/torch_flatten.h"
#include "formats/torch/torch_union.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"

#include <string.h>

enum { RUNS = 4, RUN = 256 }; /* RUNS are compared per weight; RUN is the number of elements in each */

/* Finds the position in the file of element `at` of a tensor, if it is in this chunk. *left is the number of elements from
 * there to the end of the chunk's row. */
static bool place_in(const tsr_entry *tensor, const tsr_chunk *chunk, uint64_t at, uint64_t *offset, uint64_t *left)
{
    uint64_t within = 0, stride = 1;
    *left = 1;
    for (uint32_t d = tensor->ndim; d-- > 0; at /= tensor->shape[d]) {
        const uint64_t coordinate = at % tensor->shape[d];
        if (coordinate < chunk->offsets[d] || coordinate - chunk->offsets[d] >= chunk->sizes[d]) return false;
        if (d + 1 == tensor->ndim) *left = chunk->offsets[d] + chunk->sizes[d] - coordinate;
        within += (coordinate - chunk->offsets[d]) * stride;
        stride *= chunk->sizes[d];
    }
    *offset = chunk->byte_offset + within * sizeof(float);
    return true;
}

static bool is_readable(const tsr_chunk *chunk)
{
    return chunk->file != TSR_NO_FILE && chunk->byte_length && (!chunk->view || tsr_view_is_plain(chunk->view));
}

/* Compares the beginning of a chunk with the same elements of another tensor. */
static tsr_status compare_run(tsr_store *store, const tsr_entry *a, const tsr_chunk *chunk, const tsr_entry *b, bool *same,
                              tsr_error *err)
{
    uint8_t x[RUN * sizeof(float)], y[sizeof x];
    uint64_t at = 0, offset = 0, left = 0, row, from;
    for (uint32_t d = 0; d < a->ndim; d++) at = at * a->shape[d] + chunk->offsets[d];
    if (!place_in(a, chunk, at, &from, &row)) return TSR_OK;
    uint64_t c = 0;
    while (c < b->chunk_count && !(is_readable(&b->chunks[c]) && place_in(b, &b->chunks[c], at, &offset, &left))) c++;
    if (c == b->chunk_count) return TSR_OK;
    uint64_t count = row < left ? row : left;
    if (count > RUN) count = RUN;
    TSR_TRY(tsr_store_read(store, chunk->file, from, x, (size_t)count * sizeof(float), err));
    TSR_TRY(tsr_store_read(store, b->chunks[c].file, offset, y, (size_t)count * sizeof(float), err));
    *same = memcmp(x, y, (size_t)count * sizeof(float)) == 0;
    return TSR_OK;
}

static tsr_status is_same(tsr_store *store, const tsr_entry *a, const tsr_entry *b, bool *same, tsr_error *err)
{
    uint32_t runs = 0;
    *same = true;
    if (a->dtype != TSR_FLOAT32 || b->dtype != TSR_FLOAT32 || !tsr_entry_same_shape(a, b)) return TSR_OK;
    for (uint64_t c = 0; c < a->chunk_count && *same && runs < RUNS; c++) {
        if (!is_readable(&a->chunks[c])) continue;
        TSR_TRY(compare_run(store, a, &a->chunks[c], b, same, err));
        runs++;
    }
    return TSR_OK;
}

static tsr_status rename_weight(const tsr_ds_weights *weights, tsr_ds_weight *weight, tsr_error *err)
{
    tsr_checkpoint *checkpoint = weights->files->checkpoint;
    const tsr_str name = tsr_arena_format(checkpoint->arena, err, "mp_rank_%02u.%.*s", weights->column->model_rank,
                                          TSR_STR_ARG(weight->name));
    const tsr_str file = tsr_ds_file_name(weights->files, weights->column->model);
    if (!name.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_finding_add(
        checkpoint->findings, "parts/stages-differ", (tsr_place){file, TSR_NO_POSITION, {NULL, 0}}, err,
        "'%.*s' has other values than in an earlier stage of the pipeline; those of %.*s are listed as '%.*s'",
        TSR_STR_ARG(weight->name), TSR_STR_ARG(file), TSR_STR_ARG(name)));
    weight->name = name;
    return TSR_OK;
}

tsr_status tsr_ds_stages_rename(tsr_ds_weights *weights, const tsr_ds_rows *trained, const tsr_ds_rows *model, bool *renamed,
                                tsr_error *err)
{
    const tsr_ds_files *files = weights->files;
    *renamed = false;
    if (!files->has_layers || files->tensor_ranks > 1) return TSR_OK;
    for (uint32_t i = 0; i < weights->count; i++) {
        tsr_ds_weight *weight = &weights->weights[i];
        const tsr_entry *own = tsr_ds_tensor(tsr_ds_rows_get(trained, weight->name, TSR_STR("")));
        const tsr_entry *first = tsr_ds_tensor(tsr_ds_rows_get(model, weight->name, TSR_STR("")));
        bool same = true;
        if (own && first) TSR_TRY(is_same(files->checkpoint->store, own, first, &same, err));
        if (same) continue;
        TSR_TRY(rename_weight(weights, weight, err));
        *renamed = true;
    }
    return TSR_OK;
}

/* ---- engine ---- */

static bool is_one_of(tsr_str key, const char *const *list)
{
    for (size_t i = 0; list[i]; i++)
        if (tsr_str_equal(key, tsr_str_from(list[i]))) return true;
    return false;
}

/* torch.save's objects are {class, args, state, …}. Those of DeepSpeed's own classes keep all their data in the state. */
const tsr_value *tsr_ds_attributes(const tsr_value *value)
{
    if (value->kind != TSR_VALUE_OBJECT || !tsr_str_starts(value->text, TSR_STR("deepspeed."))) return NULL;
    return value->count > 1 && value->items[1] ? tsr_ds_kind_or_null(value->items[1], TSR_VALUE_DICT) : NULL;
}

static const tsr_value *plain(const tsr_value *value)
{
    if (value->kind != TSR_VALUE_OBJECT || !tsr_str_starts(value->text, TSR_STR("deepspeed."))) return value;
    const tsr_value *number = tsr_enum_value(value), *attributes = tsr_ds_attributes(value);
    return number ? number : attributes ? attributes : value;
}

tsr_value *tsr_ds_rest(const tsr_ds_files *files, const tsr_value *dict, const char *const *taken, tsr_error *err)
{
    size_t count = 0;
    const size_t most = dict ? dict->count : 0;
    const tsr_value **items = tsr_arena_array(files->checkpoint->arena, most, sizeof *items, err);
    if (!items) return NULL;
    for (size_t i = 0; i + 1 < most; i += 2) {
        const tsr_value *key = dict->items[i];
        if (key->kind == TSR_VALUE_STR && is_one_of(key->text, taken)) continue;
        items[count++] = key;
        items[count++] = plain(dict->items[i + 1]);
    }
    return tsr_value_items(files->checkpoint->arena, TSR_VALUE_DICT, items, count, err);
}

/* A DICT with the pairs of another one, followed by one more pair, unless `value` is NULL. NULL if out of memory. */
static tsr_value *with_pair(tsr_arena *arena, const tsr_value *dict, tsr_str key, const tsr_value *value, tsr_error *err)
{
    const tsr_value **items = tsr_arena_array(arena, dict->count + 2, sizeof *items, err);
    if (!items) return NULL;
    if (dict->count) memcpy(items, dict->items, dict->count * sizeof *items);
    if (!value) return tsr_value_items(arena, TSR_VALUE_DICT, items, dict->count, err);
    items[dict->count] = tsr_value_str(arena, key, err);
    items[dict->count + 1] = value;
    return items[dict->count] ? tsr_value_items(arena, TSR_VALUE_DICT, items, dict->count + 2, err) : NULL;
}

tsr_status tsr_ds_engine(const tsr_ds_files *files, const tsr_value **out, tsr_error *err)
{
    static const char *const taken[] = {"module", "optimizer", "frozen_param_fragments", NULL};
    const tsr_ds_file *model = NULL;
    *out = NULL;
    for (uint32_t c = 0; c < files->column_count && !model; c++) model = files->columns[c].model;
    if (!model) return TSR_OK;
    *out = tsr_ds_rest(files, model->root, taken, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* ---- parts ---- */

/* Whether an entry belongs to the part `name`: its path begins with that key. */
static bool is_of(const tsr_entry *entry, tsr_str name)
{
    return entry->path_length && tsr_str_equal(entry->path[0].key, name);
}

/* Counts the files that contain bytes of an entry range. Objects are in the files that were opened, so the count is at least
 * one. */
static tsr_status count_files(tsr_checkpoint *checkpoint, tsr_part *part, tsr_error *err)
{
    const uint32_t count = checkpoint->store->file_count;
    bool *used = tsr_alloc(checkpoint->host->allocator, count, sizeof *used, err);
    if (!used) return TSR_E_NOMEM;
    memset(used, 0, count);
    for (uint64_t e = 0; e < part->entry_count; e++) {
        const tsr_entry *entry = &checkpoint->catalog.entries[part->first_entry + e];
        for (uint64_t c = 0; c < entry->chunk_count; c++)
            if (entry->chunks[c].file != TSR_NO_FILE) used[entry->chunks[c].file] = true;
    }
    for (uint32_t f = 0; f < count; f++) part->files += used[f];
    if (part->files == 0) part->files = 1;
    tsr_free(checkpoint->host->allocator, used, count, sizeof *used);
    return TSR_OK;
}

static tsr_status list_parts(tsr_checkpoint *checkpoint, const tsr_ds_part *parts, size_t count, tsr_error *err)
{
    tsr_catalog *catalog = &checkpoint->catalog;
    tsr_part *list = tsr_arena_array(checkpoint->arena, count, sizeof *list, err);
    uint64_t at = 0;
    if (!list) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        tsr_part *part = &list[catalog->part_count];
        *part = (tsr_part){.name = tsr_str_from(parts[i].name), .format = catalog->format, .first_entry = at};
        while (at < catalog->entry_count && is_of(&catalog->entries[at], part->name)) at++;
        part->entry_count = at - part->first_entry;
        if (part->entry_count == 0) continue;
        TSR_TRY(count_files(checkpoint, part, err));
        catalog->part_count++;
    }
    catalog->parts = list;
    return TSR_OK;
}

tsr_status tsr_ds_mount(tsr_checkpoint *checkpoint, const tsr_ds_part *parts, size_t count, uint32_t storages,
                        tsr_error *err)
{
    tsr_torch_flat flat;
    tsr_catalog *catalog = &checkpoint->catalog;
    const tsr_value **items = tsr_arena_array(checkpoint->arena, 2 * count, sizeof *items, err);
    size_t used = 0;
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        if (!parts[i].tree) continue;
        items[used] = tsr_value_str(checkpoint->arena, tsr_str_from(parts[i].name), err);
        if (!items[used++]) return TSR_E_NOMEM;
        items[used++] = parts[i].tree;
    }
    const tsr_value *root = tsr_value_items(checkpoint->arena, TSR_VALUE_DICT, items, used, err);
    if (!root) return TSR_E_NOMEM;
    TSR_TRY(tsr_torch_flatten(root, checkpoint->host, &checkpoint->expansion, checkpoint->arena, &flat, err));
    catalog->entries = flat.entries;
    catalog->entry_count = flat.entry_count;
    catalog->mappings = flat.mappings;
    catalog->mapping_count = flat.mapping_count;
    TSR_TRY(tsr_torch_keep_shared(checkpoint->host, flat.entries, flat.entry_count, storages, err));
    return list_parts(checkpoint, parts, count, err);
}

tsr_status tsr_ds_optim(const tsr_ds_files *files, const tsr_ds_optim_contents *contents, const tsr_value **out,
                        tsr_error *err)
{
    tsr_arena *arena = files->checkpoint->arena;
    tsr_ds_rows *odd = contents->odd;
    const tsr_value *rest = contents->rest;
    const tsr_value *tree = rest ? tsr_value_items(arena, TSR_VALUE_DICT, NULL, 0, err) : NULL;
    const tsr_value *by_name = tree ? tsr_ds_rows_tree(contents->states, err) : NULL;
    const tsr_value *by_group = odd && by_name ? tsr_ds_rows_tree(odd, err) : NULL;
    if (!by_name || (odd && !by_group)) return TSR_E_NOMEM;
    tree = with_pair(arena, tree, TSR_STR("state"), by_name->count ? by_name : NULL, err);
    if (tree) tree = with_pair(arena, tree, TSR_STR("param_groups"), contents->groups, err);
    if (tree) tree = with_pair(arena, tree, TSR_STR("group_state"), by_group && by_group->count ? by_group : NULL, err);
    for (size_t i = 0; tree && i + 1 < rest->count; i += 2)
        if (rest->items[i]->kind == TSR_VALUE_STR)
            tree = with_pair(arena, tree, rest->items[i]->text, rest->items[i + 1], err);
    *out = tree;
    return tree ? TSR_OK : TSR_E_NOMEM;
}
