/* See deepspeed_module.h. */
#include "formats/deepspeed/deepspeed_module.h"

#include "formats/common/file_names.h"
#include "formats/common/rank_entries.h"
#include "formats/deepspeed/deepspeed_files.h"
#include "formats/deepspeed/deepspeed_parts.h"
#include "formats/torch/torch_file.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"

enum { TSR_DS_MOST_LAYERS = 1 << 16, TSR_DS_MOST_TIED = 256 };

/* The name of a tied layer's weight: "tied_modules.KEY.REST". */
typedef struct tsr_ds_tied {
    tsr_str key, rest;
    const tsr_value *shape; /* NULL for a buffer, or if only its number of elements is known */
    uint64_t elements;      /* UINT64_MAX if unknown */
    uint32_t head;          /* index of the first name with the same key */
} tsr_ds_tied;

typedef struct tsr_ds_layers tsr_ds_layers;
struct tsr_ds_layers {
    const tsr_ds_files *files;
    const tsr_ds_file *layers; /* sorted by tensor-parallel rank and layer number */
    uint32_t count;
    bool *named;     /* by layer number: whether a stored name begins with it */
    bool has_shapes; /* trained weights have stored names */
    tsr_ds_tied tied[TSR_DS_MOST_TIED];
    uint32_t tied_count;
    const tsr_ds_file **owners; /* by index of a key's first name: the first file of that layer, or NULL */
    bool *unsure;               /* likewise: several layers may have this key */
    tsr_error *err;             /* that of the current call */
};

typedef struct tsr_ds_slice {
    tsr_str name;
    uint32_t group;
    uint64_t elements; /* on all ranks together */
} tsr_ds_slice;

/* ---- slices ---- */

/* DeepSpeed's bfloat16 optimizer without ZeRO partitions float32 buffers like ZeRO 1, but its model states have no
 * `param_shapes`. The optimizer files have the names, in the order of the buffers, and how many elements of a parameter each
 * rank has:
 *
 *   param_slice_mappings   [{"3.weight": fragment_address(numel=30, start=70), …}, …], one dictionary per param group */

static const tsr_value *mappings_of(const tsr_ds_column *column, uint32_t rank)
{
    return tsr_ds_list(tsr_ds_optimizer(column->optims[rank]), "param_slice_mappings");
}

/* Adds up the elements of each parameter. One that is split between two ranks is the last in one dictionary and the first in
 * the next. */
static tsr_status add_slices(const tsr_value *dict, uint32_t group, tsr_map *names, tsr_vec *out, tsr_error *err)
{
    for (size_t i = 0; i < tsr_ds_count(dict); i++) {
        const tsr_value *name = dict->items[2 * i], *address = tsr_ds_attributes(dict->items[2 * i + 1]);
        uint64_t elements;
        bool fresh;
        uint32_t *number;
        if (name->kind != TSR_VALUE_STR || !tsr_ds_number(tsr_ds_get(address, "numel"), &elements)) continue;
        TSR_TRY(tsr_map_put(names, name->text, (uint32_t)out->count, &number, &fresh, err));
        tsr_ds_slice *slice = fresh ? tsr_vec_push(out, err) : (tsr_ds_slice *)out->items + *number;
        if (!slice) return TSR_E_NOMEM;
        if (fresh) *slice = (tsr_ds_slice){name->text, group, 0};
        slice->elements += elements;
    }
    return TSR_OK;
}

/* The parameters of a column as tsr_ds_slice, sorted by group and by their order in the buffers. The vec must be freed in
 * any case. TSR_E_NOMEM. */
static tsr_status ds_slices_open(const tsr_ds_files *files, const tsr_ds_column *column, tsr_vec *out, tsr_error *err)
{
    const tsr_allocator *allocator = files->checkpoint->host->allocator;
    size_t groups = 0;
    *out = tsr_vec_of(allocator, sizeof(tsr_ds_slice));
    for (uint32_t r = 0; r < column->world && column->optims && !groups; r++) groups = tsr_ds_count(mappings_of(column, r));
    tsr_map *names = tsr_map_new(allocator, 0, err);
    tsr_status status = names ? TSR_OK : TSR_E_NOMEM;
    for (uint32_t g = 0; g < groups && status == TSR_OK; g++)
        for (uint32_t r = 0; r < column->world && status == TSR_OK; r++)
            status =
                add_slices(tsr_ds_kind_or_null(tsr_ds_item(mappings_of(column, r), g), TSR_VALUE_DICT), g, names, out, err);
    tsr_map_free(names);
    return status;
}

/* ---- layers ---- */

#define TIED "tied_modules."

typedef struct tsr_ds_layers layers;

/* ---- stored names ---- */

/* The number at the beginning of a name, before a dot; UINT32_MAX if there is none, as in "tied_modules.embed.weight". */
static uint32_t number_of(tsr_str name)
{
    uint32_t number = 0;
    size_t at = 0;
    for (; at < name.size && at < 6 && tsr_is_digit(name.data[at]); at++)
        number = number * 10 + (uint32_t)(name.data[at] - '0');
    return at && at < name.size && name.data[at] == '.' && number < TSR_DS_MOST_LAYERS ? number : UINT32_MAX;
}

static void note_tied(layers *l, tsr_str name, const tsr_value *shape, uint64_t elements)
{
    const tsr_str prefix = TSR_STR(TIED);
    if (!tsr_str_starts(name, prefix) || l->tied_count == TSR_DS_MOST_TIED) return;
    const tsr_str after = {name.data + prefix.size, name.size - prefix.size};
    size_t dot = 0;
    while (dot < after.size && after.data[dot] != '.') dot++;
    if (dot == 0 || dot + 1 >= after.size) return;
    tsr_ds_tied tied = {{after.data, dot}, {after.data + dot + 1, after.size - dot - 1}, shape, elements, l->tied_count};
    for (uint32_t t = l->tied_count; t-- > 0;) {
        if (!tsr_str_equal(l->tied[t].key, tied.key)) continue;
        if (tsr_str_equal(l->tied[t].rest, tied.rest)) return; /* every stage that uses the layer stores the names */
        tied.head = l->tied[t].head;
    }
    l->tied[l->tied_count++] = tied;
}

static void note_name(layers *l, tsr_str name, const tsr_value *shape, uint64_t elements)
{
    const uint32_t number = number_of(name);
    if (number == UINT32_MAX) note_tied(l, name, shape, elements);
    else l->named[number] = true;
}

/* Notes the names of a column whose model states have no `param_shapes`. */
static tsr_status note_slices(layers *l, const tsr_ds_column *column)
{
    tsr_vec slices;
    const tsr_status status = ds_slices_open(l->files, column, &slices, l->err);
    const tsr_ds_slice *items = slices.items;
    l->has_shapes = l->has_shapes || slices.count;
    for (size_t i = 0; i < slices.count && status == TSR_OK; i++) note_name(l, items[i].name, NULL, items[i].elements);
    tsr_vec_free(&slices);
    return status;
}

static tsr_status note_names(layers *l, const tsr_ds_column *column)
{
    const tsr_value *model = column->model ? column->model->root : NULL;
    const tsr_value *groups = tsr_ds_list(model, "param_shapes"), *buffers = tsr_ds_list(model, "buffer_names");
    l->has_shapes = l->has_shapes || groups;
    for (size_t g = 0; g < tsr_ds_count(groups); g++) {
        const tsr_value *shapes = tsr_ds_kind_or_null(groups->items[g], TSR_VALUE_DICT);
        for (size_t i = 0; i < tsr_ds_count(shapes); i++)
            if (shapes->items[2 * i]->kind == TSR_VALUE_STR)
                note_name(l, shapes->items[2 * i]->text, shapes->items[2 * i + 1], UINT64_MAX);
    }
    for (size_t i = 0; i < tsr_ds_count(buffers); i++)
        if (buffers->items[i]->kind == TSR_VALUE_STR) note_name(l, buffers->items[i]->text, NULL, UINT64_MAX);
    return groups ? TSR_OK : note_slices(l, column);
}

/* ---- tied layers ---- */

static bool has_elements(const tsr_entry *tensor, uint64_t elements)
{
    uint64_t held;
    return elements == UINT64_MAX || (tsr_entry_elements(tensor, &held) && held == elements);
}

static bool is_like(const tsr_entry *tensor, const tsr_ds_tied *tied)
{
    uint64_t size;
    const tsr_value *shape = tied->shape;
    if (!tensor || !has_elements(tensor, tied->elements)) return false;
    if (!shape) return true;
    if (shape->kind != TSR_VALUE_SIZE && shape->kind != TSR_VALUE_LIST && shape->kind != TSR_VALUE_TUPLE) return false;
    if (shape->count != tensor->ndim) return false;
    for (uint32_t d = 0; d < tensor->ndim; d++)
        if (!tsr_ds_number(shape->items[d], &size) || size != tensor->shape[d]) return false;
    return true;
}

/* Whether a file has every weight and buffer that is stored under a key; `head` is the index of the key's first name. */
static bool ds_layers_fit(const tsr_ds_layers *l, const tsr_ds_file *file, uint32_t head)
{
    for (uint32_t t = head; t < l->tied_count; t++) {
        if (l->tied[t].head != head) continue;
        if (!is_like(tsr_ds_tensor(tsr_value_get(file->root, l->tied[t].rest)), &l->tied[t])) return false;
    }
    return true;
}

static tsr_status is_same_tensor(const layers *l, const tsr_entry *x, const tsr_entry *y, bool *same)
{
    *same = x && y && x->dtype == y->dtype && tsr_entry_same_shape(x, y);
    if (!*same || tsr_torch_decide(l->files->checkpoint, x, y, same)) return TSR_OK;
    return tsr_rank_bytes_match(l->files->checkpoint, x, y, same, l->err);
}

/* Sets *same if two files are from two uses of a tied layer: they have the same names and shapes, and at least one tensor is
 * equal. Tensors that differ are not tied; every stage trains its own. */
static tsr_status is_same_layer(const layers *l, const tsr_ds_file *a, const tsr_ds_file *b, bool *same)
{
    bool alike = tsr_ds_count(a->root) == tsr_ds_count(b->root), equal;
    *same = false;
    for (size_t i = 0; i < tsr_ds_count(a->root) && alike; i++) {
        const tsr_value *key = a->root->items[2 * i],
                        *other = key->kind == TSR_VALUE_STR ? tsr_value_get(b->root, key->text) : NULL;
        const tsr_entry *x = tsr_ds_tensor(a->root->items[2 * i + 1]), *y = tsr_ds_tensor(other);
        if (!x && !y) continue;
        alike = x && y && x->dtype == y->dtype && tsr_entry_same_shape(x, y);
        if (!alike || *same) continue;
        TSR_TRY(is_same_tensor(l, x, y, &equal));
        *same = equal;
    }
    *same = *same && alike;
    return TSR_OK;
}

/* The key of a layer whose number is not in any stored name. UINT32_MAX if no key fits, or several do. */
static uint32_t key_of(const layers *l, const tsr_ds_file *file)
{
    uint32_t found = UINT32_MAX;
    if (!l->has_shapes || l->named[file->name.rank % TSR_DS_MOST_LAYERS]) return UINT32_MAX;
    for (uint32_t t = 0; t < l->tied_count; t++) {
        if (l->tied[t].head != t || !ds_layers_fit(l, file, t)) continue;
        if (found != UINT32_MAX) {
            l->unsure[found] = l->unsure[t] = true;
            return UINT32_MAX;
        }
        found = t;
    }
    return found;
}

/* Finds the file for each key. If several files fit a key but have different weights, one of them may be a frozen layer with
 * the same shapes. */
static tsr_status find_owners(layers *l)
{
    for (uint32_t i = 0; i < l->count; i++) {
        bool same = true;
        const uint32_t head = key_of(l, &l->layers[i]);
        if (head == UINT32_MAX) continue;
        const tsr_ds_file *owner = l->owners[head];
        if (!owner) l->owners[head] = &l->layers[i];
        else if (owner->name.model_rank == l->layers[i].name.model_rank)
            TSR_TRY(is_same_layer(l, owner, &l->layers[i], &same));
        if (!same) l->unsure[head] = true;
    }
    return TSR_OK;
}

tsr_status tsr_ds_layers_open(tsr_ds_files *files, tsr_error *err)
{
    tsr_arena *arena = files->checkpoint->arena;
    if (!files->has_layers) return TSR_OK;
    layers *l = files->layers = TSR_ARENA_NEW(arena, layers, err);
    if (!l) return TSR_E_NOMEM;
    *l = (layers){.files = files, .err = err};
    l->layers = tsr_ds_first(files, TSR_DS_LAYER, &l->count);
    l->named = tsr_arena_array(arena, TSR_DS_MOST_LAYERS, sizeof *l->named, err);
    l->owners = tsr_arena_array(arena, TSR_DS_MOST_TIED, sizeof *l->owners, err);
    l->unsure = tsr_arena_array(arena, TSR_DS_MOST_TIED, sizeof *l->unsure, err);
    if (!l->named || !l->owners || !l->unsure) return TSR_E_NOMEM;
    for (uint32_t c = 0; c < files->column_count; c++) TSR_TRY(note_names(l, &files->columns[c]));
    return find_owners(l);
}

/* The layers of files, for a call with this `err`. NULL if the checkpoint has no files of layers. */
static tsr_ds_layers *ds_layers_of(const tsr_ds_files *files, tsr_error *err)
{
    if (files->layers) files->layers->err = err;
    return files->layers;
}

/* ---- shapes ---- */

/* The tensor in a tensor-parallel rank's file of a layer, or NULL. */
static const tsr_entry *held_in(const layers *l, uint32_t number, uint32_t rank, tsr_str rest)
{
    uint32_t low = 0, high = l->count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const tsr_ds_name *name = &l->layers[middle].name;
        if (name->model_rank < rank || (name->model_rank == rank && name->rank < number)) low = middle + 1;
        else high = middle;
    }
    if (low == l->count || l->layers[low].name.model_rank != rank || l->layers[low].name.rank != number) return NULL;
    return tsr_ds_tensor(tsr_value_get(l->layers[low].root, rest));
}

static bool is_name_of(tsr_str name, const tsr_ds_tied *tied)
{
    const tsr_str prefix = TSR_STR(TIED);
    if (name.size != prefix.size + tied->key.size + 1 + tied->rest.size || !tsr_str_starts(name, prefix)) return false;
    const char *key = name.data + prefix.size;
    return memcmp(key, tied->key.data, tied->key.size) == 0 &&
           memcmp(key + tied->key.size + 1, tied->rest.data, tied->rest.size) == 0;
}

/* The stored tensor of a weight with this name, or NULL. */
static const tsr_entry *stored_of(const layers *l, tsr_str name, uint32_t rank)
{
    const uint32_t number = number_of(name);
    size_t dot = 0;
    while (dot < name.size && name.data[dot] != '.') dot++;
    if (number != UINT32_MAX) return held_in(l, number, rank, tsr_str_after(name, dot + 1));
    for (uint32_t t = 0; t < l->tied_count; t++) {
        const tsr_ds_tied *tied = &l->tied[t];
        const tsr_ds_file *owner = l->unsure[tied->head] ? NULL : l->owners[tied->head];
        if (owner && is_name_of(name, tied)) return held_in(l, owner->name.rank, rank, tied->rest);
    }
    return NULL;
}

static const tsr_value *size_of(const layers *l, const tsr_entry *tensor)
{
    tsr_arena *arena = l->files->checkpoint->arena;
    const tsr_value **items = tsr_arena_array(arena, tensor->ndim, sizeof *items, l->err);
    for (uint32_t d = 0; items && d < tensor->ndim; d++) {
        items[d] = tsr_value_int(arena, (int64_t)tensor->shape[d], l->err);
        if (!items[d]) return NULL;
    }
    return items ? tsr_value_items(arena, TSR_VALUE_SIZE, items, tensor->ndim, l->err) : NULL;
}

/* The names and shapes of one group, whose slices begin at *at. *out is NULL if one of them is unknown. */
static tsr_status shapes_of_group(const layers *l, const tsr_vec *slices, size_t *at, uint32_t rank, const tsr_value **out)
{
    const tsr_ds_slice *items = slices->items;
    const size_t first = *at;
    size_t count = 0;
    while (*at < slices->count && items[*at].group == items[first].group) ++*at;
    const tsr_value **pairs = tsr_arena_array(l->files->checkpoint->arena, 2 * (*at - first), sizeof *pairs, l->err);
    if (!pairs) return TSR_E_NOMEM;
    for (size_t i = first; i < *at; i++) {
        const tsr_entry *stored = stored_of(l, items[i].name, rank);
        if (!stored || !has_elements(stored, items[i].elements)) return TSR_OK;
        pairs[count++] = tsr_value_str(l->files->checkpoint->arena, items[i].name, l->err);
        pairs[count++] = size_of(l, stored);
        if (!pairs[count - 2] || !pairs[count - 1]) return TSR_E_NOMEM;
    }
    *out = tsr_value_items(l->files->checkpoint->arena, TSR_VALUE_DICT, pairs, count, l->err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status make_shapes(const layers *l, const tsr_vec *slices, uint32_t rank, const tsr_value **out)
{
    const tsr_value **groups = tsr_arena_array(l->files->checkpoint->arena, slices->count, sizeof *groups, l->err);
    size_t count = 0;
    if (!groups) return TSR_E_NOMEM;
    for (size_t at = 0; at < slices->count; count++) {
        TSR_TRY(shapes_of_group(l, slices, &at, rank, &groups[count]));
        if (!groups[count]) return TSR_OK;
    }
    *out = count ? tsr_value_items(l->files->checkpoint->arena, TSR_VALUE_LIST, groups, count, l->err) : NULL;
    return *out || !count ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_ds_layers_shapes(const tsr_ds_files *files, uint32_t column, const tsr_value **out, tsr_error *err)
{
    const layers *l = ds_layers_of(files, err);
    tsr_vec slices;
    *out = NULL;
    if (!l) return TSR_OK;
    tsr_status status = ds_slices_open(files, &files->columns[column], &slices, err);
    if (status == TSR_OK) status = make_shapes(l, &slices, tsr_ds_tensor_rank(files, column), out);
    tsr_vec_free(&slices);
    return status;
}

/* ---- contents of the files ---- */

/* A copy of a tensor without its storage id, because ids of different files are unrelated. Other values are returned as they
 * are. */
static const tsr_value *untied(const layers *l, const tsr_value *value)
{
    const tsr_entry *tensor = tsr_ds_tensor(value);
    if (!tensor || !tensor->storage_id) return value;
    tsr_entry *copy = TSR_ARENA_NEW(l->files->checkpoint->arena, tsr_entry, l->err);
    if (!copy) return NULL;
    *copy = *tensor;
    copy->storage_id = 0;
    return tsr_value_tensor(l->files->checkpoint->arena, copy, l->err);
}

/* Finds the name for a value in a file. If the layer is tied, *tied is the name under the layer's key, otherwise empty.
 * *name is *tied for tensors that are equal in all of the layer's files, and otherwise begins with the number of this file's
 * layer. */
static tsr_status name_in(const layers *l, const tsr_ds_file *file, tsr_str key, tsr_str *name, tsr_str *tied)
{
    tsr_arena *arena = l->files->checkpoint->arena;
    const uint32_t head = key_of(l, file);
    const tsr_ds_file *owner = head == UINT32_MAX ? NULL : l->owners[head];
    bool same = head != UINT32_MAX && !l->unsure[head];
    *tied = TSR_STR("");
    if (same) *tied = tsr_arena_format(arena, l->err, TIED "%.*s.%.*s", TSR_STR_ARG(l->tied[head].key), TSR_STR_ARG(key));
    if (!tied->data) return TSR_E_NOMEM;
    if (same && owner != file && owner->name.model_rank == file->name.model_rank)
        TSR_TRY(is_same_tensor(l, tsr_ds_tensor(tsr_value_get(owner->root, key)),
                               tsr_ds_tensor(tsr_value_get(file->root, key)), &same));
    *name = same ? *tied : tsr_arena_format(arena, l->err, "%u.%.*s", file->name.rank, TSR_STR_ARG(key));
    return name->data ? TSR_OK : TSR_E_NOMEM;
}

/* Adds the values of a file. `known` has the names that the model had before files of layers were added, which are skipped;
 * with NULL, nothing is skipped. */
static tsr_status add_file(const layers *l, const tsr_ds_file *file, const tsr_map *known, tsr_ds_rows *rows)
{
    tsr_str name, tied;
    rows->rank = file->name.model_rank;
    for (size_t i = 0; i < tsr_ds_count(file->root); i++) {
        const tsr_value *key = file->root->items[2 * i];
        if (key->kind != TSR_VALUE_STR) continue;
        const tsr_value *value = untied(l, file->root->items[2 * i + 1]);
        if (!value) return TSR_E_NOMEM;
        TSR_TRY(name_in(l, file, key->text, &name, &tied));
        if (known && (tsr_map_get(known, name, 0) || tsr_map_get(known, tied, 0))) continue;
        TSR_TRY(tsr_ds_rows_add(rows, name, TSR_STR(""), value, l->err));
    }
    return TSR_OK;
}

static tsr_status add_files(const tsr_ds_files *files, const tsr_map *known, tsr_ds_rows *rows, tsr_error *err)
{
    const layers *l = ds_layers_of(files, err);
    for (uint32_t i = 0; l && i < l->count; i++) TSR_TRY(add_file(l, &l->layers[i], known, rows));
    return TSR_OK;
}

tsr_status tsr_ds_layers_add(const tsr_ds_files *files, tsr_ds_rows *rows, tsr_error *err)
{
    return add_files(files, NULL, rows, err);
}

tsr_status tsr_ds_layers_add_rest(const tsr_ds_files *files, tsr_ds_rows *model, tsr_error *err)
{
    tsr_map *known = tsr_map_new(files->checkpoint->host->allocator, 0, err);
    tsr_status status = known ? TSR_OK : TSR_E_NOMEM;
    const tsr_ds_row *rows = model->rows.items;
    for (size_t r = 0; r < model->rows.count && status == TSR_OK; r++)
        status = tsr_map_put(known, rows[r].name, 1, NULL, NULL, err);
    if (status == TSR_OK) status = add_files(files, known, model, err);
    tsr_map_free(known);
    return status;
}

/* ---- layers missing ---- */

/* Reports layers of a pipeline whose files are missing. See deepspeed_module.h. */

enum { MOST_TRIED = 1 << 12, TRIED_BEYOND = 8 };

typedef struct missing_layers {
    const tsr_ds_layers *l;
    uint32_t at; /* index of the first file that was not passed yet */
    tsr_shown_names names;
    tsr_str first;
} missing_layers;

/* Whether the file of a layer and rank exists. Must be called in the order of the files. */
static bool is_there(missing_layers *m, uint32_t number, uint32_t rank)
{
    for (; m->at < m->l->count; m->at++) {
        const tsr_ds_name *name = &m->l->layers[m->at].name;
        if (name->model_rank > rank || (name->model_rank == rank && name->rank >= number)) break;
    }
    return m->at < m->l->count && m->l->layers[m->at].name.model_rank == rank && m->l->layers[m->at].name.rank == number;
}

static tsr_str file_of(const missing_layers *m, uint32_t number, uint32_t rank)
{
    const tsr_ds_name name = {
        .kind = TSR_DS_LAYER, .has_rank = m->l->files->tensor_ranks > 1, .rank = number, .model_rank = rank};
    return tsr_ds_name_text(m->l->files->checkpoint->arena, &name, m->l->err);
}

static tsr_status look_for(missing_layers *m, uint32_t number, uint32_t rank)
{
    tsr_checkpoint *checkpoint = m->l->files->checkpoint;
    if (is_there(m, number, rank)) return TSR_OK;
    const tsr_str file = file_of(m, number, rank);
    if (!file.data) return TSR_E_NOMEM;
    if (!m->first.data) m->first = file;
    tsr_shown_names_add(&m->names, file);
    TSR_TRY(tsr_checkpoint_implies(checkpoint, file, m->l->err));
    return tsr_store_find(checkpoint->store, file) == TSR_NO_FILE ? tsr_checkpoint_lacks(checkpoint, file, m->l->err)
                                                                  : TSR_OK;
}

static tsr_status report_missing(const missing_layers *m)
{
    if (!m->names.count) return TSR_OK;
    return tsr_ds_report(m->l->files->checkpoint, m->first, m->l->err,
                         "files of pipeline layers are missing or cannot be read: %s%s; copy them from where the checkpoint "
                         "was written",
                         m->names.text, tsr_shown_names_rest(&m->names));
}

/* Reports a tied layer whose file is missing. Its number is not stored, so the message lists the numbers without a file,
 * which are the ones that it may have. */
static tsr_status report_tied(missing_layers *m, uint32_t head)
{
    const tsr_str key = m->l->tied[head].key;
    tsr_shown_names names = {.used = 0};
    tsr_str first = {NULL, 0};
    uint32_t last = 0;
    for (uint32_t i = 0; i < m->l->count; i++)
        if (m->l->layers[i].name.rank > last) last = m->l->layers[i].name.rank;
    m->at = 0;
    for (uint32_t number = 0; number <= last && number < TSR_DS_MOST_LAYERS; number++) {
        if (m->l->named[number] || is_there(m, number, 0)) continue;
        const tsr_str file = file_of(m, number, 0);
        if (!file.data) return TSR_E_NOMEM;
        if (!first.data) first = file;
        tsr_shown_names_add(&names, file);
    }
    return tsr_ds_report(
        m->l->files->checkpoint, first.data ? first : TSR_STR(""), m->l->err,
        "no file of a layer holds the weights of the tied layer '%.*s'; it may be %s%s; copy it from where the "
        "checkpoint was written",
        TSR_STR_ARG(key), names.count ? names.text : "one with a higher number", tsr_shown_names_rest(&names));
}

/* Whether the file of a tied layer exists. If no names of weights are stored, only its buffers are known, which may fit any
 * file. */
static bool has_file(const tsr_ds_layers *l, uint32_t head)
{
    if (l->has_shapes) return l->owners[head] || l->unsure[head];
    for (uint32_t i = 0; i < l->count; i++)
        if (!l->named[l->layers[i].name.rank % TSR_DS_MOST_LAYERS] && ds_layers_fit(l, &l->layers[i], head)) return true;
    return false;
}

static tsr_status check_tied(missing_layers *m)
{
    for (uint32_t t = 0; t < m->l->tied_count; t++)
        if (m->l->tied[t].head == t && !has_file(m->l, t)) TSR_TRY(report_tied(m, t));
    for (uint32_t t = 0; t < m->l->tied_count; t++)
        if (m->l->unsure[t])
            TSR_TRY(
                tsr_finding_add_at(m->l->files->checkpoint->findings, (tsr_rated_rule){"parts/unnamed-states", TSR_NOTE},
                                   (tsr_place){TSR_STR(""), TSR_NO_POSITION, {NULL, 0}}, m->l->err,
                                   "several files of layers may be those of the tied layer '%.*s'; their weights are listed "
                                   "by the numbers of the layers",
                                   TSR_STR_ARG(m->l->tied[t].key)));
    return TSR_OK;
}

static tsr_str key_of_shape(const tsr_entry *tensor)
{
    return (tsr_str){(const char *)tensor->shape, tensor->ndim * sizeof *tensor->shape};
}

/* Collects the shapes of all tensors in files of layers. */
static tsr_status list_shapes(const tsr_ds_layers *l, tsr_map *shapes)
{
    for (uint32_t i = 0; i < l->count; i++)
        for (size_t k = 0; k < tsr_ds_count(l->layers[i].root); k++) {
            const tsr_entry *tensor = tsr_ds_tensor(l->layers[i].root->items[2 * k + 1]);
            if (tensor && tensor->ndim) TSR_TRY(tsr_map_put(shapes, key_of_shape(tensor), 1, NULL, NULL, l->err));
        }
    return TSR_OK;
}

static tsr_status check_states(const tsr_ds_layers *l, const tsr_ds_file *model, const tsr_map *shapes)
{
    const tsr_str name = tsr_ds_file_name(l->files, model);
    const tsr_value *optimizer = tsr_ds_dict(model->root, "optimizer"),
                    *inner = tsr_ds_dict(optimizer, "optimizer_state_dict");
    const tsr_value *states = tsr_ds_dict(inner ? inner : optimizer, "state");
    for (size_t i = 0; i < tsr_ds_count(states); i++) {
        const tsr_entry *state = tsr_ds_tensor(tsr_ds_get(states->items[2 * i + 1], "exp_avg"));
        if (!state) state = tsr_ds_tensor(tsr_ds_get(states->items[2 * i + 1], "momentum_buffer"));
        if (!state || !state->ndim || tsr_map_get(shapes, key_of_shape(state), 0)) continue;
        return tsr_ds_report(
            l->files->checkpoint, name, l->err,
            "%.*s: the optimizer has states of a weight whose shape no layer_NN-model_states.pt file has: files of "
            "layers are missing; copy them from where the checkpoint was written",
            TSR_STR_ARG(name));
    }
    return TSR_OK;
}

/* Without ZeRO, the names of weights are not stored, so a missing layer is only noticed if no other layer has weights with
 * its shapes. */
static tsr_status check_all_states(const tsr_ds_layers *l)
{
    const tsr_ds_files *files = l->files;
    tsr_map *shapes = tsr_map_new(files->checkpoint->host->allocator, 0, l->err);
    tsr_status status = shapes ? list_shapes(l, shapes) : TSR_E_NOMEM;
    for (uint32_t c = 0; c < files->column_count && status == TSR_OK; c++)
        if (files->columns[c].model) status = check_states(l, files->columns[c].model, shapes);
    tsr_map_free(shapes);
    return status;
}

/* For servers that cannot list their files: frozen and tied layers have no stored name, so every number may have a file, and
 * so may a few beyond the highest known number. */
static tsr_status imply_others(missing_layers *m, uint32_t rank)
{
    uint32_t beyond = TRIED_BEYOND;
    for (uint32_t number = 0; number < TSR_DS_MOST_LAYERS; number++)
        if (m->l->named[number]) beyond = number + 1 + TRIED_BEYOND;
    for (uint32_t i = 0; i < m->l->count; i++)
        if (m->l->layers[i].name.rank >= beyond - TRIED_BEYOND) beyond = m->l->layers[i].name.rank + 1 + TRIED_BEYOND;
    m->at = 0;
    for (uint32_t number = 0; number < beyond && number < MOST_TRIED; number++) {
        if (m->l->named[number] || is_there(m, number, rank)) continue;
        const tsr_str file = file_of(m, number, rank);
        if (!file.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_checkpoint_implies(m->l->files->checkpoint, file, m->l->err));
    }
    return TSR_OK;
}

static tsr_status check_layers(missing_layers *m)
{
    const tsr_ds_files *files = m->l->files;
    for (uint32_t rank = 0; rank < files->tensor_ranks; rank++)
        for (uint32_t number = 0; number < TSR_DS_MOST_LAYERS; number++)
            if (m->l->named[number]) TSR_TRY(look_for(m, number, rank));
    TSR_TRY(report_missing(m));
    for (uint32_t rank = 0; rank < files->tensor_ranks; rank++) TSR_TRY(imply_others(m, rank));
    TSR_TRY(check_tied(m));
    if (!m->l->count && !m->names.count)
        return tsr_ds_report(
            files->checkpoint, TSR_STR(""), m->l->err,
            "there are no layer_NN-model_states.pt files, which have the weights of a pipeline; copy them from where "
            "the checkpoint was written");
    return files->zero || !m->l->count ? TSR_OK : check_all_states(m->l);
}

tsr_status tsr_ds_layers_check(const tsr_ds_files *files, tsr_error *err)
{
    missing_layers m = {.l = ds_layers_of(files, err)};
    return m.l ? check_layers(&m) : TSR_OK;
}
