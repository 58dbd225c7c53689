/* Nests flat optimizer state without param_groups, as safetensors files store it, using the names in the description of the
 * flat parameters.
 *
 *     state . c.weight . exp_avg        the longest known FQN is used
 *             └─ FQN ─┘  └ the state's name */
#include <inttypes.h>

#include "base/cursor.h"
#include "optim/flat_unit.h"
#include "optim/tree.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/flat_params.h"
#include "tessera/sys/flat_ranks.h"
#include "tessera/sys/fsdp_optim.h"
#include "tessera/sys/optim_load.h"
#include "tessera/sys/try.h"

#define STATE TSR_STR("state.")

typedef struct nesting {
    const tsr_host *host;
    tsr_arena *arena;
    tsr_flat_keys keys;
    tsr_map *by_fqn; /* FQN → its tree in `params` */
    tsr_vec names;   /* tsr_str */
    tsr_vec params;  /* tsr_tree */
} nesting;

/* Where the state's name begins, after the longest known FQN; 0 if no known FQN fits. */
static size_t find_name(const nesting *n, tsr_str rest)
{
    for (size_t at = rest.size; at-- > 0;) {
        if (rest.data[at] != '.') continue;
        if (tsr_map_get(n->keys.by_fqn, (tsr_str){rest.data, at}, UINT32_MAX) != UINT32_MAX) return at + 1;
    }
    return 0;
}

static tsr_status add_pair(nesting *n, const tsr_value *key, const tsr_value *value, tsr_error *err)
{
    TSR_FAIL_IF(key->kind != TSR_VALUE_STR || !tsr_str_starts(key->text, STATE), err, TSR_E_FORMAT,
                "optim: '%.*s' is not a key of a flat optimizer state", TSR_STR_ARG(key->text));
    tsr_str rest = {key->text.data + STATE.size, key->text.size - STATE.size};
    size_t at = find_name(n, rest);
    TSR_FAIL_IF(at == 0, err, TSR_E_FORMAT,
                "optim: '%.*s' does not name a parameter in the param groups of the flat-params document",
                TSR_STR_ARG(key->text));
    uint32_t *place;
    bool fresh;
    tsr_str fqn = {rest.data, at - 1};
    TSR_TRY(tsr_map_put(n->by_fqn, fqn, (uint32_t)n->params.count, &place, &fresh, err));
    uint32_t index = *place;
    if (fresh) {
        tsr_tree *tree = tsr_vec_push(&n->params, err);
        tsr_str *name = tree ? tsr_vec_push(&n->names, err) : NULL;
        if (tree) *tree = tsr_tree_on(n->host, n->arena);
        if (!name) return TSR_E_NOMEM;
        *name = fqn;
    }
    return tsr_tree_put((tsr_tree *)n->params.items + index, (tsr_str){rest.data + at, rest.size - at}, value, err);
}

static tsr_status build(nesting *n, const tsr_value *flat, const tsr_value **out, tsr_error *err)
{
    for (size_t i = 0; i < flat->count; i += 2) TSR_TRY(add_pair(n, flat->items[i], flat->items[i + 1], err));
    const tsr_value *state, **items = tsr_arena_array(n->arena, 2 * n->params.count, sizeof *items, err);
    if (!items) return TSR_E_NOMEM;
    for (size_t i = 0; i < n->params.count; i++) {
        items[2 * i] = tsr_value_str(n->arena, ((const tsr_str *)n->names.items)[i], err);
        TSR_TRY(tsr_tree_finish((tsr_tree *)n->params.items + i, TSR_VALUE_DICT, &items[2 * i + 1], err));
        if (!items[2 * i]) return TSR_E_NOMEM;
    }
    state = tsr_value_items(n->arena, TSR_VALUE_DICT, items, 2 * n->params.count, err);
    return state ? tsr_tree_optim(state, NULL, n->arena, out, err) : TSR_E_NOMEM;
}

tsr_status tsr_fsdp_nest_state(const tsr_flat_params *params, const tsr_value *flat, const tsr_host *host, tsr_arena *arena,
                               const tsr_value **out, tsr_error *err)
{
    const tsr_allocator *a = host->allocator;
    TSR_FAIL_IF(flat->kind != TSR_VALUE_DICT, err, TSR_E_FORMAT, "optim: expected a dict, found %s",
                tsr_value_kind_name(flat));
    nesting n = {.host = host,
                 .arena = arena,
                 .by_fqn = tsr_map_new(a, 0, err),
                 .names = tsr_vec_of(a, sizeof(tsr_str)),
                 .params = tsr_vec_of(a, sizeof(tsr_tree))};
    tsr_status status = tsr_flat_keys_open(params, host, arena, &n.keys, err);
    if (status == TSR_OK) status = n.by_fqn ? build(&n, flat, out, err) : TSR_E_NOMEM;
    for (size_t i = 0; i < n.params.count; i++) tsr_tree_drop((tsr_tree *)n.params.items + i);
    tsr_vec_free(&n.params);
    tsr_vec_free(&n.names);
    tsr_map_free(n.by_fqn);
    tsr_flat_keys_close(&n.keys);
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
    TSR_FAIL_IF(param->ndim == 0 || !tsr_mul_u64(elements, what->itemsize, &bytes) || bytes > SIZE_MAX / 2, err,
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
    bool fits = tsr_mul_u64(row_count, row_bytes, &total) && total <= SIZE_MAX / 2;
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
