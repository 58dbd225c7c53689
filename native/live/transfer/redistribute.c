/* Tensors from one distribution to another, in memory. */
#include "tessera/redistribute.h"
#include "tessera/sys/redistribute.h"

#include <inttypes.h>

#include "live/tensor/state_dict.h"
#include "live/transfer/transfer.h"

static tsr_status add_move(tsr_agreement *agreement, size_t number, const tsr_move *move, tsr_error *err)
{
    const tsr_str from = tsr_tensor_words(move->from, agreement->arena, err),
                  to = tsr_tensor_words(move->to, agreement->arena, err);
    const tsr_str order = tsr_arena_format(agreement->arena, err, "%016" PRIx64, (uint64_t)number);
    const tsr_str path =
        tsr_arena_format(agreement->arena, err, "tensor %zu '%.*s'", number, TSR_STR_ARG(move->from->entry.fqn));
    const tsr_str words = from.data && to.data
                              ? tsr_arena_format(agreement->arena, err, "%.*s to %.*s", TSR_STR_ARG(from), TSR_STR_ARG(to))
                              : (tsr_str){NULL, 0};
    if (!order.data || !path.data || !words.data) return TSR_E_NOMEM;
    return tsr_agreement_add(agreement, order, path, words, err);
}

static tsr_status check_mesh(const tsr_tensor *tensor, const tsr_comm *comm, tsr_error *err)
{
    tsr_leaf_at leaf = {.path = tensor->entry.fqn, .tensor = tensor};
    return tsr_leaves_check(&(tsr_leaves){&leaf, 1}, comm, err);
}

static tsr_status check_moves(tsr_agreement *agreement, const tsr_comm *comm, const tsr_move *moves, size_t count,
                              tsr_error *err)
{
    for (size_t i = 0; i < count; i++) {
        tsr_status status = tsr_tensor_same_place(moves[i].from, moves[i].to,
                                                  &(tsr_likeness){"the source", "the target", false}, agreement->arena, err);
        if (status == TSR_OK) status = check_mesh(moves[i].from, comm, err);
        if (status == TSR_OK) status = check_mesh(moves[i].to, comm, err);
        if (status != TSR_OK) {
            tsr_error_context(err, "tensor %zu '%.*s'", i, TSR_STR_ARG(moves[i].from->entry.fqn));
            return status;
        }
        TSR_TRY(add_move(agreement, i, &moves[i], err));
    }
    return TSR_OK;
}

static tsr_status list_transfers(const tsr_move *moves, size_t count, tsr_arena *arena, tsr_transfer_list *transfers,
                                 tsr_side_requests *requests, tsr_error *err)
{
    tsr_transfer *list = tsr_arena_array(arena, count, sizeof *list, err);
    tsr_side_request *sides = tsr_arena_array(arena, 2 * count, sizeof *sides, err);
    if (!list || !sides) return TSR_E_NOMEM;
    *transfers = (tsr_transfer_list){list, count};
    *requests = (tsr_side_requests){sides, 2 * count};
    for (size_t i = 0; i < count; i++) {
        const tsr_entry *entry = &moves[i].from->entry;
        list[i] = (tsr_transfer){.dtype = entry->dtype,
                                 .ndim = entry->ndim,
                                 .shape = entry->shape,
                                 .name = entry->fqn,
                                 .from = {.tensor = moves[i].from},
                                 .to = {.tensor = moves[i].to}};
        sides[2 * i] = (tsr_side_request){moves[i].from, true, &list[i].from};
        sides[2 * i + 1] = (tsr_side_request){moves[i].to, false, &list[i].to};
    }
    return TSR_OK;
}

/* What ranks find before anything moves. `transfers` lives in `arena`, which is NULL when memory is short. */
static tsr_status prepare(tsr_comm *comm, const tsr_move_list *moves, const tsr_host *host, tsr_arena *arena,
                          tsr_transfer_list *transfers, tsr_error *err)
{
    tsr_agreement agreement = {tsr_vec_of(host->allocator, 1), arena};
    tsr_side_requests requests = {0};
    tsr_status status = arena ? check_moves(&agreement, comm, moves->items, moves->count, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = list_transfers(moves->items, moves->count, arena, transfers, &requests, err);
    status = tsr_agreement_check(&agreement, comm, status, host->allocator, err);
    return status == TSR_OK ? tsr_sides_resolve(comm, requests, host, arena, status, err) : status;
}

tsr_status tsr_redistribute_check(tsr_comm *comm, const tsr_move_list *moves, const tsr_host *host, tsr_error *err)
{
    tsr_arena *arena = tsr_arena_new(host->allocator, 0, err);
    tsr_transfer_list transfers = {0};
    const tsr_status status = prepare(comm, moves, host, arena, &transfers, err);
    tsr_arena_free(arena);
    return status;
}

tsr_status tsr_redistribute(tsr_comm *comm, const tsr_move *moves, size_t count, size_t round_bytes, const tsr_host *host,
                            tsr_error *err)
{
    tsr_arena *arena = tsr_arena_new(host->allocator, 0, err);
    tsr_transfer_list transfers = {0};
    tsr_status status = prepare(comm, &(tsr_move_list){moves, count}, host, arena, &transfers, err);
    if (status == TSR_OK) status = tsr_transfers_run(comm, transfers, round_bytes, host, status, err);
    tsr_arena_free(arena);
    return status;
}

/* Tensors in the same places, in the order of paths. */
static tsr_status pair_leaves(const tsr_value *from, const tsr_value *to, const tsr_host *host, tsr_arena *arena,
                              tsr_move_list *moves, tsr_error *err)
{
    tsr_leaves a, b;
    TSR_TRY(tsr_leaves_of(from, host, true, arena, &a, err));
    TSR_TRY(tsr_leaves_of(to, host, true, arena, &b, err));
    tsr_move *list = tsr_arena_array(arena, a.count, sizeof *list, err);
    *moves = (tsr_move_list){list, a.count};
    if (!list) return TSR_E_NOMEM;
    for (size_t i = 0; i < a.count || i < b.count; i++) {
        const int order = i == a.count ? 1 : i == b.count ? -1 : tsr_str_compare(a.items[i].order, b.items[i].order);
        TSR_FAIL_IF(order != 0, err, TSR_E_USAGE, "'%.*s' is a tensor only in the %s",
                    TSR_STR_ARG((order < 0 ? a : b).items[i].path), order < 0 ? "source" : "target");
        list[i] = (tsr_move){a.items[i].tensor, b.items[i].tensor};
    }
    return TSR_OK;
}

tsr_status tsr_state_dict_redistribute(const tsr_value *from, const tsr_value *to, tsr_comm *comm, size_t round_bytes,
                                       const tsr_host *host, tsr_error *err)
{
    tsr_move_list moves = {0};
    tsr_arena *arena = tsr_arena_new(host->allocator, 0, err);
    tsr_status status = arena ? pair_leaves(from, to, host, arena, &moves, err) : TSR_E_NOMEM;
    status = tsr_comm_agree(comm, status, err);
    if (status == TSR_OK) status = tsr_redistribute(comm, moves.items, moves.count, round_bytes, host, err);
    if (arena) tsr_arena_free(arena);
    return status;
}
