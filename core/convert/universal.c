/* Assigns the data of a universal checkpoint to its files. DeepSpeed's ds_to_universal writes the same files. Both kinds of
 * model states are written, so that ZeRO 1, 2 and 3 can load the checkpoint:
 *
 *   TAG/zero/NAME/fp32.pt, exp_avg.pt, …                  {cat_dim: 0, param: tensor}, for each trained weight
 *   TAG/zero/NAME/step.pt                                 a number or a 0-d tensor
 *   TAG/zero/optimizer_state.pt                           param groups for ZeRO 1 and 2, and once more for ZeRO 3
 *   TAG/mp_rank_00_model_states.pt                        read by ZeRO 1 and 2: what is not trained, and the engine's state
 *   TAG/zero_pp_rank_0_mp_rank_00_model_states.pt         read by ZeRO 3: the same, without the weights as stored */
#include "convert/universal_making.h"

#include "tessera/sys/try.h"
#include "tessera/sys/value_walk.h"
#include "tessera/sys/vec.h"

/* ---- trained weights ---- */

static bool state_of(const tsr_universal_making *m, const tsr_converted *row, tsr_str *name, tsr_str *key)
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

/* Finds the trained weights: those named in the param groups, and those that have states. */
static tsr_status find_trained(tsr_universal_making *m)
{
    tsr_str name, key;
    for (size_t g = 0; m->groups && g < m->groups->count; g++) {
        const tsr_value *params = tsr_dict_get(m->groups->items[g], "params");
        for (size_t i = 0; params && params->kind == TSR_VALUE_LIST && i < params->count; i++)
            if (params->items[i]->kind == TSR_VALUE_STR) TSR_TRY(tsr_universal_note(m, params->items[i]->text));
    }
    for (uint64_t i = 0; i < m->chosen->count; i++)
        if (state_of(m, &m->chosen->rows[i], &name, &key)) TSR_TRY(tsr_universal_note(m, name));
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
    return tsr_universal_add(m, root, "%.*s/zero/%.*s/%.*s.pt", name, key);
}

static tsr_status add_state(tsr_universal_making *m, tsr_converted *row, tsr_str name, tsr_str key)
{
    const bool step = tsr_str_equal(key, TSR_STR("step"));
    if (row->entry->kind == TSR_ENTRY_TENSOR && !step) return add_tensor(m, name, key, row->entry);
    const tsr_value *value =
        row->entry->kind == TSR_ENTRY_TENSOR ? tsr_value_tensor(m->arena, row->entry, m->err) : row->entry->value;
    if (!value) return TSR_E_NOMEM;
    if (step) m->step = value;
    if (step) return tsr_universal_add(m, value, "%.*s/zero/%.*s/%.*s.pt", name, key);
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
        const uint32_t known = tsr_universal_weight(row, &name) ? tsr_map_get(m->trained, name, 0) : 0;
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
    tsr_growing_dict g = tsr_dict_grow(m);
    tsr_dict_put_all(&g, group, without);
    const tsr_value *index = tsr_value_int(m->arena, (int64_t)number, m->err);
    tsr_dict_put(&g, TSR_STR("params"), tsr_value_list(m->arena, TSR_VALUE_LIST, 1, index));
    return tsr_dict_take(&g, TSR_VALUE_DICT, out);
}

/* If nothing states param groups, uses those of `param_shapes`, without hyperparameters; an engine that loads them keeps its
 * own. */
static tsr_status flat_groups(const tsr_universal_making *m, const tsr_value **out)
{
    const tsr_value *shapes = tsr_dict_get(m->engine, "param_shapes"), *from = m->groups ? m->groups : shapes;
    const size_t count = from && from->kind == TSR_VALUE_LIST ? from->count : 1;
    tsr_growing_dict g = tsr_dict_grow(m);
    for (size_t i = 0; i < count; i++) {
        const tsr_value *group = NULL;
        if (flat_group(m, m->groups ? m->groups->items[i] : NULL, i, &group) != TSR_OK) g.status = TSR_E_NOMEM;
        tsr_dict_push(&g, group);
    }
    return tsr_dict_take(&g, TSR_VALUE_LIST, out);
}

/* DeepSpeed needs the original object, whose attributes were read as a dictionary. */
static const tsr_value *loss_scaler(const tsr_universal_making *m)
{
    const tsr_value *state = tsr_dict_get(m->optim, "loss_scaler");
    if (!state || state->kind != TSR_VALUE_DICT) return NULL;
    const tsr_value *args = tsr_value_items(m->arena, TSR_VALUE_TUPLE, NULL, 0, m->err);
    const tsr_value **items = tsr_arena_array(m->arena, 2, sizeof *items, m->err);
    tsr_value *object = args && items ? tsr_value_items(m->arena, TSR_VALUE_OBJECT, items, 2, m->err) : NULL;
    if (!object) return NULL;
    items[0] = args;
    items[1] = state;
    object->text = tsr_dict_get(state, "cur_iter") ? TSR_STR("deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler")
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
    tsr_growing_dict g = tsr_dict_grow(m);
    tsr_dict_put_all(&g, m->optim, without);
    if (scaler) tsr_dict_put(&g, TSR_STR("loss_scaler"), scaler);
    tsr_dict_put(&g, TSR_STR("ds_version"), tsr_universal_version(m));
    tsr_dict_put(&g, TSR_STR("param_groups"), groups);
    tsr_dict_put(&g, TSR_STR("optimizer_state_dict"),
                 tsr_value_dict(m->arena, 2, "state", numbered, "param_groups", groups));
    TSR_TRY(tsr_dict_take(&g, TSR_VALUE_DICT, &root));
    return tsr_universal_add(m, root, "%.*s/zero/%.*s%.*s", TSR_STR("optimizer_state.pt"), TSR_STR(""));
}

static tsr_status name_tag(tsr_universal_making *m)
{
    const tsr_value *steps = tsr_dict_get(m->engine, "global_steps");
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
            TSR_FAIL_IF(tsr_str_starts((tsr_str){name.data + at, name.size - at}, marker), m->err, TSR_E_UNSUPPORTED,
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
    const tsr_value *ranks = tsr_dict_get(m->engine, "mp_world_size");
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
    return tsr_universal_add_model_states(m);
}

tsr_status tsr_universal_files(const tsr_chosen *chosen, const tsr_value *root, tsr_arena *arena, tsr_universal *out,
                               tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(chosen->checkpoint)->allocator;
    const bool short_name = tsr_dict_get(root, "optim") != NULL;
    tsr_universal_making m = {.chosen = chosen,
                              .root = root,
                              .arena = arena,
                              .err = err,
                              .files = tsr_vec_of(allocator, sizeof(tsr_universal_file)),
                              .optim = tsr_dict_get(root, short_name ? "optim" : "optimizer"),
                              .engine = tsr_dict_get(root, "engine"),
                              .state_prefix = short_name ? TSR_STR("optim.state.") : TSR_STR("optimizer.state.")};
    m.groups = tsr_dict_get(m.optim, "param_groups");
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
