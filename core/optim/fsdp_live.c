/* Gathers and broadcasts the optimizer state of FSDP1 units on live ranks. */
#include <inttypes.h>

#include "optim/live_exchange.h"
#include "optim/tree.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/try.h"

/* `raw` with its state keyed by name, because the same number may refer to different parameters on ranks with different
 * param groups. */
static tsr_status name_state(const tsr_live_exchange *m, const tsr_flat_params *flat, const tsr_value *raw,
                             const tsr_value **out, tsr_error *err)
{
    tsr_optim_parts parts;
    tsr_flat_keys keys;
    TSR_TRY(tsr_optim_take_apart(raw, true, &parts, err));
    tsr_status status = tsr_flat_keys_open(flat, m->host, m->arena, &keys, err);
    const tsr_value **items = tsr_arena_array(m->arena, parts.state->count, sizeof *items, err), *state = NULL;
    if (!items) status = TSR_E_NOMEM;
    for (size_t i = 0; status == TSR_OK && i < parts.state->count; i += 2) {
        const tsr_value *key = parts.state->items[i];
        const uint32_t id = key->kind == TSR_VALUE_INT ? tsr_flat_keys_find(&keys, key) : UINT32_MAX;
        items[i] = id == UINT32_MAX ? key : tsr_value_str(m->arena, keys.keys[id].raw, err);
        items[i + 1] = parts.state->items[i + 1];
        if (!items[i]) status = TSR_E_NOMEM;
    }
    tsr_flat_keys_close(&keys);
    if (status == TSR_OK) state = tsr_value_items(m->arena, TSR_VALUE_DICT, items, parts.state->count, err);
    if (status == TSR_OK && !state) status = TSR_E_NOMEM;
    return status == TSR_OK ? tsr_tree_optim(state, parts.groups, m->arena, out, err) : status;
}

static tsr_status unshard(tsr_live_exchange *m, const tsr_flat_params *flat, const tsr_value *raw, tsr_fsdp_full *full,
                          tsr_error *err)
{
    const tsr_value **ranks;
    const uint32_t rank = m->comm->rank;
    TSR_FAIL_IF(m->comm->size != flat->world_size, err, TSR_E_USAGE,
                "optim: %" PRIu32 " ranks take part, but the state is of %" PRIu32 " ranks", m->comm->size,
                flat->world_size);
    TSR_TRY(tsr_comm_agree(m->comm, name_state(m, flat, raw, &raw, err), err));
    TSR_TRY(tsr_live_share_trees(m, raw, &ranks, err));
    tsr_fsdp_context context = tsr_live_context(m);
    TSR_TRY(tsr_comm_agree(m->comm, tsr_fsdp_unshard(flat, ranks, rank, &context, full, err), err));
    m->out->carried = full->carried;
    m->out->carried_count = full->carried_count;
    return TSR_OK;
}

tsr_status tsr_fsdp_gather(const tsr_live_call *call, const tsr_flat_params *flat, const tsr_value *raw, uint32_t target,
                           tsr_live_state *out, tsr_error *err)
{
    tsr_live_exchange m = tsr_live_start(call, out);
    tsr_fsdp_full full;
    tsr_status status = unshard(&m, flat, raw, &full, err);
    if (status == TSR_OK)
        status = tsr_live_fetch(&m, target == TSR_ALL_RANKS || target == call->comm->rank ? full.optim : NULL, err);
    tsr_live_end(&m);
    if (status != TSR_OK) tsr_live_state_free(out);
    return status;
}

tsr_status tsr_fsdp_gather_rows(const tsr_live_call *call, const tsr_flat_params *flat, const tsr_value *raw,
                                const tsr_mesh *mesh, tsr_live_state *out, tsr_error *err)
{
    tsr_live_exchange m = tsr_live_start(call, out);
    tsr_fsdp_full full;
    const tsr_value *rows = NULL;
    tsr_status status = unshard(&m, flat, raw, &full, err);
    if (status == TSR_OK) {
        const tsr_fsdp_rows options = {call->comm->size, call->comm->rank, mesh};
        const tsr_fsdp_context context = tsr_live_context(&m);
        status = tsr_comm_agree(call->comm, tsr_fsdp_shard_rows(flat, full.optim, &options, &context, &rows, err), err);
    }
    if (status == TSR_OK) status = tsr_live_fetch(&m, rows, err);
    tsr_live_end(&m);
    if (status != TSR_OK) tsr_live_state_free(out);
    return status;
}

/* Broadcasts rank 0's packed tree. */
static tsr_status broadcast_tree(tsr_live_exchange *m, const tsr_value *full, tsr_error *err)
{
    tsr_comm *comm = m->comm;
    tsr_status status = comm->rank ? TSR_OK : tsr_tree_pack(full, m->live, m->host, &m->bytes, &m->tensors, err);
    uint64_t size = m->bytes.count;
    TSR_TRY(tsr_comm_agree(comm, status, err));
    TSR_TRY(comm->broadcast(comm, &size, sizeof size, 0, err));
    if (comm->rank && (size > SIZE_MAX || tsr_vec_reserve(&m->bytes, (size_t)size, err) != TSR_OK)) status = TSR_E_NOMEM;
    TSR_TRY(tsr_comm_agree(comm, status, err));
    m->bytes.count = (size_t)size;
    return comm->broadcast(comm, m->bytes.items, (size_t)size, 0, err);
}

static tsr_status broadcast(tsr_live_exchange *m, const tsr_flat_params *flat, const tsr_value *full, tsr_error *err)
{
    tsr_fsdp_context context = tsr_live_context(m);
    const tsr_value *tree = NULL, *raw = NULL;
    TSR_TRY(broadcast_tree(m, full, err));
    const tsr_unpacked_into into = {tsr_live_scalar_file(m), &m->scalars, m->host, m->arena};
    tsr_status status = tsr_tree_unpack((tsr_str){m->bytes.items, m->bytes.count}, 0, &into, &tree, err);
    if (status == TSR_OK)
        status = tsr_fsdp_shard(flat, tree, (tsr_fsdp_rank){m->comm->size, m->comm->rank}, &context, &raw, err);
    TSR_TRY(tsr_comm_agree(m->comm, status, err));
    return tsr_live_fetch(m, raw, err);
}

tsr_status tsr_fsdp_broadcast(const tsr_live_call *call, const tsr_flat_params *flat, const tsr_value *full,
                              tsr_live_state *out, tsr_error *err)
{
    tsr_live_exchange m = tsr_live_start(call, out);
    tsr_status status = broadcast(&m, flat, full, err);
    tsr_live_end(&m);
    if (status != TSR_OK) tsr_live_state_free(out);
    return status;
}

void tsr_live_state_free(tsr_live_state *state)
{
    if (!state->allocator) return;
    for (size_t i = 0; i < state->buffer_count; i++)
        tsr_free(state->allocator, state->buffers[i].data, state->buffers[i].size, 1);
    if (state->buffers) tsr_free(state->allocator, state->buffers, state->buffer_count + 1, sizeof *state->buffers);
    *state = (tsr_live_state){0};
}
