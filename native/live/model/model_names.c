/* The tensors of a module tree and their names, and what all calls on a model share. */
#include "live/model/model_names.h"

#include "tessera/sys/collectives.h"
#include "tessera/sys/options.h"
#include "tessera/sys/statedict.h"

/* ---- tensors of the tree ---- */

static tsr_str address_of(const tsr_module_tensor *const *of)
{
    return (tsr_str){(const char *)of, sizeof *of};
}

/* Every tensor of every module, each module once. */
static size_t tensors_of(const tsr_modules *modules, const tsr_module_tensor **out, tsr_module_ref *owners)
{
    size_t count = 0;
    for (tsr_module_ref m = 0; m < tsr_modules_count(modules); m++) {
        const tsr_module *module = tsr_modules_at(modules, m);
        for (size_t i = 0; i < module->parameter_count + module->buffer_count; i++, count++) {
            if (!out) continue;
            out[count] =
                i < module->parameter_count ? &module->parameters[i] : &module->buffers[i - module->parameter_count];
            owners[count] = m;
        }
    }
    return count;
}

tsr_status tsr_tensor_ids_of(const tsr_modules *modules, const tsr_host *host, tsr_arena *arena, tsr_tensor_ids *out,
                             tsr_error *err)
{
    const size_t count = tensors_of(modules, NULL, NULL);
    out->keys = tsr_arena_array(arena, count, sizeof *out->keys, err);
    tsr_module_ref *owners = tsr_arena_array(arena, count, sizeof *owners, err);
    out->map = out->keys && owners ? tsr_map_new(host->allocator, count, err) : NULL;
    out->count = tsr_modules_tensor_count(modules);
    if (!out->map) return TSR_E_NOMEM;
    tensors_of(modules, out->keys, owners);
    for (size_t i = 0; i < count; i++) {
        const tsr_attribute *attribute = tsr_modules_attribute(modules, owners[i], out->keys[i]->name);
        if (attribute && attribute->tensor)
            TSR_TRY(tsr_map_put(out->map, address_of(&out->keys[i]), attribute->tensor_id, NULL, NULL, err));
    }
    return TSR_OK;
}

uint32_t tsr_tensor_ids_get(const tsr_tensor_ids *ids, const tsr_module_tensor *const *of)
{
    return tsr_map_get(ids->map, address_of(of), TSR_NO_ID);
}

void tsr_tensor_ids_free(tsr_tensor_ids *ids)
{
    tsr_map_free(ids->map);
    ids->map = NULL;
}

tsr_status tsr_model_held(const tsr_model *model, const tsr_tensor_ids *ids, tsr_arena *arena, tsr_tensor ***out,
                          tsr_error *err)
{
    tsr_tensor **held = *out = tsr_arena_array(arena, ids->count, sizeof *held, err);
    if (!held) return TSR_E_NOMEM;
    for (size_t i = 0; i < model->tensor_count; i++) {
        const char *name = model->tensors[i].name;
        const tsr_module_tensor *of = model->tensors[i].of;
        if (!of && name) of = tsr_modules_find(model->modules, name);
        TSR_FAIL_IF(!of && name, err, TSR_E_USAGE, "the module tree has no tensor '%s'", name);
        const uint32_t id = of ? tsr_tensor_ids_get(ids, &of) : TSR_NO_ID;
        TSR_FAIL_IF(id == TSR_NO_ID, err, TSR_E_USAGE, "tensor %zu of the model is not in its module tree", i);
        held[id] = model->tensors[i].tensor;
    }
    return TSR_OK;
}

/* ---- names ---- */

tsr_status tsr_model_fqn(const tsr_modules *modules, tsr_str raw, tsr_arena *arena, tsr_str *fqn, bool *renamed,
                         tsr_error *err)
{
    const tsr_fqn_options options = {0};
    tsr_name name;
    TSR_TRY(tsr_fqn_resolve(modules, raw, &options, arena, &name, err));
    TSR_FAIL_IF(name.fqn_count != 1, err, TSR_E_FORMAT, "'%.*s' has %zu canonical names, expected 1", TSR_STR_ARG(raw),
                name.fqn_count);
    *fqn = name.fqns[0];
    for (size_t i = 0; renamed && i < name.removed_count; i++)
        *renamed = *renamed || !tsr_str_equal(name.removed[i].component, tsr_wrapper_child(TSR_WRAPPER_CHECKPOINT));
    return TSR_OK;
}

tsr_status tsr_model_frozen(const tsr_modules *modules, const tsr_host *host, tsr_arena *arena, tsr_map *names,
                            tsr_error *err)
{
    tsr_state_item *named;
    size_t count;
    TSR_TRY(tsr_fqn_named_parameters(modules, host, arena, &named, &count, err));
    for (size_t i = 0; i < count; i++) {
        tsr_name name;
        if (named[i].tensor->requires_grad) continue;
        TSR_TRY(tsr_fqn_resolve(modules, named[i].raw, NULL, arena, &name, err));
        for (size_t n = 0; n < name.fqn_count; n++) {
            const tsr_str fqn = tsr_fsdp_clean(name.fqns[n], arena, err);
            if (!fqn.data) return TSR_E_NOMEM;
            TSR_TRY(tsr_map_put(names, fqn, 1, NULL, NULL, err));
        }
    }
    return TSR_OK;
}

/* ---- ranks ---- */

tsr_status tsr_options_agree(tsr_comm *comm, const char *call, const tsr_state_options *options, size_t optimizers,
                             tsr_status mine, tsr_error *err)
{
    TSR_TRY(tsr_comm_agree(comm, mine, err));
    const uint64_t facts[8] = {
        options->full_state_dict,
        options->cpu_offload,
        options->ignore_frozen_params,
        options->strict,
        options->broadcast_from_rank0,
        options->flatten_optimizer_state_dict,
        optimizers,
        options->keep_submodule_prefixes,
    };
    return tsr_comm_same(comm, (tsr_str){(const char *)facts, sizeof facts}, call, err);
}

/* ---- calls ---- */

tsr_status tsr_call_open(tsr_call *call, const tsr_state_call *given, const tsr_host *host, tsr_error *err)
{
    const tsr_state_options defaults = tsr_state_options_default();
    tsr_state_call own;
    TSR_TRY(TSR_OPTIONS_COPY(&own, given, tsr_state_call, err));
    *call = (tsr_call){.given = own};
    TSR_TRY(TSR_OPTIONS_COPY(&call->options, own.options ? own.options : &defaults, tsr_state_options, err));
    if (own.comm) return TSR_OK;
    TSR_TRY(tsr_comm_self(host->allocator, &call->self, err));
    call->given.comm = call->self;
    return TSR_OK;
}

void tsr_call_close(tsr_call *call)
{
    if (call->self) call->self->close(call->self);
}

tsr_status tsr_model_verify(const tsr_state_options *options, const tsr_value *state, bool submodules, tsr_arena *arena,
                            tsr_error *err)
{
    const size_t count = tsr_value_pairs(state);
    tsr_str *keys = tsr_arena_array(arena, count, sizeof *keys, err);
    if (!keys) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        TSR_FAIL_IF(state->items[2 * i]->kind != TSR_VALUE_STR, err, TSR_E_FORMAT,
                    "a key of the model state is not a string");
        keys[i] = state->items[2 * i]->text;
    }
    const tsr_state_request request = {
        .handle_model = true, .submodules = submodules, .model_keys = keys, .model_key_count = count};
    return tsr_state_dict_check(options, &request, err);
}
