/* Gathers, broadcasts and distributes state dicts. */
#include <inttypes.h>
#include <stdlib.h>

#include "live/ops/state_full.h"
#include "live/tensor/pack.h"
#include "live/tensor/state_dict.h"
#include "live/transfer/transfer.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/options.h"
#include "tessera/sys/statedict.h"
#include "tessera/sys/try.h"

/* ---- broadcast ---- */

/* PyTorch's _broadcast_state_dict: rank 0 has the full state, and every rank receives the part that it holds. */

static const uint32_t root_only[] = {0};

typedef struct spreading {
    tsr_comm *comm;
    const tsr_broadcast_options *options;
    tsr_state_dict *out;
    tsr_arena *passing;
    const tsr_value *full, *local; /* `full` is rank 0's own; on other ranks, the tree that rank 0 has described */
    const tsr_value **values;      /* by local key: the value in the result */
    bool *known;                   /* by local key: whether the full state has it */
    bool *shared;                  /* by local key: see find_in */
    tsr_name_tally strange;        /* keys that the local state does not have */
    tsr_vec moves;                 /* of pair: targets that are distributed tensors */
    tsr_vec wholes;                /* of pair: targets that are whole tensors */
} spreading;

/* A tensor of the full state (meta except on rank 0) and its target. */
typedef struct pair {
    const tsr_tensor *full, *target;
    tsr_str name;
    uint64_t bytes; /* size of the target's local memory */
} pair;

/* ---- descriptions ---- */

/* Gives every rank what rank 0's dict contains, without the elements of its tensors. */
static tsr_status broadcast_full(spreading *s, tsr_error *err)
{
    const tsr_host *host = s->out->host;
    const bool root = s->comm->rank == 0;
    tsr_vec packed = tsr_vec_of(host->allocator, 1);
    void *blob = NULL;
    size_t size = 0;
    tsr_status status = root ? tsr_value_pack(s->full, 1, host, &packed, err) : TSR_OK;
    status = tsr_comm_agree(s->comm, status, err);
    if (status == TSR_OK)
        status = tsr_comm_broadcast_blob((tsr_ranks){s->comm, host->allocator}, (tsr_str){packed.items, packed.count}, 0,
                                         &blob, &size, err);
    if (status == TSR_OK && !root) status = tsr_value_unpack((tsr_str){blob, size}, host, s->out->arena, &s->full, err);
    tsr_free(host->allocator, blob, size, 1);
    tsr_vec_free(&packed);
    return status;
}

static tsr_status add_local(tsr_agreement *agreement, const tsr_value *local, const tsr_comm *comm, const tsr_host *host,
                            tsr_error *err)
{
    tsr_leaves leaves;
    TSR_TRY(tsr_leaves_of(local, host, false, agreement->arena, &leaves, err));
    TSR_TRY(tsr_leaves_check(&leaves, comm, err));
    return tsr_agreement_add_leaves(agreement, "local ", &leaves, err);
}

tsr_status tsr_full_agree(const tsr_value *local, tsr_comm *comm, const tsr_host *host, tsr_arena *arena, tsr_error *err)
{
    tsr_agreement agreement = {tsr_vec_of(host->allocator, 1), arena};
    const tsr_status mine = add_local(&agreement, local, comm, host, err);
    return tsr_agreement_check(&agreement, comm, mine, host->allocator, err);
}

static tsr_status broadcast_agree(spreading *s, tsr_status mine, tsr_error *err)
{
    const tsr_host *host = s->out->host;
    tsr_agreement agreement = {tsr_vec_of(host->allocator, 1), s->passing};
    const tsr_str words = tsr_arena_format(s->passing, err, "strict %d, offload %d, round_bytes %zu", s->options->strict,
                                           s->options->offload, s->options->round_bytes);
    tsr_status status = mine == TSR_OK && !words.data ? TSR_E_NOMEM : mine;
    if (status == TSR_OK) status = tsr_agreement_add(&agreement, TSR_STR(""), TSR_STR("the call broadcast"), words, err);
    if (status == TSR_OK) status = add_local(&agreement, s->local, s->comm, host, err);
    return tsr_agreement_check(&agreement, s->comm, status, host->allocator, err);
}

/* ---- targets ---- */

/* Makes a new whole tensor, on the device of the tensor that it replaces unless that is offloaded. */
static tsr_status fresh_target(spreading *s, const tsr_tensor *full, const tsr_tensor *mine, const tsr_tensor **out,
                               tsr_error *err)
{
    tsr_tensor want = tsr_tensor_whole(full->entry.dtype, full->entry.ndim, full->entry.shape, NULL), *copy;
    want.device = mine && !s->options->offload ? mine->device : NULL;
    TSR_TRY(tsr_state_dict_copy_tensor(s->out, &want, &copy, err));
    *out = copy;
    return tsr_state_dict_give_memory(s->out, copy, NULL, err);
}

/* Whether a local whole tensor must be replaced because its shape differs from that of the full state. */
static bool replaced(const tsr_tensor *full, const tsr_tensor *mine)
{
    if (mine->spread != TSR_WHOLE) return false;
    if (full->entry.ndim != mine->entry.ndim) return true;
    return full->entry.ndim &&
           memcmp(full->entry.shape, mine->entry.shape, full->entry.ndim * sizeof *full->entry.shape) != 0;
}

static bool is_in_memory(const tsr_tensor *tensor)
{
    return tensor && tensor->spread == TSR_WHOLE && tensor->data;
}

static tsr_str address_of(const tsr_tensor *tensor)
{
    return (tsr_str){(const char *)&tensor->data, sizeof tensor->data};
}

/* Finds keys whose whole tensor shares its memory with that of another local key or, on rank 0, of another key of the full
 * state, as when two param groups use the same tensor for an option. What is broadcast for one key must not be written into
 * the other. */
static tsr_status find_in(spreading *s, tsr_map *keys, tsr_error *err)
{
    for (size_t i = 0; i < tsr_value_pairs(s->local); i++) {
        const tsr_tensor *tensor = tsr_tensor_of(s->local->items[2 * i + 1]);
        uint32_t *first;
        bool fresh;
        if (!is_in_memory(tensor)) continue;
        TSR_TRY(tsr_map_put(keys, address_of(tensor), (uint32_t)i, &first, &fresh, err));
        if (!fresh) s->shared[i] = s->shared[*first] = true;
    }
    for (size_t i = 0; s->comm->rank == 0 && i < tsr_value_pairs(s->full); i++) {
        const tsr_tensor *tensor = tsr_tensor_of(s->full->items[2 * i + 1]);
        const uint32_t at = is_in_memory(tensor) ? tsr_map_get(keys, address_of(tensor), UINT32_MAX) : UINT32_MAX;
        if (at != UINT32_MAX && tsr_dict_pair(s->local, s->full->items[2 * i], i) != at) s->shared[at] = true;
    }
    return TSR_OK;
}

static tsr_status find_shared(spreading *s, tsr_error *err)
{
    s->shared = tsr_arena_array(s->passing, tsr_value_pairs(s->local), sizeof *s->shared, err);
    tsr_map *keys = s->shared ? tsr_map_new(s->out->host->allocator, tsr_value_pairs(s->local), err) : NULL;
    const tsr_status status = keys ? find_in(s, keys, err) : TSR_E_NOMEM;
    tsr_map_free(keys);
    return status;
}

static tsr_status full_target(const tsr_tensor *full, const tsr_tensor *local, bool offload, tsr_state_dict *out,
                              const tsr_tensor **target, tsr_error *err);

/* Handles one key of the full state that the local state has, too. */
static tsr_status plan_one(spreading *s, size_t at, const tsr_value *whole, tsr_str name, tsr_error *err)
{
    const tsr_value *local = s->local->items[2 * at + 1];
    const tsr_tensor *full = tsr_tensor_of(whole), *mine = tsr_tensor_of(local), *target;
    s->known[at] = true;
    s->values[at] = whole;
    if (!full) return TSR_OK;
    if (full->entry.ndim && local->kind == TSR_VALUE_NONE) {
        s->values[at] = local;
        return TSR_OK;
    }
    if (mine && !replaced(full, mine) && !s->shared[at])
        TSR_TRY(full_target(full, mine, s->options->offload, s->out, &target, err));
    else TSR_TRY(fresh_target(s, full, mine, &target, err));
    s->values[at] = target == mine ? local : tsr_state_dict_leaf(s->out, target, err);
    pair *p = tsr_vec_push(target->spread == TSR_WHOLE ? &s->wholes : &s->moves, err);
    if (!p || !s->values[at]) return TSR_E_NOMEM;
    *p = (pair){.full = full, .target = target, .name = name};
    return tsr_tensor_held(target, s->passing, &p->bytes, err);
}

/* Goes through the keys in the order of the full state, which is known to all ranks. */
static tsr_status plan_all(spreading *s, tsr_error *err)
{
    const size_t count = tsr_value_pairs(s->local);
    s->values = tsr_arena_array(s->passing, count, sizeof *s->values, err);
    s->known = tsr_arena_array(s->passing, count, sizeof *s->known, err);
    if (!s->values || !s->known) return TSR_E_NOMEM;
    TSR_TRY(find_shared(s, err));
    for (size_t i = 0; i < count; i++) s->values[i] = s->local->items[2 * i + 1];
    for (size_t i = 0; i < tsr_value_pairs(s->full); i++) {
        const tsr_step step = {.key = s->full->items[2 * i], .depth = 1};
        const size_t found = tsr_dict_pair(s->local, step.key, i);
        const tsr_str name = tsr_step_text(&step, s->passing, err);
        if (!name.data) return TSR_E_NOMEM;
        if (found == TSR_NO_PAIR) tsr_name_tally_add(&s->strange, name);
        if (found == TSR_NO_PAIR) continue;
        const tsr_status status = plan_one(s, found, s->full->items[2 * i + 1], name, err);
        if (status != TSR_OK) {
            tsr_error_context(err, "'%.*s'", TSR_STR_ARG(name));
            return status;
        }
    }
    return TSR_OK;
}

/* ---- bytes ---- */

/* The broadcast of whole tensors, piece by piece. An error on this rank is reported only after all ranks have taken part. */
typedef struct wholes_under_way {
    size_t piece_bytes;
    void *bounce; /* host memory for a piece; needed if the ranks cannot send from a device */
    tsr_status own;
    tsr_error own_error;
} wholes_under_way;

/* Broadcasts a piece of a whole tensor from rank 0. If the communicator supports the device, the piece is sent and received
 * in place. */
static tsr_status broadcast_piece(const spreading *s, const tsr_tensor *tensor, uint64_t at, size_t size,
                                  wholes_under_way *w, tsr_error *err)
{
    uint8_t *there = (uint8_t *)tensor->data + at;
    tsr_device *device = s->comm->takes_devices ? NULL : tensor->device;
    if (device && s->comm->rank == 0 && w->own == TSR_OK) {
        w->own = device->to_host(device, w->bounce, there, size, &w->own_error);
        if (w->own == TSR_OK) w->own = device->synchronize(device, &w->own_error);
    }
    TSR_TRY(s->comm->broadcast(s->comm, device ? w->bounce : there, size, 0, err));
    if (device && s->comm->rank != 0 && w->own == TSR_OK) {
        w->own = device->from_host(device, there, w->bounce, size, &w->own_error);
        if (w->own == TSR_OK) w->own = device->synchronize(device, &w->own_error);
    }
    return TSR_OK;
}

static tsr_status broadcast_whole(const spreading *s, const pair *p, wholes_under_way *w, tsr_error *err)
{
    const tsr_tensor *moving = s->comm->rank == 0 ? p->full : p->target;
    for (uint64_t at = 0; at < p->bytes; at += w->piece_bytes) {
        const size_t size = p->bytes - at < w->piece_bytes ? (size_t)(p->bytes - at) : w->piece_bytes;
        TSR_TRY(broadcast_piece(s, moving, at, size, w, err));
    }
    if (s->comm->rank != 0 || w->own != TSR_OK) return TSR_OK;
    w->own = tsr_tensor_copy(p->full, p->target, s->passing, &w->own_error);
    if (w->own == TSR_OK) w->own = tsr_device_wait(p->full->device, &w->own_error);
    if (w->own == TSR_OK) w->own = tsr_device_wait(p->target->device, &w->own_error);
    return TSR_OK;
}

static tsr_status broadcast_wholes(spreading *s, tsr_error *err)
{
    const pair *pairs = s->wholes.items;
    wholes_under_way w = {.piece_bytes = s->options->round_bytes ? s->options->round_bytes : TSR_ROUND_BYTES_DEFAULT,
                          .own = TSR_OK};
    bool device = false;
    for (size_t i = 0; i < s->wholes.count; i++)
        device = device || (!s->comm->takes_devices && (s->comm->rank == 0 ? pairs[i].full : pairs[i].target)->device);
    w.bounce = device ? tsr_alloc(s->out->host->allocator, w.piece_bytes, 1, &w.own_error) : NULL;
    tsr_status status = tsr_comm_agree(s->comm, device && !w.bounce ? TSR_E_NOMEM : TSR_OK, err);
    for (size_t i = 0; i < s->wholes.count && status == TSR_OK; i++) status = broadcast_whole(s, &pairs[i], &w, err);
    if (status == TSR_OK) {
        status = tsr_comm_agree(s->comm, w.own, &w.own_error);
        if (status != TSR_OK) tsr_raise_again(err, status, &w.own_error);
    }
    tsr_free(s->out->host->allocator, w.bounce, w.piece_bytes, 1);
    return status;
}

static tsr_status move_parts(spreading *s, tsr_error *err)
{
    const pair *pairs = s->moves.items;
    const size_t count = s->moves.count;
    tsr_transfer *transfers = tsr_arena_array(s->passing, count, sizeof *transfers, err);
    tsr_side_request *requests = tsr_arena_array(s->passing, count, sizeof *requests, err);
    for (size_t i = 0; transfers && requests && i < count; i++) {
        const tsr_tensor *full = pairs[i].full;
        transfers[i] = (tsr_transfer){.dtype = full->entry.dtype,
                                      .ndim = full->entry.ndim,
                                      .shape = full->entry.shape,
                                      .name = pairs[i].name,
                                      .from = {s->comm->rank == 0 ? full : NULL, NULL, root_only, 1},
                                      .to = {.tensor = pairs[i].target}};
        requests[i] = (tsr_side_request){pairs[i].target, false, &transfers[i].to};
    }
    const tsr_status mine = transfers && requests ? TSR_OK : TSR_E_NOMEM;
    TSR_TRY(tsr_sides_resolve(s->comm, (tsr_side_requests){requests, count}, s->out->host, s->passing, mine, err));
    return tsr_transfers_run(s->comm, (tsr_transfer_list){transfers, count}, s->options->round_bytes, s->out->host, TSR_OK,
                             err);
}

/* ---- all of it ---- */

static tsr_status make_root(spreading *s, tsr_error *err)
{
    size_t count = 0;
    const tsr_value **items = tsr_arena_array(s->out->arena, s->local->count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < tsr_value_pairs(s->local); i++) {
        if (s->options->strict && !s->known[i]) continue;
        items[count++] = s->local->items[2 * i];
        items[count++] = s->values[i];
    }
    tsr_value *root = tsr_value_items(s->out->arena, TSR_VALUE_DICT, items, count, err);
    if (root) tsr_state_dict_set_root(s->out, root);
    return root ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status warn_of_keys(spreading *s, tsr_error *err)
{
    tsr_name_tally missing = {0};
    for (size_t i = 0; i < tsr_value_pairs(s->local); i++) {
        const tsr_step step = {.key = s->local->items[2 * i], .depth = 1};
        if (s->known[i]) continue;
        const tsr_str name = tsr_step_text(&step, s->passing, err);
        if (!name.data) return TSR_E_NOMEM;
        tsr_name_tally_add(&missing, name);
    }
    tsr_name_tally_warn(&s->strange, &s->options->warnings, "the local state has no place for some keys of the full state");
    tsr_name_tally_warn(&missing, &s->options->warnings,
                        s->options->strict ? "the full state lacks some keys, which are left out of the result"
                                           : "the full state lacks some keys, whose values stay as they are");
    return TSR_OK;
}

static tsr_status full_check(const tsr_value *full, const tsr_value *local, tsr_error *err);

static tsr_status spread(spreading *s, tsr_error *err)
{
    tsr_status status = full_check(s->comm->rank == 0 ? s->full : NULL, s->local, err);
    TSR_TRY(broadcast_agree(s, status, err));
    status = broadcast_full(s, err);
    if (status == TSR_OK) status = plan_all(s, err);
    if (status == TSR_OK) status = make_root(s, err);
    if (status == TSR_OK) status = warn_of_keys(s, err);
    TSR_TRY(tsr_comm_agree(s->comm, status, err));
    TSR_TRY(broadcast_wholes(s, err));
    return move_parts(s, err);
}

tsr_status tsr_state_dict_broadcast(const tsr_value *full, const tsr_value *local, tsr_comm *comm,
                                    const tsr_broadcast_options *options, tsr_state_dict *out, tsr_error *err)
{
    tsr_broadcast_options own;
    const tsr_status given = TSR_OPTIONS_COPY(&own, options, tsr_broadcast_options, err);
    if (given != TSR_OK) return tsr_comm_agree(comm, given, err);
    spreading s = {.comm = comm,
                   .options = &own,
                   .out = out,
                   .passing = tsr_arena_new(out->host->allocator, 0, err),
                   .full = full,
                   .local = local,
                   .moves = tsr_vec_of(out->host->allocator, sizeof(pair)),
                   .wholes = tsr_vec_of(out->host->allocator, sizeof(pair))};
    const tsr_status status = s.passing ? spread(&s, err) : tsr_comm_agree(comm, TSR_E_NOMEM, err);
    tsr_vec_free(&s.moves);
    tsr_vec_free(&s.wholes);
    tsr_arena_free(s.passing);
    return status;
}

/* ---- distribute ---- */

/* PyTorch's _distribute_state_dict: every rank has the full state and keeps its part. */

/* TSR_E_USAGE unless both are dicts. */
static tsr_status full_check(const tsr_value *full, const tsr_value *local, tsr_error *err)
{
    TSR_FAIL_IF(full && full->kind != TSR_VALUE_DICT, err, TSR_E_USAGE, "the full state is a %s; expected a dict",
                tsr_python_type(full));
    TSR_FAIL_IF(local->kind != TSR_VALUE_DICT, err, TSR_E_USAGE, "the local state is a %s; expected a dict",
                tsr_python_type(local));
    return TSR_OK;
}

/* Returns `local` if it has memory; if it is meta, a copy with memory in `out`. `full` states the shape and dtype that it
 * must have. */
static tsr_status full_target(const tsr_tensor *full, const tsr_tensor *local, bool offload, tsr_state_dict *out,
                              const tsr_tensor **target, tsr_error *err)
{
    tsr_tensor *copy, like = *local;
    *target = local;
    like.entry.dtype = full->entry.dtype; /* if the dtype differs, the part is a new tensor */
    TSR_TRY(
        tsr_tensor_same_place(full, &like, &(tsr_likeness){"the full state", "the local state", false}, out->arena, err));
    if (!local->meta && local->entry.dtype == full->entry.dtype) return TSR_OK;
    TSR_TRY(tsr_state_dict_copy_tensor(out, &like, &copy, err));
    if (offload) copy->device = NULL;
    *target = copy;
    return tsr_state_dict_give_memory(out, copy, NULL, err);
}

/* Copies this rank's part of a whole tensor, which is on the same rank. */
static tsr_status cut(const tsr_tensor *full, const tsr_tensor *target, tsr_arena *arena, tsr_error *err)
{
    const tsr_piece *pieces;
    uint64_t count;
    TSR_TRY(tsr_tensor_pieces(target, arena, &pieces, &count, err));
    tsr_link from = {.ndim = full->entry.ndim,
                     .itemsize = tsr_dtype_size(full->entry.dtype),
                     .buffer_sizes = full->entry.shape,
                     .data = full->data,
                     .device = full->device};
    tsr_link to = from;
    to.device = target->device;
    for (uint64_t i = 0; i < count; i++) {
        from.offsets = pieces[i].offsets;
        to.offsets = pieces[i].local_offsets;
        from.sizes = to.sizes = pieces[i].sizes;
        to.buffer_sizes = pieces[i].buffer_sizes;
        to.data = pieces[i].data;
        TSR_FAIL_IF(!from.data || !to.data, err, TSR_E_USAGE, "the tensor has no memory");
        tsr_link_copying copying = tsr_link_copy_start(&from, &to);
        TSR_TRY(tsr_link_copy_some(&copying, UINT64_MAX, err));
    }
    return TSR_OK;
}

/* Makes the value of one key in the result. *result is NULL if the key is omitted. */
static tsr_status distribute_one(const tsr_value *full, const tsr_value *local, tsr_state_dict *out, tsr_arena *passing,
                                 const tsr_value **result, tsr_error *err)
{
    const tsr_tensor *whole = tsr_tensor_of(full), *mine = local ? tsr_tensor_of(local) : NULL, *target;
    *result = full;
    if (!whole) return TSR_OK;
    TSR_FAIL_IF(whole->spread != TSR_WHOLE, err, TSR_E_UNSUPPORTED, "the tensor is distributed; expected a whole tensor");
    if (whole->entry.ndim == 0) return TSR_OK;
    if (!local || local->kind == TSR_VALUE_NONE) {
        *result = local;
        return TSR_OK;
    }
    if (!mine || mine->spread == TSR_WHOLE) return TSR_OK;
    TSR_TRY(full_target(whole, mine, false, out, &target, err));
    tsr_status status = cut(whole, target, passing, err);
    const tsr_status waited[2] = {tsr_device_wait(whole->device, err), tsr_device_wait(target->device, err)};
    for (int i = 0; i < 2; i++) status = status == TSR_OK ? waited[i] : status;
    *result = target == mine ? local : tsr_state_dict_leaf(out, target, err);
    return status == TSR_OK && !*result ? TSR_E_NOMEM : status;
}

static tsr_status put_pair(tsr_vec *pairs, const tsr_value *key, const tsr_value *value, tsr_error *err)
{
    TSR_TRY(tsr_vec_reserve(pairs, 2, err));
    *(const tsr_value **)tsr_vec_push(pairs, err) = key;
    *(const tsr_value **)tsr_vec_push(pairs, err) = value;
    return TSR_OK;
}

/* Orders keys as Python does: first those of the local dict, then the new ones of the full dict. */
static tsr_status distribute(const tsr_value *full, const tsr_value *local, tsr_state_dict *out, tsr_arena *passing,
                             tsr_vec *pairs, tsr_error *err)
{
    for (size_t i = 0; i < local->count + full->count; i += 2) {
        const bool own = i < local->count;
        const tsr_value *key = own ? local->items[i] : full->items[i - local->count], *value;
        const tsr_step step = {.key = key, .depth = 1};
        TSR_TRY(tsr_step_check(&step, out->host, passing, err));
        const tsr_value *mine = own ? local->items[i + 1] : tsr_dict_find(local, key, i / 2);
        const tsr_value *whole = own ? tsr_dict_find(full, key, i / 2) : full->items[i - local->count + 1];
        if (!own && mine) continue;
        value = mine;
        if (whole) {
            const tsr_status status = distribute_one(whole, mine, out, passing, &value, err);
            if (status != TSR_OK) return tsr_step_context(&step, passing, status, err);
        }
        if (value) TSR_TRY(put_pair(pairs, key, value, err));
    }
    const tsr_value *root = tsr_dict_of_pairs(pairs, out->arena, err);
    if (root) tsr_state_dict_set_root(out, root);
    return root ? TSR_OK : TSR_E_NOMEM;
}

tsr_status tsr_state_dict_distribute(const tsr_value *full, const tsr_value *local, tsr_state_dict *out, tsr_error *err)
{
    TSR_TRY(full_check(full, local, err));
    tsr_vec pairs = tsr_vec_of(out->host->allocator, sizeof(const tsr_value *));
    tsr_arena *passing = tsr_arena_new(out->host->allocator, 0, err);
    const tsr_status status = passing ? distribute(full, local, out, passing, &pairs, err) : TSR_E_NOMEM;
    tsr_vec_free(&pairs);
    tsr_arena_free(passing);
    return status;
}

/* ---- gather ---- */

/* PyTorch's _gather_state_dict: distributed tensors become whole tensors, on all ranks or only on some. */

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
