/* Cuts the flat parameters of FSDP1's LOCAL_STATE_DICT into the parameters that they consist of (tsr_layers_unflatten).
 *
 *   blocks.0._flat_param [87]   a ShardedTensor that the ranks' files hold slices of
 *   blocks.0.up.weight [7, 5]   elements 0 to 35 of it, as the unit of tessera.flat-params/1 states
 *
 * With use_orig_params the files also have each rank's slices of the parameters under their own names, which the flat parameters
 * contain, too. */
#include <inttypes.h>

#include "mapping/mapped.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/commands.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/flat_params.h"
#include "tessera/sys/try.h"

#define FLAT_NAME "_flat_param"

typedef struct unflattening {
    const tsr_flat_params *flat;
    tsr_mapped *m;
    tsr_map *units;          /* name of a flat parameter in a state dict → unit */
    tsr_map *params;         /* with use_orig_params: names whose slices the source may have, too */
    const tsr_entry **found; /* of each unit; NULL: the source does not have it */
    tsr_str prefix;          /* of the model's names in the source, such as "model." */
    tsr_error *err;
} unflattening;

/* ---- names ---- */

/* A name as state dicts have it, without the components that wrappers insert. */
static tsr_str without_wrappers(const unflattening *u, tsr_str name)
{
    return tsr_name_without(u->m->own->arena, name, "_fsdp_wrapped_module\0_checkpoint_wrapped_module\0_orig_mod\0", u->err);
}

static tsr_str joined(const unflattening *u, tsr_str head, tsr_str tail)
{
    return tsr_arena_format(u->m->own->arena, u->err, "%.*s%.*s", TSR_STR_ARG(head), TSR_STR_ARG(tail));
}

static bool is_flat(const tsr_entry *entry)
{
    return tsr_str_equal(entry->fqn, TSR_STR(FLAT_NAME)) || tsr_str_ends(entry->fqn, TSR_STR("." FLAT_NAME));
}

static tsr_status list_units(unflattening *u)
{
    for (uint32_t i = 0; i < u->flat->unit_count; i++) {
        const tsr_str module = without_wrappers(u, u->flat->units[i].fsdp_module);
        if (!module.data) return TSR_E_NOMEM;
        const tsr_str name = joined(u, module, module.size ? TSR_STR("." FLAT_NAME) : TSR_STR(FLAT_NAME));
        if (!name.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_map_put(u->units, name, i, NULL, NULL, u->err));
    }
    return TSR_OK;
}

/* Sets u->found with this prefix. False if a flat parameter of the source is not one of a unit then. */
static tsr_status find_with(unflattening *u, tsr_str prefix, const tsr_entry **stray)
{
    const tsr_catalog *catalog = &u->m->source->catalog;
    *stray = NULL;
    memset(u->found, 0, u->flat->unit_count * sizeof *u->found);
    for (uint64_t i = 0; i < catalog->entry_count && !*stray; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (!is_flat(entry)) continue;
        tsr_str name = without_wrappers(u, entry->fqn);
        if (!name.data) return TSR_E_NOMEM;
        const bool begins = tsr_str_skip(&name, prefix);
        const uint32_t unit = begins ? tsr_map_get(u->units, name, UINT32_MAX) : UINT32_MAX;
        if (unit == UINT32_MAX) *stray = entry;
        else u->found[unit] = entry;
    }
    u->prefix = prefix;
    return TSR_OK;
}

/* A model of which no unit is sharded has no flat parameters in its state dict. */
static tsr_status check_unsharded(const unflattening *u)
{
    for (uint32_t i = 0; i < u->flat->unit_count; i++)
        TSR_FAIL_IF(u->flat->units[i].is_sharded, u->err, TSR_E_NOT_FOUND,
                    "there is no '" FLAT_NAME "', in which LOCAL_STATE_DICT has the parameters of the unit '%.*s'",
                    TSR_STR_ARG(u->flat->units[i].fsdp_module));
    return TSR_OK;
}

/* The model may be in a larger state dict. Its prefix is what the names of its flat parameters have in front of the units'. */
static tsr_status find_flat(unflattening *u)
{
    const tsr_catalog *catalog = &u->m->source->catalog;
    const tsr_entry *stray;
    tsr_str first = {NULL, 0};
    for (uint64_t i = 0; i < catalog->entry_count && !first.data; i++)
        if (is_flat(&catalog->entries[i])) first = without_wrappers(u, catalog->entries[i].fqn);
    if (!first.data) return check_unsharded(u);
    TSR_TRY(find_with(u, TSR_STR(""), &stray));
    for (size_t size = 1; stray && size < first.size; size++)
        if (first.data[size - 1] == '.') TSR_TRY(find_with(u, (tsr_str){first.data, size}, &stray));
    if (stray) TSR_TRY(find_with(u, TSR_STR(""), &stray));
    TSR_FAIL_IF(stray, u->err, TSR_E_FORMAT, "'%.*s' is not a flat parameter of the units that --flat-params lists",
                TSR_STR_ARG(stray->fqn));
    return TSR_OK;
}

/* ---- parameters ---- */

/* Without its flat parameter, a unit's parameters must be whole in the source. */
static tsr_status check_whole(const unflattening *u, const tsr_flat_unit *unit)
{
    for (uint32_t p = 0; p < unit->param_count; p++) {
        const tsr_str name = joined(u, u->prefix, unit->params[p].fqn);
        if (!name.data) return TSR_E_NOMEM;
        const tsr_entry *entry = tsr_checkpoint_entry(u->m->source, name);
        TSR_FAIL_IF(!entry || entry->kind != TSR_ENTRY_TENSOR, u->err, TSR_E_NOT_FOUND,
                    "there is neither '%.*s' nor the flat parameter of its unit '%.*s'", TSR_STR_ARG(name),
                    TSR_STR_ARG(unit->fsdp_module));
    }
    return TSR_OK;
}

/* With use_orig_params, FSDP1 fills the flat parameter up to equal slices. */
static tsr_status check_size(const unflattening *u, const tsr_flat_unit *unit, const tsr_entry *entry)
{
    const uint64_t most = unit->numel + (u->flat->use_orig_params ? u->flat->world_size - 1 : 0);
    const bool fits =
        entry->kind == TSR_ENTRY_TENSOR && entry->ndim == 1 && entry->shape[0] >= unit->numel && entry->shape[0] <= most;
    TSR_FAIL_IF(!fits, u->err, TSR_E_FORMAT,
                "'%.*s' is not a tensor of the %" PRIu64 " elements that --flat-params states for the unit '%.*s'",
                TSR_STR_ARG(entry->fqn), unit->numel, TSR_STR_ARG(unit->fsdp_module));
    return TSR_OK;
}

static const tsr_str *second_name(const tsr_flat_unit *unit, tsr_str fqn, size_t *at)
{
    while (*at < unit->shared_count)
        if (tsr_str_equal(unit->shared[(*at)++].of, fqn)) return &unit->shared[*at - 1].fqn;
    return NULL;
}

static tsr_status add_row(unflattening *u, const tsr_entry *entry, const tsr_mapped_tensor *tensor, tsr_str fqn)
{
    const tsr_str name = joined(u, u->prefix, fqn);
    const tsr_entry **sources = tsr_arena_array(u->m->own->arena, 1, sizeof *sources, u->err);
    tsr_mapped_row *row = name.data && sources ? tsr_vec_push(&u->m->rows, u->err) : NULL;
    if (!row) return TSR_E_NOMEM;
    sources[0] = entry;
    *row = (tsr_mapped_row){.order = (uint64_t)(entry - u->m->source->catalog.entries),
                            .pattern = (uint32_t)u->m->rows.count,
                            .step = u->m->step,
                            .sources = sources,
                            .source_count = 1};
    TSR_TRY(tsr_mapped_entry(u->m, tensor, entry, name, &row->entry, u->err));
    row->entry.is_sharded = false;
    if (u->params) TSR_TRY(tsr_map_put(u->params, name, 0, NULL, NULL, u->err));
    return TSR_OK;
}

/* Adds a parameter, and its second names if it is tied: tensors of their own, as in FSDP1's full state dict. */
static tsr_status add_param(unflattening *u, const tsr_flat_unit *unit, const tsr_flat_param *param, const tsr_entry *entry,
                            const tsr_mapped_tensor *flat)
{
    const tsr_span span = {param->flat_begin, param->flat_end - param->flat_begin};
    tsr_mapped_tensor tensor;
    size_t at = 0;
    const tsr_str *second = second_name(unit, param->fqn, &at);
    TSR_TRY(tsr_boxes_slice(&u->m->maker, flat, 0, span, &tensor));
    TSR_TRY(tsr_boxes_reshape(&u->m->maker, &tensor, param->shape, param->ndim, &tensor));
    TSR_TRY(add_row(u, entry, &tensor, param->fqn));
    for (; second; second = second_name(unit, param->fqn, &at)) TSR_TRY(add_row(u, entry, &tensor, *second));
    return TSR_OK;
}

static tsr_status add_unit(unflattening *u, const tsr_flat_unit *unit, const tsr_entry *entry)
{
    tsr_mapped_tensor flat;
    if (!entry) return unit->is_sharded ? check_whole(u, unit) : TSR_OK;
    TSR_TRY(check_size(u, unit, entry));
    TSR_TRY(tsr_boxes_of_entry(&u->m->maker, entry, &flat));
    for (uint32_t p = 0; p < unit->param_count; p++) TSR_TRY(add_param(u, unit, &unit->params[p], entry, &flat));
    return TSR_OK;
}

static tsr_status fill_rows(unflattening *u)
{
    const tsr_catalog *catalog = &u->m->source->catalog;
    TSR_TRY(list_units(u));
    TSR_TRY(find_flat(u));
    for (uint32_t i = 0; i < u->flat->unit_count; i++) TSR_TRY(add_unit(u, &u->flat->units[i], u->found[i]));
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        const bool replaced = is_flat(entry) || (u->params && tsr_map_get(u->params, entry->fqn, 1) == 0);
        if (!replaced) TSR_TRY(tsr_mapped_keep(u->m, entry, i, u->err));
    }
    return TSR_OK;
}

static tsr_status fill(tsr_mapped *m, void *ctx, tsr_error *err)
{
    unflattening *u = ctx;
    const tsr_allocator *allocator = m->own->host->allocator;
    u->m = m;
    u->err = err;
    u->found = tsr_arena_array(m->own->arena, u->flat->unit_count, sizeof *u->found, err);
    u->units = u->found ? tsr_map_new(allocator, u->flat->unit_count, err) : NULL;
    if (u->units && u->flat->use_orig_params) u->params = tsr_map_new(allocator, 0, err);
    const bool ready = u->units && (u->params || !u->flat->use_orig_params);
    const tsr_status status = ready ? fill_rows(u) : TSR_E_NOMEM;
    tsr_map_free(u->params);
    tsr_map_free(u->units);
    return status;
}

tsr_status tsr_layers_unflatten(tsr_layers *layers, tsr_str document, tsr_arena *arena, tsr_error *err)
{
    tsr_flat_params flat;
    unflattening u = {.flat = &flat};
    const tsr_mapped_scheme scheme = {.fill = fill, .ctx = &u, .step = "unflatten"};
    tsr_checkpoint *layer;
    TSR_TRY(tsr_flat_params_parse(document, tsr_checkpoint_host(layers->top), arena, &flat, err));
    TSR_TRY(tsr_mapped_open(layers->top, &scheme, &layer, err));
    tsr_layers_add(layers, layer);
    layer->options.selects = NULL;
    return tsr_checkpoint_require(layer, layer->options.purpose, err);
}
