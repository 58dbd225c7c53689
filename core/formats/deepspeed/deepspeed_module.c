/* See deepspeed_module.h. */
#include "formats/deepspeed/deepspeed_module.h"

#include "formats/common/file_names.h"
#include "formats/deepspeed/deepspeed_files.h"
#include "formats/deepspeed/deepspeed_weights.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/try.h"

/* ---- experts ---- */

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

/* Adds a row without a key whose value is stored in `file`, with a new storage id: each file counts its storages from 1, as
 * does the part `module`. */
static tsr_status rows_add_stored(tsr_ds_rows *rows, const tsr_ds_files *files, const tsr_ds_file *file, tsr_str name,
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

static tsr_status add_expert(const tsr_ds_files *files, const tsr_ds_file *file, bool only_new, tsr_ds_rows *rows,
                             tsr_error *err)
{
    for (size_t i = 0; i < tsr_ds_count(file->root); i++) {
        const tsr_value *name = file->root->items[2 * i];
        if (name->kind != TSR_VALUE_STR || (only_new && tsr_ds_rows_get(rows, name->text, TSR_STR("")))) continue;
        TSR_TRY(rows_add_stored(rows, files, file, name->text, file->root->items[2 * i + 1], err));
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

/* Adds the stored weights of all experts under their names. */
static tsr_status ds_experts_add(const tsr_ds_files *files, tsr_ds_rows *rows, tsr_error *err)
{
    return add_experts(files, false, rows, err);
}

tsr_status tsr_ds_experts_add_rest(const tsr_ds_files *files, tsr_ds_rows *rows, tsr_error *err)
{
    return add_experts(files, true, rows, err);
}

/* ---- the weights of a column ---- */

typedef struct module {
    tsr_ds_files *files;
    const tsr_ds_column *column;
    const tsr_ds_rows *trained;
    tsr_ds_rows frozen; /* by name */
    tsr_map *shared;    /* second name → pair of `shared_params` */
    tsr_map *listed;    /* the names that the module has */
    tsr_map *buffers;   /* the names in `buffer_names`; NULL if the file has no such list */
    uint64_t left_out;  /* number of frozen weights skipped under ZeRO 1 */
    uint8_t *owners;    /* ZeRO 3: per storage of the file, how many weights have an empty tensor on it, at most 2 */
    tsr_str untied;     /* the first second name of a weight that `shared_params` lacks */
    uint64_t untied_count;
    const tsr_value *ties; /* the DICT `shared_params`, or NULL */
    tsr_ds_rows *model;
    tsr_error *err;
} module;

/* ---- frozen weights ---- */

/* ZeRO 3: every rank has an equally large piece; the last ones are padded. */
static tsr_status join_pieces(const module *m, tsr_str name, const tsr_value *shape, const tsr_value **out)
{
    tsr_checkpoint *checkpoint = m->files->checkpoint;
    const uint32_t world = m->column->world;
    tsr_ds_buffer buffer;
    tsr_ds_chunks chunks = {.checkpoint = checkpoint, .chunks = tsr_vec_of(checkpoint->host->allocator, sizeof(tsr_chunk))};
    uint64_t elements;
    TSR_TRY(tsr_ds_shape(checkpoint->arena, shape, &chunks.shape, &chunks.ndim, &elements, m->err));
    TSR_TRY(tsr_ds_buffer_new(checkpoint->arena, world, &buffer, m->err));
    const uint64_t share = (elements + world - 1) / world;
    tsr_status status = TSR_OK;
    for (uint32_t r = 0; r < world && status == TSR_OK; r++) {
        const tsr_ds_file *file = m->column->models[r];
        const tsr_value *fragments = file ? tsr_ds_dict(file->root, "frozen_param_fragments") : NULL;
        const tsr_entry *piece = fragments ? tsr_ds_tensor(tsr_value_get(fragments, name)) : NULL;
        status = file && !piece ? tsr_fail(m->err, TSR_E_FORMAT, "has no shard of it")
                                : tsr_ds_buffer_add(&buffer, piece, share, m->err);
        if (status != TSR_OK)
            tsr_error_context(m->err, "%.*s, frozen weight '%.*s'", TSR_STR_ARG(tsr_ds_file_name(m->files, file)),
                              TSR_STR_ARG(name));
    }
    if (status == TSR_OK) status = tsr_ds_chunks_add(&chunks, &buffer, 0, elements, 0, m->err);
    if (status == TSR_OK)
        status = tsr_ds_chunks_take(&chunks, buffer.dtype == TSR_DTYPE_NONE ? TSR_FLOAT32 : buffer.dtype, out, m->err);
    tsr_vec_free(&chunks.chunks);
    return status;
}

/* Adds frozen weights. Under ZeRO 2 they are stored as whole tensors. */
static tsr_status add_frozen(module *m)
{
    const tsr_value *shapes = tsr_ds_dict(m->column->model->root, "frozen_param_shapes");
    const tsr_value *fragments = tsr_ds_dict(m->column->model->root, "frozen_param_fragments");
    for (size_t i = 0; i < tsr_ds_count(shapes); i++) {
        const tsr_value *name = shapes->items[2 * i], *value = NULL;
        if (name->kind != TSR_VALUE_STR) continue;
        if (m->files->zero == 3) TSR_TRY(join_pieces(m, name->text, shapes->items[2 * i + 1], &value));
        else if (fragments) value = tsr_value_get(fragments, name->text);
        if (value) TSR_TRY(tsr_ds_rows_add(&m->frozen, name->text, TSR_STR(""), value, m->err));
    }
    return TSR_OK;
}

/* ---- names ---- */

static const tsr_value *weight_of(const module *m, tsr_str name)
{
    const tsr_value *value = tsr_ds_rows_get(m->trained, name, TSR_STR(""));
    return value ? value : tsr_ds_rows_get(&m->frozen, name, TSR_STR(""));
}

/* Gives a tensor a storage id, because a second name refers to it as well. */
static void tie(const module *m, const tsr_value *value)
{
    tsr_entry *entry = (tsr_entry *)tsr_ds_tensor(value);
    if (entry && entry->storage_id == 0) entry->storage_id = ++m->files->storages;
}

static const tsr_value *owner_of(const module *m, tsr_str name)
{
    const uint32_t pair = tsr_map_get(m->shared, name, UINT32_MAX);
    const tsr_value *owner = pair == UINT32_MAX ? NULL : m->ties->items[2 * (size_t)pair + 1];
    return owner && owner->kind == TSR_VALUE_STR ? weight_of(m, owner->text) : NULL;
}

/* Reads the ties first, so that each tensor has its storage id before it is added under its first name. */
static tsr_status read_ties(module *m)
{
    m->ties = tsr_ds_dict(m->column->model->root, "shared_params");
    for (size_t i = 0; i < tsr_ds_count(m->ties); i++) {
        const tsr_value *name = m->ties->items[2 * i];
        if (name->kind == TSR_VALUE_STR) TSR_TRY(tsr_map_put(m->shared, name->text, (uint32_t)i, NULL, NULL, m->err));
    }
    for (size_t i = 0; i < tsr_ds_count(m->ties); i++)
        if (m->ties->items[2 * i]->kind == TSR_VALUE_STR) tie(m, owner_of(m, m->ties->items[2 * i]->text));
    return TSR_OK;
}

/* Whether a stored tensor is empty because ZeRO 3 keeps the parameter elsewhere. */
static bool is_hollow(const module *m, const tsr_value *stored)
{
    const tsr_entry *tensor = tsr_ds_tensor(stored);
    return m->files->zero == 3 && tensor && tensor->ndim == 1 && tensor->shape[0] == 0;
}

/* Whether to skip a value that is only in the module. zero_to_fp32 takes nothing but the buffers from there: ZeRO 1 and 2
 * keep frozen weights there, too, and only ZeRO 2 lists them. zero_to_fp32 does not read experts at all. */
static bool is_left_out(const module *m, tsr_str name)
{
    return !m->files->universal && !m->files->has_experts && (m->files->zero == 1 || m->files->zero == 2) && m->buffers &&
           !tsr_map_get(m->buffers, name, 0);
}

/* The counter for the storage of an empty tensor; NULL for a stored weight. */
static uint8_t *owners_of(const module *m, const tsr_value *stored)
{
    const tsr_entry *tensor = is_hollow(m, stored) ? tsr_ds_tensor(stored) : NULL;
    return tensor && tensor->storage_id && tensor->storage_id <= m->files->file_storages ? &m->owners[tensor->storage_id]
                                                                                         : NULL;
}

/* Counts the weights on each storage. DeepSpeed does not notice that a weight is tied if one parent module has it under two
 * names: the second one is then missing from `shared_params`, but both empty tensors are on one storage. */
static tsr_status count_owners(module *m, const tsr_value *stored)
{
    m->owners = tsr_arena_array(m->files->checkpoint->arena, (size_t)m->files->file_storages + 1, sizeof *m->owners, m->err);
    if (!m->owners) return TSR_E_NOMEM;
    for (size_t i = 0; i < tsr_ds_count(stored); i++) {
        const tsr_value *name = stored->items[2 * i];
        uint8_t *owners = owners_of(m, stored->items[2 * i + 1]);
        if (owners && *owners < 2 && name->kind == TSR_VALUE_STR && weight_of(m, name->text)) ++*owners;
    }
    return TSR_OK;
}

static tsr_status add_hollow(module *m, tsr_str name, const tsr_value *stored)
{
    const uint8_t *owners = owners_of(m, stored);
    const tsr_str file = tsr_ds_file_name(m->files, m->column->model);
    if (!owners || *owners != 1)
        return tsr_ds_report(m->files->checkpoint, file, m->err,
                             "%.*s: the weight '%.*s' is not in any of the optimizer files", TSR_STR_ARG(file),
                             TSR_STR_ARG(name));
    if (m->untied_count++ == 0) m->untied = name;
    return TSR_OK;
}

static tsr_status add_name(module *m, tsr_str name, const tsr_value *stored)
{
    const tsr_value *value = weight_of(m, name);
    if (!value) value = owner_of(m, name);
    if (value) return tsr_ds_rows_add(m->model, name, TSR_STR(""), value, m->err);
    if (is_left_out(m, name)) {
        m->left_out += tsr_ds_tensor(stored) != NULL;
        return TSR_OK;
    }
    return is_hollow(m, stored) ? add_hollow(m, name, stored)
                                : rows_add_stored(m->model, m->files, m->column->model, name, stored, m->err);
}

/* Adds weights that the module does not list, such as those of a pipeline stage. */
static tsr_status add_rest(const module *m, const tsr_ds_rows *rows)
{
    const tsr_ds_row *items = rows->rows.items;
    for (size_t i = 0; i < rows->rows.count; i++)
        if (!tsr_map_get(m->listed, items[i].name, 0))
            TSR_TRY(tsr_ds_rows_add(m->model, items[i].name, TSR_STR(""), items[i].value, m->err));
    return TSR_OK;
}

static tsr_status list_buffers(module *m)
{
    const tsr_value *names = tsr_ds_list(m->column->model->root, "buffer_names");
    if (!names) return TSR_OK;
    m->buffers = tsr_map_new(m->files->checkpoint->host->allocator, names->count, m->err);
    return m->buffers ? tsr_ds_add_names(names, m->buffers, m->err) : TSR_E_NOMEM;
}

static tsr_status report_left_out(const module *m)
{
    if (!m->left_out) return TSR_OK;
    const tsr_str file = tsr_ds_file_name(m->files, m->column->model);
    return tsr_finding_add_at(m->files->checkpoint->findings, (tsr_rated_rule){"parts/frozen-weights", TSR_NOTE},
                              (tsr_place){file, TSR_NO_POSITION, {NULL, 0}}, m->err,
                              "%llu frozen %s only in the part 'module'; the part 'model' matches the result of "
                              "zero_to_fp32, which leaves them out",
                              (unsigned long long)m->left_out, m->left_out == 1 ? "weight is" : "weights are");
}

static tsr_status report_untied(const module *m)
{
    if (!m->untied_count) return TSR_OK;
    const tsr_str file = tsr_ds_file_name(m->files, m->column->model);
    return tsr_finding_add_at(m->files->checkpoint->findings, (tsr_rated_rule){"parts/tied-modules", TSR_NOTE},
                              (tsr_place){file, TSR_NO_POSITION, {NULL, 0}}, m->err,
                              "second names of tied modules are left out, as by zero_to_fp32: %llu, beginning with '%.*s'",
                              (unsigned long long)m->untied_count, TSR_STR_ARG(m->untied));
}

static tsr_status add_all(module *m)
{
    const tsr_value *stored = tsr_ds_dict(m->column->model->root, "module");
    TSR_TRY(list_buffers(m));
    TSR_TRY(add_frozen(m));
    TSR_TRY(read_ties(m));
    if (m->files->zero == 3) TSR_TRY(count_owners(m, stored));
    for (size_t i = 0; i < tsr_ds_count(stored); i++) {
        const tsr_value *name = stored->items[2 * i];
        if (name->kind != TSR_VALUE_STR) continue;
        TSR_TRY(tsr_map_put(m->listed, name->text, 1, NULL, NULL, m->err));
        TSR_TRY(add_name(m, name->text, stored->items[2 * i + 1]));
    }
    TSR_TRY(report_left_out(m));
    TSR_TRY(report_untied(m));
    TSR_TRY(add_rest(m, &m->frozen));
    TSR_TRY(add_rest(m, m->trained));
    for (size_t i = 0; i < tsr_ds_count(m->ties); i++) {
        const tsr_value *name = m->ties->items[2 * i];
        if (name->kind != TSR_VALUE_STR || tsr_map_get(m->listed, name->text, 0)) continue;
        const tsr_value *owner = owner_of(m, name->text);
        if (owner) TSR_TRY(tsr_ds_rows_add(m->model, name->text, TSR_STR(""), owner, m->err));
    }
    return TSR_OK;
}

tsr_status tsr_ds_model_add(tsr_ds_files *files, const tsr_ds_column *column, const tsr_ds_rows *trained, tsr_ds_rows *model,
                            tsr_error *err)
{
    module m = {.files = files, .column = column, .trained = trained, .model = model, .err = err};
    tsr_status status = tsr_ds_rows_open(&m.frozen, files->checkpoint, 1, err);
    if (status == TSR_OK) m.shared = tsr_map_new(files->checkpoint->host->allocator, 0, err);
    if (m.shared) m.listed = tsr_map_new(files->checkpoint->host->allocator, 0, err);
    if (status == TSR_OK) status = m.listed ? add_all(&m) : TSR_E_NOMEM;
    tsr_ds_rows_close(&m.frozen);
    tsr_map_free(m.shared);
    tsr_map_free(m.listed);
    tsr_map_free(m.buffers);
    return status;
}

/* ---- the weights as stored ---- */

static tsr_status add_column(const tsr_ds_files *files, uint32_t number, tsr_ds_rows *rows, tsr_error *err)
{
    const tsr_ds_column *column = &files->columns[number];
    const tsr_value *stored = column->model ? tsr_ds_dict(column->model->root, "module") : NULL;
    rows->rank = tsr_ds_tensor_rank(files, number);
    for (size_t i = 0; i < tsr_ds_count(stored); i++)
        if (stored->items[2 * i]->kind == TSR_VALUE_STR)
            TSR_TRY(tsr_ds_rows_add(rows, stored->items[2 * i]->text, TSR_STR(""), stored->items[2 * i + 1], err));
    return TSR_OK;
}

static tsr_status gather(const tsr_ds_files *files, tsr_ds_rows *rows, const tsr_value **out, tsr_error *err)
{
    for (uint32_t c = 0; c < files->column_count; c++) TSR_TRY(add_column(files, c, rows, err));
    TSR_TRY(tsr_ds_layers_add(files, rows, err));
    TSR_TRY(ds_experts_add(files, rows, err));
    tsr_ds_rows_untie(rows);
    TSR_TRY(tsr_ds_layouts_join(files->layouts, rows, err));
    if (rows->rows.count == 0) return TSR_OK;
    *out = tsr_ds_rows_tree(rows, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_ds_module(const tsr_ds_files *files, const tsr_value **out, tsr_error *err)
{
    tsr_ds_rows rows;
    *out = NULL;
    if (files->zero == 3) return TSR_OK;
    if (files->column_count == 1 && !files->has_layers && !files->has_experts) {
        *out = files->columns[0].model ? tsr_ds_dict(files->columns[0].model->root, "module") : NULL;
        return TSR_OK;
    }
    tsr_status status = tsr_ds_rows_open(&rows, files->checkpoint, files->tensor_ranks, err);
    if (status == TSR_OK) status = gather(files, &rows, out, err);
    tsr_ds_rows_close(&rows);
    return status;
}
