/* See fsdp_world.h. */
#include "fsdp_world.h"

#include <stdio.h>
#include <stdlib.h>

#include "tessera/fqn.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/names.h"

static void warn(void *ctx, const char *message)
{
    fsdp_world *w = ctx;
    w->warnings += strstr(message, "NO_SHARD") || strstr(message, "zeros");
}

static void at(void *ctx, tsr_fsdp_moment moment, tsr_str fqn)
{
    static const char *const words[] = {"before save", "after save", "before load", "after load"};
    fsdp_world *w = ctx;
    const size_t used = strlen(w->moments);
    snprintf(w->moments + used, sizeof w->moments - used, "%s %.*s\n", words[moment], TSR_STR_ARG(fqn));
}

/* Sets the only extra state that the golden models have. */
static tsr_status set_extra(void *ctx, tsr_str fqn, const tsr_value *value, tsr_error *err)
{
    fsdp_world *w = ctx;
    const tsr_value *step = value->kind == TSR_VALUE_DICT ? tsr_value_get(value, TSR_STR("step")) : NULL;
    if (!tsr_str_equal(fqn, TSR_STR("ignored._extra_state")) || !step || step->as.integer != 5)
        return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "other extra state");
    w->extras++;
    return TSR_OK;
}

static tsr_status open_modules(fsdp_world *w, tsr_error *err)
{
    tsr_modules_document document;
    const cJSON *own = cJSON_GetObjectItem(w->record, "modules"); /* for a rank whose parameters have other names */
    char *text = cJSON_PrintUnformatted(own ? own : live_get(w->test, "modules"));
    const tsr_status status = tsr_modules_parse(tsr_str_from(text), &w->host, w->arena, &document, err);
    cJSON_free(text);
    return status == TSR_OK ? tsr_modules_new(document.root, &w->host, &w->modules, err) : status;
}

/* A case of make_fsdp_tp.py: the first dims of the mesh are those of FSDP, and the last one that of tensor parallelism. */
static tsr_status open_root(fsdp_world *w, const cJSON *shape, tsr_error *err)
{
    static const tsr_str names[] = {{"replicate", 9}, {"shard", 5}, {"tp", 2}};
    uint64_t *sizes = tsr_arena_array(w->arena, 3, sizeof *sizes, err);
    for (const cJSON *n = shape->child; n; n = n->next) sizes[w->root.dim_count++] = (uint64_t)n->valuedouble;
    const uint32_t dims = w->root.dim_count;
    w->root.shape = w->mesh.shape = sizes;
    w->root.names = w->mesh.names = names + 3 - dims;
    w->mesh.dim_count = dims - 1;
    const uint32_t tp = (uint32_t)sizes[dims - 1], shards = (uint32_t)sizes[dims - 2];
    return w->comm->split(w->comm, w->comm->rank / tp / shards * tp + w->comm->rank % tp, w->comm->rank, &w->group, err);
}

static tsr_status open_specs(fsdp_world *w, tsr_fsdp_unit *unit, const cJSON *list, tsr_error *err)
{
    tsr_fsdp_spec *specs = tsr_arena_array(w->arena, (size_t)cJSON_GetArraySize(list), sizeof *specs, err), *spec = specs;
    for (const cJSON *s = list->child; s; s = s->next, spec++) {
        tsr_placement *placement;
        uint32_t count;
        if (cJSON_IsNull(s)) continue;
        uint64_t *shape = tsr_arena_array(w->arena, 8, sizeof *shape, err);
        for (const cJSON *n = s->child->child; n; n = n->next) shape[spec->ndim++] = (uint64_t)n->valuedouble;
        spec->shape = shape;
        TSR_TRY(tsr_placements_parse(tsr_str_from(s->child->next->valuestring), w->arena, &placement, &count, err));
        spec->placement = *placement;
    }
    unit->specs = specs;
    unit->root_mesh = w->root.dim_count ? &w->root : NULL;
    return TSR_OK;
}

/* Opens the group of ranks that share a unit: all ranks, or one replica. */
static tsr_status open_group(fsdp_world *w, const cJSON *how, tsr_error *err)
{
    const cJSON *mesh = cJSON_GetObjectItem(how, "mesh"), *groups = cJSON_GetObjectItem(how, "groups");
    uint32_t group = 0;
    if (cJSON_GetObjectItem(how, "mesh2d")) return open_root(w, live_get(how, "mesh2d"), err);
    if (mesh) {
        uint64_t *shape = tsr_arena_array(w->arena, 2, sizeof *shape, err);
        w->mesh.shape = shape;
        for (const cJSON *n = mesh->child; n; n = n->next) shape[w->mesh.dim_count++] = (uint64_t)n->valuedouble;
        tsr_str *names = tsr_arena_array(w->arena, 2, sizeof *names, err);
        names[0] = w->mesh.dim_count == 2 ? TSR_STR("replicate") : TSR_STR("shard");
        names[1] = TSR_STR("shard");
        w->mesh.names = names;
        group = w->comm->rank / (uint32_t)shape[w->mesh.dim_count - 1];
    }
    for (int g = 0; groups && g < cJSON_GetArraySize(groups); g++)
        for (const cJSON *n = cJSON_GetArrayItem(groups, g)->child; n; n = n->next)
            if ((uint32_t)n->valuedouble == w->comm->rank) group = (uint32_t)g;
    return w->comm->split(w->comm, group, w->comm->rank, &w->group, err);
}

static tsr_status open_units(fsdp_world *w, bool on_device, tsr_error *err)
{
    const cJSON *slice = live_get(w->record, "slices")->child;
    tsr_named_module *named;
    size_t count;
    TSR_TRY(tsr_fqn_named_modules(w->modules, &w->host, w->arena, &named, &count, err));
    const cJSON *own = cJSON_GetObjectItem(w->record, "units");
    for (const cJSON *u = (own ? own : live_get(w->test, "units"))->child; u; u = u->next, slice = slice->next) {
        tsr_fsdp_unit *unit = &w->units[w->tree.unit_count];
        const tsr_str path = tsr_str_from(live_get(u, "module")->valuestring);
        const tsr_value *value = live_value(w->mine, slice, w->comm->rank, on_device ? &w->device.base : NULL);
        const tsr_tensor *tensor = tsr_tensor_of(value);
        w->slices[w->tree.unit_count++] = tensor;
        *unit =
            (tsr_fsdp_unit){.module = TSR_NO_MODULE,
                            .comm = w->group,
                            .no_shard = live_is(u, "strategy", "NO_SHARD"),
                            .mesh = w->mesh.dim_count ? &w->mesh : NULL,
                            .dtype = tensor->entry.dtype,
                            .device = tensor->device,
                            .slice = tensor->data,
                            .cast_buffers = cJSON_IsTrue(cJSON_GetObjectItem(live_get(w->test, "case"), "half_buffers"))};
        for (size_t i = 0; i < count; i++)
            if (tsr_str_equal(named[i].raw, path)) unit->module = named[i].module;
        const cJSON *specs = cJSON_GetObjectItem(w->record, "specs");
        if (specs) TSR_TRY(open_specs(w, unit, cJSON_GetArrayItem(specs, (int)w->tree.unit_count - 1), err));
        if (!cJSON_IsTrue(cJSON_GetObjectItem(live_get(w->test, "case"), "extension"))) continue;
        unit->extensions = &w->extensions;
        unit->transforms = &w->transforms;
    }
    return TSR_OK;
}

tsr_status fsdp_world_describe(fsdp_world *w, const cJSON *test, tsr_comm *comm, bool on_device, tsr_error *err)
{
    static const tsr_str ignored = {"ignored", 7};
    *w = (fsdp_world){.test = test, .host = live_host(NULL), .comm = comm};
    w->record = cJSON_GetArrayItem(live_get(test, "ranks"), (int)comm->rank);
    w->arena = tsr_arena_new(&tsr_allocator_libc, 0, err);
    live_device_open(&w->device);
    TSR_TRY(tsr_state_dict_new(&w->host, &w->mine, err));
    TSR_TRY(open_modules(w, err));
    TSR_TRY(open_group(w, live_get(test, "case"), err));
    TSR_TRY(open_units(w, on_device, err));
    w->tree = (tsr_fsdp_tree){
        .modules = w->modules,
        .comm = comm,
        .units = w->units,
        .unit_count = w->tree.unit_count,
        .plain = live_value(w->mine, live_get(w->record, "plain"), comm->rank, on_device ? &w->device.base : NULL),
        .ignored = &ignored,
        .ignored_count = 1,
        .warn = warn,
        .at = at,
        .set_extra = set_extra,
        .ctx = w};
    return TSR_OK;
}

tsr_status fsdp_world_open(fsdp_world *w, const cJSON *test, tsr_comm *comm, bool on_device, tsr_error *err)
{
    TSR_TRY(fsdp_world_describe(w, test, comm, on_device, err));
    return tsr_fsdp_model_new(&w->tree, &w->host, &w->model, err);
}

void fsdp_world_close(fsdp_world *w)
{
    tsr_fsdp_model_free(w->model);
    if (w->group) w->group->close(w->group);
    tsr_modules_free(w->modules);
    tsr_state_dict_free(w->mine);
    tsr_arena_free(w->arena);
}

tsr_fsdp_settings fsdp_world_settings(const char *name)
{
    tsr_fsdp_settings settings = {.type = name[0] == 's'   ? TSR_FSDP_SHARDED
                                          : name[0] == 'l' ? TSR_FSDP_LOCAL
                                                           : TSR_FSDP_FULL};
    settings.rank0_only = strcmp(name, "rank0") == 0;
    return settings;
}

static void scramble(const tsr_tensor *tensor, float number)
{
    uint64_t elements = 1;
    for (uint32_t i = 0; i < tensor->entry.ndim; i++) elements *= tensor->entry.shape[i];
    const uint64_t bytes = elements * tsr_dtype_size(tensor->entry.dtype);
    uint8_t *host = malloc(bytes + 1);
    for (uint64_t i = 0; i < bytes; i++) host[i] = ((const uint8_t *)&number)[i % sizeof number];
    if (bytes && tensor->device) tensor->device->from_host(tensor->device, tensor->data, host, bytes, NULL);
    else if (bytes) memcpy(tensor->data, host, bytes);
    free(host);
}

void fsdp_world_scramble(fsdp_world *w)
{
    for (size_t i = 0; i < w->tree.unit_count; i++) scramble(w->slices[i], 99);
    for (size_t i = 1; i < w->tree.plain->count; i += 2) {
        const tsr_tensor *tensor = tsr_tensor_of(w->tree.plain->items[i]);
        if (tensor && !tsr_str_equal(w->tree.plain->items[i - 1]->text, TSR_STR("mask"))) scramble(tensor, 7);
    }
}

tsr_status fsdp_world_same(const fsdp_world *w, const cJSON *slices, const cJSON *plain, tsr_error *err)
{
    size_t i = 0;
    for (const cJSON *slice = slices->child; slice; slice = slice->next) {
        const tsr_value value = {.kind = TSR_VALUE_TENSOR, .as.tensor = &w->slices[i++]->entry};
        TSR_TRY(live_same(&value, slice, false, err));
    }
    return plain ? live_same(w->tree.plain, plain, false, err) : TSR_OK;
}
