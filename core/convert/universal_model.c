/* Makes the model states of a universal checkpoint: weights without a directory, and the engine's state. */
#include "convert/universal_making.h"

#include "tessera/sys/entries.h"
#include "tessera/sys/try.h"
#include "tessera/sys/value_walk.h"

static bool is_same_tensor(const tsr_entry *a, const tsr_entry *b)
{
    return tsr_entry_same_shape(a, b) && a->chunk_count && b->chunk_count && a->chunks[0].file == b->chunks[0].file &&
           a->chunks[0].byte_offset == b->chunks[0].byte_offset;
}

/* Second names count as trained, because the weights that they refer to have a directory. */
static tsr_status note_ties(tsr_universal_making *m)
{
    for (size_t i = 0; i + 1 < m->ties->count; i += 2)
        if (m->ties->items[i]->kind == TSR_VALUE_STR) TSR_TRY(tsr_universal_note(m, m->ties->items[i]->text));
    return TSR_OK;
}

/* Finds second names of trained weights: those in the source's list or, without a list, those that share a storage with
 * one. */
static tsr_status find_ties(tsr_universal_making *m)
{
    tsr_str name, owner;
    m->ties = tsr_dict_get(m->engine, "shared_params");
    if (m->ties && m->ties->kind == TSR_VALUE_DICT) return note_ties(m);
    tsr_growing_dict g = tsr_dict_grow(m);
    for (uint64_t i = 0; i < m->chosen->count; i++) {
        const tsr_converted *row = &m->chosen->rows[i];
        const tsr_str storage = {(const char *)&row->entry->storage_id, sizeof row->entry->storage_id};
        if (!tsr_universal_weight(row, &name) || !row->entry->storage_id || tsr_map_get(m->trained, name, 0)) continue;
        const uint32_t first = tsr_map_get(m->owners, storage, UINT32_MAX);
        if (first == UINT32_MAX || !is_same_tensor(m->chosen->rows[first].entry, row->entry)) continue;
        tsr_universal_weight(&m->chosen->rows[first], &owner);
        tsr_dict_put(&g, name, tsr_value_str(m->arena, owner, m->err));
    }
    TSR_TRY(tsr_dict_take(&g, TSR_VALUE_DICT, &m->ties));
    return note_ties(m);
}

/* Collects weights without a directory: frozen ones and buffers. A second name of a trained weight uses its owner's
 * directory. */
static tsr_status untrained(const tsr_universal_making *m, const tsr_value **out)
{
    tsr_str name;
    tsr_growing_dict g = tsr_dict_grow(m);
    for (uint64_t i = 0; i < m->chosen->count; i++) {
        const tsr_converted *row = &m->chosen->rows[i];
        if (!tsr_universal_weight(row, &name) || tsr_map_get(m->trained, name, 0)) continue;
        tsr_dict_put(&g, name, tsr_value_tensor(m->arena, row->entry, m->err));
    }
    return tsr_dict_take(&g, TSR_VALUE_DICT, out);
}

/* The shapes of trained weights, by group, for a source that does not state them. */
static tsr_status shapes_of(const tsr_universal_making *m, const tsr_value **out)
{
    tsr_str name;
    tsr_growing_dict g = tsr_dict_grow(m);
    for (uint64_t i = 0; i < m->chosen->count; i++) {
        const tsr_converted *row = &m->chosen->rows[i];
        if (!tsr_universal_weight(row, &name) || !tsr_map_get(m->trained, name, 0)) continue;
        const tsr_value **sizes = tsr_arena_array(m->arena, row->entry->ndim, sizeof *sizes, m->err);
        for (uint32_t d = 0; sizes && d < row->entry->ndim; d++)
            sizes[d] = tsr_value_int(m->arena, (int64_t)row->entry->shape[d], m->err);
        tsr_dict_put(&g, name, sizes ? tsr_value_items(m->arena, TSR_VALUE_SIZE, sizes, row->entry->ndim, m->err) : NULL);
    }
    const tsr_value *group;
    TSR_TRY(tsr_dict_take(&g, TSR_VALUE_DICT, &group));
    *out = tsr_value_list(m->arena, TSR_VALUE_LIST, 1, group);
    TSR_FAIL_IF(!*out, m->err, TSR_E_NOMEM, "out of memory for a universal checkpoint");
    return TSR_OK;
}

static void put_default(tsr_growing_dict *g, const tsr_value *engine, const char *key, const tsr_value *value)
{
    if (!tsr_dict_get(engine, key)) tsr_dict_put(g, tsr_str_from(key), value);
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
    tsr_growing_dict g = tsr_dict_grow(m);
    tsr_dict_put(&g, TSR_STR("module"), module);
    tsr_dict_put_all(&g, m->engine, without);
    tsr_dict_put_all(&g, m->root, parts);
    tsr_dict_put(&g, TSR_STR("optimizer"), none);
    tsr_dict_put(&g, TSR_STR("frozen_param_shapes"), none); /* frozen weights are complete in `module` */
    tsr_dict_put(&g, TSR_STR("frozen_param_fragments"), none);
    tsr_dict_put(&g, TSR_STR("param_shapes"), m->shapes ? m->shapes : tsr_dict_get(m->engine, "param_shapes"));
    tsr_dict_put(&g, TSR_STR("shared_params"), m->ties);
    put_default(&g, m->engine, "buffer_names", tsr_value_items(m->arena, TSR_VALUE_LIST, NULL, 0, err));
    for (size_t i = 0; i < 3; i++) put_default(&g, m->engine, numbers[i], tsr_value_int(m->arena, 0, err));
    for (size_t i = 0; i < 2; i++) put_default(&g, m->engine, worlds[i], tsr_value_int(m->arena, 1, err));
    for (size_t i = 0; i < 3; i++) put_default(&g, m->engine, nothing[i], none);
    put_default(&g, m->engine, "ds_version", tsr_universal_version(m));
    return tsr_dict_take(&g, TSR_VALUE_DICT, out);
}

tsr_status tsr_universal_add_model_states(tsr_universal_making *m)
{
    const tsr_value *stored = tsr_dict_get(m->root, "module"), *rest, *root;
    const tsr_value *stated = tsr_dict_get(m->engine, "param_shapes");
    /* Before second names count as trained. */
    if (!stated || stated->kind != TSR_VALUE_LIST) TSR_TRY(shapes_of(m, &m->shapes));
    TSR_TRY(find_ties(m));
    TSR_TRY(untrained(m, &rest));
    TSR_TRY(model_states(m, stored ? stored : rest, &root));
    TSR_TRY(tsr_universal_add(m, root, "%.*s/%.*s%.*s", TSR_STR("mp_rank_00_model_states.pt"), TSR_STR("")));
    TSR_TRY(model_states(m, rest, &root));
    return tsr_universal_add(m, root, "%.*s/%.*s%.*s", TSR_STR("zero_pp_rank_0_mp_rank_00_model_states.pt"), TSR_STR(""));
}
