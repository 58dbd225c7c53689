/* PyTorch's _gather_state_dict: distributed tensors become whole tensors, on all ranks or only on some. */
#include <inttypes.h>
#include <stdlib.h>

#include "live/tensor/state_dict.h"
#include "live/transfer/transfer.h"

#include "tessera/sys/options.h"
#include "tessera/sys/statedict.h"

typedef struct gathering {
    const tsr_gather_options *options;
    tsr_comm *comm;
    tsr_arena *arena; /* for temporary data */
    bool chosen;
    uint32_t *holders; /* ranks_only, in ascending order without duplicates; NULL: all ranks */
    uint32_t holder_count;
} gathering;

/* ---- receiving ranks ---- */

static int by_number(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static tsr_status choose(gathering *g, tsr_error *err)
{
    const size_t count = g->options->ranks_only_count;
    g->chosen = count == 0;
    if (count == 0) return TSR_OK;
    g->holders = tsr_arena_array(g->arena, count, sizeof *g->holders, err);
    if (!g->holders) return TSR_E_NOMEM;
    memcpy(g->holders, g->options->ranks_only, count * sizeof *g->holders);
    qsort(g->holders, count, sizeof *g->holders, by_number);
    for (size_t i = 0; i < count; i++) {
        TSR_FAIL_IF(g->holders[i] >= g->comm->size, err, TSR_E_USAGE,
                    "gather: ranks_only lists rank %" PRIu32 " of %" PRIu32, g->holders[i], g->comm->size);
        if (g->holder_count && g->holders[g->holder_count - 1] == g->holders[i]) continue;
        g->chosen = g->chosen || g->holders[i] == g->comm->rank;
        g->holders[g->holder_count++] = g->holders[i];
    }
    return TSR_OK;
}

/* Selects the distributed tensors. Whole tensors are not gathered; each rank may have different ones, under different
 * names. */
static tsr_status distributed(const gathering *g, const tsr_leaves *all, tsr_leaves *out, tsr_error *err)
{
    *out = (tsr_leaves){tsr_arena_array(g->arena, all->count, sizeof *out->items, err), 0};
    if (!out->items) return TSR_E_NOMEM;
    for (size_t i = 0; i < all->count; i++)
        if (all->items[i].tensor->spread != TSR_WHOLE) out->items[out->count++] = all->items[i];
    return TSR_OK;
}

static tsr_status agree(const gathering *g, const tsr_leaves *leaves, tsr_status mine, tsr_error *err)
{
    tsr_leaves shared = {0};
    const tsr_gather_options *o = g->options;
    tsr_agreement agreement = {tsr_vec_of(tsr_arena_allocator(g->arena), 1), g->arena};
    tsr_str ranks = tsr_arena_format(g->arena, err, "%s, offload %d, round_bytes %zu, ranks_only",
                                     o->any_type ? "any type" : "type_check", o->offload, o->round_bytes);
    for (uint32_t i = 0; i < g->holder_count && ranks.data; i++)
        ranks = tsr_arena_format(g->arena, err, "%.*s %" PRIu32, TSR_STR_ARG(ranks), g->holders[i]);
    tsr_status status = mine == TSR_OK && !ranks.data ? TSR_E_NOMEM : mine;
    if (status == TSR_OK) status = tsr_agreement_add(&agreement, TSR_STR(""), TSR_STR("the call gather"), ranks, err);
    if (status == TSR_OK) status = distributed(g, leaves, &shared, err);
    if (status == TSR_OK) status = tsr_agreement_add_leaves(&agreement, "", &shared, err);
    return tsr_agreement_check(&agreement, g->comm, status, tsr_arena_allocator(g->arena), err);
}

/* ---- the result ---- */

/* Makes the whole tensor to gather into: that of the companion, or a new one. */
static tsr_status make_whole(void *ctx, const tsr_tensor *tensor, const tsr_tensor *companion, tsr_state_dict *out,
                             const tsr_tensor **result, tsr_error *err)
{
    const gathering *g = ctx;
    if (!g->chosen) return TSR_OK;
    tsr_tensor whole = tsr_tensor_whole(tensor->entry.dtype, tensor->entry.ndim, tensor->entry.shape, NULL), *copy;
    whole.entry.fqn = tensor->entry.fqn;
    whole.entry.requires_grad = tensor->entry.requires_grad;
    whole.entry.is_parameter = tensor->entry.is_parameter;
    whole.device = g->options->offload ? NULL : tensor->device;
    if (companion) {
        *result = companion; /* so that the walk has nothing to copy */
        return tsr_tensor_same_place(&whole, companion, &(tsr_likeness){"the gathered state", "the companion", true},
                                     g->arena, err);
    }
    TSR_TRY(tsr_state_dict_copy_tensor(out, &whole, &copy, err));
    *result = copy;
    return tsr_state_dict_give_memory(out, copy, NULL, err);
}

static tsr_status make_result(gathering *g, const tsr_value *state, tsr_state_dict *out, tsr_error *err)
{
    const tsr_iterate how = {.over_mesh = make_whole,
                             .in_boxes = make_whole,
                             .ctx = g,
                             .comm = g->comm,
                             .companion = g->chosen ? g->options->companion : NULL,
                             .ranks_only = g->options->ranks_only,
                             .ranks_only_count = g->options->ranks_only_count,
                             .any_type = g->options->any_type,
                             .offload = g->options->offload,
                             .warnings = g->options->warnings};
    return tsr_state_dict_iterate(state, &how, out, err);
}

static tsr_status list_transfers(const gathering *g, const tsr_leaves *from, const tsr_leaves *to,
                                 tsr_transfer_list *transfers, tsr_side_requests *requests, tsr_error *err)
{
    *transfers = (tsr_transfer_list){tsr_arena_array(g->arena, from->count, sizeof *transfers->items, err), 0};
    *requests = (tsr_side_requests){tsr_arena_array(g->arena, from->count, sizeof *requests->items, err), 0};
    if (!transfers->items || !requests->items) return TSR_E_NOMEM;
    for (size_t i = 0; i < from->count; i++) {
        const tsr_tensor *tensor = from->items[i].tensor;
        if (tensor->spread == TSR_WHOLE) continue;
        tsr_transfer *t = &transfers->items[transfers->count++];
        *t = (tsr_transfer){.dtype = tensor->entry.dtype,
                            .ndim = tensor->entry.ndim,
                            .shape = tensor->entry.shape,
                            .name = from->items[i].path,
                            .from = {.tensor = tensor},
                            .to = {g->chosen ? to->items[i].tensor : NULL, NULL, g->holders, g->holder_count}};
        requests->items[requests->count++] = (tsr_side_request){tensor, true, &t->from};
    }
    return TSR_OK;
}

static tsr_status gather(gathering *g, const tsr_value *state, tsr_state_dict *out, tsr_error *err)
{
    tsr_leaves from = {0}, to = {0};
    tsr_transfer_list transfers = {0};
    tsr_side_requests requests = {0};
    tsr_status status = choose(g, err);
    if (status == TSR_OK) status = tsr_leaves_of(state, out->host, true, g->arena, &from, err);
    if (status == TSR_OK) status = tsr_leaves_check(&from, g->comm, err);
    TSR_TRY(agree(g, &from, status, err));
    status = make_result(g, state, out, err);
    if (status == TSR_OK && g->chosen) status = tsr_leaves_of(out->root, out->host, true, g->arena, &to, err);
    if (status == TSR_OK) status = list_transfers(g, &from, &to, &transfers, &requests, err);
    TSR_TRY(tsr_sides_resolve(g->comm, requests, out->host, g->arena, status, err));
    return tsr_transfers_run(g->comm, transfers, g->options->round_bytes, out->host, TSR_OK, err);
}

tsr_status tsr_state_dict_gather(const tsr_value *state, tsr_comm *comm, const tsr_gather_options *options,
                                 tsr_state_dict *out, tsr_error *err)
{
    tsr_gather_options own;
    const tsr_status given = TSR_OPTIONS_COPY(&own, options, tsr_gather_options, err);
    if (given != TSR_OK) return tsr_comm_agree(comm, given, err);
    gathering g = {.options = &own, .comm = comm, .arena = tsr_arena_new(out->host->allocator, 0, err)};
    if (!g.arena) return tsr_comm_agree(comm, TSR_E_NOMEM, err);
    const tsr_status status = gather(&g, state, out, err);
    tsr_arena_free(g.arena);
    return status;
}
