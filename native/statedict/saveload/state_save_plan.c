/* Lays out the write items of the planner in files. Each distinct shard is written once, by the least loaded of the ranks
 * that hold it. Every rank computes the same plan for all ranks, except for the objects at the beginning of rank 0's file,
 * which only rank 0 knows. */
#include "statedict/saveload/state_save_plan.h"

#include <stdlib.h>

#include "statedict/tensor/state_dict.h"
#include "statedict/tensor/value_pack.h"
#include "statedict/transfer/transfer.h"
#include "tessera/plan.h"
#include "tessera/sys/box.h"
#include "tessera/sys/map.h"
#include "tessera/sys/plan_items.h"

typedef struct planning {
    tsr_comm *comm;
    const tsr_host *host;
    tsr_arena *arena;
    tsr_save_plan *out;
    tsr_entry *tensors; /* as in a catalog, in the order of names */
    tsr_side *sides;
    uint32_t *entry_of; /* by tensor: number of its flat entry */
    size_t count;
    tsr_vec pieces;
} planning;

/* ---- agreement ---- */

static tsr_status add_agreement(const planning *p, tsr_str call, tsr_agreement *agreement, tsr_error *err)
{
    const tsr_flat *flat = &p->out->flat;
    TSR_TRY(tsr_agreement_add(agreement, TSR_STR(""), TSR_STR("the call save"), call, err));
    for (size_t i = 0; i < flat->count; i++) {
        const tsr_flat_entry *entry = &flat->entries[flat->sorted[i]];
        const tsr_str path = tsr_arena_format(p->arena, err, "'%.*s'", TSR_STR_ARG(entry->fqn));
        const tsr_str words = entry->tensor ? tsr_tensor_words(entry->tensor, p->arena, err) : TSR_STR("no tensor");
        const tsr_str order = tsr_arena_format(p->arena, err, "e%.*s", TSR_STR_ARG(entry->fqn));
        if (!path.data || !words.data || !order.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_agreement_add(agreement, order, path, words, err));
    }
    return TSR_OK;
}

static tsr_status check_tensors(const planning *p, tsr_error *err)
{
    for (size_t i = 0; i < p->out->flat.count; i++) {
        const tsr_flat_entry *entry = &p->out->flat.entries[i];
        tsr_leaf_at leaf = {.path = entry->fqn, .tensor = entry->tensor};
        if (!entry->tensor) continue;
        TSR_TRY(tsr_leaves_check(&(tsr_leaves){&leaf, 1}, p->comm, err));
        TSR_FAIL_IF(entry->tensor->meta, err, TSR_E_USAGE, "'%.*s' has no memory", TSR_STR_ARG(entry->fqn));
    }
    return TSR_OK;
}

static tsr_status agree(planning *p, const tsr_value *state, tsr_str call, tsr_error *err)
{
    tsr_agreement agreement = {tsr_vec_of(p->host->allocator, 1), p->arena};
    tsr_status status = call.data ? tsr_flat_of(state, p->host, p->arena, &p->out->flat, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = check_tensors(p, err);
    if (status == TSR_OK) status = add_agreement(p, call, &agreement, err);
    return tsr_agreement_check(&agreement, p->comm, status, p->host->allocator, err);
}

/* ---- tensors for the planner ---- */

static tsr_status list_tensors(planning *p, tsr_side_requests *requests, tsr_error *err)
{
    const tsr_flat *flat = &p->out->flat;
    p->tensors = tsr_arena_array(p->arena, flat->count, sizeof *p->tensors, err);
    p->sides = tsr_arena_array(p->arena, flat->count, sizeof *p->sides, err);
    p->entry_of = tsr_arena_array(p->arena, flat->count, sizeof *p->entry_of, err);
    requests->items = tsr_arena_array(p->arena, flat->count, sizeof *requests->items, err);
    uint64_t *zeros = tsr_arena_array(p->arena, TSR_MAX_NDIM, sizeof *zeros, err);
    if (!p->tensors || !p->sides || !p->entry_of || !requests->items || !zeros) return TSR_E_NOMEM;
    for (size_t i = 0; i < flat->count; i++) {
        const tsr_flat_entry *entry = &flat->entries[flat->sorted[i]];
        tsr_chunk *whole = TSR_ARENA_NEW(p->arena, tsr_chunk, err);
        if (!entry->tensor) continue;
        if (!whole) return TSR_E_NOMEM;
        tsr_entry *tensor = &p->tensors[p->count];
        *whole = (tsr_chunk){.offsets = zeros, .sizes = entry->tensor->entry.shape};
        *tensor = entry->tensor->entry;
        tensor->fqn = entry->fqn;
        tensor->kind = TSR_ENTRY_TENSOR;
        tensor->chunks = whole;
        tensor->chunk_count = 1;
        p->entry_of[p->count] = flat->sorted[i];
        if (entry->tensor->spread != TSR_WHOLE)
            requests->items[requests->count++] = (tsr_side_request){entry->tensor, true, &p->sides[p->count]};
        p->count++;
    }
    return TSR_OK;
}

static const tsr_layout *layout_of(void *ctx, const tsr_entry *entry)
{
    const planning *p = ctx;
    return p->sides[entry - p->tensors].layout;
}

static tsr_status add_shard(void *ctx, uint64_t tensor, uint64_t owner, const tsr_shard *shard, tsr_error *err)
{
    planning *p = ctx;
    const uint32_t ndim = shard->ndim;
    for (uint64_t b = 0; b < shard->box_count; b++) {
        tsr_save_piece *piece = tsr_vec_push(&p->pieces, err);
        uint64_t elements, *numbers = tsr_arena_array(p->arena, 2 * (size_t)ndim, sizeof *numbers, err);
        if (!piece || !numbers) return TSR_E_NOMEM;
        if (ndim) memcpy(numbers, shard->boxes[b].offsets, ndim * sizeof *numbers);
        if (ndim) memcpy(numbers + ndim, shard->boxes[b].sizes, ndim * sizeof *numbers);
        tsr_box_volume((tsr_box){ndim, NULL, numbers + ndim}, &elements);
        *piece = (tsr_save_piece){.entry = p->entry_of[tensor],
                                  .owner = (uint32_t)owner,
                                  .number = b,
                                  .offsets = numbers,
                                  .sizes = numbers + ndim,
                                  .bytes = elements * tsr_dtype_size(p->tensors[tensor].dtype)};
    }
    return TSR_OK;
}

static int by_owner(const void *a, const void *b)
{
    const tsr_save_piece *x = a, *y = b;
    if (x->owner != y->owner) return x->owner < y->owner ? -1 : 1;
    /* Position in the planner's order, until the layout is known. */
    return (x->byte_offset > y->byte_offset) - (x->byte_offset < y->byte_offset);
}

/* Sorts pieces by owner, and those of the same owner in the planner's order. */
static tsr_status sort_pieces(planning *p, tsr_error *err)
{
    const size_t count = p->pieces.count;
    p->out->pieces = tsr_arena_array(p->arena, count, sizeof *p->out->pieces, err);
    if (!p->out->pieces) return TSR_E_NOMEM;
    p->out->piece_count = count;
    if (count == 0) return TSR_OK;
    memcpy(p->out->pieces, p->pieces.items, count * sizeof *p->out->pieces);
    for (size_t i = 0; i < count; i++) p->out->pieces[i].byte_offset = i;
    qsort(p->out->pieces, count, sizeof *p->out->pieces, by_owner);
    return TSR_OK;
}

static tsr_status assign(planning *p, tsr_error *err)
{
    const uint64_t ranks[] = {p->comm->size};
    const tsr_str nameless[] = {{NULL, 0}};
    const tsr_placement whole[] = {{.kind = TSR_REPLICATE}};
    const tsr_target target = {.mesh = {1, ranks, nameless}, .default_placements = whole};
    const tsr_catalog catalog = {.entries = p->tensors, .entry_count = p->count};
    const tsr_plan_options options = {.layout = layout_of, .layout_ctx = p};
    tsr_plan *plan = NULL;
    tsr_status status = tsr_plan_new(&catalog, &target, &options, p->host, &plan, err);
    if (status == TSR_OK) status = tsr_plan_each_write(plan, add_shard, p, err);
    if (status == TSR_OK) status = sort_pieces(p, err);
    tsr_plan_free(plan);
    return status;
}

/* ---- offsets in files ---- */

static tsr_status lay_out_objects(planning *p, tsr_error *err)
{
    tsr_save_plan *out = p->out;
    if (p->comm->rank != 0) return TSR_OK;
    out->objects = tsr_arena_array(p->arena, out->flat.count, sizeof *out->objects, err);
    if (!out->objects) return TSR_E_NOMEM;
    for (size_t i = 0; i < out->flat.count; i++) {
        const tsr_flat_entry *entry = &out->flat.entries[i];
        if (entry->tensor) continue;
        tsr_save_object *object = &out->objects[out->object_count++];
        *object = (tsr_save_object){
            .entry = (uint32_t)i, .bytes = tsr_vec_of(p->host->allocator, 1), .byte_offset = out->file_sizes[0]};
        const tsr_status status = tsr_dcp_item_object(entry->value, p->host, &object->bytes, err);
        if (status != TSR_OK) {
            tsr_error_context(err, "'%.*s'", TSR_STR_ARG(entry->fqn));
            return status;
        }
        out->file_sizes[0] += object->bytes.count;
    }
    return TSR_OK;
}

static tsr_status lay_out_piece(planning *p, tsr_save_piece *piece, tsr_vec *head, tsr_vec *tail, tsr_error *err)
{
    const tsr_entry *entry = &p->out->flat.entries[piece->entry].tensor->entry;
    head->count = tail->count = 0;
    const tsr_dcp_box box = {entry->dtype, entry->ndim, piece->sizes, 0};
    const tsr_status status = tsr_dcp_item_around(&box, p->host, head, tail, err);
    if (status != TSR_OK) {
        tsr_error_context(err, "'%.*s'", TSR_STR_ARG(p->out->flat.entries[piece->entry].fqn));
        return status;
    }
    piece->head_length = head->count;
    piece->byte_length = head->count + piece->bytes + tail->count;
    piece->byte_offset = p->out->file_sizes[piece->owner];
    TSR_FAIL_IF(piece->byte_length > UINT64_MAX / 2 - piece->byte_offset, err, TSR_E_LIMIT, "a file is too large");
    p->out->file_sizes[piece->owner] += piece->byte_length;
    return TSR_OK;
}

/* Rank 0 must know all offsets, the other ranks only their own. */
static tsr_status lay_out(planning *p, tsr_error *err)
{
    tsr_vec head = tsr_vec_of(p->host->allocator, 1), tail = head;
    p->out->file_sizes = tsr_arena_array(p->arena, p->comm->size, sizeof *p->out->file_sizes, err);
    tsr_status status = p->out->file_sizes ? lay_out_objects(p, err) : TSR_E_NOMEM;
    for (size_t i = 0; i < p->out->piece_count && status == TSR_OK; i++)
        if (p->comm->rank == 0 || p->out->pieces[i].owner == p->comm->rank)
            status = lay_out_piece(p, &p->out->pieces[i], &head, &tail, err);
    tsr_vec_free(&head);
    tsr_vec_free(&tail);
    return status;
}

tsr_status tsr_save_plan_make(const tsr_save_planner *planner, const tsr_value *state, tsr_str call, tsr_save_plan *out,
                              tsr_error *err)
{
    tsr_comm *comm = planner->comm;
    planning p = {.comm = comm,
                  .host = planner->host,
                  .arena = planner->arena,
                  .out = out,
                  .pieces = tsr_vec_of(planner->host->allocator, sizeof(tsr_save_piece))};
    tsr_side_requests requests = {0};
    *out = (tsr_save_plan){0};
    TSR_TRY(agree(&p, state, call, err));
    tsr_status status = list_tensors(&p, &requests, err);
    status = tsr_sides_resolve(comm, requests, p.host, p.arena, status, err);
    if (status == TSR_OK) {
        status = assign(&p, err);
        if (status == TSR_OK) status = lay_out(&p, err);
        status = tsr_comm_agree(comm, status, err);
    }
    if (status == TSR_OK) /* only rank 0 knows the size of its own file, because that contains the objects */
        status = comm->broadcast(comm, out->file_sizes, comm->size * sizeof *out->file_sizes, 0, err);
    tsr_vec_free(&p.pieces);
    return status;
}

/* ---- objects that differ ---- */

/* 0 if the value cannot be packed; rank 0 has already refused such values. */
static uint64_t object_digest(const tsr_value *value, const tsr_host *host)
{
    tsr_vec packed = tsr_vec_of(host->allocator, 1);
    tsr_error ignored = {0};
    const tsr_status status = tsr_value_pack(value, 0, &packed, &ignored);
    const uint64_t digest = status == TSR_OK ? tsr_hash_bytes(packed.items, packed.count, 1) : 0;
    tsr_vec_free(&packed);
    return digest;
}

tsr_status tsr_save_plan_differences(const tsr_save_plan *plan, tsr_comm *comm, const tsr_host *host, tsr_arena *arena,
                                     tsr_name_tally *out, tsr_error *err)
{
    const tsr_flat *flat = &plan->flat;
    const tsr_flat_entry **objects = tsr_arena_array(arena, flat->count, sizeof *objects, err);
    uint64_t *mine = tsr_arena_array(arena, flat->count, sizeof *mine, err);
    uint64_t *roots = tsr_arena_array(arena, flat->count, sizeof *roots, err);
    size_t count = 0;
    TSR_TRY(tsr_comm_agree(comm, objects && mine && roots ? TSR_OK : TSR_E_NOMEM, err));
    /* In the order of names, because ranks may list objects in different orders. */
    for (size_t i = 0; i < flat->count; i++) {
        const tsr_flat_entry *entry = objects[count] = &flat->entries[flat->sorted[i]];
        if (!entry->tensor) roots[count] = mine[count] = object_digest(entry->value, host);
        count += !entry->tensor;
    }
    if (count) TSR_TRY(comm->broadcast(comm, roots, count * sizeof *roots, 0, err));
    for (size_t i = 0; i < count; i++)
        if (mine[i] != roots[i]) tsr_name_tally_add(out, objects[i]->fqn);
    return TSR_OK;
}

void tsr_save_plan_free(tsr_save_plan *plan)
{
    for (size_t i = 0; i < plan->object_count; i++) tsr_vec_free(&plan->objects[i].bytes);
}
