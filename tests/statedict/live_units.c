/* See live_units.h. */
#include "live_units.h"

#include <stdio.h>

#include "tessera/fqn.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/names.h"

static tsr_status get_extra(void *ctx, tsr_str raw, tsr_arena *arena, const tsr_value **out, tsr_error *err)
{
    const live_units *u = ctx;
    (void)arena;
    *out = tsr_value_get(u->w.tree.plain, raw);
    return *out ? TSR_OK : tsr_raise(err, TSR_E_USAGE, 0, "not its name");
}

static tsr_status set_extra(void *ctx, tsr_str raw, const tsr_value *value, tsr_error *err)
{
    live_units *u = ctx;
    tsr_value *own = (tsr_value *)(uintptr_t)tsr_value_get(u->w.tree.plain, raw);
    const tsr_value *step = value->kind == TSR_VALUE_DICT ? tsr_value_get(value, TSR_STR("step")) : NULL;
    if (!step || !tsr_str_equal(raw, TSR_STR("ignored._extra_state"))) return tsr_raise(err, TSR_E_FORMAT, 0, "other state");
    u->extra = value;
    if (own) {
        const tsr_value **items = tsr_arena_array(u->w.arena, 2, sizeof *items, err);
        items[0] = tsr_value_str(u->w.arena, TSR_STR("step"), err);
        items[1] = tsr_value_int(u->w.arena, step->as.integer, err);
        *own = *tsr_value_items(u->w.arena, TSR_VALUE_DICT, items, 2, err);
    }
    return TSR_OK;
}

/* Writes a raw name as the golden file's `plain` has it. */
static void strip(tsr_str raw, char *out)
{
    static const char *const gone[] = {"_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."};
    for (size_t i = 0; i < raw.size;) {
        size_t skip = 0;
        for (size_t g = 0; g < sizeof gone / sizeof *gone; g++)
            if (tsr_str_starts((tsr_str){raw.data + i, raw.size - i}, tsr_str_from(gone[g]))) skip = strlen(gone[g]);
        if (!skip) *out++ = raw.data[i++];
        i += skip;
    }
    *out = 0;
}

static tsr_status take_tensors(live_units *u, tsr_error *err)
{
    tsr_state_item *items;
    size_t count;
    TSR_TRY(tsr_fqn_iterate(u->w.modules, &u->w.host, u->w.arena, &items, &count, err));
    tsr_model_tensor *bound = tsr_arena_array(u->w.arena, count, sizeof *bound, err);
    for (size_t i = 0; i < count; i++) {
        char name[256];
        if (!items[i].tensor) continue;
        strip(items[i].raw, name);
        const tsr_value *value = tsr_value_get(u->w.tree.plain, tsr_str_from(name));
        if (value)
            bound[u->model.tensor_count++] = (tsr_model_tensor){items[i].tensor, (tsr_tensor *)tsr_tensor_of(value), NULL};
    }
    u->model.tensors = bound;
    return TSR_OK;
}

static const tsr_module_tensor *tensor_of(const live_units *u, const char *raw)
{
    tsr_state_item *items;
    size_t count;
    if (tsr_fqn_named_parameters(u->w.modules, &u->w.host, u->w.arena, &items, &count, NULL) != TSR_OK) return NULL;
    for (size_t i = 0; i < count; i++)
        if (tsr_str_equal(items[i].raw, tsr_str_from(raw))) return items[i].tensor;
    return NULL;
}

static tsr_status read_optimizer(live_units *u, const cJSON *json, bool on_device, tsr_error *err)
{
    tsr_model_optimizer *o = u->at[u->count] = &u->list[u->count];
    const cJSON *groups = live_get(json, "groups");
    tsr_device *device = on_device ? &u->w.device.base : NULL;
    o->algorithm = live_is(json, "algorithm", "SGD") ? TSR_SGD : live_is(json, "algorithm", "Adam") ? TSR_ADAM : TSR_ADAMW;
    o->memory = u->memory;
    o->groups = tsr_arena_array(u->w.arena, (size_t)cJSON_GetArraySize(groups), sizeof *o->groups, err);
    for (const cJSON *g = groups->child; g; g = g->next) {
        tsr_model_group *group = &o->groups[o->group_count++];
        const cJSON *params = live_get(g, "params"), *states = live_get(g, "state");
        group->options = live_value(u->memory, live_get(g, "options"), u->w.comm->rank, NULL);
        group->params = tsr_arena_array(u->w.arena, (size_t)cJSON_GetArraySize(params), sizeof *group->params, err);
        for (const cJSON *p = params->child, *s = states->child; p; p = p->next, s = s->next) {
            tsr_model_param *param = &group->params[group->count++];
            param->of = tensor_of(u, p->valuestring);
            if (!param->of) return tsr_raise(err, TSR_E_FORMAT, 0, "no parameter '%s'", p->valuestring);
            param->state = cJSON_IsNull(s) ? NULL : live_value(u->memory, s, u->w.comm->rank, device);
        }
    }
    const cJSON *user = cJSON_GetObjectItem(json, "user");
    o->user_state = user ? live_value(u->memory, user, u->w.comm->rank, NULL) : NULL;
    u->count++;
    return TSR_OK;
}

tsr_status live_units_open(live_units *u, const cJSON *test, tsr_comm *comm, bool on_device, tsr_error *err)
{
    *u = (live_units){.count = 0};
    TSR_TRY(fsdp_world_describe(&u->w, test, comm, on_device, err));
    TSR_TRY(tsr_state_dict_new(&u->w.host, &u->memory, err));
    TSR_TRY(tsr_state_dict_new(&u->w.host, &u->out, err));
    u->model = (tsr_model){.modules = u->w.modules,
                           .fsdp = &u->w.tree,
                           .get_extra = get_extra,
                           .set_extra = set_extra,
                           .ctx = u,
                           .memory = u->memory};
    TSR_TRY(take_tensors(u, err));
    for (const cJSON *o = live_get(u->w.record, "optimizers")->child; o; o = o->next)
        TSR_TRY(read_optimizer(u, o, on_device, err));
    return TSR_OK;
}

void live_units_close(live_units *u)
{
    tsr_state_dict_free(u->out);
    tsr_state_dict_free(u->memory);
    fsdp_world_close(&u->w);
}

static void add(const tsr_tensor *tensor, int number, tsr_arena *arena)
{
    for (uint32_t i = 0; i < (tensor->spread == TSR_IN_BOXES ? tensor->part_count : 1); i++) {
        tsr_tensor part = *tensor;
        uint64_t bytes = 0;
        if (tensor->spread == TSR_IN_BOXES)
            part = tsr_tensor_whole(tensor->entry.dtype, tensor->entry.ndim, tensor->parts[i].sizes, tensor->parts[i].data);
        tsr_tensor_held(&part, arena, &bytes, NULL);
        if (tensor->entry.dtype == TSR_FLOAT32)
            for (uint64_t k = 0; k < bytes / 4; k++) ((float *)part.data)[k] += (float)number;
        if (tensor->entry.dtype == TSR_INT64)
            for (uint64_t k = 0; k < bytes / 8; k++) ((int64_t *)part.data)[k] += number;
    }
}

/* Whether a tensor was changed already: tied parameters and scalars of a flat parameter occur several times in a result. */
static bool changed_before(live_units *u, const tsr_tensor *tensor)
{
    for (size_t i = 0; tensor->data && i < u->changed_count; i++)
        if (u->changed[i] == tensor->data) return true;
    if (tensor->data && u->changed_count < sizeof u->changed / sizeof *u->changed)
        u->changed[u->changed_count++] = tensor->data;
    return false;
}

static const tsr_value *change(live_units *u, const tsr_value *value, const char *drop, bool back)
{
    tsr_arena *arena = u->w.arena;
    if (value->kind == TSR_VALUE_TENSOR) {
        if (!changed_before(u, tsr_tensor_of(value))) add(tsr_tensor_of(value), back ? -1 : 1, arena);
        return value;
    }
    tsr_value *copy = tsr_value_new(arena, value->kind, NULL);
    const tsr_value **items = tsr_arena_array(arena, value->count, sizeof *items, NULL);
    size_t count = 0;
    *copy = *value;
    if (value->kind == TSR_VALUE_FLOAT) copy->as.real *= back ? 0.5 : 2;
    const bool dict = value->kind == TSR_VALUE_DICT, keep = value->kind == TSR_VALUE_TUPLE;
    for (size_t i = 0; i < value->count; i++) {
        const bool key = dict && i % 2 == 0;
        if (key && drop && tsr_str_equal(value->items[i]->text, tsr_str_from(drop))) {
            i++;
            continue;
        }
        const bool below = dict && i % 2 && tsr_str_equal(value->items[i - 1]->text, TSR_STR("state"));
        items[count++] = key || keep ? value->items[i] : change(u, value->items[i], below ? drop : NULL, back);
    }
    copy->items = items;
    copy->count = count;
    return copy;
}

const tsr_value *live_changed(live_units *u, const tsr_value *value, const char *drop)
{
    u->changed_count = 0;
    return change(u, value, drop, false);
}

const tsr_value *live_unchanged(live_units *u, const tsr_value *value)
{
    u->changed_count = 0;
    return change(u, value, NULL, true);
}

/* Compares names in any order, since PyTorch's order is that of a set. */
static tsr_status same_names(const tsr_value *state, const cJSON *pairs, tsr_error *err)
{
    if (tsr_value_pairs(state) != (size_t)cJSON_GetArraySize(pairs)) return tsr_raise(err, TSR_E_FORMAT, 0, "other states");
    for (const cJSON *pair = pairs->child; pair; pair = pair->next) {
        const char *name = live_get(pair->child, "s")->valuestring;
        const tsr_value *mine = tsr_value_get(state, tsr_str_from(name));
        if (!mine) return tsr_raise(err, TSR_E_FORMAT, 0, "no state '%s'", name);
        const tsr_status status = live_same(mine, pair->child->next, false, err);
        if (status != TSR_OK) {
            tsr_error_context(err, "'%s'", name);
            return status;
        }
    }
    return TSR_OK;
}

tsr_status live_units_same(const live_units *u, const cJSON *json, tsr_error *err)
{
    size_t o = 0;
    for (const cJSON *optimizer = json->child; optimizer; optimizer = optimizer->next, o++) {
        size_t g = 0;
        const cJSON *user = cJSON_GetObjectItem(optimizer, "user");
        if ((user != NULL) != (u->list[o].user_state != NULL))
            return tsr_raise(err, TSR_E_FORMAT, 0, "state of no parameter");
        if (user) TSR_TRY(live_same(u->list[o].user_state, user, false, err));
        for (const cJSON *group = live_get(optimizer, "groups")->child; group; group = group->next, g++) {
            size_t p = 0;
            TSR_TRY(live_same(u->list[o].groups[g].options, live_get(group, "options"), false, err));
            for (const cJSON *state = live_get(group, "state")->child; state; state = state->next, p++) {
                const tsr_value *mine = u->list[o].groups[g].params[p].state;
                const char *name = cJSON_GetArrayItem(live_get(group, "params"), (int)p)->valuestring;
                if ((mine == NULL) != cJSON_IsNull(state))
                    return tsr_raise(err, TSR_E_FORMAT, 0, "'%s' %s state", name, mine ? "has" : "lacks");
                const tsr_status status = mine ? same_names(mine, live_get(state, "D"), err) : TSR_OK;
                if (status != TSR_OK) {
                    tsr_error_context(err, "'%s'", name);
                    return status;
                }
            }
        }
    }
    return TSR_OK;
}
