/* A universal checkpoint of DeepSpeed: one file per weight and per state, which any number of ranks can load.
 *
 *   mp_rank_00_model_states.pt           the model states of the ranks that saved
 *   zero/optimizer_state.pt              param groups, the loss scaler
 *   zero/norm.weight/fp32.pt             {param: tensor}; converted from ZeRO 3, just the tensor, flattened
 *   zero/norm.weight/exp_avg.pt          the same; step.pt is just a number */
#include "formats/deepspeed/deepspeed_files.h"
#include "formats/deepspeed/deepspeed_module.h"
#include "formats/deepspeed/deepspeed_parts.h"
#include "formats/torch/torch_file.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/try.h"

typedef struct universal {
    tsr_ds_files files;
    tsr_ds_weights weights;
    const tsr_ds_column *column;
    tsr_map *numbers; /* name of a weight → its number */
    tsr_map *others;  /* names of buffers, and second names of tied weights; their float32 files are ignored */
    tsr_ds_rows trained, states, model;
    const tsr_value *optimizer; /* zero/optimizer_state.pt, or NULL */
    tsr_error *err;
} universal;

static const char shared_file[] = "zero/optimizer_state.pt";

/* ---- names ---- */

/* Parses NAME and KEY from zero/NAME/KEY.pt. */
static bool is_weight_file(tsr_str path, tsr_str *name, tsr_str *key)
{
    const tsr_str before = TSR_STR("zero/"), after = TSR_STR(".pt");
    if (!tsr_str_starts(path, before) || !tsr_str_ends(path, after)) return false;
    *key = (tsr_str){path.data + path.size - after.size, 0};
    while (key->data > path.data + before.size && key->data[-1] != '/') key->data--, key->size++;
    *name = (tsr_str){path.data + before.size, (size_t)(key->data - path.data) - before.size};
    if (name->size < 2 || key->size == 0) return false;
    name->size--;
    return !memchr(name->data, '/', name->size);
}

static bool has_weights(const tsr_store *store)
{
    tsr_str name, key;
    for (uint32_t f = 0; f < store->file_count; f++)
        if (is_weight_file(store->files[f].name, &name, &key)) return true;
    return false;
}

/* If there are model states but no optimizer files, it is either ZeRO 0, or the weights are further down. */
static tsr_status recognizes(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    tsr_store *store = checkpoint->store;
    const bool shared = tsr_store_find(store, tsr_str_from(shared_file)) != TSR_NO_FILE;
    bool model = false, cut, deeper;
    *is = false;
    for (uint32_t f = 0; f < store->file_count; f++) {
        const tsr_ds_kind kind = tsr_ds_name_of(store->files[f].name).kind;
        if (kind == TSR_DS_OPTIM) return TSR_OK;
        model = model || kind == TSR_DS_MODEL;
    }
    if (!has_weights(store) && (model || shared) && store->deepen) TSR_TRY(store->deepen(store, 2, &cut, &deeper, err));
    *is = has_weights(store) || shared;
    return TSR_OK;
}

/* ---- files ---- */

/* Reads a file. *root is NULL if it cannot be read, which is reported. */
static tsr_status open_file(universal *u, uint32_t file, const tsr_value **root)
{
    tsr_torch_file opened;
    tsr_error why = {0};
    tsr_checkpoint *checkpoint = u->files.checkpoint;
    const tsr_status status = tsr_torch_file_open(checkpoint, file, (tsr_torch_rank){0}, &opened, &u->files.runs, &why);
    *root = status == TSR_OK ? opened.root : NULL;
    if (status == TSR_OK) return TSR_OK;
    if (status != TSR_E_IO && status != TSR_E_NOMEM)
        return tsr_ds_report(checkpoint, checkpoint->store->files[file].name, u->err, "%s", why.message);
    *u->err = why;
    return status;
}

/* A tensor with the shape of its weight; tensors converted from ZeRO 3 are flat. *out is NULL if the number of elements
 * differs. */
static tsr_status shape_like(universal *u, const tsr_ds_weight *weight, const tsr_entry *tensor, const tsr_value **out)
{
    tsr_checkpoint *checkpoint = u->files.checkpoint;
    uint64_t elements;
    tsr_ds_buffer buffer;
    *out = NULL;
    if (!tsr_entry_elements(tensor, &elements) || elements != weight->elements) return TSR_OK;
    const bool same = tsr_shape_equal(tensor->ndim, tensor->shape, weight->ndim, weight->shape);
    if (same) {
        *out = tsr_value_tensor(checkpoint->arena, tensor, u->err);
        return *out ? TSR_OK : TSR_E_NOMEM;
    }
    if (tensor->ndim != 1) return TSR_OK;
    tsr_ds_chunks chunks = {.checkpoint = checkpoint,
                            .shape = weight->shape,
                            .ndim = weight->ndim,
                            .chunks = tsr_vec_of(checkpoint->host->allocator, sizeof(tsr_chunk))};
    TSR_TRY(tsr_ds_buffer_new(checkpoint->arena, 1, &buffer, u->err));
    TSR_TRY(tsr_ds_buffer_add(&buffer, tensor, elements, u->err));
    tsr_status status = tsr_ds_chunks_add(&chunks, &buffer, 0, elements, 0, u->err);
    if (status == TSR_OK) status = tsr_ds_chunks_take(&chunks, tensor->dtype, out, u->err);
    tsr_vec_free(&chunks.chunks);
    return status;
}

static tsr_status add_tensor(universal *u, uint32_t file, tsr_str name, tsr_str key, const tsr_value *root)
{
    const tsr_checkpoint *checkpoint = u->files.checkpoint;
    const tsr_str path = checkpoint->store->files[file].name;
    const tsr_value *held = root->kind == TSR_VALUE_DICT ? tsr_ds_get(root, "param") : root;
    const tsr_entry *tensor = tsr_ds_tensor(held);
    const uint32_t number = tsr_map_get(u->numbers, name, UINT32_MAX);
    const bool weight = tsr_str_equal(key, TSR_STR("fp32"));
    if (number != UINT32_MAX && tensor && tensor->ndim) {
        TSR_TRY(shape_like(u, &u->weights.weights[number], tensor, &held));
        if (!held)
            return tsr_ds_report(u->files.checkpoint, path, u->err,
                                 "%.*s: the number of elements differs from the shape of '%.*s' in the model states",
                                 TSR_STR_ARG(path), TSR_STR_ARG(name));
    }
    if (!held || (weight && !tensor))
        return tsr_ds_report(u->files.checkpoint, path, u->err, "%.*s: does not contain the tensor 'param'",
                             TSR_STR_ARG(path));
    /* Skip the float32 file of a second name, which is the rounded weight, unlike that of the first name. Skip those of
     * buffers, which were converted to float32; the model states have the originals. */
    if (weight && number == UINT32_MAX && tsr_map_get(u->others, name, 0)) return TSR_OK;
    return tsr_ds_rows_add(weight ? &u->trained : &u->states, name, weight ? TSR_STR("") : key, held, u->err);
}

static tsr_status open_all(universal *u)
{
    const tsr_store *store = u->files.checkpoint->store;
    uint32_t *numbers = tsr_arena_array(u->files.checkpoint->arena, store->file_count, sizeof *numbers, u->err),
             count = u->files.checkpoint->file_count;
    if (!numbers) return TSR_E_NOMEM;
    if (count) memcpy(numbers, u->files.checkpoint->files, count * sizeof *numbers);
    for (uint32_t f = 0; f < store->file_count; f++) {
        tsr_str name = {NULL, 0}, key = {NULL, 0};
        const tsr_value *root;
        const bool shared = tsr_str_equal(store->files[f].name, tsr_str_from(shared_file));
        if (!shared && !is_weight_file(store->files[f].name, &name, &key)) continue;
        numbers[count++] = f;
        TSR_TRY(open_file(u, f, &root));
        if (!root) continue;
        if (shared) u->optimizer = tsr_ds_kind_or_null(root, TSR_VALUE_DICT);
        else TSR_TRY(add_tensor(u, f, name, key, root));
    }
    u->files.checkpoint->files = numbers;
    u->files.checkpoint->file_count = count;
    return TSR_OK;
}

/* ---- completeness ---- */

static tsr_status lacks(universal *u, tsr_str name, tsr_str key)
{
    tsr_checkpoint *checkpoint = u->files.checkpoint;
    const tsr_str path =
        tsr_arena_format(checkpoint->arena, u->err, "zero/%.*s/%.*s.pt", TSR_STR_ARG(name), TSR_STR_ARG(key));
    if (!path.data) return TSR_E_NOMEM;
    if (tsr_store_find(checkpoint->store, path) != TSR_NO_FILE) return TSR_OK; /* it is damaged, which was reported */
    TSR_TRY(tsr_checkpoint_lacks(checkpoint, path, u->err));
    return tsr_ds_report(
        checkpoint, path, u->err,
        "'%.*s' is missing: the conversion to a universal checkpoint was interrupted, or files were not copied",
        TSR_STR_ARG(path));
}

static tsr_status imply(universal *u, tsr_str name, tsr_str key)
{
    tsr_checkpoint *checkpoint = u->files.checkpoint;
    const tsr_str path =
        tsr_arena_format(checkpoint->arena, u->err, "zero/%.*s/%.*s.pt", TSR_STR_ARG(name), TSR_STR_ARG(key));
    return path.data ? tsr_checkpoint_implies(checkpoint, path, u->err) : TSR_E_NOMEM;
}

/* Reports missing files of a weight. A weight that was never trained has no states. One with some states must have all that
 * another weight, `model`, has. */
static tsr_status check_weight(universal *u, const tsr_ds_weight *weight, tsr_str model)
{
    const tsr_ds_row *rows = u->states.rows.items;
    const uint32_t own = tsr_map_get(u->states.names, weight->name, UINT32_MAX),
                   other = tsr_map_get(u->states.names, model, UINT32_MAX);
    if (!tsr_ds_rows_get(&u->trained, weight->name, TSR_STR(""))) TSR_TRY(lacks(u, weight->name, TSR_STR("fp32")));
    for (uint32_t r = own == UINT32_MAX ? own : other; r != UINT32_MAX; r = rows[r].next)
        if (!tsr_ds_rows_get(&u->states, weight->name, rows[r].key)) TSR_TRY(lacks(u, weight->name, rows[r].key));
    for (uint32_t r = own == UINT32_MAX ? other : UINT32_MAX; r != UINT32_MAX; r = rows[r].next)
        TSR_TRY(imply(u, weight->name, rows[r].key));
    return TSR_OK;
}

/* Records the files of states that may exist. No file lists them, and neither does a server, so these are the states of
 * PyTorch's and DeepSpeed's optimizers. Only the first weight's are recorded, since all weights have the same states. */
static tsr_status imply_states(universal *u)
{
    static const char *const keys[] = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg",
                                       "sum",     "step"};
    if (u->weights.count == 0 || u->states.rows.count) return TSR_OK;
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        TSR_TRY(imply(u, u->weights.weights[0].name, tsr_str_from(keys[k])));
    return TSR_OK;
}

/* Records the files of frozen weights, buffers and second names of tied weights, which exist if the checkpoint was converted
 * from ZeRO 1 or 2. */
static tsr_status imply_untrained(universal *u)
{
    const tsr_ds_file *model = u->column->model;
    const tsr_value *module = model && !model->name.has_rank ? tsr_ds_dict(model->root, "module") : NULL;
    for (size_t i = 0; i < tsr_ds_count(module); i++) {
        const tsr_value *name = module->items[2 * i];
        if (name->kind != TSR_VALUE_STR || tsr_map_get(u->numbers, name->text, UINT32_MAX) != UINT32_MAX) continue;
        TSR_TRY(imply(u, name->text, TSR_STR("fp32")));
    }
    return TSR_OK;
}

/* Reports missing model states of a rank. Without frozen weights, those of rank 0 have everything. */
static tsr_status check_rank(universal *u, uint32_t rank, tsr_str name)
{
    tsr_checkpoint *checkpoint = u->files.checkpoint;
    const tsr_ds_column *column = u->column;
    const bool frozen = column->model && tsr_ds_count(tsr_ds_dict(column->model->root, "frozen_param_shapes"));
    if (column->models[rank] || (rank && !frozen) || tsr_store_find(checkpoint->store, name) != TSR_NO_FILE)
        return TSR_OK; /* or reported */
    TSR_TRY(tsr_checkpoint_lacks(checkpoint, name, u->err));
    return tsr_ds_report(checkpoint, name, u->err, "'%.*s'%s is missing; copy it from where the checkpoint was written",
                         TSR_STR_ARG(name), frozen ? ", with a part of the frozen weights," : "");
}

/* If the checkpoint was converted from ZeRO 3, each rank has model states with its pieces of the frozen weights. */
static tsr_status imply_ranks(universal *u)
{
    const tsr_ds_column *column = u->column;
    for (uint32_t r = 0; column->models && r < column->world; r++) {
        const tsr_str name = tsr_ds_model_states_name(&u->files, column->model_rank, r, u->err);
        if (!name.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_checkpoint_implies(u->files.checkpoint, name, u->err));
        TSR_TRY(check_rank(u, r, name));
    }
    return TSR_OK;
}

/* The weight with the most states. Empty if none has any. */
static tsr_str find_model(const universal *u)
{
    const tsr_ds_row *rows = u->states.rows.items;
    tsr_str model = {NULL, 0};
    uint32_t most = 0;
    for (uint32_t i = 0; i < u->weights.count; i++) {
        uint32_t count = 0;
        for (uint32_t r = tsr_map_get(u->states.names, u->weights.weights[i].name, UINT32_MAX); r != UINT32_MAX;
             r = rows[r].next)
            count++;
        if (count <= most) continue;
        most = count;
        model = u->weights.weights[i].name;
    }
    return model;
}

static tsr_status check(universal *u)
{
    const tsr_str model = find_model(u);
    TSR_TRY(imply_ranks(u));
    TSR_TRY(imply_states(u));
    TSR_TRY(imply_untrained(u));
    for (uint32_t i = 0; i < u->weights.count; i++) TSR_TRY(check_weight(u, &u->weights.weights[i], model));
    if (u->optimizer) return TSR_OK;
    const tsr_str name = tsr_str_from(shared_file);
    if (tsr_store_find(u->files.checkpoint->store, name) != TSR_NO_FILE) return TSR_OK;
    TSR_TRY(tsr_checkpoint_lacks(u->files.checkpoint, name, u->err));
    return tsr_ds_report(
        u->files.checkpoint, name, u->err,
        "'%.*s' is missing: the conversion to a universal checkpoint was interrupted, or files were not copied",
        TSR_STR_ARG(name));
}

/* ---- parts ---- */

/* If the checkpoint was converted from ZeRO 3, the step is only in the shared file. */
static tsr_status add_step(universal *u)
{
    const tsr_value *states = tsr_ds_dict(tsr_ds_dict(u->optimizer, "optimizer_state_dict"), "state");
    const tsr_value *step = states && states->count > 1 ? tsr_ds_get(states->items[1], "step") : NULL;
    if (!step) return TSR_OK;
    for (uint32_t i = 0; i < u->weights.count; i++)
        if (!tsr_ds_rows_get(&u->states, u->weights.weights[i].name, TSR_STR("step")))
            TSR_TRY(tsr_ds_rows_add(&u->states, u->weights.weights[i].name, TSR_STR("step"), step, u->err));
    return TSR_OK;
}

static tsr_status make_optim(universal *u, const tsr_value **out)
{
    static const char *const taken[] = {"param_groups",    "optimizer_state_dict",     "fp32_flat_groups",
                                        "group_paddings",  "param_alignment_paddings", "param_slice_mappings",
                                        "partition_count", "base_optimizer_state",     NULL};
    const tsr_value *groups = tsr_ds_list(u->optimizer, "param_groups"), *named = NULL;
    if (!groups) groups = tsr_ds_list(tsr_ds_dict(u->optimizer, "optimizer_state_dict"), "param_groups");
    if (groups) TSR_TRY(tsr_ds_name_groups(&u->weights, groups, &named, u->err));
    TSR_TRY(add_step(u));
    tsr_ds_rows_untie(&u->states);
    const tsr_ds_optim_contents contents = {
        .states = &u->states, .groups = named, .rest = tsr_ds_rest(&u->files, u->optimizer, taken, u->err)};
    return tsr_ds_optim(&u->files, &contents, out, u->err);
}

static tsr_status mount(universal *u)
{
    tsr_ds_part parts[] = {{"model", NULL}, {"optim", NULL}, {"engine", NULL}};
    tsr_ds_rows_untie(&u->trained);
    u->files.universal = true;
    if (u->column->model) TSR_TRY(tsr_ds_model_add(&u->files, u->column, &u->trained, &u->model, u->err));
    parts[0].tree = tsr_ds_rows_tree(u->column->model ? &u->model : &u->trained, u->err);
    if (!parts[0].tree) return TSR_E_NOMEM;
    TSR_TRY(make_optim(u, &parts[1].tree));
    TSR_TRY(tsr_ds_engine(&u->files, &parts[2].tree, u->err));
    return tsr_ds_mount(u->files.checkpoint, parts, sizeof parts / sizeof parts[0], u->files.storages, u->err);
}

static tsr_status read_names(universal *u)
{
    const tsr_value *root = u->column->model ? u->column->model->root : NULL;
    const tsr_value *buffers = tsr_ds_list(root, "buffer_names"), *ties = tsr_ds_dict(root, "shared_params");
    u->weights.files = &u->files;
    if (root) TSR_TRY(tsr_ds_weights_by_shape(&u->files, u->column, &u->weights, u->err));
    for (uint32_t i = 0; i < u->weights.count; i++)
        TSR_TRY(tsr_map_put(u->numbers, u->weights.weights[i].name, i, NULL, NULL, u->err));
    TSR_TRY(tsr_ds_add_names(buffers, u->others, u->err));
    for (size_t i = 0; i < tsr_ds_count(ties); i++)
        if (ties->items[2 * i]->kind == TSR_VALUE_STR)
            TSR_TRY(tsr_map_put(u->others, ties->items[2 * i]->text, 1, NULL, NULL, u->err));
    return TSR_OK;
}

static tsr_status report_model_states(const universal *u)
{
    const tsr_str name = tsr_ds_model_states_name(&u->files, 0, 0, u->err);
    if (!name.data) return TSR_E_NOMEM;
    return tsr_ds_report(u->files.checkpoint, name, u->err,
                         "'%.*s', which has the shapes of the weights, is missing or cannot be read", TSR_STR_ARG(name));
}

static tsr_status read_all(universal *u, tsr_checkpoint *checkpoint)
{
    static const tsr_ds_column none = {0};
    TSR_TRY(tsr_ds_rows_open(&u->trained, checkpoint, 1, u->err));
    TSR_TRY(tsr_ds_rows_open(&u->states, checkpoint, 1, u->err));
    TSR_TRY(tsr_ds_rows_open(&u->model, checkpoint, 1, u->err));
    u->numbers = tsr_map_new(checkpoint->host->allocator, 0, u->err);
    u->others = u->numbers ? tsr_map_new(checkpoint->host->allocator, 0, u->err) : NULL;
    if (!u->others) return TSR_E_NOMEM;
    TSR_TRY(tsr_ds_files_open(checkpoint, &u->files, u->err));
    u->column = u->files.column_count ? &u->files.columns[0] : &none;
    if (!u->column->model) TSR_TRY(report_model_states(u));
    TSR_TRY(read_names(u));
    TSR_TRY(open_all(u));
    TSR_TRY(tsr_torch_keep_runs(checkpoint, &u->files.runs, u->err));
    TSR_TRY(check(u));
    return mount(u);
}

static tsr_status open_universal(tsr_checkpoint *checkpoint, tsr_error *err)
{
    universal u = {.err = err};
    const tsr_status status = read_all(&u, checkpoint);
    tsr_ds_rows_close(&u.trained);
    tsr_ds_rows_close(&u.states);
    tsr_ds_rows_close(&u.model);
    tsr_map_free(u.numbers);
    tsr_map_free(u.others);
    tsr_ds_files_close(&u.files);
    return status;
}

extern const tsr_reader tsr_reader_deepspeed_universal;
const tsr_reader tsr_reader_deepspeed_universal = {.format = TSR_FORMAT_DEEPSPEED_UNIVERSAL,
                                                   .is_rare = true,
                                                   .open = open_universal,
                                                   .extents = tsr_torch_extents,
                                                   .crc = tsr_torch_crc};
const tsr_directory tsr_directory_deepspeed_universal = {.reader = &tsr_reader_deepspeed_universal,
                                                         .recognizes = recognizes};
