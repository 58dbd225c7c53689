/* Mixtures of experts, as DeepSpeed's engine saves them:
 *
 *   mp_rank_00_model_states.pt                    module: everything but the experts; num_experts: [4, …], one per layer of experts
 *   layer_0_expert_2_mp_rank_00_model_states.pt   {"….deepspeed_experts.2.weight": …}, numbered among the experts of all ranks
 *   zero_pp_rank_0_…_optim_states.pt              groups of experts are partitioned over fewer ranks than the others
 *   expp_rank_0_mp_rank_00_optim_states.pt        without ZeRO: the optimizer of a rank, by numbers
 *
 * The stored weights have names and are complete. The float32 weights and the states are read, too: under ZeRO 1 and 2 by
 * deepspeed_weights.c, without ZeRO by deepspeed.c.
 * Neither zero_to_fp32 nor ds_to_universal reads any of this, so the running engine is the reference. */
#include "formats/deepspeed/deepspeed_module.h"

#include "formats/common/expansion.h"
#include "formats/common/file_names.h"
#include "formats/common/rank_entries.h"
#include "formats/deepspeed/deepspeed_files.h"
#include "formats/deepspeed/deepspeed_weights.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/try.h"

/* ---- rows ---- */

tsr_status tsr_ds_rows_open(tsr_ds_rows *rows, tsr_checkpoint *checkpoint, uint32_t ranks, tsr_error *err)
{
    const tsr_allocator *allocator = checkpoint->host->allocator;
    *rows = (tsr_ds_rows){.checkpoint = checkpoint,
                          .arena = checkpoint->arena,
                          .rows = tsr_vec_of(allocator, sizeof(tsr_ds_row)),
                          .ranks = ranks};
    rows->names = tsr_map_new(allocator, 0, err);
    return rows->names ? TSR_OK : TSR_E_NOMEM;
}

void tsr_ds_rows_close(tsr_ds_rows *rows)
{
    tsr_map_free(rows->names);
    if (rows->rows.items) tsr_vec_free(&rows->rows);
}

static tsr_ds_row *row_at(const tsr_ds_rows *rows, uint32_t number)
{
    return (tsr_ds_row *)rows->rows.items + number;
}

static tsr_ds_row *find(const tsr_ds_rows *rows, tsr_str name, tsr_str key)
{
    uint32_t at = tsr_map_get(rows->names, name, UINT32_MAX);
    while (at != UINT32_MAX && !tsr_str_equal(row_at(rows, at)->key, key)) at = row_at(rows, at)->next;
    return at == UINT32_MAX ? NULL : row_at(rows, at);
}

const tsr_value *tsr_ds_rows_get(const tsr_ds_rows *rows, tsr_str name, tsr_str key)
{
    const tsr_ds_row *row = find(rows, name, key);
    return row ? row->value : NULL;
}

static bool is_copy(const tsr_entry *first, const tsr_entry *second)
{
    return first->dtype == second->dtype && tsr_entry_same_shape(first, second);
}

/* Lists what the ranks hold under one name, if nothing says how to join it. */
static tsr_status add_differing(const tsr_ds_rows *rows, uint32_t owner, tsr_entry *first, const tsr_entry *second,
                                tsr_error *err)
{
    const tsr_entry **tensors = first->per_rank ? (const tsr_entry **)first->per_rank->tensors : NULL;
    if (!tensors) {
        tensors = tsr_arena_array(rows->arena, rows->ranks, sizeof *tensors, err);
        tsr_entry *copy = TSR_ARENA_NEW(rows->arena, tsr_entry, err);
        if (!tensors || !copy) return TSR_E_NOMEM;
        *copy = *first;
        tensors[owner < rows->ranks ? owner : 0] = copy;
        TSR_TRY(tsr_entry_list_per_rank(first, tensors, rows->ranks, rows->arena, err));
    }
    if (rows->rank >= rows->ranks || second->kind != TSR_ENTRY_TENSOR) return TSR_OK;
    const tsr_entry *held = tensors[rows->rank];
    if (held && is_copy(held, second)) return tsr_entry_add_replicas((tsr_entry *)held, second, rows->arena, err);
    tensors[rows->rank] = second;
    if (second->dtype != first->dtype) first->dtype = TSR_DTYPE_NONE;
    return TSR_OK;
}

static tsr_status add_again(tsr_ds_rows *rows, tsr_ds_row *row, const tsr_value *value, tsr_error *err)
{
    const tsr_entry *first = tsr_ds_tensor(row->value), *second = tsr_ds_tensor(value);
    if (!first || !second) return TSR_OK;
    if (row->rank == rows->rank && !first->per_rank && is_copy(first, second))
        return tsr_entry_add_replicas((tsr_entry *)first, second, rows->arena, err);
    return add_differing(rows, row->rank, (tsr_entry *)first, second, err);
}

/* Replaces a tensor with a copy, so that it can be changed when another rank's is added. */
static tsr_status own(tsr_ds_rows *rows, const tsr_value **value, tsr_error *err)
{
    const tsr_entry *tensor = tsr_ds_tensor(*value);
    if (!tensor) return TSR_OK;
    tsr_entry *copy = TSR_ARENA_NEW(rows->arena, tsr_entry, err);
    if (!copy) return TSR_E_NOMEM;
    *copy = *tensor;
    *value = tsr_value_tensor(rows->arena, copy, err);
    return *value ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_ds_rows_add(tsr_ds_rows *rows, tsr_str name, tsr_str key, const tsr_value *value, tsr_error *err)
{
    const uint32_t number = (uint32_t)rows->rows.count;
    tsr_ds_row *row = find(rows, name, key);
    bool fresh;
    uint32_t *head;
    TSR_TRY(tsr_expansion_take(&rows->checkpoint->expansion, sizeof(tsr_entry), rows->checkpoint->host, err));
    TSR_TRY(own(rows, &value, err));
    if (row) return add_again(rows, row, value, err);
    TSR_TRY(tsr_map_put(rows->names, name, number, &head, &fresh, err));
    const uint32_t first = *head;
    row = tsr_vec_push(&rows->rows, err);
    if (!row) return TSR_E_NOMEM;
    *row = (tsr_ds_row){name, key, value, UINT32_MAX, number, rows->rank, fresh};
    if (!fresh) {
        row_at(rows, row_at(rows, first)->last)->next = number;
        row_at(rows, first)->last = number;
    }
    return TSR_OK;
}

tsr_status tsr_ds_rows_add_stored(tsr_ds_rows *rows, const tsr_ds_files *files, const tsr_ds_file *file, tsr_str name,
                                  const tsr_value *stored, tsr_error *err)
{
    const tsr_entry *tensor = tsr_ds_tensor(stored);
    if (!tensor || !tensor->storage_id) return tsr_ds_rows_add(rows, name, TSR_STR(""), stored, err);
    tsr_entry *copy = TSR_ARENA_NEW(rows->arena, tsr_entry, err);
    if (!copy) return TSR_E_NOMEM;
    *copy = *tensor;
    copy->storage_id += files->file_storages + file->storage_base;
    const tsr_value *value = tsr_value_tensor(rows->arena, copy, err);
    return value ? tsr_ds_rows_add(rows, name, TSR_STR(""), value, err) : TSR_E_NOMEM;
}

void tsr_ds_rows_untie(tsr_ds_rows *rows)
{
    for (uint32_t r = 0; r < rows->rows.count; r++) {
        tsr_entry *entry = (tsr_entry *)tsr_ds_tensor(row_at(rows, r)->value);
        if (entry) entry->storage_id = 0;
    }
}

/* {key: value} for one name. */
static tsr_value *keys_of(const tsr_ds_rows *rows, uint32_t first, tsr_error *err)
{
    size_t count = 0, at = 0;
    for (uint32_t r = first; r != UINT32_MAX; r = row_at(rows, r)->next) count++;
    const tsr_value **items = tsr_arena_array(rows->arena, 2 * count, sizeof *items, err);
    for (uint32_t r = first; items && r != UINT32_MAX; r = row_at(rows, r)->next) {
        items[at++] = tsr_value_str(rows->arena, row_at(rows, r)->key, err);
        items[at++] = row_at(rows, r)->value;
        if (!items[at - 2]) return NULL;
    }
    return items ? tsr_value_items(rows->arena, TSR_VALUE_DICT, items, 2 * count, err) : NULL;
}

tsr_value *tsr_ds_rows_tree(const tsr_ds_rows *rows, tsr_error *err)
{
    size_t at = 0;
    const tsr_value **items = tsr_arena_array(rows->arena, 2 * tsr_map_count(rows->names), sizeof *items, err);
    if (!items) return NULL;
    for (uint32_t r = 0; r < rows->rows.count; r++) {
        const tsr_ds_row *row = row_at(rows, r);
        if (!row->first) continue;
        items[at++] = tsr_value_str(rows->arena, row->name, err);
        items[at++] = row->key.size ? keys_of(rows, r, err) : row->value;
        if (!items[at - 2] || !items[at - 1]) return NULL;
    }
    return tsr_value_items(rows->arena, TSR_VALUE_DICT, items, at, err);
}

/* ---- experts ---- */

#define BEFORE_NUMBER ".deepspeed_moe.experts.deepspeed_experts."
#define NOT_SUPPORTED "the checkpoint has experts %s, whose float32 weights and optimizer states are not supported; %s"
#define USE_STORED    "open the stored weights with --part module, or load the checkpoint with DeepSpeed's engine"
#define USE_ENGINE    "load the checkpoint with DeepSpeed's engine"

enum { MOST_MISSING = 64 };

typedef struct missing_experts {
    const tsr_ds_files *files;
    const tsr_ds_file *next; /* the next of the files that exist, sorted by layer and expert */
    uint32_t left;
    bool have_all_layers;
    tsr_shown_names names;
    tsr_str first;
} missing_experts;

static bool is_before(const tsr_ds_name *name, uint32_t layer, uint32_t expert)
{
    return name->rank < layer || (name->rank == layer && name->expert < expert);
}

static tsr_status look_for(missing_experts *m, uint32_t layer, uint32_t expert, tsr_error *err)
{
    tsr_checkpoint *checkpoint = m->files->checkpoint;
    for (; m->left && is_before(&m->next->name, layer, expert); m->next++, m->left--) {
    }
    if (m->left && m->next->name.rank == layer && m->next->name.expert == expert) return TSR_OK;
    const tsr_ds_name lost = {
        .kind = TSR_DS_EXPERT, .is_expert = true, .rank = layer, .expert = expert, .has_all_layers = m->have_all_layers};
    const tsr_str name = tsr_ds_name_text(checkpoint->arena, &lost, err);
    if (!name.data) return TSR_E_NOMEM;
    if (!m->first.data) m->first = name;
    tsr_shown_names_add(&m->names, name);
    return tsr_checkpoint_lacks(checkpoint, name, err);
}

/* Reports files of experts that the model states do not count: they are from a save with more of them. */
static tsr_status check_left_over(const tsr_ds_files *files, const tsr_value *layers, const tsr_ds_file *experts,
                                  uint32_t count, tsr_error *err)
{
    for (uint32_t i = 0; i < count && layers; i++) {
        const tsr_ds_name *name = &experts[i].name;
        const tsr_str file = tsr_ds_file_name(files, &experts[i]);
        uint64_t of_layer = 0;
        if (name->rank < tsr_ds_count(layers) &&
            (!tsr_ds_number(layers->items[name->rank], &of_layer) || name->expert < of_layer))
            continue;
        TSR_TRY(
            tsr_ds_report(files->checkpoint, file, err,
                          "%.*s: the checkpoint has no such expert ('num_experts'): the file is left over from another save",
                          TSR_STR_ARG(file)));
    }
    return TSR_OK;
}

/* Reports experts that the model states count but that have no file. */
static tsr_status check_files(const tsr_ds_files *files, const tsr_ds_file *experts, uint32_t count, tsr_error *err)
{
    const tsr_ds_file *model = files->column_count ? files->columns[0].model : NULL;
    const tsr_value *layers = model ? tsr_ds_list(model->root, "num_experts") : NULL;
    missing_experts m = {.files = files, .next = experts, .left = count};
    TSR_TRY(check_left_over(files, layers, experts, count, err));
    for (uint32_t layer = 0; layer < tsr_ds_count(layers); layer++) {
        uint64_t of_layer = 0;
        if (!tsr_ds_number(layers->items[layer], &of_layer)) continue;
        for (uint32_t expert = 0; expert < of_layer && m.names.count < MOST_MISSING; expert++)
            TSR_TRY(look_for(&m, layer, expert, err));
    }
    uint64_t of_all = 0;
    m.have_all_layers = model && tsr_ds_number(tsr_ds_get(model->root, "num_experts"), &of_all);
    for (uint32_t expert = 0; expert < of_all && m.names.count < MOST_MISSING; expert++)
        TSR_TRY(look_for(&m, 0, expert, err));
    if (!m.names.count) return TSR_OK;
    return tsr_ds_report(
        files->checkpoint, m.first, err,
        "files of experts are missing or cannot be read: %s%s; copy them from where the checkpoint was written",
        m.names.text, tsr_shown_names_rest(&m.names));
}

/* Under tensor or pipeline parallelism, an expert's file has only a share of it, or some of the layers. */
static tsr_status check_parallelism(const tsr_ds_files *files, tsr_error *err)
{
    if (files->column_count <= 1) return TSR_OK;
    return tsr_ds_report(files->checkpoint, TSR_STR(""), err,
                         "experts of %u model-parallel ranks are not supported; load the checkpoint with DeepSpeed's engine",
                         files->column_count);
}

size_t tsr_ds_expert_prefix(tsr_str name)
{
    const tsr_str marker = TSR_STR(BEFORE_NUMBER);
    for (size_t at = name.size; at-- > 0;)
        if (tsr_str_starts(tsr_str_after(name, at), marker)) return at + marker.size;
    return 0;
}

/* Whether an expert's weight has two names. In that case, only the names of the first rank's experts are stored. */
static bool has_shared_experts(const tsr_value *model)
{
    const tsr_value *shared = tsr_ds_dict(model, "shared_params");
    for (size_t i = 0; i < 2 * tsr_ds_count(shared); i++)
        if (shared->items[i]->kind == TSR_VALUE_STR && tsr_ds_expert_prefix(shared->items[i]->text)) return true;
    return false;
}

/* Versions that had one list of experts for all layers stated one number. */
static bool has_one_list(const tsr_value *model)
{
    uint64_t number;
    return tsr_ds_number(tsr_ds_get(model, "num_experts"), &number);
}

/* The kind of experts if their float32 weights cannot be read; otherwise NULL. */
static const char *unread_kind(const tsr_ds_files *files)
{
    uint32_t count;
    const tsr_ds_file *model = tsr_ds_first(files, TSR_DS_MODEL, &count);
    if (!model) return "without model states";
    if (tsr_ds_list(model->root, "ds_autoep_layers")) return "placed by AutoEP";
    if (has_one_list(model->root)) return "stored by an old version of DeepSpeed";
    if (files->zero == 3) return "under ZeRO 3";
    if (files->column_count > 1) return "on several model-parallel ranks";
    return has_shared_experts(model->root) ? "with tied weights" : NULL;
}

static tsr_status check_unread(const tsr_ds_files *files, tsr_error *err)
{
    const tsr_str part = files->checkpoint->options.part;
    const char *kind = files->experts_unread, *advice = files->zero == 3 ? USE_ENGINE : USE_STORED;
    TSR_FAIL_IF(part.data && (tsr_str_equal(part, TSR_STR("model")) || tsr_str_equal(part, TSR_STR("optim"))), err,
                TSR_E_UNSUPPORTED, NOT_SUPPORTED, kind, advice);
    return part.data ? TSR_OK : tsr_ds_report(files->checkpoint, TSR_STR(""), err, NOT_SUPPORTED, kind, advice);
}

tsr_status tsr_ds_experts_check(tsr_ds_files *files, tsr_error *err)
{
    uint32_t count;
    const tsr_ds_file *experts = tsr_ds_first(files, TSR_DS_EXPERT, &count);
    if (!files->has_experts) return TSR_OK;
    files->experts_unread = unread_kind(files);
    if (files->experts_unread) TSR_TRY(check_unread(files, err));
    TSR_TRY(check_parallelism(files, err));
    return files->zero == 3 ? TSR_OK : check_files(files, experts, count, err);
}

static tsr_status add_expert(const tsr_ds_files *files, const tsr_ds_file *file, bool only_new, tsr_ds_rows *rows,
                             tsr_error *err)
{
    for (size_t i = 0; i < tsr_ds_count(file->root); i++) {
        const tsr_value *name = file->root->items[2 * i];
        if (name->kind != TSR_VALUE_STR || (only_new && tsr_ds_rows_get(rows, name->text, TSR_STR("")))) continue;
        TSR_TRY(tsr_ds_rows_add_stored(rows, files, file, name->text, file->root->items[2 * i + 1], err));
    }
    return TSR_OK;
}

static tsr_status add_experts(const tsr_ds_files *files, bool only_new, tsr_ds_rows *rows, tsr_error *err)
{
    uint32_t count;
    const tsr_ds_file *experts = tsr_ds_first(files, TSR_DS_EXPERT, &count);
    rows->rank = 0;
    for (uint32_t e = 0; e < count; e++) TSR_TRY(add_expert(files, &experts[e], only_new, rows, err));
    return TSR_OK;
}

tsr_status tsr_ds_experts_add(const tsr_ds_files *files, tsr_ds_rows *rows, tsr_error *err)
{
    return add_experts(files, false, rows, err);
}

tsr_status tsr_ds_experts_add_rest(const tsr_ds_files *files, tsr_ds_rows *rows, tsr_error *err)
{
    return add_experts(files, true, rows, err);
}
