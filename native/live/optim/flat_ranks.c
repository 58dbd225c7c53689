/* Communicates flat parameters between live ranks: gathers slices into the whole and scatters it
 * (`_communicate_optim_state`), and finds the parameters for which all ranks have state (`_map_param_key_to_optim_keys`,
 * `_check_missing_keys_on_rank`). */
#include <inttypes.h>
#include <stdlib.h>

#include "tessera/sys/collectives.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/flat_params.h"
#include "tessera/sys/optim_load.h"
#include "tessera/sys/optimizer.h"
#include "tessera/sys/try.h"

/* The bytes of each rank's elements, without padding. */
static tsr_status slice_bytes(const tsr_comm *comm, const tsr_flat_unit *unit, uint32_t itemsize, size_t *sizes,
                              tsr_error *err)
{
    uint64_t total;
    TSR_FAIL_IF(__builtin_mul_overflow(unit->numel, itemsize, &total) || total > SIZE_MAX / 2, err, TSR_E_LIMIT,
                "optim: a flat parameter of %" PRIu64 " elements is too large to gather", unit->numel);
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        uint64_t begin, end;
        tsr_flat_shard_range(unit, comm->size, rank, &begin, &end);
        sizes[rank] = (size_t)(end - begin) * itemsize;
    }
    return TSR_OK;
}

tsr_status tsr_flat_gather(tsr_ranks ranks, const tsr_flat_unit *unit, uint32_t itemsize, const void *slice, void *full,
                           tsr_error *err)
{
    tsr_comm *comm = ranks.comm;
    const tsr_allocator *allocator = ranks.allocator;
    size_t *sizes = tsr_alloc(allocator, comm->size, sizeof *sizes, err);
    tsr_status status = sizes ? slice_bytes(comm, unit, itemsize, sizes, err) : TSR_E_NOMEM;
    status = tsr_comm_agree(comm, status, err);
    if (status == TSR_OK) status = comm->all_gather(comm, slice, sizes, full, err);
    tsr_free(allocator, sizes, comm->size, sizeof *sizes);
    return status;
}

/* Rank 0's messages to all ranks. The slices follow each other in `full`. */
static void list_sends(const tsr_comm *comm, const size_t *sizes, const void *full, tsr_message *sends)
{
    size_t at = 0;
    for (uint32_t rank = 0; rank < comm->size; at += sizes[rank++])
        sends[rank] = (tsr_message){rank, (char *)full + at, sizes[rank]};
}

tsr_status tsr_flat_scatter(tsr_ranks ranks, const tsr_flat_unit *unit, uint32_t itemsize, const void *full, void *slice,
                            tsr_error *err)
{
    tsr_comm *comm = ranks.comm;
    const tsr_allocator *allocator = ranks.allocator;
    size_t *sizes = tsr_alloc(allocator, comm->size, sizeof *sizes, err);
    tsr_message *sends = tsr_alloc(allocator, comm->size, sizeof *sends, err);
    tsr_status status = sizes && sends ? slice_bytes(comm, unit, itemsize, sizes, err) : TSR_E_NOMEM;
    status = tsr_comm_agree(comm, status, err);
    if (status == TSR_OK) {
        const tsr_message mine = {0, slice, sizes[comm->rank]};
        size_t whole = (size_t)tsr_flat_shard_numel(unit, comm->size) * itemsize;
        list_sends(comm, sizes, full, sends);
        memset((char *)slice + mine.size, 0, whole - mine.size);
        status = comm->exchange(comm, sends, comm->rank == 0 ? comm->size : 0, &mine, 1, err);
    }
    tsr_free(allocator, sends, comm->size, sizeof *sends);
    tsr_free(allocator, sizes, comm->size, sizeof *sizes);
    return status;
}

/* ---- keys ---- */

/* Packs names as [u64 size][bytes]…, because names may contain any byte. */
static tsr_status pack_names(tsr_name_list list, tsr_vec *out, tsr_error *err)
{
    for (size_t i = 0; i < list.count; i++) {
        const uint64_t size = list.names[i].size;
        TSR_TRY(tsr_vec_reserve(out, sizeof size + list.names[i].size, err));
        char *to = (char *)out->items + out->count;
        memcpy(to, &size, sizeof size);
        if (size) memcpy(to + sizeof size, list.names[i].data, list.names[i].size);
        out->count += sizeof size + list.names[i].size;
    }
    return TSR_OK;
}

typedef struct keys {
    tsr_map *seen; /* name → index in `names` */
    tsr_vec names; /* tsr_str */
    tsr_arena *arena;
} keys;

static tsr_status add_name(keys *k, tsr_str name, tsr_error *err)
{
    bool fresh;
    tsr_str copy = tsr_arena_str(k->arena, name, err);
    if (!copy.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_map_put(k->seen, copy, 0, NULL, &fresh, err));
    tsr_str *slot = fresh ? tsr_vec_push(&k->names, err) : &copy;
    if (!slot) return TSR_E_NOMEM;
    *slot = copy;
    return TSR_OK;
}

static tsr_status check_rank(const keys *k, tsr_str blob, uint32_t rank, const tsr_allocator *allocator, tsr_error *err)
{
    tsr_str name;
    tsr_map *has = tsr_map_new(allocator, 0, err);
    tsr_status status = has ? TSR_OK : TSR_E_NOMEM;
    while (status == TSR_OK && tsr_take_sized(&blob, &name)) status = tsr_map_put(has, name, 1, NULL, NULL, err);
    for (size_t i = 0; i < k->names.count && status == TSR_OK; i++) {
        tsr_str wanted = ((const tsr_str *)k->names.items)[i];
        if (!tsr_map_get(has, wanted, 0)) {
            status = tsr_fail(err, TSR_E_FORMAT, "optim: rank %" PRIu32 " has no state for '%.*s', which rank 0 has", rank,
                              TSR_STR_ARG(wanted));
        }
    }
    tsr_map_free(has);
    return status;
}

static int by_name(const void *a, const void *b)
{
    return tsr_str_compare(*(const tsr_str *)a, *(const tsr_str *)b);
}

static tsr_status collect(keys *k, const tsr_comm_blobs *blobs, bool merge, const tsr_allocator *allocator, tsr_error *err)
{
    tsr_str name;
    for (uint32_t rank = 0; rank < (merge ? blobs->count : 1); rank++) {
        for (tsr_str rest = blobs->blobs[rank]; tsr_take_sized(&rest, &name);) TSR_TRY(add_name(k, name, err));
    }
    for (uint32_t rank = 1; !merge && rank < blobs->count; rank++)
        TSR_TRY(check_rank(k, blobs->blobs[rank], rank, allocator, err));
    if (merge && k->names.count) qsort(k->names.items, k->names.count, sizeof name, by_name);
    return TSR_OK;
}

static tsr_status hand_out(keys *k, tsr_name_list *out, tsr_error *err)
{
    tsr_str *names = tsr_arena_array(k->arena, k->names.count, sizeof *names, err);
    if (!names) return TSR_E_NOMEM;
    if (k->names.count) memcpy(names, k->names.items, k->names.count * sizeof *names);
    *out = (tsr_name_list){names, k->names.count};
    return TSR_OK;
}

tsr_status tsr_flat_agree_on_keys(tsr_ranks ranks, tsr_name_list names, bool merge, tsr_arena *arena, tsr_name_list *out,
                                  tsr_error *err)
{
    const tsr_allocator *allocator = ranks.allocator;
    tsr_comm_blobs blobs = {0};
    keys k = {tsr_map_new(allocator, 0, err), tsr_vec_of(allocator, sizeof(tsr_str)), arena};
    tsr_vec packed = tsr_vec_of(allocator, 1);
    tsr_status status = k.seen ? pack_names(names, &packed, err) : TSR_E_NOMEM;
    status = tsr_comm_agree(ranks.comm, status, err);
    if (status == TSR_OK) status = tsr_comm_gather_blobs(ranks, (tsr_str){packed.items, packed.count}, &blobs, err);
    if (status == TSR_OK) status = collect(&k, &blobs, merge, allocator, err);
    if (status == TSR_OK) status = hand_out(&k, out, err);
    tsr_vec_free(&packed);
    tsr_comm_blobs_free(&blobs);
    tsr_vec_free(&k.names);
    tsr_map_free(k.seen);
    return status;
}

/* ---- rows ---- */

/* Converts an original parameter of a flat parameter between flat slices, rows as divided by torch.chunk, and the whole, on
 * live ranks and without gathering anything that is not needed.
 *
 *   flat parameter  |··|─ original, as rows ─────────────────────|··|
 *   slices          |--- rank 0 ---|--- rank 1 ---|--- rank 2 ---|
 *   rows               |── rank 0 ────|── rank 1 ────|─ rank 2 ──|      each overlap of two ranks is one message */

/* A half-open range of the original's elements. */
typedef struct span {
    uint64_t begin, end;
} span;

typedef struct original {
    const tsr_flat_unit *unit;
    const tsr_flat_param *param;
    uint64_t rows, row; /* number of rows, and elements per row */
    uint32_t itemsize;
} original;

static span slice_span(const original *o, uint32_t world, uint32_t rank)
{
    uint64_t begin, end, low = o->param->flat_begin, high = o->param->flat_end;
    tsr_flat_shard_range(o->unit, world, rank, &begin, &end);
    if (begin < low) begin = low;
    if (end > high) end = high;
    return begin < end ? (span){begin - low, end - low} : (span){0, 0};
}

static span row_span(const original *o, uint32_t world, uint32_t rank)
{
    uint64_t begin, end;
    tsr_rows_of_rank(o->rows, world, rank, true, &begin, &end);
    return (span){begin * o->row, end * o->row};
}

static span common(span a, span b)
{
    uint64_t begin = a.begin > b.begin ? a.begin : b.begin, end = a.end < b.end ? a.end : b.end;
    return begin < end ? (span){begin, end} : (span){0, 0};
}

static tsr_status open_original(const tsr_unit_original *what, original *out, tsr_error *err)
{
    const tsr_flat_param *param = &what->unit->params[what->param];
    uint64_t elements = param->flat_end - param->flat_begin, bytes;
    TSR_FAIL_IF(param->ndim == 0 || __builtin_mul_overflow(elements, what->itemsize, &bytes) || bytes > SIZE_MAX / 2, err,
                TSR_E_UNSUPPORTED, "optim: '%.*s' has no rows, or is too large", TSR_STR_ARG(param->fqn));
    *out = (original){what->unit, param, param->shape[0], param->shape[0] ? elements / param->shape[0] : 0, what->itemsize};
    return TSR_OK;
}

/* A message with the elements of a range. `memory` begins with element `base`. */
static tsr_message message(const original *o, uint32_t peer, span what, uint64_t base, const void *memory)
{
    return (tsr_message){peer, (char *)memory + (what.begin - base) * o->itemsize,
                         (size_t)(what.end - what.begin) * o->itemsize};
}

typedef span each_rank(const original *o, uint32_t world, uint32_t rank);

/* Which elements each rank has or receives, and this rank's memory for them. */
typedef struct source {
    each_rank *of;
    const void *memory;
} source;
typedef struct destination {
    each_rank *of;
    void *memory;
} destination;

/* Sends what each rank has according to `from` to the ranks that have it according to `to`. Each memory begins with the
 * rank's own first element. */
static tsr_status exchange(tsr_ranks ranks, const original *o, source from, destination to, tsr_error *err)
{
    tsr_comm *comm = ranks.comm;
    uint32_t world = comm->size, sends = 0, receives = 0;
    span have = from.of(o, world, comm->rank), want = to.of(o, world, comm->rank);
    tsr_message *messages = tsr_alloc(ranks.allocator, 2 * (size_t)world, sizeof *messages, err);
    tsr_status status = tsr_comm_agree(comm, messages ? TSR_OK : TSR_E_NOMEM, err);
    if (status == TSR_OK) {
        for (uint32_t peer = 0; peer < world; peer++) {
            span out = common(have, to.of(o, world, peer)), in = common(from.of(o, world, peer), want);
            if (out.begin < out.end) messages[sends++] = message(o, peer, out, have.begin, from.memory);
            if (in.begin < in.end) messages[world + receives++] = message(o, peer, in, want.begin, to.memory);
        }
        status = comm->exchange(comm, messages, sends, messages + world, receives, err);
    }
    tsr_free(ranks.allocator, messages, 2 * (size_t)world, sizeof *messages);
    return status;
}

/* The offset of an original parameter's elements in a rank's slice. */
static size_t offset_in_slice(const original *o, const tsr_comm *comm)
{
    uint64_t begin, end;
    tsr_flat_shard_range(o->unit, comm->size, comm->rank, &begin, &end);
    return begin < o->param->flat_begin ? (size_t)(o->param->flat_begin - begin) * o->itemsize : 0;
}

tsr_status tsr_flat_to_rows(tsr_ranks ranks, const tsr_unit_original *what, const void *slice, void *rows, tsr_error *err)
{
    original o = {0};
    TSR_TRY(open_original(what, &o, err)); /* the same on all ranks */
    const source from = {slice_span, (const char *)slice + offset_in_slice(&o, ranks.comm)};
    return exchange(ranks, &o, from, (destination){row_span, rows}, err);
}

tsr_status tsr_rows_to_flat(tsr_ranks ranks, const tsr_unit_original *what, const void *rows, void *slice, tsr_error *err)
{
    original o = {0};
    TSR_TRY(open_original(what, &o, err));
    const destination to = {slice_span, (char *)slice + offset_in_slice(&o, ranks.comm)};
    return exchange(ranks, &o, (source){row_span, rows}, to, err);
}

tsr_status tsr_rows_gather(tsr_ranks ranks, uint64_t row_count, uint64_t row_bytes, const void *rows, void *full,
                           tsr_error *err)
{
    tsr_comm *comm = ranks.comm;
    const tsr_allocator *allocator = ranks.allocator;
    uint64_t total;
    bool fits = !__builtin_mul_overflow(row_count, row_bytes, &total) && total <= SIZE_MAX / 2;
    size_t *sizes = tsr_alloc(allocator, comm->size, sizeof *sizes, err);
    tsr_status status = sizes ? TSR_OK : TSR_E_NOMEM;
    if (!fits && sizes)
        status =
            tsr_fail(err, TSR_E_LIMIT, "optim: %" PRIu64 " rows of %" PRIu64 " bytes are too large", row_count, row_bytes);
    status = tsr_comm_agree(comm, status, err);
    for (uint32_t rank = 0; rank < comm->size && status == TSR_OK; rank++) {
        uint64_t begin, end;
        tsr_rows_of_rank(row_count, comm->size, rank, true, &begin, &end);
        sizes[rank] = (size_t)((end - begin) * row_bytes);
    }
    if (status == TSR_OK) status = comm->all_gather(comm, rows, sizes, full, err);
    tsr_free(allocator, sizes, comm->size, sizeof *sizes);
    return status;
}
