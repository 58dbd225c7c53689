/* What goes into which file of a universal checkpoint. DeepSpeed's own ds_to_universal writes the same files; both kinds of model
 * states are written, so that ZeRO 1, 2 and 3 can load it:
 *
 *   TAG/zero/NAME/fp32.pt, exp_avg.pt, …                  {cat_dim: 0, param: tensor}, for each trained weight
 *   TAG/zero/NAME/step.pt                                 a number or a 0-d tensor
 *   TAG/zero/optimizer_state.pt                           parameter groups for ZeRO 1 and 2, and once more for ZeRO 3
 *   TAG/mp_rank_00_model_states.pt                        read by ZeRO 1 and 2: what is not trained, and what the engine kept
 *   TAG/zero_pp_rank_0_mp_rank_00_model_states.pt         read by ZeRO 3: the same, without the weights as stored */
#include "convert/universal.h"

#include "base/try.h"
#include "tessera/sys/map.h"
#include "tessera/sys/vec.h"

typedef struct making {
    const tsr_chosen *chosen;
    const tsr_value *root, *optim, *engine, *groups;
    tsr_arena *arena;
    tsr_str state_prefix;
    tsr_map *trained; /* name → 1, or 2 once its weight was found */
    tsr_map *owners;  /* storage id of a trained weight → its row */
    const tsr_value *shapes; /* `param_shapes`, where the source has none */
    const tsr_value *ties; /* {second name: name}, as `shared_params` has it */
    tsr_vec files;    /* tsr_universal_file */
    tsr_str tag;
    const tsr_value *step; /* of any weight, or NULL */
    tsr_error *err;
} making;

static const char model_prefix[] = "model.";

/* ---- values ---- */

static const tsr_value *get(const tsr_value *dict, const char *key)
{
    return dict && dict->kind == TSR_VALUE_DICT ? tsr_value_get(dict, tsr_str_from(key)) : NULL;
}

/* A DICT that grows; out of memory shows when it is taken. */
typedef struct growing {
    tsr_vec items; /* of const tsr_value * */
    tsr_arena *arena;
    tsr_status status;
    tsr_error *err;
} growing;

static growing grow(const making *m)
{
    return (growing){tsr_vec_of(tsr_checkpoint_host(m->chosen->checkpoint)->allocator, sizeof(const tsr_value *)), m->arena, TSR_OK, m->err};
}

static void push(growing *g, const tsr_value *value)
{
    const tsr_value **added = g->status == TSR_OK && value ? tsr_vec_push(&g->items, g->err) : NULL;
    if (added) *added = value;
    else g->status = TSR_E_NOMEM;
}

static void put(growing *g, tsr_str key, const tsr_value *value)
{
    push(g, tsr_value_str(g->arena, key, g->err));
    push(g, value);
}

static bool is_one_of(tsr_str key, const char *const *list)
{
    for (size_t i = 0; list && list[i]; i++)
        if (tsr_str_equal(key, tsr_str_from(list[i]))) return true;
    return false;
}

/* All pairs but those in `without`. */
static void put_all(growing *g, const tsr_value *dict, const char *const *without)
{
    for (size_t i = 0; dict && dict->kind == TSR_VALUE_DICT && i + 1 < dict->count; i += 2) {
        const tsr_value *key = dict->items[i];
        if (key->kind == TSR_VALUE_STR && is_one_of(key->text, without)) continue;
        push(g, key);
        push(g, dict->items[i + 1]);
    }
}

static tsr_status take(growing *g, tsr_value_kind kind, const tsr_value **out)
{
    const size_t count = g->items.count;
    const tsr_value **items = g->status == TSR_OK ? tsr_arena_array(g->arena, count, sizeof *items, g->err) : NULL;
    if (items && count) memcpy(items, g->items.items, count * sizeof *items);
    tsr_vec_free(&g->items);
    *out = items ? tsr_value_items(g->arena, kind, items, count, g->err) : NULL;
    return *out ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status add_file(making *m, const tsr_value *root, const char *format, tsr_str a, tsr_str b)
{
    tsr_universal_file *file = tsr_vec_push(&m->files, m->err);
    if (!file) return TSR_E_NOMEM;
    *file = (tsr_universal_file){tsr_arena_format(m->arena, m->err, format, TSR_STR_ARG(m->tag), TSR_STR_ARG(a), TSR_STR_ARG(b)), root};
    return file->name.data ? TSR_OK : TSR_E_NOMEM;
}

/* ---- trained weights ---- */

/* NAME of "model.NAME" and of "optim.state.NAME.KEY"; false for other rows. */
static bool weight_of(const tsr_converted *row, tsr_str *name)
{
    const tsr_str prefix = tsr_str_from(model_prefix);
    *name = row->name;
    if (!row->written || row->entry->kind != TSR_ENTRY_TENSOR || !tsr_str_starts(row->name, prefix)) return false;
    *name = (tsr_str){row->name.data + prefix.size, row->name.size - prefix.size};
    return name->size > 0;
}

static bool state_of(const making *m, const tsr_converted *row, tsr_str *name, tsr_str *key)
{
    if (!row->written || !tsr_str_starts(row->name, m->state_prefix)) return false;
    *name = (tsr_str){row->name.data + m->state_prefix.size, row->name.size - m->state_prefix.size};
    size_t dot = name->size;
    while (dot > 0 && name->data[dot - 1] != '.') dot--;
    if (dot < 2) return false;
    *key = (tsr_str){name->data + dot, name->size - dot};
    name->size = dot - 1;
    return key->size > 0;
}

static tsr_status note(making *m, tsr_str name)
{
    return tsr_map_put(m->trained, name, 1, NULL, NULL, m->err);
}

/* Those that the parameter groups name, and those that have states. */
static tsr_status find_trained(making *m)
{
    tsr_str name, key;
    for (size_t g = 0; m->groups && g < m->groups->count; g++) {
        const tsr_value *params = get(m->groups->items[g], "params");
        for (size_t i = 0; params && params->kind == TSR_VALUE_LIST && i < params->count; i++)
            if (params->items[i]->kind == TSR_VALUE_STR) TSR_TRY(note(m, params->items[i]->text));
    }
    for (uint64_t i = 0; i < m->chosen->count; i++)
        if (state_of(m, &m->chosen->rows[i], &name, &key)) TSR_TRY(note(m, name));
    TSR_FAIL_IF(tsr_map_count(m->trained) == 0, m->err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
                "a universal checkpoint is made of a model and its optimizer's states, and there are no entries 'optim.state.NAME.KEY' or "
                "'optimizer.state.NAME.KEY' here");
    return TSR_OK;
}

/* {cat_dim: 0, param: tensor}: the axis along which tensor-parallel ranks would be joined. */
static tsr_status add_tensor(making *m, tsr_str name, tsr_str key, const tsr_entry *entry)
{
    const tsr_value *tensor = tsr_value_tensor(m->arena, entry, m->err);
    const tsr_value *root = tsr_value_dict(m->arena, 2, "cat_dim", tsr_value_int(m->arena, 0, m->err), "param", tensor);
    return root ? add_file(m, root, "%.*s/zero/%.*s/%.*s.pt", name, key) : TSR_E_NOMEM;
}

static tsr_status add_state(making *m, tsr_converted *row, tsr_str name, tsr_str key)
{
    const bool step = tsr_str_equal(key, TSR_STR("step"));
    if (row->entry->kind == TSR_ENTRY_TENSOR && !step) return add_tensor(m, name, key, row->entry);
    const tsr_value *value = row->entry->kind == TSR_ENTRY_TENSOR ? tsr_value_tensor(m->arena, row->entry, m->err) : row->entry->value;
    if (!value) return TSR_E_NOMEM;
    if (step) m->step = value;
    if (step) return add_file(m, value, "%.*s/zero/%.*s/%.*s.pt", name, key);
    row->written = false; /* an optimizer's None, for which DeepSpeed has no file */
    row->left_out = "is not a tensor, and universal checkpoints hold only tensors of a weight's states";
    return TSR_OK;
}

static tsr_status check_name(const making *m, tsr_str name)
{
    const bool plain = !memchr(name.data, '/', name.size) && !tsr_str_equal(name, TSR_STR(".")) && !tsr_str_equal(name, TSR_STR(".."));
    TSR_FAIL_IF(!plain, m->err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "the weight '%.*s' would be the name of a directory, which it cannot be", TSR_STR_ARG(name));
    return TSR_OK;
}

static tsr_status add_weights(making *m)
{
    tsr_str name, key;
    for (uint64_t i = 0; i < m->chosen->count; i++) {
        tsr_converted *row = &m->chosen->rows[i];
        const uint32_t known = weight_of(row, &name) ? tsr_map_get(m->trained, name, 0) : 0;
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
        TSR_FAIL_IF(state_of(m, &m->chosen->rows[i], &name, &key) && tsr_map_get(m->trained, name, 0) != 2, m->err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
                    "'%.*s' is the state of a weight '%s%.*s' that is not there", TSR_STR_ARG(m->chosen->rows[i].name), model_prefix, TSR_STR_ARG(name));
    return TSR_OK;
}

/* ---- the optimizer ---- */

/* A group whose parameters are the one flat tensor `number`, as DeepSpeed's own optimizers see them. */
static tsr_status flat_group(const making *m, const tsr_value *group, size_t number, const tsr_value **out)
{
    static const char *const without[] = {"params", NULL};
    growing g = grow(m);
    put_all(&g, group, without);
    const tsr_value *index = tsr_value_int(m->arena, (int64_t)number, m->err);
    put(&g, TSR_STR("params"), tsr_value_list(m->arena, TSR_VALUE_LIST, 1, index));
    return take(&g, TSR_VALUE_DICT, out);
}

/* Where nothing states groups, those of `param_shapes` without hyperparameters: a loading engine keeps its own. */
static tsr_status flat_groups(const making *m, const tsr_value **out)
{
    const tsr_value *shapes = get(m->engine, "param_shapes"), *from = m->groups ? m->groups : shapes;
    const size_t count = from && from->kind == TSR_VALUE_LIST ? from->count : 1;
    growing g = grow(m);
    for (size_t i = 0; i < count; i++) {
        const tsr_value *group = NULL;
        if (flat_group(m, m->groups ? m->groups->items[i] : NULL, i, &group) != TSR_OK) g.status = TSR_E_NOMEM;
        push(&g, group);
    }
    return take(&g, TSR_VALUE_LIST, out);
}

/* DeepSpeed takes the object as it is: its attributes were read as a dictionary. */
static const tsr_value *loss_scaler(const making *m)
{
    const tsr_value *state = get(m->optim, "loss_scaler");
    if (!state || state->kind != TSR_VALUE_DICT) return NULL;
    const tsr_value *args = tsr_value_items(m->arena, TSR_VALUE_TUPLE, NULL, 0, m->err);
    const tsr_value **items = tsr_arena_array(m->arena, 2, sizeof *items, m->err);
    tsr_value *object = args && items ? tsr_value_items(m->arena, TSR_VALUE_OBJECT, items, 2, m->err) : NULL;
    if (!object) return NULL;
    items[0] = args;
    items[1] = state;
    object->text = get(state, "cur_iter") ? TSR_STR("deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler")
                                          : TSR_STR("deepspeed.runtime.fp16.loss_scaler.LossScaler");
    return object;
}

static const tsr_value *version(const making *m)
{
    const tsr_value *stated = get(m->engine, "ds_version");
    if (!stated) stated = get(m->optim, "ds_version");
    return stated ? stated : tsr_value_str(m->arena, TSR_STR("0.19.8"), m->err);
}

static tsr_status add_optimizer(making *m)
{
    static const char *const without[] = {"state", "param_groups", "loss_scaler", "ds_version", "optimizer_state_dict", NULL};
    const tsr_value *groups, *states, *scaler = loss_scaler(m), *root;
    TSR_TRY(flat_groups(m, &groups));
    if (m->step) states = tsr_value_dict(m->arena, 1, "step", m->step);
    else states = tsr_value_dict(m->arena, 0);
    const tsr_value **first = tsr_arena_array(m->arena, 2, sizeof *first, m->err);
    if (!first || !states) return TSR_E_NOMEM;
    first[0] = tsr_value_int(m->arena, 0, m->err);
    first[1] = states;
    const tsr_value *numbered = first[0] ? tsr_value_items(m->arena, TSR_VALUE_DICT, first, 2, m->err) : NULL;
    growing g = grow(m);
    put_all(&g, m->optim, without);
    if (scaler) put(&g, TSR_STR("loss_scaler"), scaler);
    put(&g, TSR_STR("ds_version"), version(m));
    put(&g, TSR_STR("param_groups"), groups);
    put(&g, TSR_STR("optimizer_state_dict"), tsr_value_dict(m->arena, 2, "state", numbered, "param_groups", groups));
    TSR_TRY(take(&g, TSR_VALUE_DICT, &root));
    return add_file(m, root, "%.*s/zero/%.*s%.*s", TSR_STR("optimizer_state.pt"), TSR_STR(""));
}

/* ---- model states ---- */

static bool is_same_tensor(const tsr_entry *a, const tsr_entry *b)
{
    return a->rank == b->rank && (a->rank == 0 || memcmp(a->shape, b->shape, a->rank * sizeof *a->shape) == 0) && a->chunk_count && b->chunk_count &&
           a->chunks[0].file == b->chunks[0].file && a->chunks[0].byte_offset == b->chunks[0].byte_offset;
}

/* They count as trained: what they name has a directory. */
static tsr_status note_ties(making *m)
{
    for (size_t i = 0; i + 1 < m->ties->count; i += 2)
        if (m->ties->items[i]->kind == TSR_VALUE_STR) TSR_TRY(note(m, m->ties->items[i]->text));
    return TSR_OK;
}

/* Second names of trained weights: the source's list, or where it has none what shares a storage with one. */
static tsr_status find_ties(making *m)
{
    tsr_str name, owner;
    m->ties = get(m->engine, "shared_params");
    if (m->ties && m->ties->kind == TSR_VALUE_DICT) return note_ties(m);
    growing g = grow(m);
    for (uint64_t i = 0; i < m->chosen->count; i++) {
        const tsr_converted *row = &m->chosen->rows[i];
        const tsr_str storage = {(const char *)&row->entry->storage_id, sizeof row->entry->storage_id};
        if (!weight_of(row, &name) || !row->entry->storage_id || tsr_map_get(m->trained, name, 0)) continue;
        const uint32_t first = tsr_map_get(m->owners, storage, UINT32_MAX);
        if (first == UINT32_MAX || !is_same_tensor(m->chosen->rows[first].entry, row->entry)) continue;
        weight_of(&m->chosen->rows[first], &owner);
        put(&g, name, tsr_value_str(m->arena, owner, m->err));
    }
    TSR_TRY(take(&g, TSR_VALUE_DICT, &m->ties));
    return note_ties(m);
}

/* Weights that have no directory of their own: frozen ones and buffers. A second name of a trained one has its owner's. */
static tsr_status untrained(const making *m, const tsr_value **out)
{
    tsr_str name;
    growing g = grow(m);
    for (uint64_t i = 0; i < m->chosen->count; i++) {
        const tsr_converted *row = &m->chosen->rows[i];
        if (!weight_of(row, &name) || tsr_map_get(m->trained, name, 0)) continue;
        put(&g, name, tsr_value_tensor(m->arena, row->entry, m->err));
    }
    return take(&g, TSR_VALUE_DICT, out);
}

/* The shapes of trained weights, group by group, where the source states none. */
static tsr_status shapes_of(const making *m, const tsr_value **out)
{
    tsr_str name;
    growing g = grow(m);
    for (uint64_t i = 0; i < m->chosen->count; i++) {
        const tsr_converted *row = &m->chosen->rows[i];
        if (!weight_of(row, &name) || !tsr_map_get(m->trained, name, 0)) continue;
        const tsr_value **sizes = tsr_arena_array(m->arena, row->entry->rank, sizeof *sizes, m->err);
        for (uint32_t d = 0; sizes && d < row->entry->rank; d++) sizes[d] = tsr_value_int(m->arena, (int64_t)row->entry->shape[d], m->err);
        put(&g, name, sizes ? tsr_value_items(m->arena, TSR_VALUE_SIZE, sizes, row->entry->rank, m->err) : NULL);
    }
    const tsr_value *group;
    TSR_TRY(take(&g, TSR_VALUE_DICT, &group));
    *out = tsr_value_list(m->arena, TSR_VALUE_LIST, 1, group);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

static void put_default(growing *g, const tsr_value *engine, const char *key, const tsr_value *value)
{
    if (!get(engine, key)) put(g, tsr_str_from(key), value);
}

/* What every model states file has. */
static tsr_status model_states(const making *m, const tsr_value *module, const tsr_value **out)
{
    static const char *const without[] = {"optimizer", "frozen_param_shapes", "frozen_param_fragments", "shared_params", "param_shapes", NULL};
    static const char *const parts[] = {"model", "module", "optim", "optimizer", "engine", NULL};
    static const char *const numbers[] = {"skipped_steps", "global_steps", "global_samples"}, *const worlds[] = {"dp_world_size", "mp_world_size"};
    static const char *const nothing[] = {"lr_scheduler", "data_sampler", "random_ltd"};
    tsr_error *err = m->err;
    const tsr_value *none = tsr_value_none(m->arena, err);
    growing g = grow(m);
    put(&g, TSR_STR("module"), module);
    put_all(&g, m->engine, without);
    put_all(&g, m->root, parts);
    put(&g, TSR_STR("optimizer"), none);
    put(&g, TSR_STR("frozen_param_shapes"), none); /* frozen weights are whole in `module` */
    put(&g, TSR_STR("frozen_param_fragments"), none);
    put(&g, TSR_STR("param_shapes"), m->shapes ? m->shapes : get(m->engine, "param_shapes"));
    put(&g, TSR_STR("shared_params"), m->ties);
    put_default(&g, m->engine, "buffer_names", tsr_value_items(m->arena, TSR_VALUE_LIST, NULL, 0, err));
    for (size_t i = 0; i < 3; i++) put_default(&g, m->engine, numbers[i], tsr_value_int(m->arena, 0, err));
    for (size_t i = 0; i < 2; i++) put_default(&g, m->engine, worlds[i], tsr_value_int(m->arena, 1, err));
    for (size_t i = 0; i < 3; i++) put_default(&g, m->engine, nothing[i], none);
    put_default(&g, m->engine, "ds_version", version(m));
    return take(&g, TSR_VALUE_DICT, out);
}

static tsr_status add_model_states(making *m)
{
    const tsr_value *stored = get(m->root, "module"), *rest, *root;
    const tsr_value *stated = get(m->engine, "param_shapes");
    if (!stated || stated->kind != TSR_VALUE_LIST) TSR_TRY(shapes_of(m, &m->shapes)); /* before second names count as trained */
    TSR_TRY(find_ties(m));
    TSR_TRY(untrained(m, &rest));
    TSR_TRY(model_states(m, stored ? stored : rest, &root));
    TSR_TRY(add_file(m, root, "%.*s/%.*s%.*s", TSR_STR("mp_rank_00_model_states.pt"), TSR_STR("")));
    TSR_TRY(model_states(m, rest, &root));
    return add_file(m, root, "%.*s/%.*s%.*s", TSR_STR("zero_pp_rank_0_mp_rank_00_model_states.pt"), TSR_STR(""));
}

static tsr_status name_tag(making *m)
{
    const tsr_value *steps = get(m->engine, "global_steps");
    const long long step = steps && steps->kind == TSR_VALUE_INT ? (long long)steps->as.integer : 0;
    m->tag = tsr_arena_format(m->arena, m->err, "global_step%lld_universal", step);
    return m->tag.data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status make_all(making *m)
{
    TSR_TRY(name_tag(m));
    TSR_TRY(find_trained(m));
    TSR_TRY(add_weights(m));
    TSR_TRY(add_optimizer(m));
    return add_model_states(m);
}

tsr_status tsr_universal_files(const tsr_chosen *chosen, const tsr_value *root, tsr_arena *arena, tsr_universal *out, tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(chosen->checkpoint)->allocator;
    const bool short_name = get(root, "optim") != NULL;
    making m = {.chosen = chosen, .root = root, .arena = arena, .err = err, .files = tsr_vec_of(allocator, sizeof(tsr_universal_file)),
                .optim = get(root, short_name ? "optim" : "optimizer"), .engine = get(root, "engine"),
                .state_prefix = short_name ? TSR_STR("optim.state.") : TSR_STR("optimizer.state.")};
    m.groups = get(m.optim, "param_groups");
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
