/* Assigns the data of a universal checkpoint to its files. DeepSpeed's ds_to_universal writes the same files. Both kinds of
 * model states are written, so that ZeRO 1, 2 and 3 can load the checkpoint:
 *
 *   TAG/zero/NAME/fp32.pt, exp_avg.pt, …                  {cat_dim: 0, param: tensor}, for each trained weight
 *   TAG/zero/NAME/step.pt                                 a number or a 0-d tensor
 *   TAG/zero/optimizer_state.pt                           param groups for ZeRO 1 and 2, and once more for ZeRO 3
 *   TAG/mp_rank_00_model_states.pt                        read by ZeRO 1 and 2: what is not trained, and the engine's state
 *   TAG/zero_pp_rank_0_mp_rank_00_model_states.pt         read by ZeRO 3: the same, without the weights as stored */
#include "convert/convert_to.h"

#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"
#include "write/torch_plan.h"

/* The files of a DeepSpeed universal checkpoint, as values for torch.save. */
#define TSR_UNIVERSAL_MARKER "latest_universal"

typedef struct tsr_universal_file {
    tsr_str name; /* relative to the destination: "TAG/zero/norm.weight/fp32.pt" */
    const tsr_value *root;
} tsr_universal_file;

typedef struct tsr_universal {
    tsr_str tag; /* name of the directory: "global_step100_universal" */
    tsr_universal_file *files;
    uint32_t count;
} tsr_universal;

#define TSR_MODEL_PREFIX "model." /* of the names of weights */

typedef struct tsr_universal_making {
    const tsr_chosen *chosen;
    const tsr_value *root, *optim, *engine, *groups;
    tsr_arena *arena;
    tsr_str state_prefix;
    tsr_map *trained;        /* name → 1, or 2 after its weight was found */
    tsr_map *owners;         /* storage id of a trained weight → its row */
    const tsr_value *shapes; /* `param_shapes`, made if the source has none */
    const tsr_value *ties;   /* {second name: name}, in the form of `shared_params` */
    tsr_vec files;           /* tsr_universal_file */
    tsr_str tag;
    const tsr_value *step; /* that of any weight, or NULL */
    tsr_error *err;
} tsr_universal_making;

/* A DICT or LIST that grows. Running out of memory is only reported by dict_take. */
typedef struct tsr_growing_dict {
    tsr_vec items; /* of const tsr_value * */
    tsr_arena *arena;
    tsr_status status;
    tsr_error *err;
} tsr_growing_dict;

/* ---- universal values ---- */

/* Growing dictionaries for the files of a universal checkpoint, and functions for rows and names that both of its makers
 * need. */

/* The value for a key, or NULL. Also accepts NULL and values that are not a DICT. */
static const tsr_value *dict_get(const tsr_value *dict, const char *key)
{
    return dict && dict->kind == TSR_VALUE_DICT ? tsr_value_get(dict, tsr_str_from(key)) : NULL;
}

static tsr_growing_dict dict_grow(const tsr_universal_making *m)
{
    return (tsr_growing_dict){tsr_vec_of(tsr_checkpoint_host(m->chosen->checkpoint)->allocator, sizeof(const tsr_value *)),
                              m->arena, TSR_OK, m->err};
}

static void dict_push(tsr_growing_dict *g, const tsr_value *value)
{
    const tsr_value **added = g->status == TSR_OK && value ? tsr_vec_push(&g->items, g->err) : NULL;
    if (added) *added = value;
    else g->status = TSR_E_NOMEM;
}

static void dict_put(tsr_growing_dict *g, tsr_str key, const tsr_value *value)
{
    dict_push(g, tsr_value_str(g->arena, key, g->err));
    dict_push(g, value);
}

static bool is_one_of(tsr_str key, const char *const *list)
{
    for (size_t i = 0; list && list[i]; i++)
        if (tsr_str_equal(key, tsr_str_from(list[i]))) return true;
    return false;
}

/* Adds all pairs of a DICT (or of NULL) except those in `without` (NULL-terminated, or NULL). */
static void dict_put_all(tsr_growing_dict *g, const tsr_value *dict, const char *const *without)
{
    for (size_t i = 0; dict && dict->kind == TSR_VALUE_DICT && i + 1 < dict->count; i += 2) {
        const tsr_value *key = dict->items[i];
        if (key->kind == TSR_VALUE_STR && is_one_of(key->text, without)) continue;
        dict_push(g, key);
        dict_push(g, dict->items[i + 1]);
    }
}

/* Returns the value, with the given kind, in the arena. Frees the memory in which it grew, even after an error. */
static tsr_status dict_take(tsr_growing_dict *g, tsr_value_kind kind, const tsr_value **out)
{
    const size_t count = g->items.count;
    const tsr_value **items = g->status == TSR_OK ? tsr_arena_array(g->arena, count, sizeof *items, g->err) : NULL;
    if (items && count) memcpy(items, g->items.items, count * sizeof *items);
    tsr_vec_free(&g->items);
    *out = items ? tsr_value_items(g->arena, kind, items, count, g->err) : NULL;
    TSR_FAIL_IF(!*out, g->err, TSR_E_NOMEM, "out of memory for a universal checkpoint");
    return TSR_OK;
}

/* Adds a file. `format` receives the tag and two more texts, each as "%.*s". */
static tsr_status universal_add(tsr_universal_making *m, const tsr_value *root, const char *format, tsr_str a, tsr_str b)
{
    tsr_universal_file *file = tsr_vec_push(&m->files, m->err);
    if (!file) return TSR_E_NOMEM;
    *file = (tsr_universal_file){
        tsr_arena_format(m->arena, m->err, format, TSR_STR_ARG(m->tag), TSR_STR_ARG(a), TSR_STR_ARG(b)), root};
    return file->name.data ? TSR_OK : TSR_E_NOMEM;
}

/* Finds NAME if the row is a written tensor "model.NAME"; returns false for other rows. */
static bool universal_weight(const tsr_converted *row, tsr_str *name)
{
    const tsr_str prefix = TSR_STR(TSR_MODEL_PREFIX);
    *name = row->name;
    if (!row->written || row->entry->kind != TSR_ENTRY_TENSOR || !tsr_str_starts(row->name, prefix)) return false;
    *name = tsr_str_after(row->name, prefix.size);
    return name->size > 0;
}

/* Records that a weight with this name has a directory. */
static tsr_status universal_note(tsr_universal_making *m, tsr_str name)
{
    return tsr_map_put(m->trained, name, 1, NULL, NULL, m->err);
}

/* DeepSpeed's version according to the source. */
static const tsr_value *universal_version(const tsr_universal_making *m)
{
    const tsr_value *stated = dict_get(m->engine, "ds_version");
    if (!stated) stated = dict_get(m->optim, "ds_version");
    return stated ? stated : tsr_value_str(m->arena, TSR_STR("0.19.8"), m->err);
}

/* ---- universal model ---- */

/* Makes the model states of a universal checkpoint: weights without a directory, and the engine's state. */

static bool is_same_tensor(const tsr_entry *a, const tsr_entry *b)
{
    return tsr_entry_same_shape(a, b) && a->chunk_count && b->chunk_count && a->chunks[0].file == b->chunks[0].file &&
           a->chunks[0].byte_offset == b->chunks[0].byte_offset;
}

/* Second names count as trained, because the weights that they refer to have a directory. */
static tsr_status note_ties(tsr_universal_making *m)
{
    for (size_t i = 0; i + 1 < m->ties->count; i += 2)
        if (m->ties->items[i]->kind == TSR_VALUE_STR) TSR_TRY(universal_note(m, m->ties->items[i]->text));
    return TSR_OK;
}

/* Finds second names of trained weights: those in the source's list or, without a list, those that share a storage with
 * one. */
static tsr_status find_ties(tsr_universal_making *m)
{
    tsr_str name, owner;
    m->ties = dict_get(m->engine, "shared_params");
    if (m->ties && m->ties->kind == TSR_VALUE_DICT) return note_ties(m);
    tsr_growing_dict g = dict_grow(m);
    for (uint64_t i = 0; i < m->chosen->count; i++) {
        const tsr_converted *row = &m->chosen->rows[i];
        const tsr_str storage = {(const char *)&row->entry->storage_id, sizeof row->entry->storage_id};
        if (!universal_weight(row, &name) || !row->entry->storage_id || tsr_map_get(m->trained, name, 0)) continue;
        const uint32_t first = tsr_map_get(m->owners, storage, UINT32_MAX);
        if (first == UINT32_MAX || !is_same_tensor(m->chosen->rows[first].entry, row->entry)) continue;
        universal_weight(&m->chosen->rows[first], &owner);
        dict_put(&g, name, tsr_value_str(m->arena, owner, m->err));
    }
    TSR_TRY(dict_take(&g, TSR_VALUE_DICT, &m->ties));
    return note_ties(m);
}

/* Collects weights without a directory: frozen ones and buffers. A second name of a trained weight uses its owner's
 * directory. */
static tsr_status untrained(const tsr_universal_making *m, const tsr_value **out)
{
    tsr_str name;
    tsr_growing_dict g = dict_grow(m);
    for (uint64_t i = 0; i < m->chosen->count; i++) {
        const tsr_converted *row = &m->chosen->rows[i];
        if (!universal_weight(row, &name) || tsr_map_get(m->trained, name, 0)) continue;
        dict_put(&g, name, tsr_value_tensor(m->arena, row->entry, m->err));
    }
    return dict_take(&g, TSR_VALUE_DICT, out);
}

/* The shapes of trained weights, by group, for a source that does not state them. */
static tsr_status shapes_of(const tsr_universal_making *m, const tsr_value **out)
{
    tsr_str name;
    tsr_growing_dict g = dict_grow(m);
    for (uint64_t i = 0; i < m->chosen->count; i++) {
        const tsr_converted *row = &m->chosen->rows[i];
        if (!universal_weight(row, &name) || !tsr_map_get(m->trained, name, 0)) continue;
        const tsr_value **sizes = tsr_arena_array(m->arena, row->entry->ndim, sizeof *sizes, m->err);
        for (uint32_t d = 0; sizes && d < row->entry->ndim; d++)
            sizes[d] = tsr_value_int(m->arena, (int64_t)row->entry->shape[d], m->err);
        dict_put(&g, name, sizes ? tsr_value_items(m->arena, TSR_VALUE_SIZE, sizes, row->entry->ndim, m->err) : NULL);
    }
    const tsr_value *group;
    TSR_TRY(dict_take(&g, TSR_VALUE_DICT, &group));
    *out = tsr_value_list(m->arena, TSR_VALUE_LIST, 1, group);
    TSR_FAIL_IF(!*out, m->err, TSR_E_NOMEM, "out of memory for a universal checkpoint");
    return TSR_OK;
}

static void put_default(tsr_growing_dict *g, const tsr_value *engine, const char *key, const tsr_value *value)
{
    if (!dict_get(engine, key)) dict_put(g, tsr_str_from(key), value);
}

/* Collects what every file of model states has. */
static tsr_status model_states(const tsr_universal_making *m, const tsr_value *module, const tsr_value **out)
{
    static const char *const without[] = {"optimizer",     "frozen_param_shapes", "frozen_param_fragments",
                                          "shared_params", "param_shapes",        NULL};
    static const char *const parts[] = {"model", "module", "optim", "optimizer", "engine", NULL};
    static const char *const numbers[] = {"skipped_steps", "global_steps", "global_samples"}, *const worlds[] = {
                                                                                                  "dp_world_size",
                                                                                                  "mp_world_size"};
    static const char *const nothing[] = {"lr_scheduler", "data_sampler", "random_ltd"};
    tsr_error *err = m->err;
    const tsr_value *none = tsr_value_none(m->arena, err);
    tsr_growing_dict g = dict_grow(m);
    dict_put(&g, TSR_STR("module"), module);
    dict_put_all(&g, m->engine, without);
    dict_put_all(&g, m->root, parts);
    dict_put(&g, TSR_STR("optimizer"), none);
    dict_put(&g, TSR_STR("frozen_param_shapes"), none); /* frozen weights are complete in `module` */
    dict_put(&g, TSR_STR("frozen_param_fragments"), none);
    dict_put(&g, TSR_STR("param_shapes"), m->shapes ? m->shapes : dict_get(m->engine, "param_shapes"));
    dict_put(&g, TSR_STR("shared_params"), m->ties);
    put_default(&g, m->engine, "buffer_names", tsr_value_items(m->arena, TSR_VALUE_LIST, NULL, 0, err));
    for (size_t i = 0; i < 3; i++) put_default(&g, m->engine, numbers[i], tsr_value_int(m->arena, 0, err));
    for (size_t i = 0; i < 2; i++) put_default(&g, m->engine, worlds[i], tsr_value_int(m->arena, 1, err));
    for (size_t i = 0; i < 3; i++) put_default(&g, m->engine, nothing[i], none);
    put_default(&g, m->engine, "ds_version", universal_version(m));
    return dict_take(&g, TSR_VALUE_DICT, out);
}

/* Adds both files of model states. */
static tsr_status universal_add_model_states(tsr_universal_making *m)
{
    const tsr_value *stored = dict_get(m->root, "module"), *rest, *root;
    const tsr_value *stated = dict_get(m->engine, "param_shapes");
    /* Before second names count as trained. */
    if (!stated || stated->kind != TSR_VALUE_LIST) TSR_TRY(shapes_of(m, &m->shapes));
    TSR_TRY(find_ties(m));
    TSR_TRY(untrained(m, &rest));
    TSR_TRY(model_states(m, stored ? stored : rest, &root));
    TSR_TRY(universal_add(m, root, "%.*s/%.*s%.*s", TSR_STR("mp_rank_00_model_states.pt"), TSR_STR("")));
    TSR_TRY(model_states(m, rest, &root));
    return universal_add(m, root, "%.*s/%.*s%.*s", TSR_STR("zero_pp_rank_0_mp_rank_00_model_states.pt"), TSR_STR(""));
}

/* ---- trained weights ---- */

static bool state_of(const tsr_universal_making *m, const tsr_converted *row, tsr_str *name, tsr_str *key)
{
    if (!row->written || !tsr_str_starts(row->name, m->state_prefix)) return false;
    *name = tsr_str_after(row->name, m->state_prefix.size);
    size_t dot = name->size;
    while (dot > 0 && name->data[dot - 1] != '.') dot--;
    if (dot < 2) return false;
    *key = tsr_str_after(*name, dot);
    name->size = dot - 1;
    return key->size > 0;
}

/* Finds the trained weights: those named in the param groups, and those that have states. */
static tsr_status find_trained(tsr_universal_making *m)
{
    tsr_str name, key;
    for (size_t g = 0; m->groups && g < m->groups->count; g++) {
        const tsr_value *params = dict_get(m->groups->items[g], "params");
        for (size_t i = 0; params && params->kind == TSR_VALUE_LIST && i < params->count; i++)
            if (params->items[i]->kind == TSR_VALUE_STR) TSR_TRY(universal_note(m, params->items[i]->text));
    }
    for (uint64_t i = 0; i < m->chosen->count; i++)
        if (state_of(m, &m->chosen->rows[i], &name, &key)) TSR_TRY(universal_note(m, name));
    TSR_FAIL_IF(tsr_map_count(m->trained) == 0, m->err, TSR_E_UNSUPPORTED,
                "a universal checkpoint consists of a model and its optimizer's states, but the source has no entries named "
                "'optim.state.NAME.KEY' or 'optimizer.state.NAME.KEY'");
    return TSR_OK;
}

/* {cat_dim: 0, param: tensor}. cat_dim is the axis along which tensor-parallel ranks would be joined. */
static tsr_status add_tensor(tsr_universal_making *m, tsr_str name, tsr_str key, const tsr_entry *entry)
{
    const tsr_value *tensor = tsr_value_tensor(m->arena, entry, m->err);
    const tsr_value *root = tsr_value_dict(m->arena, 2, "cat_dim", tsr_value_int(m->arena, 0, m->err), "param", tensor);
    TSR_FAIL_IF(!root, m->err, TSR_E_NOMEM, "out of memory for a universal checkpoint");
    return universal_add(m, root, "%.*s/zero/%.*s/%.*s.pt", name, key);
}

static tsr_status add_state(tsr_universal_making *m, tsr_converted *row, tsr_str name, tsr_str key)
{
    const bool step = tsr_str_equal(key, TSR_STR("step"));
    if (row->entry->kind == TSR_ENTRY_TENSOR && !step) return add_tensor(m, name, key, row->entry);
    const tsr_value *value =
        row->entry->kind == TSR_ENTRY_TENSOR ? tsr_value_tensor(m->arena, row->entry, m->err) : row->entry->value;
    if (!value) return TSR_E_NOMEM;
    if (step) m->step = value;
    if (step) return universal_add(m, value, "%.*s/zero/%.*s/%.*s.pt", name, key);
    row->written = false; /* an optimizer's None, for which DeepSpeed writes no file */
    row->left_out = "is not a tensor; for the states of a weight, universal checkpoints store only tensors";
    return TSR_OK;
}

static tsr_status check_name(const tsr_universal_making *m, tsr_str name)
{
    const bool plain =
        !memchr(name.data, '/', name.size) && !tsr_str_equal(name, TSR_STR(".")) && !tsr_str_equal(name, TSR_STR(".."));
    TSR_FAIL_IF(!plain, m->err, TSR_E_UNSUPPORTED, "the name of the weight '%.*s' cannot be used as the name of a directory",
                TSR_STR_ARG(name));
    return TSR_OK;
}

static tsr_status add_weights(tsr_universal_making *m)
{
    tsr_str name, key;
    for (uint64_t i = 0; i < m->chosen->count; i++) {
        tsr_converted *row = &m->chosen->rows[i];
        const uint32_t known = universal_weight(row, &name) ? tsr_map_get(m->trained, name, 0) : 0;
        if (known) {
            uint32_t *seen;
            TSR_TRY(check_name(m, name));
            TSR_TRY(tsr_map_put(m->trained, name, 1, &seen, NULL, m->err));
            *seen = 2;
            const tsr_str storage = {(const char *)&row->entry->storage_id, sizeof row->entry->storage_id};
            if (row->entry->storage_id) TSR_TRY(tsr_map_put(m->owners, storage, (uint32_t)i, NULL, NULL, m->err));
            TSR_TRY(add_tensor(m, name, TSR_STR("fp32"), row->entry));
        } else if (state_of(m, row, &name, &key)) {
            TSR_TRY(check_name(m, name));
            TSR_TRY(add_state(m, row, name, key));
        }
    }
    for (uint64_t i = 0; i < m->chosen->count; i++)
        TSR_FAIL_IF(state_of(m, &m->chosen->rows[i], &name, &key) && tsr_map_get(m->trained, name, 0) != 2, m->err,
                    TSR_E_UNSUPPORTED,
                    "'%.*s' is the state of a weight '" TSR_MODEL_PREFIX "%.*s', which is not in the checkpoint",
                    TSR_STR_ARG(m->chosen->rows[i].name), TSR_STR_ARG(name));
    return TSR_OK;
}

/* ---- the optimizer ---- */

/* A param group whose parameters are the flat tensor `number`, as in DeepSpeed's own optimizers. */
static tsr_status flat_group(const tsr_universal_making *m, const tsr_value *group, size_t number, const tsr_value **out)
{
    static const char *const without[] = {"params", NULL};
    tsr_growing_dict g = dict_grow(m);
    dict_put_all(&g, group, without);
    const tsr_value *index = tsr_value_int(m->arena, (int64_t)number, m->err);
    dict_put(&g, TSR_STR("params"), tsr_value_list(m->arena, TSR_VALUE_LIST, 1, index));
    return dict_take(&g, TSR_VALUE_DICT, out);
}

/* If nothing states param groups, uses those of `param_shapes`, without hyperparameters; an engine that loads them keeps its
 * own. */
static tsr_status flat_groups(const tsr_universal_making *m, const tsr_value **out)
{
    const tsr_value *shapes = dict_get(m->engine, "param_shapes"), *from = m->groups ? m->groups : shapes;
    const size_t count = from && from->kind == TSR_VALUE_LIST ? from->count : 1;
    tsr_growing_dict g = dict_grow(m);
    for (size_t i = 0; i < count; i++) {
        const tsr_value *group = NULL;
        if (flat_group(m, m->groups ? m->groups->items[i] : NULL, i, &group) != TSR_OK) g.status = TSR_E_NOMEM;
        dict_push(&g, group);
    }
    return dict_take(&g, TSR_VALUE_LIST, out);
}

/* DeepSpeed needs the original object, whose attributes were read as a dictionary. */
static const tsr_value *loss_scaler(const tsr_universal_making *m)
{
    const tsr_value *state = dict_get(m->optim, "loss_scaler");
    if (!state || state->kind != TSR_VALUE_DICT) return NULL;
    const tsr_value *args = tsr_value_items(m->arena, TSR_VALUE_TUPLE, NULL, 0, m->err);
    const tsr_value **items = tsr_arena_array(m->arena, 2, sizeof *items, m->err);
    tsr_value *object = args && items ? tsr_value_items(m->arena, TSR_VALUE_OBJECT, items, 2, m->err) : NULL;
    if (!object) return NULL;
    items[0] = args;
    items[1] = state;
    object->text = dict_get(state, "cur_iter") ? TSR_STR("deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler")
                                               : TSR_STR("deepspeed.runtime.fp16.loss_scaler.LossScaler");
    return object;
}

static tsr_status add_optimizer(tsr_universal_making *m)
{
    static const char *const without[] = {"state",      "param_groups",         "loss_scaler",
                                          "ds_version", "optimizer_state_dict", NULL};
    const tsr_value *groups, *states, *scaler = loss_scaler(m), *root;
    TSR_TRY(flat_groups(m, &groups));
    if (m->step) states = tsr_value_dict(m->arena, 1, "step", m->step);
    else states = tsr_value_dict(m->arena, 0);
    const tsr_value **first = tsr_arena_array(m->arena, 2, sizeof *first, m->err);
    TSR_FAIL_IF(!first || !states, m->err, TSR_E_NOMEM, "out of memory for a universal checkpoint");
    first[0] = tsr_value_int(m->arena, 0, m->err);
    first[1] = states;
    const tsr_value *numbered = first[0] ? tsr_value_items(m->arena, TSR_VALUE_DICT, first, 2, m->err) : NULL;
    tsr_growing_dict g = dict_grow(m);
    dict_put_all(&g, m->optim, without);
    if (scaler) dict_put(&g, TSR_STR("loss_scaler"), scaler);
    dict_put(&g, TSR_STR("ds_version"), universal_version(m));
    dict_put(&g, TSR_STR("param_groups"), groups);
    dict_put(&g, TSR_STR("optimizer_state_dict"), tsr_value_dict(m->arena, 2, "state", numbered, "param_groups", groups));
    TSR_TRY(dict_take(&g, TSR_VALUE_DICT, &root));
    return universal_add(m, root, "%.*s/zero/%.*s%.*s", TSR_STR("optimizer_state.pt"), TSR_STR(""));
}

static tsr_status name_tag(tsr_universal_making *m)
{
    const tsr_value *steps = dict_get(m->engine, "global_steps");
    const long long step = steps && steps->kind == TSR_VALUE_INT ? (long long)steps->as.integer : 0;
    m->tag = tsr_arena_format(m->arena, m->err, "global_step%lld_universal", step);
    return m->tag.data ? TSR_OK : TSR_E_NOMEM;
}

/* DeepSpeed gives every expert-parallel rank the files with the rank's own numbers, which begin at 0 on each. */
static tsr_status refuse_experts(const tsr_universal_making *m)
{
    const tsr_str marker = TSR_STR(".deepspeed_moe.experts.deepspeed_experts.");
    for (uint64_t i = 0; i < m->chosen->count; i++) {
        const tsr_str name = m->chosen->rows[i].name;
        for (size_t at = 0; m->chosen->rows[i].written && at < name.size; at++)
            TSR_FAIL_IF(tsr_str_starts(tsr_str_after(name, at), marker), m->err, TSR_E_UNSUPPORTED,
                        "DeepSpeed cannot load experts, such as '%.*s', from a universal checkpoint; write them with --to "
                        "dcp, torch or "
                        "safetensors",
                        TSR_STR_ARG(name));
    }
    return TSR_OK;
}

/* DeepSpeed's engine requires as many files of model states as `mp_world_size` states, one per model-parallel rank, and for
 * pipelines the files of their layers. */
static tsr_status refuse_model_ranks(const tsr_universal_making *m)
{
    const tsr_value *ranks = dict_get(m->engine, "mp_world_size");
    TSR_FAIL_IF(
        ranks && ranks->kind == TSR_VALUE_INT && ranks->as.integer > 1, m->err, TSR_E_UNSUPPORTED,
        "the checkpoint is of %lld model-parallel ranks ('engine.mp_world_size'), and DeepSpeed needs the model states of each "
        "in a universal checkpoint, which are not written; use ds_to_universal, or write --to dcp, torch or safetensors",
        (long long)ranks->as.integer);
    return TSR_OK;
}

static tsr_status make_all(tsr_universal_making *m)
{
    TSR_TRY(refuse_experts(m));
    TSR_TRY(refuse_model_ranks(m));
    TSR_TRY(name_tag(m));
    TSR_TRY(find_trained(m));
    TSR_TRY(add_weights(m));
    TSR_TRY(add_optimizer(m));
    return universal_add_model_states(m);
}

/* Makes the files from the written rows: trained weights "model.NAME", states "optim.state.NAME.KEY" (or "optimizer."),
 * param groups, and everything else for the model states. `root` is the value that tsr_nest_rows made of the rows. Allocates
 * in `arena`. Fails with TSR_E_UNSUPPORTED if there are no such weights or states, or if a state's weight is missing (which
 * the message names). */
static tsr_status universal_files(const tsr_chosen *chosen, const tsr_value *root, tsr_arena *arena, tsr_universal *out,
                                  tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(chosen->checkpoint)->allocator;
    const bool short_name = dict_get(root, "optim") != NULL;
    tsr_universal_making m = {.chosen = chosen,
                              .root = root,
                              .arena = arena,
                              .err = err,
                              .files = tsr_vec_of(allocator, sizeof(tsr_universal_file)),
                              .optim = dict_get(root, short_name ? "optim" : "optimizer"),
                              .engine = dict_get(root, "engine"),
                              .state_prefix = short_name ? TSR_STR("optim.state.") : TSR_STR("optimizer.state.")};
    m.groups = dict_get(m.optim, "param_groups");
    if (m.groups && m.groups->kind != TSR_VALUE_LIST) m.groups = NULL;
    m.trained = tsr_map_new(allocator, 0, err);
    m.owners = m.trained ? tsr_map_new(allocator, 0, err) : NULL;
    tsr_status status = m.owners ? make_all(&m) : TSR_E_NOMEM;
    *out = (tsr_universal){.tag = m.tag, .count = (uint32_t)m.files.count};
    out->files = status == TSR_OK ? tsr_arena_array(arena, m.files.count, sizeof *out->files, err) : NULL;
    if (status == TSR_OK && !out->files) status = TSR_E_NOMEM;
    if (status == TSR_OK) memcpy(out->files, m.files.items, m.files.count * sizeof *out->files);
    tsr_map_free(m.trained);
    tsr_map_free(m.owners);
    tsr_vec_free(&m.files);
    return status;
}

/* ---- universal ---- */

/* Writes a checkpoint as a DeepSpeed universal checkpoint: one small torch.save file per weight and per state, each a stage
 * that is laid out when it is needed, and the marker that names their directory. */

typedef struct universal {
    const tsr_conversion_job *job;
    tsr_chosen chosen;
    tsr_universal files;
    tsr_str *names;
    uint64_t *sizes;
} universal;

static tsr_status nest(universal *u, const tsr_value **root, tsr_error *err)
{
    const tsr_value **values = tsr_arena_array(u->job->arena, (size_t)u->chosen.count, sizeof *values, err);
    if (!values) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < u->chosen.count; i++) {
        tsr_converted *row = &u->chosen.rows[i];
        values[i] = row->entry->value;
        if (!row->written || row->entry->kind != TSR_ENTRY_TENSOR) continue;
        values[i] = tsr_value_tensor(u->job->arena, row->entry, err);
        if (!values[i]) return TSR_E_NOMEM;
    }
    return tsr_nest_rows(&u->chosen, values, u->job->arena, root, err);
}

static tsr_status stage_of(void *ctx, uint32_t number, tsr_arena *arena, tsr_stage *out, tsr_error *err)
{
    universal *u = ctx;
    tsr_torch_plan *plan = TSR_ARENA_NEW(arena, tsr_torch_plan, err);
    if (!plan) return TSR_E_NOMEM;
    TSR_TRY(tsr_torch_plan_open(u->job->checkpoint, u->files.files[number].root, arena, plan, err));
    plan->unsummed = u->job->options->no_checksums;
    for (size_t i = 0; i < plan->source_count; i++) {
        const tsr_entry *first = tsr_checkpoint_catalog(u->job->checkpoint)->entries, *entry = plan->sources[i].entry;
        if (!tsr_catalog_has(tsr_checkpoint_catalog(u->job->checkpoint), entry)) continue;
        if (u->chosen.rows[entry - first].cast) plan->sources[i].dtype = u->chosen.rows[entry - first].dtype;
    }
    TSR_TRY(tsr_torch_plan_lay_out(plan, err));
    const bool known = u->sizes[number] != 0;
    for (uint32_t i = 0; i < plan->storage_count && !known; i++) u->job->out->byte_total += plan->write_items[i].byte_length;
    u->sizes[number] = plan->archive.size;
    *out = tsr_torch_plan_stage(plan, number);
    return TSR_OK;
}

static tsr_status write_marker(void *ctx, tsr_output *output, uint32_t *marker, tsr_error *err)
{
    const universal *u = ctx;
    TSR_TRY(output->create(output, TSR_STR(TSR_UNIVERSAL_MARKER), u->files.tag.size, marker, err));
    return output->write_at(output, *marker, 0, u->files.tag.data, u->files.tag.size, err);
}

static tsr_status describe(universal *u, tsr_error *err)
{
    tsr_arena *arena = u->job->arena;
    u->names = tsr_arena_array(arena, u->files.count, sizeof *u->names, err);
    u->sizes = tsr_arena_array(arena, u->files.count, sizeof *u->sizes, err);
    if (!u->names || !u->sizes) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < u->files.count; f++) u->names[f] = u->files.files[f].name;
    for (uint64_t i = 0; i < u->chosen.count; i++) {
        tsr_converted *row = &u->chosen.rows[i];
        row->copied = false; /* second names remain second names */
        if (!row->written) continue;
        if (row->entry->kind == TSR_ENTRY_TENSOR)
            TSR_TRY(tsr_write_item_measure(row->entry, NULL, row->dtype, &row->bytes, err));
        else row->weights_only = true; /* DeepSpeed does not load these files with weights_only */
    }
    *u->job->out = (tsr_conversion){.rows = u->chosen.rows,
                                    .row_count = u->chosen.count,
                                    .files = u->names,
                                    .file_sizes = u->sizes,
                                    .file_count = u->files.count,
                                    .marker = TSR_NO_FILE};
    return TSR_OK;
}

static tsr_status convert(const tsr_conversion_job *job, tsr_writer *out, tsr_error *err)
{
    const tsr_value *root;
    universal *u = TSR_ARENA_NEW(job->arena, universal, err);
    if (!u) return TSR_E_NOMEM;
    u->job = job;
    TSR_TRY(tsr_choose(job->checkpoint, job->options, tsr_torch_refusal, job->arena, &u->chosen, err));
    TSR_TRY(nest(u, &root, err));
    TSR_TRY(universal_files(&u->chosen, root, job->arena, &u->files, err));
    TSR_TRY(describe(u, err));
    *out = (tsr_writer){.stage_count = u->files.count,
                        .crc = !job->options->no_checksums,
                        .marker = TSR_NO_FILE,
                        .stage = stage_of,
                        .finish = write_marker,
                        .ctx = u};
    return TSR_OK;
}

const tsr_container_writers tsr_universal_writers = {convert, NULL};
