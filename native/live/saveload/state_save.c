/* Saves a state dict: every rank writes its file into an unpublished directory that all share; rank 0 writes the metadata
 * and publishes. Next to it is a journal that rank 0 keeps locked, which shows a later save what a killed one left. Data on
 * a device passes through the halves of a buffer: one is written while the other is filled. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "live/saveload/saveload.h"
#include "live/tensor/pack.h"
#include "live/tensor/state_dict.h"
#include "live/transfer/transfer.h"
#include "tessera/comm.h"
#include "tessera/plan.h"
#include "tessera/save_load.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/dcp_item.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/little_endian.h"
#include "tessera/sys/options.h"
#include "tessera/sys/plan.h"
#include "tessera/sys/publication.h"

/* A box of a tensor in its owner's file. */
typedef struct tsr_save_piece {
    uint32_t entry;  /* index in the flat state dict */
    uint32_t owner;  /* rank that writes it */
    uint64_t number; /* index among the pieces of the tensor on the owner (tsr_tensor_pieces) */
    const uint64_t *offsets;
    const uint64_t *sizes;
    uint64_t bytes; /* size of the elements */
    /* Position of the item in the owner's file, its size, and that of its head. */
    uint64_t byte_offset, byte_length, head_length;
} tsr_save_piece;

/* An object in rank 0's file. Only rank 0 has the list. */
typedef struct tsr_save_object {
    uint32_t entry;
    tsr_vec bytes;
    uint64_t byte_offset;
} tsr_save_object;

typedef struct tsr_save_plan {
    tsr_flat flat;
    tsr_save_piece *pieces; /* by owner, then by name, then in the order of the shards */
    size_t piece_count;
    tsr_save_object *objects; /* only on rank 0 */
    size_t object_count;
    uint64_t *file_sizes; /* by rank */
} tsr_save_plan;

/* The ranks that plan. The plan lives in `arena`, except for the bytes of objects. */
typedef struct tsr_save_planner {
    tsr_comm *comm;
    const tsr_host *host;
    tsr_arena *arena;
} tsr_save_planner;

/* ---- save plan ---- */

/* Lays out the write items of the planner in files. Each distinct shard is written once, by the least loaded of the ranks
 * that hold it. Every rank computes the same plan for all ranks, except for the objects at the beginning of rank 0's file,
 * which only rank 0 knows. */

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

/* Makes the plan. All ranks must agree on the state, and on `call`, which describes the call in words; otherwise they get an
 * error. Collective. */
static tsr_status save_plan_make(const tsr_save_planner *planner, const tsr_value *state, tsr_str call, tsr_save_plan *out,
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
    const tsr_status status = tsr_value_pack(value, 0, host, &packed, &ignored);
    const uint64_t digest = status == TSR_OK ? tsr_hash_bytes(packed.items, packed.count, 1) : 0;
    tsr_vec_free(&packed);
    return digest;
}

/* Finds objects whose values differ from those of rank 0, which are the ones that are saved. Collective. The names are those
 * of the plan. */
static tsr_status save_plan_differences(const tsr_save_plan *plan, tsr_comm *comm, const tsr_host *host, tsr_arena *arena,
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

static void save_plan_free(tsr_save_plan *plan)
{
    for (size_t i = 0; i < plan->object_count; i++) tsr_vec_free(&plan->objects[i].bytes);
}

/* ---- save ---- */

#define BUFFER_BYTES_DEFAULT ((size_t)16 << 20)
#define MARKER               TSR_STR(".metadata")

typedef struct saving {
    tsr_comm *comm;
    const tsr_host *host;
    const char *path;
    tsr_save_options options;
    tsr_arena *arena;
    tsr_save_plan plan;
    tsr_output *output;
    uint32_t *files;    /* by rank: number of its file in the output */
    tsr_str *names;     /* by rank, followed by the marker */
    tsr_halves halves;  /* of the buffer */
    uint32_t content;   /* CRC of the CRCs of everything that this rank has written */
    uint32_t *contents; /* those of all ranks, once they are gathered */
    size_t *content_sizes;
} saving;

/* ---- the destination ---- */

static tsr_status name_files(void *ctx, tsr_publication *publication, tsr_error *err)
{
    saving *s = ctx;
    s->names = tsr_arena_array(s->arena, (size_t)s->comm->size + 1, sizeof *s->names, err);
    s->files = tsr_arena_array(s->arena, s->comm->size, sizeof *s->files, err);
    s->contents = tsr_arena_array(s->arena, s->comm->size, sizeof *s->contents, err);
    s->content_sizes = tsr_arena_array(s->arena, s->comm->size, sizeof *s->content_sizes, err);
    if (!s->names || !s->files || !s->contents || !s->content_sizes) return TSR_E_NOMEM;
    for (uint32_t r = 0; r < s->comm->size; r++) {
        s->content_sizes[r] = sizeof *s->contents;
        s->names[r] = tsr_arena_format(s->arena, err, "__%" PRIu32 "_%" PRIu32 ".distcp", r, publication->generation);
        if (!s->names[r].data) return TSR_E_NOMEM;
    }
    s->names[s->comm->size] = MARKER;
    publication->names = s->names;
    publication->name_count = (size_t)s->comm->size + 1;
    return TSR_OK;
}

static tsr_status create_files(void *ctx, tsr_output *output, tsr_error *err)
{
    saving *s = ctx;
    s->output = output;
    for (uint32_t r = 0; r < s->comm->size; r++) {
        if (s->plan.file_sizes[r]) TSR_TRY(output->create(output, s->names[r], s->plan.file_sizes[r], &s->files[r], err));
    }
    return TSR_OK;
}

/* ---- bytes ---- */

static uint32_t note(uint32_t crc, uint64_t number)
{
    uint8_t bytes[8];
    tsr_store_le(bytes, number, sizeof bytes);
    return tsr_crc32(NULL, crc, bytes, sizeof bytes);
}

static tsr_status write_at(saving *s, uint64_t at, const void *data, size_t size, tsr_error *err)
{
    return size ? s->output->write_at(s->output, s->files[s->comm->rank], at, data, size, err) : TSR_OK;
}

/* Writes elements from offset `at` on, and computes their CRC while they are in the cache. */
typedef struct element_writer {
    saving *s;
    uint64_t at;
    uint32_t crc;
} element_writer;

static tsr_status put(element_writer *w, const uint8_t *data, size_t size, tsr_error *err)
{
    w->crc = tsr_crc32(w->s->host, w->crc, data, size);
    TSR_TRY(w->s->output->write_at(w->s->output, w->s->files[w->s->comm->rank], w->at, data, size, err));
    w->at += size;
    return TSR_OK;
}

/* Writes elements from where they are if they are contiguous, otherwise through the buffer. */
static tsr_status write_from_host(element_writer *w, tsr_stream *stream, tsr_error *err)
{
    const tsr_halves *buffer = &w->s->halves;
    while (stream->left) {
        const size_t size = stream->left < buffer->bytes ? (size_t)stream->left : buffer->bytes;
        const uint8_t *there = tsr_stream_peek(stream, false, size);
        if (there) tsr_stream_skip(stream, size);
        else TSR_TRY(tsr_stream_pack(stream, buffer->memory, NULL, size, err));
        TSR_TRY(put(w, there ? there : buffer->memory, size, err));
    }
    return TSR_OK;
}

/* Begins to copy the next part into a half. *size is 0 if there is none. */
static tsr_status fetch(tsr_stream *stream, uint8_t *half, size_t room, size_t *size, tsr_error *err)
{
    *size = stream->left < room ? (size_t)stream->left : room;
    return tsr_stream_pack(stream, half, NULL, *size, err);
}

static tsr_status write_from_device(element_writer *w, tsr_stream *stream, tsr_device *device, tsr_error *err)
{
    tsr_halves *halves = &w->s->halves;
    const size_t room = tsr_halves_room(halves);
    uint8_t *half = halves->memory, *other = halves->memory + room, *written;
    size_t size, next;
    TSR_TRY(tsr_halves_use(halves, device, err));
    TSR_TRY(fetch(stream, half, room, &size, err));
    for (; size; size = next, written = half, half = other, other = written) {
        TSR_TRY(tsr_device_wait(device, err));
        TSR_TRY(fetch(stream, other, room, &next, err));
        TSR_TRY(put(w, half, size, err));
    }
    return TSR_OK;
}

static tsr_status write_piece(saving *s, const tsr_save_piece *piece, tsr_arena *passing, tsr_vec *head, tsr_vec *tail,
                              tsr_error *err)
{
    const tsr_tensor *tensor = s->plan.flat.entries[piece->entry].tensor;
    const tsr_piece *pieces;
    uint64_t count;
    uint32_t crc = 0;
    if (piece->bytes) {
        TSR_TRY(tsr_tensor_pieces(tensor, passing, &pieces, &count, err));
        const tsr_piece *local = &pieces[piece->number];
        TSR_FAIL_IF(!local->data, err, TSR_E_USAGE, "the tensor has no memory");
        const tsr_link link = {.ndim = tensor->entry.ndim,
                               .itemsize = tsr_dtype_size(tensor->entry.dtype),
                               .offsets = local->local_offsets,
                               .sizes = local->sizes,
                               .buffer_sizes = local->buffer_sizes,
                               .data = local->data,
                               .device = tensor->device,
                               .bytes = piece->bytes};
        tsr_stream stream = tsr_stream_of(&link, 1);
        element_writer w = {s, piece->byte_offset + piece->head_length, 0};
        TSR_TRY(link.device ? write_from_device(&w, &stream, link.device, err) : write_from_host(&w, &stream, err));
        crc = w.crc;
    }
    head->count = tail->count = 0;
    const tsr_dcp_box box = {tensor->entry.dtype, tensor->entry.ndim, piece->sizes, crc};
    TSR_TRY(tsr_dcp_item_around(&box, s->host, head, tail, err));
    s->content = note(note(s->content, crc), piece->bytes);
    TSR_TRY(write_at(s, piece->byte_offset, head->items, head->count, err));
    return write_at(s, piece->byte_offset + piece->head_length + piece->bytes, tail->items, tail->count, err);
}

static tsr_status write_pieces(saving *s, tsr_error *err)
{
    tsr_vec head = tsr_vec_of(s->host->allocator, 1), tail = head;
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < s->plan.piece_count && status == TSR_OK; i++) {
        if (s->plan.pieces[i].owner != s->comm->rank) continue;
        tsr_arena *passing = tsr_arena_new(s->host->allocator, 0, err);
        status = passing ? write_piece(s, &s->plan.pieces[i], passing, &head, &tail, err) : TSR_E_NOMEM;
        if (status != TSR_OK)
            tsr_error_context(err, "'%.*s'", TSR_STR_ARG(s->plan.flat.entries[s->plan.pieces[i].entry].fqn));
        tsr_arena_free(passing);
    }
    tsr_vec_free(&head);
    tsr_vec_free(&tail);
    return status;
}

static tsr_status write_objects(saving *s, tsr_error *err)
{
    for (size_t i = 0; i < s->plan.object_count; i++) {
        const tsr_save_object *object = &s->plan.objects[i];
        s->content = note(tsr_crc32(s->host, s->content, object->bytes.items, object->bytes.count), object->bytes.count);
        TSR_TRY(write_at(s, object->byte_offset, object->bytes.items, object->bytes.count, err));
    }
    return TSR_OK;
}

static tsr_status write_own(void *ctx, tsr_output *output, uint32_t *marker, tsr_error *err)
{
    saving *s = ctx;
    (void)output;
    (void)marker; /* rank 0 creates it in write_marker */
    s->halves = (tsr_halves){.memory = tsr_alloc(s->host->allocator, s->options.buffer_bytes, 1, err),
                             .bytes = s->options.buffer_bytes};
    tsr_status status = s->halves.memory ? write_objects(s, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = write_pieces(s, err);
    tsr_halves_end(&s->halves, NULL);
    return status;
}

/* ---- metadata ---- */

static void describe_objects(const saving *s, tsr_dcp_new_entry *entries, tsr_dcp_new_item *items)
{
    for (size_t i = 0; i < s->plan.object_count; i++) {
        const tsr_save_object *object = &s->plan.objects[i];
        items[i] =
            (tsr_dcp_new_item){.file = s->names[0], .byte_offset = object->byte_offset, .byte_length = object->bytes.count};
        entries[object->entry].items = &items[i];
        entries[object->entry].item_count = 1;
    }
}

/* Groups the items of each tensor, ordered by owner. */
static void describe_pieces(const saving *s, tsr_dcp_new_entry *entries, tsr_dcp_new_item *items)
{
    const tsr_save_plan *plan = &s->plan;
    for (size_t i = 0; i < plan->piece_count; i++) entries[plan->pieces[i].entry].item_count++;
    for (size_t e = 0; e < plan->flat.count; e++) {
        if (!plan->flat.entries[e].tensor) continue;
        entries[e].items = items;
        items += entries[e].item_count;
        entries[e].item_count = 0;
    }
    for (size_t i = 0; i < plan->piece_count; i++) {
        const tsr_save_piece *piece = &plan->pieces[i];
        tsr_dcp_new_entry *entry = &entries[piece->entry];
        ((tsr_dcp_new_item *)entry->items)[entry->item_count++] =
            (tsr_dcp_new_item){piece->offsets, piece->sizes, s->names[piece->owner], piece->byte_offset, piece->byte_length};
    }
}

static tsr_status describe(const saving *s, tsr_dcp_new_entry **out, tsr_error *err)
{
    const tsr_flat *flat = &s->plan.flat;
    tsr_dcp_new_entry *entries = *out = tsr_arena_array(s->arena, flat->count, sizeof *entries, err);
    tsr_dcp_new_item *items = tsr_arena_array(s->arena, s->plan.object_count + s->plan.piece_count, sizeof *items, err);
    if (!entries || !items) return TSR_E_NOMEM;
    for (size_t e = 0; e < flat->count; e++) {
        const tsr_flat_entry *from = &flat->entries[e];
        entries[e] = (tsr_dcp_new_entry){
            .fqn = from->fqn, .path = from->path, .path_length = from->path_length, .tensor = from->tensor != NULL};
        if (!from->tensor) continue;
        entries[e].requires_grad = from->tensor->entry.requires_grad;
        entries[e].dtype = from->tensor->entry.dtype;
        entries[e].ndim = from->tensor->entry.ndim;
        entries[e].shape = from->tensor->entry.shape;
    }
    describe_objects(s, entries, items);
    describe_pieces(s, entries, items + s->plan.object_count);
    return TSR_OK;
}

static tsr_status write_metadata(saving *s, uint32_t content, uint32_t *marker, tsr_error *err)
{
    tsr_dcp_new_entry *entries;
    TSR_TRY(describe(s, &entries, err));
    const tsr_str id = tsr_dcp_save_id(entries, s->plan.flat.count, content, s->arena, err);
    if (!id.data) return TSR_E_NOMEM;
    tsr_vec text = tsr_vec_of(s->host->allocator, 1);
    tsr_status status =
        tsr_dcp_metadata_write(&(tsr_dcp_new_metadata){entries, s->plan.flat.count, id, 0, false}, s->host, &text, err);
    if (status == TSR_OK) status = s->output->create(s->output, MARKER, text.count, marker, err);
    if (status == TSR_OK) status = s->output->write_at(s->output, *marker, 0, text.items, text.count, err);
    tsr_vec_free(&text);
    return status;
}

/* All ranks have synced what they wrote: rank 0 writes the metadata. */
static tsr_status write_marker(void *ctx, tsr_output *output, uint32_t *marker, tsr_error *err)
{
    saving *s = ctx;
    uint32_t content = 0;
    (void)output;
    TSR_TRY(s->comm->all_gather(s->comm, &s->content, s->content_sizes, s->contents, err));
    for (uint32_t r = 0; r < s->comm->size; r++) content = note(content, s->contents[r]);
    return s->comm->rank == 0 ? write_metadata(s, content, marker, err) : TSR_OK;
}

static tsr_status save(saving *s, tsr_publication *publication, const tsr_value *state, tsr_error *err)
{
    tsr_name_tally others = {0};
    const tsr_warnings *warnings = &s->options.warnings;
    const tsr_str call = tsr_arena_format(s->arena, err, "'%s', overwrite %d", s->path, s->options.overwrite);
    TSR_TRY(save_plan_make(&(tsr_save_planner){s->comm, s->host, s->arena}, state, call, &s->plan, err));
    TSR_TRY(save_plan_differences(&s->plan, s->comm, s->host, s->arena, &others, err));
    TSR_TRY(tsr_publication_run(publication, err));
    if (publication->replaced) tsr_warn(warnings, "replaced the checkpoint that was at '%s'", s->path);
    tsr_name_tally_warn(&others, warnings, "saved rank 0's values, which differ from this rank's");
    return TSR_OK;
}

tsr_status tsr_state_dict_save(const tsr_value *state, tsr_comm *comm, const char *path, const tsr_save_options *options,
                               const tsr_host *host, tsr_error *err)
{
    saving s = {.comm = comm, .host = host, .path = path, .arena = tsr_arena_new(host->allocator, 0, err)};
    const tsr_status given = TSR_OPTIONS_COPY(&s.options, options, tsr_save_options, err);
    if (s.options.buffer_bytes == 0) s.options.buffer_bytes = BUFFER_BYTES_DEFAULT;
    /* So that each half has room for one element of any type. */
    if (s.options.buffer_bytes < 128) s.options.buffer_bytes = 128;
    tsr_publication publication = {.environment = {.ranks = comm},
                                   .host = host,
                                   .arena = s.arena,
                                   .destination = path,
                                   .line = TSR_STR("a state dict of several ranks\n"),
                                   .is_directory = true,
                                   .marker = MARKER.data,
                                   .replaces = s.options.overwrite,
                                   .plan = name_files,
                                   .create = create_files,
                                   .write = write_own,
                                   .finish = write_marker,
                                   .ctx = &s};
    const tsr_status status = s.arena && given == TSR_OK ? save(&s, &publication, state, err)
                                                         : tsr_comm_agree(comm, given != TSR_OK ? given : TSR_E_NOMEM, err);
    tsr_free(host->allocator, s.halves.memory, s.options.buffer_bytes, 1);
    save_plan_free(&s.plan);
    tsr_arena_free(s.arena);
    return status;
}
