/* Moves boxes between ranks: they send each other packed slices, in rounds of bounded size. */
#include "live/transfer/transfer.h"

#include <inttypes.h>
#include <stdlib.h>

#include "live/tensor/state_dict.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/statedict.h"
#include "tessera/sys/try.h"

/* ---- nodes ---- */

typedef struct owned {
    tsr_nodes nodes; /* first */
    tsr_arena *arena;
} owned;

/* Number `rank` of a list. */
static uint64_t listed(const char *list, uint32_t rank)
{
    for (; rank && *list; list++) rank -= *list == ',';
    return strtoull(list, NULL, 10);
}

/* Numbers the nodes in the order of their first ranks, and lists their ranks. */
static void nodes_number(owned *o, const uint64_t *machines, uint32_t ranks, uint32_t *of, uint32_t *order, uint32_t *start)
{
    uint32_t count = 0, used = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        uint32_t same = 0;
        while (same < r && machines[same] != machines[r]) same++;
        of[r] = same < r ? of[same] : count++;
    }
    for (uint32_t node = 0; node < count; node++) {
        start[node] = used;
        for (uint32_t r = 0; r < ranks; r++)
            if (of[r] == node) order[used++] = r;
    }
    start[count] = used;
    o->nodes = (tsr_nodes){count, of, order, start};
}

static tsr_status gather_nodes(tsr_comm *comm, owned *o, tsr_status status, tsr_error *err)
{
    const uint32_t ranks = comm->size;
    const char *list = getenv("TESSERA_NODES");
    const uint64_t mine = list ? listed(list, comm->rank) : tsr_machine();
    uint64_t *machines = o ? tsr_arena_array(o->arena, ranks, sizeof *machines, err) : NULL;
    size_t *sizes = machines ? tsr_arena_array(o->arena, ranks, sizeof *sizes, err) : NULL;
    uint32_t *numbers = sizes ? tsr_arena_array(o->arena, 3 * (size_t)ranks + 1, sizeof *numbers, err) : NULL;
    if (status == TSR_OK && !numbers) status = TSR_E_NOMEM;
    TSR_TRY(tsr_comm_agree(comm, status, err));
    for (uint32_t r = 0; r < ranks; r++) sizes[r] = sizeof mine;
    TSR_TRY(comm->all_gather(comm, &mine, sizes, machines, err));
    nodes_number(o, machines, ranks, numbers, numbers + ranks, numbers + 2 * (size_t)ranks);
    return TSR_OK;
}

/* `*out` is NULL, and that no error, where all ranks are on one node, or each on its own. The same on all ranks, whatever the mapping
 * of ranks to nodes. TESSERA_NODES, one number per rank ("0,0,1,1"), stands in for machines, to try a job's traffic on one of
 * them. Collective. */
static tsr_status nodes_find(tsr_comm *comm, const tsr_allocator *allocator, tsr_nodes **out, tsr_error *err)
{
    *out = NULL;
    if (comm->size < 3) return TSR_OK; /* two ranks on one node and one on another, at least */
    tsr_arena *arena = tsr_arena_new(allocator, 0, err);
    owned *o = arena ? TSR_ARENA_NEW(arena, owned, err) : NULL;
    if (o) o->arena = arena;
    const tsr_status status = gather_nodes(comm, o, o ? TSR_OK : TSR_E_NOMEM, err);
    if (status == TSR_OK && o->nodes.count > 1 && o->nodes.count < comm->size) *out = &o->nodes;
    else tsr_arena_free(arena);
    return status;
}

/* ---- links ---- */

/* Boxes that one rank has and another wants. A shard that several ranks hold comes from the receiver itself if it is among
 * them, else from the copy next to it. What lies in shared memory is not sent: the receiver reads it there; what is to get
 * there, the sender writes. */

/* One transfer as this rank looks at it. */
typedef struct finder {
    const tsr_transfer *transfer;
    uint32_t number, own, ranks;
    const tsr_route *route;
    bool passes;        /* what meets moves in the other phase: it is only counted */
    tsr_arena *passing; /* boxes of other ranks */
    tsr_links *out;
    const tsr_piece *from, *to; /* this rank's memory: piece i is box i of its shard */
    uint64_t from_count, to_count;
    bool reads, writes;                     /* `from` or `to` of other ranks, directly */
    const tsr_shard *from_shard, *to_shard; /* that meet */
    uint64_t found;                         /* elements received or kept */
} finder;

/* ---- who holds what ---- */

static bool holds_whole(const tsr_side *side, uint32_t rank)
{
    if (!side->holders) return true;
    for (uint32_t i = 0; i < side->holder_count; i++)
        if (side->holders[i] == rank) return true;
    return false;
}

static tsr_status shard_of(const finder *f, const tsr_side *side, uint32_t rank, tsr_shard *out, tsr_error *err)
{
    if (side->layout) return tsr_layout_shard(side->layout, rank, f->passing, out, err);
    const tsr_tensor whole = tsr_tensor_whole(f->transfer->dtype, f->transfer->ndim, f->transfer->shape, NULL);
    const tsr_piece *pieces;
    uint64_t count;
    *out = (tsr_shard){.ndim = f->transfer->ndim};
    if (!holds_whole(side, rank)) return TSR_OK;
    TSR_TRY(tsr_tensor_pieces(&whole, f->passing, &pieces, &count, err));
    tsr_shard_box *boxes = tsr_arena_array(f->passing, (size_t)count, sizeof *boxes, err);
    if (!boxes) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < count; i++)
        boxes[i] = (tsr_shard_box){pieces[i].offsets, pieces[i].sizes, pieces[i].local_offsets};
    out->boxes = boxes;
    out->box_count = count;
    return TSR_OK;
}

/* The lowest rank that holds what `rank` holds. */
static uint32_t first_holder(const tsr_layout *layout, uint32_t rank)
{
    uint64_t coordinate[TSR_MESH_MAX_DIMS];
    if (layout->copies == 1) return rank;
    tsr_mesh_coordinate(layout->mesh, rank, coordinate);
    for (uint32_t i = 0; i < layout->copy_dim_count; i++) coordinate[layout->copy_dims[i]] = 0;
    return (uint32_t)tsr_mesh_rank_at(layout->mesh, coordinate);
}

/* Who of those that hold the shard of `first` gives it to `dest`: the one that is where `dest` is in the dims that replicate
 * it, as in PyTorch, whose collectives run along the other dims. */
static uint32_t source_for(const tsr_side *from, uint32_t first, uint32_t dest)
{
    const tsr_layout *layout = from->layout;
    uint64_t place[TSR_MESH_MAX_DIMS], own[TSR_MESH_MAX_DIMS];
    if (!layout) return holds_whole(from, dest) ? dest : from->holders[dest % from->holder_count];
    if (layout->copies == 1) return first;
    tsr_mesh_coordinate(layout->mesh, first, place);
    tsr_mesh_coordinate(layout->mesh, dest, own);
    for (uint32_t i = 0; i < layout->copy_dim_count; i++) place[layout->copy_dims[i]] = own[layout->copy_dims[i]];
    return (uint32_t)tsr_mesh_rank_at(layout->mesh, place);
}

/* ---- nodes ---- */

/* Who gives something: out of its part of the source, or of the target, where it came to first. */
typedef struct giver {
    uint32_t rank;
    bool spreads;
} giver;

/* Whether the shard of `first` reaches `rank` as it reaches `dest`: from the same rank, because copies may differ and stay apart, and
 * for the same shard of the target. */
static bool shares_way(const finder *f, uint32_t first, uint32_t rank, uint32_t dest)
{
    const tsr_side *from = &f->transfer->from, *to = &f->transfer->to;
    if (source_for(from, first, rank) != source_for(from, first, dest)) return false;
    return to->layout ? first_holder(to->layout, rank) == first_holder(to->layout, dest)
                      : holds_whole(to, rank) && holds_whole(to, dest);
}

/* Who gives the shard of `first` to `dest`. Of the ranks of a node that it reaches in the same way, one has it from the other node: for
 * different shards different ones, in turns. */
static giver giver_for(const finder *f, uint32_t first, uint32_t dest)
{
    const tsr_nodes *nodes = f->route->nodes;
    const uint32_t source = source_for(&f->transfer->from, first, dest);
    uint32_t count = 0, turn;
    if (!nodes || nodes->of[source] == nodes->of[dest]) return (giver){source, false};
    const uint32_t begin = nodes->start[nodes->of[dest]], end = nodes->start[nodes->of[dest] + 1];
    for (uint32_t i = begin; i < end; i++) count += shares_way(f, first, nodes->ranks[i], dest);
    turn = count ? first % count : 0;
    for (uint32_t i = begin; i < end; i++) {
        if (!shares_way(f, first, nodes->ranks[i], dest) || turn-- > 0) continue;
        return nodes->ranks[i] == dest ? (giver){source, false} : (giver){nodes->ranks[i], true};
    }
    return (giver){source, false}; /* it wants nothing */
}

/* The next first holder from `rank` on; `ranks` behind the last. */
static uint32_t next_first(const finder *f, uint32_t rank)
{
    const tsr_side *from = &f->transfer->from;
    if (!from->layout) return rank == 0 ? 0 : f->ranks;
    while (rank < f->ranks && !tsr_layout_is_first(from->layout, rank)) rank++;
    return rank;
}

/* ---- links ---- */

/* What a box of the source and a box of the target both have. */
typedef struct common {
    uint32_t peer;     /* who has the other end */
    uint64_t from, to; /* which boxes of the shards */
    uint64_t order;    /* the source's box counts first */
    const uint64_t *offsets, *sizes;
} common;

static tsr_status make_link(const finder *f, const common *c, const tsr_side *side, const tsr_piece *piece, tsr_link *out,
                            tsr_error *err)
{
    const uint32_t ndim = f->transfer->ndim;
    uint64_t elements, *numbers = tsr_arena_array(f->out->arena, 3 * (size_t)ndim, sizeof *numbers, err);
    if (!numbers) return TSR_E_NOMEM;
    for (uint32_t d = 0; d < ndim; d++) {
        numbers[d] = c->offsets[d] - piece->offsets[d] + piece->local_offsets[d];
        numbers[ndim + d] = c->sizes[d];
        numbers[2 * ndim + d] = piece->buffer_sizes[d];
    }
    TSR_FAIL_IF(!piece->data, err, TSR_E_USAGE, "'%.*s' has no memory", TSR_STR_ARG(f->transfer->name));
    tsr_box_volume((tsr_box){ndim, NULL, numbers + ndim}, &elements);
    *out = (tsr_link){.peer = c->peer,
                      .transfer = f->number,
                      .order = c->order,
                      .ndim = ndim,
                      .itemsize = tsr_dtype_size(f->transfer->dtype),
                      .offsets = numbers,
                      .sizes = numbers + ndim,
                      .buffer_sizes = numbers + 2 * ndim,
                      .data = piece->data,
                      .device = side->tensor->device};
    out->bytes = elements * out->itemsize;
    return TSR_OK;
}

static tsr_status add_link(const finder *f, tsr_vec *list, const common *c, const tsr_side *side, const tsr_piece *piece,
                           tsr_error *err)
{
    tsr_link *link = tsr_vec_push(list, err);
    return link ? make_link(f, c, side, piece, link, err) : TSR_E_NOMEM;
}

/* Whether `data` is buffer `index` of this rank, and whether this rank is `rank` of `ranks`. */
static bool is_own_buffer(const tsr_shared *s, uint32_t rank, uint32_t ranks, size_t index, const void *data)
{
    uint64_t bytes;
    return s->own == rank && s->ranks == ranks && index < s->count && tsr_shared_buffer(s, rank, index, &bytes) == data;
}

static const tsr_shared *shared_of(const tsr_side *side, uint32_t own, uint32_t ranks)
{
    const tsr_tensor *t = side->holders ? NULL : side->tensor;
    if (!t || !t->shared || (t->spread == TSR_IN_BOXES && t->part_count != 1)) return NULL;
    const void *data = t->spread == TSR_IN_BOXES ? t->parts[0].data : t->data;
    return is_own_buffer(t->shared, own, ranks, t->shared_index, data) ? t->shared : NULL;
}

/* A number that is the same on all ranks, and different for other segments. Never 0. */
static uint64_t digest_of(const tsr_shared *s)
{
    return tsr_hash_bytes(s->segments, s->ranks * sizeof *s->segments, 1) | 1;
}

/* Which sides lie in shared memory: equal on ranks that may find links with `direct`; 0: none. */
static uint64_t links_shared(const tsr_comm *comm, tsr_transfer_list transfers)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < 2 * transfers.count; i++) {
        const tsr_transfer *transfer = &transfers.items[i / 2];
        const tsr_side *side = i % 2 ? &transfer->to : &transfer->from;
        const tsr_shared *shared = shared_of(side, comm->rank, comm->size);
        if (shared) sum += (digest_of(shared) + side->tensor->shared_index) * (2 * i + 1) | 1;
    }
    return sum;
}

/* Box `at` of another rank's shard, in the memory that it shares. */
static tsr_piece shared_piece(const finder *f, const tsr_side *side, const tsr_shard *shard, uint32_t peer, uint64_t at)
{
    const tsr_shard_box *box = &shard->boxes[at];
    const tsr_tensor *tensor = side->tensor;
    uint64_t bytes;
    return (tsr_piece){.offsets = box->offsets,
                       .sizes = box->sizes,
                       .local_offsets = box->local_offsets,
                       .buffer_sizes = tensor->spread == TSR_WHOLE       ? f->transfer->shape
                                       : tensor->spread == TSR_OVER_MESH ? shard->local_shape
                                                                         : box->sizes,
                       .data = tsr_shared_buffer(tensor->shared, peer, tensor->shared_index, &bytes)};
}

/* Both ends are in reach of this rank. */
static tsr_status add_copy(const finder *f, const common *c, const tsr_piece *from, const tsr_piece *to, tsr_error *err)
{
    common own = *c;
    own.peer = f->own;
    own.order = 0;
    TSR_TRY(add_link(f, &f->out->copies, &own, &f->transfer->from, from, err));
    return add_link(f, &f->out->copies, &own, &f->transfer->to, to, err);
}

typedef tsr_status each_common(finder *f, const common *c, tsr_error *err);

static tsr_status meet(finder *f, uint32_t peer, const tsr_shard *from, const tsr_shard *to, each_common *each,
                       tsr_error *err)
{
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM];
    const uint32_t ndim = f->transfer->ndim;
    f->from_shard = from;
    f->to_shard = to;
    for (uint64_t a = 0; a < from->box_count; a++) {
        for (uint64_t b = 0; b < to->box_count; b++) {
            const tsr_box x = {ndim, from->boxes[a].offsets, from->boxes[a].sizes};
            const tsr_box y = {ndim, to->boxes[b].offsets, to->boxes[b].sizes};
            const common c = {peer, a, b, a * to->box_count + b, offsets, sizes};
            if (tsr_box_intersect(x, y, offsets, sizes)) TSR_TRY(each(f, &c, err));
        }
    }
    return TSR_OK;
}

static tsr_status send_common(finder *f, const common *c, tsr_error *err)
{
    if (f->route->phase == TSR_PHASE_SPREAD) return add_link(f, &f->out->sends, c, &f->transfer->to, &f->to[c->to], err);
    if (f->reads) return TSR_OK;
    if (f->writes) {
        const tsr_piece there = shared_piece(f, &f->transfer->to, f->to_shard, c->peer, c->to);
        return add_copy(f, c, &f->from[c->from], &there, err);
    }
    return add_link(f, &f->out->sends, c, &f->transfer->from, &f->from[c->from], err);
}

static tsr_status receive_common(finder *f, const common *c, tsr_error *err)
{
    uint64_t elements;
    tsr_box_volume((tsr_box){f->transfer->ndim, NULL, c->sizes}, &elements);
    f->found += elements;
    if (f->passes) return TSR_OK;
    if (c->peer == f->own) return add_copy(f, c, &f->from[c->from], &f->to[c->to], err);
    if (f->reads) {
        const tsr_piece there = shared_piece(f, &f->transfer->from, f->from_shard, c->peer, c->from);
        return add_copy(f, c, &there, &f->to[c->to], err);
    }
    if (f->writes) return TSR_OK;
    return add_link(f, &f->out->receives, c, &f->transfer->to, &f->to[c->to], err);
}

/* One of those that hold the shard: the same for whoever asks. */
static uint32_t holder_of(const finder *f, uint32_t first)
{
    const tsr_side *from = &f->transfer->from;
    return from->layout || !from->holders ? first : from->holders[0];
}

static tsr_status find_receives(finder *f, tsr_error *err)
{
    uint64_t wanted = 0, elements;
    tsr_shard to, from;
    TSR_TRY(shard_of(f, &f->transfer->to, f->own, &to, err));
    for (uint64_t i = 0; i < to.box_count; i++) {
        tsr_box_volume((tsr_box){f->transfer->ndim, NULL, to.boxes[i].sizes}, &elements);
        wanted += elements;
    }
    for (uint32_t first = next_first(f, 0); to.box_count && first < f->ranks; first = next_first(f, first + 1)) {
        const giver g = giver_for(f, first, f->own);
        f->passes = g.spreads != (f->route->phase == TSR_PHASE_SPREAD);
        TSR_TRY(shard_of(f, &f->transfer->from, g.spreads ? holder_of(f, first) : g.rank, &from, err));
        TSR_TRY(meet(f, g.rank, &from, &to, receive_common, err));
    }
    TSR_FAIL_IF(f->found != wanted, err, TSR_E_USAGE,
                "'%.*s': %" PRIu64 " elements are needed on this rank, but the ranks have %" PRIu64,
                TSR_STR_ARG(f->transfer->name), wanted, f->found);
    return TSR_OK;
}

static tsr_status find_sends(finder *f, tsr_error *err)
{
    const tsr_side *from = &f->transfer->from;
    tsr_shard mine, to;
    TSR_TRY(shard_of(f, from, f->own, &mine, err));
    if (mine.box_count == 0) return TSR_OK;
    const uint32_t first = from->layout ? first_holder(from->layout, f->own) : 0;
    for (uint32_t dest = 0; dest < f->ranks; dest++) {
        const giver g = giver_for(f, first, dest);
        if (dest == f->own || g.spreads || g.rank != f->own) continue;
        TSR_TRY(shard_of(f, &f->transfer->to, dest, &to, err));
        TSR_TRY(meet(f, dest, &mine, &to, send_common, err));
    }
    return TSR_OK;
}

/* What came to this rank for others of its node. */
static tsr_status find_spreads(finder *f, tsr_error *err)
{
    const tsr_nodes *nodes = f->route->nodes;
    const uint32_t node = nodes->of[f->own];
    tsr_shard from, to;
    for (uint32_t first = next_first(f, 0); first < f->ranks; first = next_first(f, first + 1)) {
        for (uint32_t i = nodes->start[node]; i < nodes->start[node + 1]; i++) {
            const uint32_t dest = nodes->ranks[i];
            const giver g = giver_for(f, first, dest);
            if (!g.spreads || g.rank != f->own) continue;
            TSR_TRY(shard_of(f, &f->transfer->from, holder_of(f, first), &from, err));
            TSR_TRY(shard_of(f, &f->transfer->to, dest, &to, err));
            TSR_TRY(meet(f, dest, &from, &to, send_common, err));
        }
    }
    return TSR_OK;
}

static tsr_status find_one(finder *f, tsr_error *err)
{
    const tsr_transfer *t = f->transfer;
    f->passing = tsr_arena_new(tsr_arena_allocator(f->out->arena), 0, err);
    if (!f->passing) return TSR_E_NOMEM;
    tsr_status status = TSR_OK;
    if (t->from.tensor) status = tsr_tensor_pieces(t->from.tensor, f->passing, &f->from, &f->from_count, err);
    if (status == TSR_OK && t->to.tensor) status = tsr_tensor_pieces(t->to.tensor, f->passing, &f->to, &f->to_count, err);
    if (status == TSR_OK) status = find_receives(f, err);
    if (status == TSR_OK) status = f->route->phase == TSR_PHASE_SPREAD ? find_spreads(f, err) : find_sends(f, err);
    tsr_arena_free(f->passing);
    return status;
}

static int by_stream(const void *a, const void *b)
{
    const tsr_link *x = a, *y = b;
    if (x->peer != y->peer) return x->peer < y->peer ? -1 : 1;
    if (x->transfer != y->transfer) return x->transfer < y->transfer ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

/* Finds all. Both ends of a link find it by themselves, from the same layouts and in the same order. All ranks
 * give the same route. */
static tsr_status links_find(const tsr_comm *comm, tsr_transfer_list transfers, const tsr_route *route, const tsr_host *host,
                             tsr_links *out, tsr_error *err)
{
    const tsr_vec none = tsr_vec_of(host->allocator, sizeof(tsr_link));
    *out = (tsr_links){none, none, none, tsr_arena_new(host->allocator, 0, err)};
    if (!out->arena) return TSR_E_NOMEM;
    TSR_FAIL_IF(transfers.count > UINT32_MAX, err, TSR_E_LIMIT, "too many tensors");
    for (size_t i = 0; i < transfers.count; i++) {
        const tsr_transfer *t = &transfers.items[i];
        finder f = {
            .transfer = t, .number = (uint32_t)i, .own = comm->rank, .ranks = comm->size, .route = route, .out = out};
        f.reads = route->direct && shared_of(&t->from, comm->rank, comm->size);
        f.writes = route->direct && !f.reads && shared_of(&t->to, comm->rank, comm->size);
        TSR_TRY(find_one(&f, err));
    }
    if (out->sends.count) qsort(out->sends.items, out->sends.count, sizeof(tsr_link), by_stream);
    if (out->receives.count) qsort(out->receives.items, out->receives.count, sizeof(tsr_link), by_stream);
    return TSR_OK;
}

/* Which sides lie in shared memory: equal on ranks that may find links with `direct`; 0: none. */
static void links_free(tsr_links *links)
{
    tsr_vec_free(&links->sends);
    tsr_vec_free(&links->receives);
    tsr_vec_free(&links->copies);
    tsr_arena_free(links->arena);
}

/* ---- run ---- */

/* Rounds of exchange. In each, every pair of ranks moves the next `slice` bytes of what one has for the other:
 *
 *   to rank 1   | slice 0 | slice 1 | sl|          a slice that is one run is sent, or received, where it lies;
 *   to rank 2   | slice 0 |                        others are packed into, or unpacked from, a buffer of round_bytes
 *
 * Where the communicator takes device memory and all tensors lie on one device, so do the buffers. */

#define LEAST_SLICE ((uint64_t)64)
#define LEAST_MOVED ((uint64_t)512 << 10) /* for one rank, to be worth a window */
#define COPIED_IDLE ((uint64_t)64 << 10)
#define ON_DEVICE   (UINT64_C(1) << 63)

/* One direction. */
typedef struct lane {
    tsr_stream *streams; /* by peer */
    tsr_message *messages;
    uint8_t **slices; /* by message: in `buffer`; NULL: where it lies in the tensor */
    size_t count;     /* of messages in this round */
    uint8_t *buffer;
    size_t buffer_size;
    tsr_device *device; /* of the buffer and of all links; NULL: the buffer is host memory */
} lane;

typedef struct traffic {
    tsr_comm *comm;
    const tsr_host *host;
    tsr_links links;
    lane out, in;
    uint64_t slice;
} traffic;

static tsr_status open_lane(lane *l, const tsr_vec *links, uint32_t ranks, const tsr_host *host, tsr_error *err)
{
    const tsr_link *all = links->items;
    l->streams = tsr_alloc(host->allocator, ranks, sizeof *l->streams, err);
    l->messages = tsr_alloc(host->allocator, ranks, sizeof *l->messages, err);
    l->slices = tsr_alloc(host->allocator, ranks, sizeof *l->slices, err);
    if (!l->streams || !l->messages || !l->slices) return TSR_E_NOMEM;
    for (uint32_t r = 0, at = 0; r < ranks; r++) {
        const uint32_t first = at;
        while (at < links->count && all[at].peer == r) at++;
        l->streams[r] = tsr_stream_of(all + first, at - first);
    }
    return TSR_OK;
}

/* The device that all of them are on, if the ranks take its memory. */
static tsr_device *common_device(const tsr_vec *links, bool takes_devices)
{
    const tsr_link *all = links->items;
    for (size_t i = 0; i < links->count; i++) {
        if (all[i].device != all[0].device) return NULL;
    }
    return takes_devices && links->count ? all[0].device : NULL;
}

/* The buffer, if there is anything that does not lie in one run. */
static tsr_status open_buffer(lane *l, const tsr_vec *links, uint64_t slice, const tsr_comm *comm, const tsr_host *host,
                              tsr_error *err)
{
    const uint32_t ranks = comm->size;
    const tsr_link *all = links->items;
    uint64_t bytes = 0;
    bool scattered = false;
    for (uint32_t r = 0; r < ranks; r++) bytes += l->streams[r].left < slice ? l->streams[r].left : slice;
    for (size_t i = 0; i < links->count && !scattered; i++)
        scattered = l->streams[all[i].peer].count > 1 || (all[i].device && !comm->takes_devices) ||
                    !tsr_box_is_contiguous((tsr_box){all[i].ndim, NULL, all[i].buffer_sizes},
                                           (tsr_box){all[i].ndim, all[i].offsets, all[i].sizes});
    if (!scattered || bytes == 0) return TSR_OK;
    l->buffer_size = (size_t)bytes;
    l->device = common_device(links, comm->takes_devices);
    if (l->device) return l->device->alloc(l->device, bytes, (void **)&l->buffer, err);
    l->buffer = tsr_alloc(host->allocator, (size_t)bytes, 1, err);
    return l->buffer ? TSR_OK : TSR_E_NOMEM;
}

static void close_lane(lane *l, uint32_t ranks, const tsr_allocator *allocator)
{
    tsr_free(allocator, l->streams, ranks, sizeof *l->streams);
    tsr_free(allocator, l->messages, ranks, sizeof *l->messages);
    tsr_free(allocator, l->slices, ranks, sizeof *l->slices);
    if (l->device && l->buffer) l->device->free(l->device, l->buffer, l->buffer_size);
    else tsr_free(allocator, l->buffer, l->buffer_size, 1);
}

/* ---- devices ---- */

static tsr_status wait_for_lists(const tsr_vec *links, tsr_error *err)
{
    const tsr_link *all = links->items;
    tsr_device *last = NULL;
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < links->count; i++) {
        if (!all[i].device || all[i].device == last) continue;
        last = all[i].device;
        const tsr_status waited = tsr_device_wait(last, err);
        if (status == TSR_OK) status = waited;
    }
    return status;
}

/* ---- a round ---- */

/* The next slice of every peer as a message; those that do not lie in one run get a place in the buffer. Ranks begin with
 * the one behind them, so that not all talk to the same. */
static void list_messages(lane *l, const traffic *t)
{
    uint8_t *at = l->buffer;
    l->count = 0;
    for (uint32_t i = 1; i < t->comm->size; i++) {
        const uint32_t peer = (t->comm->rank + i) % t->comm->size;
        const tsr_stream *s = &l->streams[peer];
        const uint64_t bytes = s->left < t->slice ? s->left : t->slice;
        if (bytes == 0) continue;
        uint8_t *there = tsr_stream_peek(s, t->comm->takes_devices, bytes);
        l->slices[l->count] = there ? NULL : at;
        l->messages[l->count++] = (tsr_message){peer, there ? there : at, (size_t)bytes};
        if (!there) at += bytes;
    }
}

/* Packs what is sent and moves the stream on; with `in`, unpacks what has come. */
static tsr_status move_slices(lane *l, bool in, tsr_error *err)
{
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < l->count && status == TSR_OK; i++) {
        tsr_stream *s = &l->streams[l->messages[i].peer];
        if (!l->slices[i]) tsr_stream_skip(s, l->messages[i].size);
        else if (in) status = tsr_stream_unpack(s, l->slices[i], l->device, l->messages[i].size, err);
        else status = tsr_stream_pack(s, l->slices[i], l->device, l->messages[i].size, err);
    }
    return status;
}

/* A rank whose device fails sends what it has and says so at the end; only the communicator itself can stop the rounds. */
static tsr_status run_round(traffic *t, tsr_status *own, tsr_error *own_error, tsr_error *err)
{
    list_messages(&t->out, t);
    list_messages(&t->in, t);
    if (*own == TSR_OK) *own = move_slices(&t->out, false, own_error);
    if (*own == TSR_OK) *own = wait_for_lists(&t->links.sends, own_error);
    TSR_TRY(t->comm->exchange(t->comm, t->out.messages, t->out.count, t->in.messages, t->in.count, err));
    if (*own == TSR_OK) *own = move_slices(&t->in, true, own_error);
    if (*own == TSR_OK) *own = wait_for_lists(&t->links.receives, own_error);
    return TSR_OK;
}

/* ---- what this rank copies itself ---- */

typedef struct reached {
    const tsr_vec *copies; /* pairs */
    size_t next;           /* the pair behind `now` */
    tsr_link_copying now;
    tsr_status status;
    tsr_error *err;
} reached;

/* Copies a little; whether something is left. */
static bool copy_reached_bytes(reached *r, uint64_t bytes)
{
    const tsr_link *copies = r->copies->items;
    if (r->next && r->now.walk.runs_left) {
        r->status = tsr_link_copy_some(&r->now, bytes, r->err);
    } else if (r->next + 1 < r->copies->count) {
        r->now = tsr_link_copy_start(&copies[r->next], &copies[r->next + 1]);
        r->next += 2;
    } else {
        return false;
    }
    return r->status == TSR_OK;
}

static bool copy_when_idle(void *ctx)
{
    return copy_reached_bytes(ctx, COPIED_IDLE);
}

static tsr_status copy_rest(reached *r)
{
    while (r->status == TSR_OK && copy_reached_bytes(r, UINT64_MAX)) continue;
    const tsr_status waited = wait_for_lists(r->copies, r->err);
    return r->status == TSR_OK ? waited : r->status;
}

/* ---- one machine ---- */

/* What the rank with most to move has, and whether any memory is a device's. */
static tsr_status measure(const traffic *t, uint64_t *most, tsr_error *err)
{
    const tsr_vec *lists[] = {&t->links.sends, &t->links.receives};
    *most = 0;
    for (size_t l = 0; l < 2; l++) {
        const tsr_link *all = lists[l]->items;
        for (size_t i = 0; i < lists[l]->count; i++) {
            if (l == 0) *most += all[i].bytes;
            if (all[i].device) *most |= ON_DEVICE;
        }
    }
    return t->comm->largest(t->comm, most, err);
}

/* Through shared memory where all ranks have it and there is enough to move; *done says whether it was. */
static tsr_status try_window(traffic *t, reached *copies, bool *done, tsr_error *err)
{
    const uint64_t window_bytes = tsr_window_bytes(t->comm->size, t->slice);
    uint64_t most;
    TSR_TRY(measure(t, &most, err));
    if (most & ON_DEVICE || (most < LEAST_MOVED && most < 4 * window_bytes)) return TSR_OK;
    return tsr_window_move(t->comm, t->slice, t->host->allocator, t->out.streams, t->in.streams,
                           &(tsr_idle){copy_when_idle, copies}, done, err);
}

static tsr_status run_rounds(traffic *t, uint64_t rounds, tsr_status *own, tsr_error *own_error, tsr_error *err)
{
    tsr_status status = open_buffer(&t->out, &t->links.sends, t->slice, t->comm, t->host, err);
    if (status == TSR_OK) status = open_buffer(&t->in, &t->links.receives, t->slice, t->comm, t->host, err);
    TSR_TRY(tsr_comm_agree(t->comm, status, err));
    TSR_TRY(t->comm->largest(t->comm, &rounds, err));
    for (uint64_t i = 0; i < rounds; i++) TSR_TRY(run_round(t, own, own_error, err));
    return TSR_OK;
}

/* ---- the whole ---- */

static uint64_t slice_of(size_t round_bytes, uint32_t ranks)
{
    uint64_t bytes = round_bytes == 0 ? TSR_ROUND_BYTES_DEFAULT : round_bytes;
    if (bytes > TSR_ROUND_BYTES_MOST) bytes = TSR_ROUND_BYTES_MOST;
    bytes /= ranks > 1 ? ranks - 1 : 1;
    return bytes < LEAST_SLICE ? LEAST_SLICE : bytes - bytes % LEAST_SLICE;
}

/* Whether all ranks have the same sides in the same shared memory, of which this rank has `own`. */
static tsr_status agree_on_shared(const traffic *t, uint64_t own, bool *direct, tsr_error *err)
{
    uint64_t most = own, least = ~own;
    *direct = false;
    TSR_TRY(t->comm->largest(t->comm, &most, err));
    if (most == 0) return TSR_OK;
    TSR_TRY(t->comm->largest(t->comm, &least, err));
    *direct = most == ~least;
    return TSR_OK;
}

static tsr_status prepare(traffic *t, tsr_transfer_list transfers, const tsr_route *route, uint64_t *rounds, tsr_error *err)
{
    const uint32_t ranks = t->comm->size;
    TSR_TRY(links_find(t->comm, transfers, route, t->host, &t->links, err));
    TSR_TRY(open_lane(&t->out, &t->links.sends, ranks, t->host, err));
    TSR_TRY(open_lane(&t->in, &t->links.receives, ranks, t->host, err));
    for (uint32_t r = 0; r < ranks; r++) {
        const uint64_t need = (t->out.streams[r].left + t->slice - 1) / t->slice;
        *rounds = need > *rounds ? need : *rounds;
    }
    return TSR_OK;
}

/* `own` is this rank's own result so far. */
static tsr_status run_phase(traffic *t, tsr_transfer_list transfers, const tsr_route *route, tsr_status own, tsr_error *err)
{
    tsr_comm *comm = t->comm;
    uint64_t rounds = 0;
    bool done = false;
    tsr_error own_error = {0};
    reached copies = {.copies = &t->links.copies, .err = &own_error};
    if (own == TSR_OK) own = prepare(t, transfers, route, &rounds, err);
    tsr_status status = tsr_comm_agree(comm, own, err);
    if (status == TSR_OK) status = try_window(t, &copies, &done, err);
    if (status == TSR_OK) own = copy_rest(&copies);
    if (status == TSR_OK && !done) status = run_rounds(t, rounds, &own, &own_error, err);
    if (status == TSR_OK) {
        status = tsr_comm_agree(comm, own, &own_error);
        if (status != TSR_OK) tsr_raise_again(err, status, &own_error);
    }
    close_lane(&t->out, comm->size, t->host->allocator);
    close_lane(&t->in, comm->size, t->host->allocator);
    links_free(&t->links);
    return status;
}

tsr_status tsr_transfers_run(tsr_comm *comm, tsr_transfer_list transfers, size_t round_bytes, const tsr_host *host,
                             tsr_status mine, tsr_error *err)
{
    const traffic none = {.comm = comm, .host = host, .slice = slice_of(round_bytes, comm->size)};
    traffic t = none;
    tsr_nodes *nodes = NULL;
    tsr_route route = {.phase = TSR_PHASE_FIRST};
    tsr_error passing = {0};
    TSR_TRY(agree_on_shared(&t, mine == TSR_OK ? links_shared(comm, transfers) : 0, &route.direct,
                            mine == TSR_OK ? err : &passing));
    if (!route.direct) TSR_TRY(nodes_find(comm, host->allocator, &nodes, mine == TSR_OK ? err : &passing));
    route.nodes = nodes;
    tsr_status status = run_phase(&t, transfers, &route, mine, err);
    t = none;
    route.phase = TSR_PHASE_SPREAD;
    if (status == TSR_OK && nodes) status = run_phase(&t, transfers, &route, TSR_OK, err);
    if (nodes) tsr_arena_free(((owned *)nodes)->arena);
    return status;
}
