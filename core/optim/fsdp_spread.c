/* Joins the rows that each rank has of the optimizer state, and cuts them for the FSDP1 units of each rank. */
#include "optim/live_exchange.h"
#include "optim/tree.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/try.h"
#include "tessera/sys/value_walk.h"

/* The value for a key. `hint` is the index of its pair if both dicts have the same keys in the same order. */
static const tsr_value *find(const tsr_value *dict, const tsr_value *key, size_t hint)
{
    if (!dict || dict->kind != TSR_VALUE_DICT) return NULL;
    if (hint < dict->count && tsr_key_equal(dict->items[hint], key)) return dict->items[hint + 1];
    for (size_t i = 0; i < dict->count; i += 2)
        if (tsr_key_equal(dict->items[i], key)) return dict->items[i + 1];
    return NULL;
}

/* Inserts rows in order, unless there are rows with the same beginning, which a replica also has. */
static void add_rows(tsr_chunk *chunks, size_t *count, const tsr_chunk *rows)
{
    size_t at = *count;
    if (rows->sizes[0] == 0) return;
    while (at && chunks[at - 1].offsets[0] > rows->offsets[0]) at--;
    if (at && chunks[at - 1].offsets[0] == rows->offsets[0]) return;
    memmove(chunks + at + 1, chunks + at, (*count - at) * sizeof *chunks);
    chunks[at] = *rows;
    ++*count;
}

/* Lists all ranks: this one, then the others of its replica, then those of other replicas. So each rank keeps its own rows
 * if replicas differ. */
static tsr_status order_ranks(const tsr_live_exchange *m, const tsr_flat_params *flat, uint32_t **out, tsr_error *err)
{
    const uint32_t world = m->comm->size, rank = m->comm->rank, shards = flat->shard_size;
    const uint32_t *groups = world == flat->world_size ? flat->shard_groups : NULL;
    uint32_t *order = *out = tsr_arena_array(m->arena, world, sizeof *order, err), count = 0, mine = 0;
    if (!order) return TSR_E_NOMEM;
    for (uint32_t at = 0; at < world; at++)
        if (groups && groups[at] == rank) mine = at / shards;
    if (!groups && shards) mine = rank / shards;
    order[count++] = rank;
    for (unsigned others = 0; others < 2; others++) {
        for (uint32_t at = 0; at < world; at++) {
            const uint32_t r = groups ? groups[at] : at;
            const bool near = !shards || at / shards == mine;
            if (r != rank && near == !others) order[count++] = r;
        }
    }
    return TSR_OK;
}

/* Makes the tensor at key `at` of this rank's state, with the rows of all ranks. `states` has the state of each rank for the
 * parameter, or NULL, with this rank's first. */
static tsr_status join_tensor(tsr_live_exchange *m, const tsr_value *own, size_t at, const tsr_value *const *states,
                              const tsr_value **out, tsr_error *err)
{
    const tsr_value *key = own->items[at];
    const tsr_entry *mine = own->items[at + 1]->as.tensor;
    *out = own->items[at + 1];
    if (mine->ndim == 0 || mine->chunks->sizes[0] == mine->shape[0]) return TSR_OK;
    tsr_chunk *chunks = tsr_arena_array(m->arena, m->comm->size, sizeof *chunks, err);
    tsr_entry *entry = TSR_ARENA_NEW(m->arena, tsr_entry, err);
    tsr_value *value = entry ? tsr_value_tensor(m->arena, entry, err) : NULL;
    size_t count = 0;
    if (!chunks || !value) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < m->comm->size; i++) {
        const tsr_value *other = i ? find(states[i], key, at) : own->items[at + 1];
        if (!other || other->kind != TSR_VALUE_TENSOR) continue;
        const tsr_entry *e = other->as.tensor;
        TSR_FAIL_IF(e->dtype != mine->dtype || !tsr_entry_same_shape(e, mine), err, TSR_E_FORMAT,
                    "optim: '%.*s' is %s %.*s on this rank, but %s %.*s on another", TSR_STR_ARG(key->text),
                    tsr_dtype_describe(mine->dtype)->name, TSR_STR_ARG(tsr_shape_brief(mine->ndim, mine->shape, m->arena)),
                    tsr_dtype_describe(e->dtype)->name, TSR_STR_ARG(tsr_shape_brief(e->ndim, e->shape, m->arena)));
        add_rows(chunks, &count, e->chunks);
    }
    *entry = *mine;
    entry->chunks = chunks;
    entry->chunk_count = count;
    *out = value;
    return TSR_OK;
}

static tsr_status join_state(tsr_live_exchange *m, const tsr_value *own, const tsr_value *const *states,
                             const tsr_value **out, tsr_error *err)
{
    *out = own;
    if (own->kind != TSR_VALUE_DICT) return TSR_OK;
    const tsr_value **items = tsr_arena_array(m->arena, own->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < own->count; i += 2) {
        items[i] = own->items[i];
        items[i + 1] = own->items[i + 1];
        if (items[i + 1]->kind == TSR_VALUE_TENSOR) TSR_TRY(join_tensor(m, own, i, states, &items[i + 1], err));
    }
    *out = tsr_value_items(m->arena, TSR_VALUE_DICT, items, own->count, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

/* This rank's tree, with tensors that have all rows. */
static tsr_status join(tsr_live_exchange *m, const tsr_flat_params *flat, const tsr_value *const *ranks,
                       const tsr_value **out, tsr_error *err)
{
    tsr_optim_parts own;
    uint32_t *order;
    TSR_TRY(order_ranks(m, flat, &order, err));
    TSR_TRY(tsr_optim_take_apart(ranks[m->comm->rank], false, &own, err));
    const tsr_value **items = tsr_arena_array(m->arena, own.state->count, sizeof *items, err);
    const tsr_value **states = tsr_arena_array(m->arena, m->comm->size, sizeof *states, err);
    if (!items || !states) return TSR_E_NOMEM;
    for (size_t i = 0; i < own.state->count; i += 2) {
        for (uint32_t r = 0; r < m->comm->size; r++)
            states[r] = find(tsr_value_get(ranks[order[r]], TSR_STR("state")), own.state->items[i], i);
        items[i] = own.state->items[i];
        const tsr_status status = join_state(m, own.state->items[i + 1], states, &items[i + 1], err);
        if (status == TSR_OK) continue;
        tsr_error_context(err, "the state of '%.*s'", TSR_STR_ARG(items[i]->text));
        return status;
    }
    const tsr_value *state = tsr_value_items(m->arena, TSR_VALUE_DICT, items, own.state->count, err);
    return state ? tsr_tree_optim(state, own.groups, m->arena, out, err) : TSR_E_NOMEM;
}

tsr_status tsr_fsdp_spread(const tsr_live_call *call, const tsr_flat_params *flat, const tsr_value *state,
                           tsr_live_state *out, tsr_error *err)
{
    tsr_live_exchange m = tsr_live_start(call, out);
    const tsr_value **ranks, *full = NULL, *raw = NULL;
    tsr_status status = tsr_live_share_trees(&m, state, &ranks, err);
    if (status == TSR_OK) {
        const tsr_fsdp_context context = tsr_live_context(&m);
        status = join(&m, flat, ranks, &full, err);
        if (status == TSR_OK)
            status = tsr_fsdp_shard(flat, full, (tsr_fsdp_rank){call->comm->size, call->comm->rank}, &context, &raw, err);
        status = tsr_comm_agree(call->comm, status, err);
    }
    if (status == TSR_OK) status = tsr_live_fetch(&m, raw, err);
    tsr_live_end(&m);
    if (status != TSR_OK) tsr_live_state_free(out);
    return status;
}
