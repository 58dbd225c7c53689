/* Reads tessera.flat-params/1 documents.
 *
 *     {"schema", "world_size", "use_orig_params", "files", "units": [{"fsdp_module", "raw_name", "params": [{"fqn",
 * "shape"}], "numels_with_padding", "is_padding_mask", "sharding_strategy"?, "shared"?}], "param_groups": [[raw parameter
 * names]], "shard_groups"?: [[ranks]]}
 *
 * numels_with_padding lists original parameters and padding in the order of the flat parameter. Padding after the last
 * original fills up to a multiple of the world size. It is ignored, because it depends on the world size. */
#include <inttypes.h>

#include "base/cursor.h"
#include "codec/json.h"
#include "tessera/sys/flat_params.h"
#include "tessera/sys/try.h"

typedef struct reader {
    tsr_arena *arena;
    tsr_flat_params *out;
} reader;

static tsr_status copy_string(reader *r, const cJSON *item, const char *where, tsr_str *out, tsr_error *err)
{
    TSR_TRY(tsr_json_expect(item, TSR_JSON_STRING, where, err));
    *out = tsr_arena_str(r->arena, tsr_json_text_of(item), err);
    return out->data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status read_names(reader *r, const cJSON *list, const char *where, tsr_name_list *out, tsr_error *err)
{
    TSR_TRY(tsr_json_expect(list, TSR_JSON_ARRAY, where, err));
    tsr_str *names = tsr_arena_array(r->arena, tsr_json_count(list), sizeof *names, err);
    if (!names) return TSR_E_NOMEM;
    *out = (tsr_name_list){names, 0};
    for (const cJSON *i = list->child; i; i = i->next) TSR_TRY(copy_string(r, i, where, &names[out->count++], err));
    return TSR_OK;
}

static tsr_status read_param(reader *r, const cJSON *json, const char *where, tsr_flat_param *out, uint64_t *numel,
                             tsr_error *err)
{
    const cJSON *fqn, *shape, *gradients;
    TSR_TRY(tsr_json_get(json, "fqn", TSR_JSON_STRING, where, &fqn, err));
    TSR_TRY(tsr_json_get(json, "shape", TSR_JSON_ARRAY, where, &shape, err));
    TSR_TRY(tsr_json_find(json, "requires_grad", TSR_JSON_BOOL, where, &gradients, err));
    TSR_TRY(copy_string(r, fqn, where, &out->fqn, err));
    out->needs_state = gradients && cJSON_IsTrue(gradients);
    uint64_t *sizes = tsr_arena_array(r->arena, tsr_json_count(shape), sizeof *sizes, err);
    if (!sizes) return TSR_E_NOMEM;
    out->shape = sizes;
    *numel = 1;
    for (const cJSON *i = shape->child; i; i = i->next) {
        uint64_t size;
        TSR_TRY(tsr_json_to_u64(i, where, &size, err));
        sizes[out->ndim++] = size;
        TSR_FAIL_IF(!tsr_mul_u64(*numel, size, numel), err, TSR_E_FORMAT,
                    "flat params: the shape of '%s' at %s is too large", fqn->valuestring, where);
    }
    return TSR_OK;
}

/* The original parameters of a unit, and the number of elements of each according to its shape. */
typedef struct originals {
    tsr_flat_param *params;
    uint64_t *numels;
} originals;

/* Walks the runs and gives each original parameter its range in the flat parameter. */
static tsr_status place_params(tsr_flat_unit *unit, const originals *listed, const cJSON *runs, const cJSON *mask,
                               const char *where, tsr_error *err)
{
    tsr_flat_param *params = listed->params;
    const uint64_t *numels = listed->numels;
    const cJSON *run = runs->child, *padding = mask->child;
    uint64_t at = 0, numel;
    uint32_t placed = 0;
    for (; run && padding; run = run->next, padding = padding->next) {
        TSR_TRY(tsr_json_to_u64(run, where, &numel, err));
        TSR_TRY(tsr_json_expect(padding, TSR_JSON_BOOL, where, err));
        uint64_t begin = at;
        TSR_FAIL_IF(!tsr_add_u64(at, numel, &at), err, TSR_E_FORMAT,
                    "flat params: the sum of numels_with_padding at %s is too large", where);
        if (cJSON_IsTrue(padding)) continue;
        TSR_FAIL_IF(placed == unit->param_count, err, TSR_E_FORMAT,
                    "flat params: numels_with_padding has more entries than the %" PRIu32 " params at %s", unit->param_count,
                    where);
        TSR_FAIL_IF(numels[placed] != numel, err, TSR_E_FORMAT,
                    "flat params: '%.*s' has %" PRIu64 " elements by its shape, but %" PRIu64
                    " by numels_with_padding at %s",
                    TSR_STR_ARG(params[placed].fqn), numels[placed], numel, where);
        params[placed].flat_begin = begin;
        params[placed++].flat_end = unit->numel = at;
    }
    TSR_FAIL_IF(run || padding || placed != unit->param_count, err, TSR_E_FORMAT,
                "flat params: numels_with_padding, is_padding_mask and params at %s do not match", where);
    return TSR_OK;
}

static tsr_status read_params(reader *r, const cJSON *json, const char *where, tsr_flat_unit *unit, tsr_error *err)
{
    const cJSON *list, *runs, *mask;
    TSR_TRY(tsr_json_get(json, "params", TSR_JSON_ARRAY, where, &list, err));
    TSR_TRY(tsr_json_get(json, "numels_with_padding", TSR_JSON_ARRAY, where, &runs, err));
    TSR_TRY(tsr_json_get(json, "is_padding_mask", TSR_JSON_ARRAY, where, &mask, err));
    size_t count = tsr_json_count(list);
    const originals listed = {tsr_arena_array(r->arena, count, sizeof *listed.params, err),
                              tsr_arena_array(r->arena, count, sizeof *listed.numels, err)};
    if (!listed.params || !listed.numels) return TSR_E_NOMEM;
    for (const cJSON *p = list->child; p; p = p->next, unit->param_count++)
        TSR_TRY(read_param(r, p, where, &listed.params[unit->param_count], &listed.numels[unit->param_count], err));
    unit->params = listed.params;
    return place_params(unit, &listed, runs, mask, where, err);
}

static tsr_status read_shared(reader *r, const cJSON *list, const char *where, tsr_flat_unit *unit, tsr_error *err)
{
    const cJSON *fqn, *of;
    tsr_flat_shared *shared = tsr_arena_array(r->arena, tsr_json_count(list), sizeof *shared, err);
    if (!shared) return TSR_E_NOMEM;
    unit->shared = shared;
    for (const cJSON *s = list ? list->child : NULL; s; s = s->next, unit->shared_count++) {
        TSR_TRY(tsr_json_get(s, "fqn", TSR_JSON_STRING, where, &fqn, err));
        TSR_TRY(tsr_json_get(s, "of", TSR_JSON_STRING, where, &of, err));
        TSR_TRY(copy_string(r, fqn, where, &shared[unit->shared_count].fqn, err));
        TSR_TRY(copy_string(r, of, where, &shared[unit->shared_count].of, err));
    }
    return TSR_OK;
}

static tsr_status read_unit(reader *r, const cJSON *json, size_t number, tsr_flat_unit *unit, tsr_error *err)
{
    const cJSON *module, *raw, *strategy, *shared;
    tsr_str place = tsr_arena_format(r->arena, err, "units[%zu]", number);
    if (!place.data) return TSR_E_NOMEM;
    const char *where = place.data;
    TSR_TRY(tsr_json_expect(json, TSR_JSON_OBJECT, where, err));
    TSR_TRY(tsr_json_get(json, "fsdp_module", TSR_JSON_STRING, where, &module, err));
    TSR_TRY(copy_string(r, module, where, &unit->fsdp_module, err));
    TSR_TRY(tsr_json_find(json, "raw_name", TSR_JSON_STRING, where, &raw, err));
    TSR_FAIL_IF(!raw && !r->out->use_orig_params, err, TSR_E_FORMAT,
                "flat params: raw_name is missing at %s; it is required when use_orig_params is false", where);
    if (raw && !r->out->use_orig_params) TSR_TRY(copy_string(r, raw, where, &unit->raw_name, err));
    TSR_TRY(tsr_json_find(json, "sharding_strategy", TSR_JSON_STRING, where, &strategy, err));
    bool alone = r->out->world_size == 1; /* FSDP calls that NO_SHARD, which implies nothing for other world sizes */
    unit->is_sharded = alone || !strategy || !strstr(strategy->valuestring, "NO_SHARD");
    unit->is_hybrid = strategy && strstr(strategy->valuestring, "HYBRID");
    TSR_FAIL_IF(unit->is_hybrid && !r->out->shard_groups, err, TSR_E_FORMAT,
                "flat params: %s at %s needs shard_groups, which list the ranks of each replica", strategy->valuestring,
                where);
    TSR_TRY(tsr_json_find(json, "shared", TSR_JSON_ARRAY, where, &shared, err));
    TSR_TRY(read_shared(r, shared, where, unit, err));
    return read_params(r, json, where, unit, err);
}

static tsr_status read_units(reader *r, const cJSON *list, tsr_error *err)
{
    tsr_flat_unit *units = tsr_arena_array(r->arena, tsr_json_count(list), sizeof *units, err);
    if (!units) return TSR_E_NOMEM;
    r->out->units = units;
    for (const cJSON *u = list->child; u; u = u->next, r->out->unit_count++)
        TSR_TRY(read_unit(r, u, r->out->unit_count, &units[r->out->unit_count], err));
    return TSR_OK;
}

static tsr_status read_groups(reader *r, const cJSON *list, tsr_error *err)
{
    tsr_name_list *groups = tsr_arena_array(r->arena, tsr_json_count(list), sizeof *groups, err);
    if (!groups) return TSR_E_NOMEM;
    r->out->groups = groups;
    for (const cJSON *g = list->child; g; g = g->next)
        TSR_TRY(read_names(r, g, "param_groups", &groups[r->out->group_count++], err));
    return TSR_OK;
}

/* Reads groups of the same size that together have every rank once. */
static tsr_status read_shard_groups(reader *r, const cJSON *list, tsr_error *err)
{
    uint32_t world = r->out->world_size, *ranks = tsr_arena_array(r->arena, world, sizeof *ranks, err), count = 0;
    bool *seen = tsr_arena_array(r->arena, world, sizeof *seen, err);
    if (!ranks || !seen) return TSR_E_NOMEM;
    size_t size = tsr_json_count(list->child);
    for (const cJSON *g = list->child; g; g = g->next) {
        TSR_TRY(tsr_json_expect(g, TSR_JSON_ARRAY, "shard_groups", err));
        TSR_FAIL_IF(tsr_json_count(g) != size, err, TSR_E_FORMAT,
                    "flat params: shard_groups of %zu and %zu ranks; all groups must have the same number of ranks", size,
                    tsr_json_count(g));
        for (const cJSON *i = g->child; i; i = i->next) {
            uint64_t rank;
            TSR_TRY(tsr_json_to_u64(i, "shard_groups", &rank, err));
            TSR_FAIL_IF(rank >= world || seen[rank], err, TSR_E_FORMAT,
                        "flat params: shard_groups list rank %" PRIu64 " twice, or it is not one of the %" PRIu32 " ranks",
                        rank, world);
            seen[rank] = true;
            ranks[count++] = (uint32_t)rank;
        }
    }
    TSR_FAIL_IF(count != world, err, TSR_E_FORMAT, "flat params: shard_groups list only %" PRIu32 " of %" PRIu32 " ranks",
                count, world);
    r->out->shard_groups = ranks;
    r->out->shard_size = (uint32_t)size;
    return TSR_OK;
}

static tsr_status read_document(reader *r, const cJSON *json, tsr_error *err)
{
    const cJSON *schema, *world, *orig, *files, *units, *groups, *shards;
    uint64_t world_size;
    TSR_TRY(tsr_json_get(json, "schema", TSR_JSON_STRING, "", &schema, err));
    TSR_FAIL_IF(strcmp(schema->valuestring, "tessera.flat-params/1") != 0, err, TSR_E_FORMAT,
                "flat params: unexpected schema '%s'; expected tessera.flat-params/1", schema->valuestring);
    TSR_TRY(tsr_json_get(json, "world_size", TSR_JSON_NUMBER, "", &world, err));
    TSR_TRY(tsr_json_to_u64(world, "world_size", &world_size, err));
    TSR_FAIL_IF(world_size == 0 || world_size > 1u << 24, err, TSR_E_FORMAT, "flat params: world_size is %" PRIu64,
                world_size);
    r->out->world_size = (uint32_t)world_size;
    TSR_TRY(tsr_json_find(json, "use_orig_params", TSR_JSON_BOOL, "", &orig, err));
    r->out->use_orig_params = orig && cJSON_IsTrue(orig);
    TSR_TRY(tsr_json_find(json, "files", TSR_JSON_ARRAY, "", &files, err));
    TSR_TRY(tsr_json_get(json, "units", TSR_JSON_ARRAY, "", &units, err));
    TSR_TRY(tsr_json_get(json, "param_groups", TSR_JSON_ARRAY, "", &groups, err));
    tsr_name_list names = {NULL, 0};
    if (files) TSR_TRY(read_names(r, files, "files", &names, err));
    TSR_FAIL_IF(files && names.count != world_size, err, TSR_E_FORMAT,
                "flat params: %zu files are listed for %" PRIu64 " ranks", names.count, world_size);
    r->out->files = names.names;
    r->out->file_count = names.count;
    TSR_TRY(tsr_json_find(json, "shard_groups", TSR_JSON_ARRAY, "", &shards, err));
    if (shards) TSR_TRY(read_shard_groups(r, shards, err));
    TSR_TRY(read_units(r, units, err));
    return read_groups(r, groups, err);
}

tsr_status tsr_flat_params_parse(tsr_str text, const tsr_host *host, tsr_arena *arena, tsr_flat_params *out, tsr_error *err)
{
    cJSON *json;
    TSR_TRY(tsr_json_parse(text, host, &json, err));
    *out = (tsr_flat_params){0};
    reader r = {arena, out};
    tsr_status status = read_document(&r, json, err);
    cJSON_Delete(json);
    return status;
}
