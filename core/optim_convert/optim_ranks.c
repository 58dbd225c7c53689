/* Converts the optimizer state of FSDP1's ranks: all ranks' raw states to the full state, and the full state to the contents
 * of one rank's file. Handles one rank at a time, each with its own arena, so that memory does not grow with the number of
 * ranks. */
#include <inttypes.h>

#include "optim_convert/optim_job.h"
#include "tessera/sys/try.h"

#include "tessera/sys/fsdp_optim.h"

#define NAMES_SIZE 400u /* characters of names in one message */

static tsr_fsdp_context context_of(tsr_optim_job *j, tsr_arena *arena)
{
    return (tsr_fsdp_context){j->host, arena, j->trees.zeros_file, tsr_optim_same_tensor, j, true};
}

tsr_status tsr_optim_make_mesh(tsr_optim_job *j, tsr_error *err)
{
    static const tsr_str one[] = {{"shard", 5}}, two[] = {{"replicate", 9}, {"shard", 5}};
    const tsr_flat_params *flat = &j->flat;
    const bool hybrid = flat->shard_groups != NULL;
    for (uint32_t i = 0; hybrid && i < flat->world_size; i++)
        TSR_FAIL_IF(flat->shard_groups[i] != i, err, TSR_E_UNSUPPORTED,
                    "--sharded writes DTensors over a mesh whose replicas consist of consecutive ranks, but rank %" PRIu32
                    " is where rank %" PRIu32 " would be",
                    flat->shard_groups[i], i);
    j->mesh_shape[0] = hybrid ? flat->world_size / flat->shard_size : flat->world_size;
    j->mesh_shape[1] = flat->shard_size;
    j->mesh = (tsr_mesh){hybrid ? 2 : 1, j->mesh_shape, hybrid ? two : one};
    return TSR_OK;
}

/* Fails if ranks have different data that a single full state cannot represent, because the user must decide whose to
 * use. */
static tsr_status refuse_differences(tsr_optim_job *j, const tsr_fsdp_context *context, tsr_error *err)
{
    tsr_name_list names;
    tsr_str list = {"", 0};
    size_t listed = 0;
    TSR_TRY(tsr_fsdp_differences(&j->flat, j->ranks, j->rank, context, &names, err));
    if (names.count == 0) return TSR_OK;
    for (; listed < names.count && list.size < NAMES_SIZE; listed++) {
        list = tsr_arena_format(j->arena, err, "%.*s%s'%.*s'", TSR_STR_ARG(list), listed ? ", " : "",
                                TSR_STR_ARG(names.names[listed]));
        if (!list.data) return TSR_E_NOMEM;
    }
    return tsr_fail(err, TSR_E_USAGE,
                    "ranks differ in optimizer state that FSDP does not shard, and one file cannot hold both: %.*s%s; "
                    "pass --rank N to use the state of rank N, or --sharded to write one file per rank",
                    TSR_STR_ARG(list), listed < names.count ? ", …" : "");
}

static bool is_listed(const tsr_optim_job *j, tsr_str name)
{
    for (size_t i = 0; i < j->carried_count; i++)
        if (tsr_str_equal(j->carried[i], name)) return true;
    return false;
}

static tsr_status warn_of_carried(const tsr_optim_job *j, tsr_str name, uint32_t rank, tsr_error *err)
{
    const tsr_str message = tsr_arena_format(
        j->arena, err, "state '%.*s' does not belong to a parameter; copied from rank %" PRIu32, TSR_STR_ARG(name), rank);
    if (!message.data) return TSR_E_NOMEM;
    tsr_optim_warn(j, message);
    return TSR_OK;
}

static tsr_status note_carried(tsr_optim_job *j, const tsr_fsdp_full *full, uint32_t rank, tsr_error *err)
{
    tsr_str *names = tsr_arena_array(j->arena, j->carried_count + full->carried_count, sizeof *names, err);
    if (!names) return TSR_E_NOMEM;
    if (j->carried_count) memcpy(names, j->carried, j->carried_count * sizeof *names);
    j->carried = names;
    for (size_t i = 0; i < full->carried_count; i++) {
        if (is_listed(j, full->carried[i])) continue;
        names[j->carried_count] = tsr_arena_str(j->arena, full->carried[i], err);
        if (!names[j->carried_count++].data) return TSR_E_NOMEM;
        TSR_TRY(warn_of_carried(j, full->carried[i], rank, err));
    }
    return TSR_OK;
}

/* The full state as `rank` gets it. */
static tsr_status unshard_for(tsr_optim_job *j, uint32_t rank, const tsr_fsdp_context *context, const tsr_value **out,
                              tsr_error *err)
{
    tsr_fsdp_full full;
    TSR_TRY(tsr_fsdp_unshard(&j->flat, j->ranks, rank, context, &full, err));
    *out = full.optim;
    return note_carried(j, &full, rank, err);
}

tsr_status tsr_optim_unshard(tsr_optim_job *j, const tsr_value **out, tsr_error *err)
{
    const tsr_fsdp_context context = context_of(j, j->arena);
    j->ranks = tsr_arena_array(j->arena, j->trees.count, sizeof *j->ranks, err);
    if (!j->ranks) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < j->trees.count; i++) {
        tsr_found_optimizer found;
        TSR_TRY(tsr_optim_find(j, j->trees.roots[i], &found, err));
        j->ranks[i] = found.value;
    }
    if (!j->request.has_rank && !j->request.sharded) TSR_TRY(refuse_differences(j, &context, err));
    return unshard_for(j, j->rank, &context, out, err);
}

static bool begins_with(const tsr_value *dict, tsr_str prefix)
{
    for (size_t i = 0; i < dict->count; i += 2) {
        const tsr_value *key = dict->items[i];
        if (key->kind == TSR_VALUE_STR && tsr_str_starts(key->text, prefix)) return true;
    }
    return false;
}

tsr_status tsr_optim_nest(tsr_optim_job *j, const tsr_value *optim, const tsr_value **out, tsr_error *err)
{
    *out = optim;
    if (optim->kind != TSR_VALUE_DICT || tsr_value_get(optim, TSR_STR("state"))) return TSR_OK;
    if (!begins_with(optim, TSR_STR("param_groups.")))
        return tsr_fsdp_nest_state(&j->flat, optim, j->host, j->arena, out, err);
    return tsr_optim_unflatten_tree(j, optim, out, err);
}

/* With --sharded, each rank's file has the state of that rank, unless --rank chooses one. */
static tsr_status rows_of_rank(tsr_optim_job *j, uint32_t rank, const tsr_fsdp_context *context, const tsr_value **out,
                               tsr_error *err)
{
    const tsr_fsdp_rows rows = {j->file_count, rank, &j->mesh};
    const tsr_value *full = j->result;
    if (!j->request.has_rank) TSR_TRY(unshard_for(j, rank, context, &full, err));
    return tsr_fsdp_shard_rows(&j->flat, full, &rows, context, out, err);
}

tsr_status tsr_optim_rank_tree(tsr_optim_job *j, uint32_t rank, tsr_arena *arena, const tsr_value **out, tsr_error *err)
{
    const tsr_fsdp_context context = context_of(j, arena);
    if (j->request.action == TSR_OPTIM_SHARD)
        return tsr_fsdp_shard(&j->flat, j->result, (tsr_fsdp_rank){j->file_count, rank}, &context, out, err);
    return rows_of_rank(j, rank, &context, out, err);
}
