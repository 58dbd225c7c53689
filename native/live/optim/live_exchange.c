/* The exchange between ranks that tsr_fsdp_gather, tsr_fsdp_broadcast and tsr_fsdp_spread have in common. The data-only
 * conversions work on trees whose chunks name a rank, and a position in that rank's imaginary memory. Their results show which
 * bytes a rank needs from which other ranks:
 *
 *   rank r   wants (rank s, offset, size) …  ──▶ requests to s ──▶ s looks up its tensors ──▶ elements */
#include <inttypes.h>

#include "live/optim/tree_pack.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/optim.h"
#include "tessera/sys/try.h"

typedef struct tsr_live_request {
    uint64_t byte_offset, byte_length; /* in the sender's imaginary memory */
} tsr_live_request;

/* The state of one call. */
typedef struct tsr_live_exchange {
    tsr_comm *comm;
    const tsr_host *host;
    tsr_arena *arena;
    const tsr_live *live;
    tsr_live_state *out;
    tsr_vec bytes;           /* this rank's tree, packed */
    tsr_vec tensors;         /* tsr_packed_tensor: tensors of this rank that others can request */
    tsr_vec scalars;         /* elements of 0-d tensors */
    tsr_vec wants;           /* what this rank requests, in the order of the walk */
    size_t *counts;          /* number of requests to every rank, then from every rank */
    tsr_live_request *asked; /* requests to others, rank by rank, then those from others */
    size_t asked_size;
    tsr_message *messages;
    size_t message_size;
} tsr_live_exchange;

typedef struct wanted {
    uint32_t rank;
    tsr_live_request what;
    char *to;
} wanted;

/* The file that the chunks of 0-d tensors name, whose elements are packed with the tree. */
static uint32_t live_scalar_file(const tsr_live_exchange *m)
{
    return m->comm->size;
}

static uint32_t zeros_file(const tsr_live_exchange *m)
{
    return m->comm->size + 1;
}

/* Clears *out. End it with live_end, whatever happens in between. */
static tsr_live_exchange live_start(const tsr_live_call *call, tsr_live_state *out)
{
    const tsr_allocator *a = call->host->allocator;
    *out = (tsr_live_state){.allocator = a};
    return (tsr_live_exchange){.comm = call->comm,
                               .host = call->host,
                               .arena = call->arena,
                               .live = &call->live,
                               .out = out,
                               .bytes = tsr_vec_of(a, 1),
                               .tensors = tsr_vec_of(a, sizeof(tsr_packed_tensor)),
                               .scalars = tsr_vec_of(a, 1),
                               .wants = tsr_vec_of(a, sizeof(wanted))};
}

static void live_end(tsr_live_exchange *m)
{
    const tsr_allocator *a = m->host->allocator;
    tsr_free(a, m->messages, m->message_size, sizeof *m->messages);
    tsr_free(a, m->asked, m->asked_size, sizeof *m->asked);
    tsr_free(a, m->counts, 2 * (size_t)m->comm->size, sizeof *m->counts);
    tsr_vec_free(&m->wants);
    tsr_vec_free(&m->scalars);
    tsr_vec_free(&m->tensors);
    tsr_vec_free(&m->bytes);
}

static tsr_status same_scalar(void *ctx, const tsr_entry *a, const tsr_entry *b, bool *equal, tsr_error *err)
{
    const tsr_live_exchange *m = ctx;
    const char *scalars = m->scalars.items;
    (void)err;
    *equal = memcmp(scalars + a->chunks->byte_offset, scalars + b->chunks->byte_offset, tsr_dtype_size(a->dtype)) == 0;
    return TSR_OK;
}

/* What the data-only conversions need. It borrows `m`. */
static tsr_fsdp_context live_context(tsr_live_exchange *m)
{
    return (tsr_fsdp_context){m->host, m->arena, zeros_file(m), same_scalar, m, false};
}

/* ---- what this rank wants ---- */

/* Requests a chunk. `first_row` is the first row in the buffer. */
static tsr_status want_chunk(tsr_live_exchange *m, const tsr_entry *entry, const tsr_chunk *chunk, uint64_t first_row,
                             char *buffer, tsr_error *err)
{
    uint64_t size = tsr_dtype_size(entry->dtype), at = 0, row = 1, count = 1;
    uint32_t file = chunk->view ? chunk->view->file : chunk->file;
    uint64_t byte_offset = chunk->view ? chunk->view->byte_offset : chunk->byte_offset;
    for (uint32_t d = entry->ndim; d-- > 0; row *= entry->shape[d]) {
        at += (chunk->offsets[d] - (d == 0 ? first_row : 0)) * row;
        count *= chunk->sizes[d];
    }
    if (count == 0 || file == zeros_file(m)) return TSR_OK;
    if (file == live_scalar_file(m)) {
        memcpy(buffer, (const char *)m->scalars.items + byte_offset, (size_t)size);
        return TSR_OK;
    }
    wanted *want = tsr_vec_push(&m->wants, err);
    if (!want) return TSR_E_NOMEM;
    *want = (wanted){file, {byte_offset, count * size}, buffer + at * size};
    return TSR_OK;
}

/* The range of rows that the chunks of an entry cover. */
static void rows_of(const tsr_entry *entry, uint64_t *begin, uint64_t *end)
{
    *begin = entry->shape[0];
    *end = 0;
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        const tsr_chunk *chunk = &entry->chunks[i];
        if (chunk->offsets[0] < *begin) *begin = chunk->offsets[0];
        if (chunk->offsets[0] + chunk->sizes[0] > *end) *end = chunk->offsets[0] + chunk->sizes[0];
    }
    if (*begin > *end) *begin = *end;
}

/* Makes the chunk of a received tensor, with the rows [begin, end). */
static tsr_status received_chunk(const tsr_live_exchange *m, const tsr_entry *entry, uint64_t begin, uint64_t end,
                                 tsr_chunk **out, tsr_error *err)
{
    tsr_chunk *chunk = *out = TSR_ARENA_NEW(m->arena, tsr_chunk, err);
    uint64_t *box = tsr_arena_array(m->arena, 2 * (size_t)entry->ndim, sizeof *box, err);
    if (!chunk || !box) return TSR_E_NOMEM;
    *chunk = (tsr_chunk){.offsets = box, .sizes = box + entry->ndim};
    for (uint32_t d = 0; d < entry->ndim; d++) box[entry->ndim + d] = d ? entry->shape[d] : end - begin;
    if (entry->ndim) box[0] = begin;
    return TSR_OK;
}

/* Allocates a zeroed buffer for a tensor and requests its contents. The entry may be modified: it came from a packed tree or
 * from pieces. */
static tsr_status want_tensor(tsr_live_exchange *m, tsr_entry *entry, tsr_vec *buffers, tsr_error *err)
{
    uint64_t bytes, begin = 0, end = 0;
    tsr_chunk *chunk;
    bool fits = tsr_entry_bytes(entry, &bytes);
    if (entry->ndim) rows_of(entry, &begin, &end);
    if (fits && entry->ndim) bytes = entry->shape[0] ? bytes / entry->shape[0] * (end - begin) : 0;
    TSR_FAIL_IF(!fits || bytes > SIZE_MAX, err, TSR_E_LIMIT, "optim: '%.*s' is too large for memory",
                TSR_STR_ARG(entry->fqn));
    TSR_TRY(received_chunk(m, entry, begin, end, &chunk, err));
    chunk->file = (uint32_t)buffers->count;
    chunk->byte_length = bytes;
    tsr_live_buffer *buffer = tsr_vec_push(buffers, err);
    void *data = buffer && bytes ? tsr_alloc(m->host->allocator, (size_t)bytes, 1, err) : NULL;
    if (buffer) *buffer = (tsr_live_buffer){data, data ? (size_t)bytes : 0};
    if (!buffer || (bytes && !data)) return TSR_E_NOMEM;
    if (bytes) memset(data, 0, (size_t)bytes);
    for (uint64_t i = 0; i < entry->chunk_count; i++) TSR_TRY(want_chunk(m, entry, &entry->chunks[i], begin, data, err));
    entry->chunks = chunk;
    entry->chunk_count = 1;
    return TSR_OK;
}

typedef struct walk {
    tsr_vec stack; /* const tsr_value * */
    tsr_map *seen; /* entries, by their address */
    tsr_vec buffers;
} walk;

static tsr_status push(walk *w, const tsr_value *value, tsr_error *err)
{
    const tsr_value **slot = tsr_vec_push(&w->stack, err);
    if (!slot) return TSR_E_NOMEM;
    *slot = value;
    return TSR_OK;
}

/* Requests a tensor, but only once if it is in several places of the tree. */
static tsr_status visit_tensor(tsr_live_exchange *m, walk *w, const tsr_value *const *slot, tsr_error *err)
{
    const tsr_str address = {(const char *)&(*slot)->as.tensor, sizeof(*slot)->as.tensor};
    bool fresh;
    TSR_TRY(tsr_map_put(w->seen, address, 0, NULL, &fresh, err));
    return fresh ? want_tensor(m, (tsr_entry *)(*slot)->as.tensor, &w->buffers, err) : TSR_OK;
}

static tsr_status walk_tree(tsr_live_exchange *m, walk *w, const tsr_value *const *tree, tsr_error *err)
{
    TSR_TRY(push(w, *tree, err));
    while (w->stack.count) {
        const tsr_value *v = ((const tsr_value *const *)w->stack.items)[--w->stack.count];
        for (size_t i = v->count; i-- > 0;) {
            if (v->items[i]->kind == TSR_VALUE_TENSOR) TSR_TRY(visit_tensor(m, w, &v->items[i], err));
            else if (v->items[i]->count) TSR_TRY(push(w, v->items[i], err));
        }
    }
    return TSR_OK;
}

static tsr_status want_tree(tsr_live_exchange *m, const tsr_value *tree, tsr_error *err)
{
    const tsr_allocator *a = m->host->allocator;
    walk w = {tsr_vec_of(a, sizeof tree), tsr_map_new(a, 0, err), tsr_vec_of(a, sizeof(tsr_live_buffer))};
    tsr_status status = w.seen ? walk_tree(m, &w, &tree, err) : TSR_E_NOMEM;
    tsr_live_buffer *buffers = tsr_alloc(a, w.buffers.count + 1, sizeof *buffers, err);
    if (buffers && w.buffers.count) memcpy(buffers, w.buffers.items, w.buffers.count * sizeof *buffers);
    for (size_t i = 0; !buffers && i < w.buffers.count; i++) {
        tsr_live_buffer *b = (tsr_live_buffer *)w.buffers.items + i;
        tsr_free(a, b->data, b->size, 1);
    }
    m->out->buffers = buffers;
    m->out->buffer_count = buffers ? w.buffers.count : 0;
    m->out->tree = tree;
    tsr_vec_free(&w.buffers);
    tsr_map_free(w.seen);
    tsr_vec_free(&w.stack);
    return status == TSR_OK && !buffers ? TSR_E_NOMEM : status;
}

/* ---- asking and answering ---- */

static size_t sum(const size_t *counts, uint32_t count)
{
    size_t total = 0;
    for (uint32_t i = 0; i < count; i++) total += counts[i];
    return total;
}

/* Every rank learns how much every other rank requests from it. */
static tsr_status exchange_counts(tsr_live_exchange *m, tsr_error *err)
{
    uint32_t world = m->comm->size;
    m->message_size = 2 * (size_t)world;
    m->messages = tsr_alloc(m->host->allocator, m->message_size, sizeof *m->messages, err);
    m->counts = tsr_alloc(m->host->allocator, 2 * (size_t)world, sizeof *m->counts, err);
    TSR_TRY(tsr_comm_agree(m->comm, m->messages && m->counts ? TSR_OK : TSR_E_NOMEM, err));
    memset(m->counts, 0, 2 * (size_t)world * sizeof *m->counts);
    for (size_t i = 0; i < m->wants.count; i++) m->counts[((const wanted *)m->wants.items)[i].rank]++;
    for (uint32_t r = 0; r < world; r++) {
        m->messages[r] = (tsr_message){r, &m->counts[r], sizeof *m->counts};
        m->messages[world + r] = (tsr_message){r, &m->counts[world + r], sizeof *m->counts};
    }
    return m->comm->exchange(m->comm, m->messages, world, m->messages + world, world, err);
}

/* Every rank learns what is requested from it. */
static tsr_status exchange_requests(tsr_live_exchange *m, tsr_error *err)
{
    uint32_t world = m->comm->size;
    size_t mine = sum(m->counts, world), theirs = sum(m->counts + world, world), at = 0, used = 0;
    m->asked_size = mine + theirs;
    m->asked = tsr_alloc(m->host->allocator, m->asked_size, sizeof *m->asked, err);
    TSR_TRY(tsr_comm_agree(m->comm, m->asked || m->asked_size == 0 ? TSR_OK : TSR_E_NOMEM, err));
    for (uint32_t r = 0; r < 2 * world; r++) {
        m->messages[r] = (tsr_message){r % world, m->asked + at, m->counts[r] * sizeof *m->asked};
        at += m->counts[r];
    }
    for (uint32_t r = 0; r < world; r++) {
        for (size_t i = 0; i < m->wants.count; i++) {
            const wanted *want = (const wanted *)m->wants.items + i;
            if (want->rank == r) m->asked[used++] = want->what;
        }
    }
    return m->comm->exchange(m->comm, m->messages, world, m->messages + world, world, err);
}

/* The bytes of this rank that another one requested; NULL if it does not have them. */
static void *answer(const tsr_live_exchange *m, const tsr_live_request *what)
{
    const tsr_packed_tensor *tensors = m->tensors.items;
    size_t low = 0, high = m->tensors.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (tensors[middle].byte_offset + tensors[middle].byte_length <= what->byte_offset) low = middle + 1;
        else high = middle;
    }
    if (low == m->tensors.count || what->byte_offset < tensors[low].byte_offset) return NULL;
    uint64_t inside = what->byte_offset - tensors[low].byte_offset;
    if (what->byte_length > tensors[low].byte_length - inside) return NULL;
    return (char *)m->live->bytes(m->live->ctx, tensors[low].entry) + inside;
}

static tsr_status exchange_elements(tsr_live_exchange *m, tsr_error *err)
{
    uint32_t world = m->comm->size;
    size_t mine = sum(m->counts, world), theirs = sum(m->counts + world, world), at = 0;
    tsr_free(m->host->allocator, m->messages, m->message_size, sizeof *m->messages);
    m->message_size = mine + theirs;
    m->messages = tsr_alloc(m->host->allocator, m->message_size, sizeof *m->messages, err);
    tsr_status status = m->messages || m->message_size == 0 ? TSR_OK : TSR_E_NOMEM;
    for (uint32_t r = 0; r < world && status == TSR_OK; r++) {
        for (size_t i = 0; i < m->counts[world + r] && status == TSR_OK; i++, at++) {
            const tsr_live_request *what = &m->asked[mine + at];
            m->messages[at] = (tsr_message){r, answer(m, what), (size_t)what->byte_length};
            if (!m->messages[at].data)
                status =
                    tsr_fail(err, TSR_E_FORMAT, "optim: rank %" PRIu32 " requests bytes of a tensor that does not exist", r);
        }
    }
    for (uint32_t r = 0; r < world && status == TSR_OK; r++) {
        for (size_t i = 0; i < m->wants.count; i++) {
            const wanted *want = (const wanted *)m->wants.items + i;
            if (want->rank == r) m->messages[at++] = (tsr_message){r, want->to, (size_t)want->what.byte_length};
        }
    }
    TSR_TRY(tsr_comm_agree(m->comm, status, err));
    return m->comm->exchange(m->comm, m->messages, theirs, m->messages + theirs, mine, err);
}

/* Receives the tensors of `tree` into m->out, which owns their memory. NULL if this rank needs nothing. Collective. */
static tsr_status live_fetch(tsr_live_exchange *m, const tsr_value *tree, tsr_error *err)
{
    tsr_status status = tree ? want_tree(m, tree, err) : TSR_OK;
    TSR_TRY(tsr_comm_agree(m->comm, status, err));
    TSR_TRY(exchange_counts(m, err));
    TSR_TRY(exchange_requests(m, err));
    return exchange_elements(m, err);
}

/* ---- trees ---- */

static tsr_status unpack_all(tsr_live_exchange *m, const tsr_comm_blobs *blobs, const tsr_value **ranks, tsr_error *err)
{
    const tsr_unpacked_into into = {live_scalar_file(m), &m->scalars, m->host, m->arena};
    for (uint32_t r = 0; r < m->comm->size; r++) TSR_TRY(tsr_tree_unpack(blobs->blobs[r], r, &into, &ranks[r], err));
    return TSR_OK;
}

/* Gives every rank the trees of all ranks, one per rank, in the arena. Collective. */
static tsr_status live_share_trees(tsr_live_exchange *m, const tsr_value *mine, const tsr_value ***out, tsr_error *err)
{
    tsr_comm_blobs blobs = {0};
    const tsr_value **ranks = *out = tsr_arena_array(m->arena, m->comm->size, sizeof *ranks, err);
    tsr_status status = ranks ? tsr_tree_pack(mine, m->live, m->host, &m->bytes, &m->tensors, err) : TSR_E_NOMEM;
    TSR_TRY(tsr_comm_agree(m->comm, status, err));
    TSR_TRY(tsr_comm_gather_blobs((tsr_ranks){m->comm, m->host->allocator}, (tsr_str){m->bytes.items, m->bytes.count},
                                  &blobs, err));
    status = unpack_all(m, &blobs, ranks, err);
    tsr_comm_blobs_free(&blobs);
    return tsr_comm_agree(m->comm, status, err);
}

/* ---- live ---- */

/* Gathers and broadcasts the optimizer state of FSDP1 units on live ranks. */

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
    TSR_TRY(live_share_trees(m, raw, &ranks, err));
    tsr_fsdp_context context = live_context(m);
    TSR_TRY(tsr_comm_agree(m->comm, tsr_fsdp_unshard(flat, ranks, rank, &context, full, err), err));
    m->out->carried = full->carried;
    m->out->carried_count = full->carried_count;
    return TSR_OK;
}

tsr_status tsr_fsdp_gather(const tsr_live_call *call, const tsr_flat_params *flat, const tsr_value *raw, uint32_t target,
                           tsr_live_state *out, tsr_error *err)
{
    tsr_live_exchange m = live_start(call, out);
    tsr_fsdp_full full;
    tsr_status status = unshard(&m, flat, raw, &full, err);
    if (status == TSR_OK)
        status = live_fetch(&m, target == TSR_ALL_RANKS || target == call->comm->rank ? full.optim : NULL, err);
    live_end(&m);
    if (status != TSR_OK) tsr_live_state_free(out);
    return status;
}

tsr_status tsr_fsdp_gather_rows(const tsr_live_call *call, const tsr_flat_params *flat, const tsr_value *raw,
                                const tsr_mesh *mesh, tsr_live_state *out, tsr_error *err)
{
    tsr_live_exchange m = live_start(call, out);
    tsr_fsdp_full full;
    const tsr_value *rows = NULL;
    tsr_status status = unshard(&m, flat, raw, &full, err);
    if (status == TSR_OK) {
        const tsr_fsdp_rows options = {call->comm->size, call->comm->rank, mesh};
        const tsr_fsdp_context context = live_context(&m);
        status = tsr_comm_agree(call->comm, tsr_fsdp_shard_rows(flat, full.optim, &options, &context, &rows, err), err);
    }
    if (status == TSR_OK) status = live_fetch(&m, rows, err);
    live_end(&m);
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
    tsr_fsdp_context context = live_context(m);
    const tsr_value *tree = NULL, *raw = NULL;
    TSR_TRY(broadcast_tree(m, full, err));
    const tsr_unpacked_into into = {live_scalar_file(m), &m->scalars, m->host, m->arena};
    tsr_status status = tsr_tree_unpack((tsr_str){m->bytes.items, m->bytes.count}, 0, &into, &tree, err);
    if (status == TSR_OK)
        status = tsr_fsdp_shard(flat, tree, (tsr_fsdp_rank){m->comm->size, m->comm->rank}, &context, &raw, err);
    TSR_TRY(tsr_comm_agree(m->comm, status, err));
    return live_fetch(m, raw, err);
}

tsr_status tsr_fsdp_broadcast(const tsr_live_call *call, const tsr_flat_params *flat, const tsr_value *full,
                              tsr_live_state *out, tsr_error *err)
{
    tsr_live_exchange m = live_start(call, out);
    tsr_status status = broadcast(&m, flat, full, err);
    live_end(&m);
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

/* ---- spread ---- */

/* Joins the rows that each rank has of the optimizer state, and cuts them for the FSDP1 units of each rank. */

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
    tsr_live_exchange m = live_start(call, out);
    const tsr_value **ranks, *full = NULL, *raw = NULL;
    tsr_status status = live_share_trees(&m, state, &ranks, err);
    if (status == TSR_OK) {
        const tsr_fsdp_context context = live_context(&m);
        status = join(&m, flat, ranks, &full, err);
        if (status == TSR_OK)
            status = tsr_fsdp_shard(flat, full, (tsr_fsdp_rank){call->comm->size, call->comm->rank}, &context, &raw, err);
        status = tsr_comm_agree(call->comm, status, err);
    }
    if (status == TSR_OK) status = live_fetch(&m, raw, err);
    live_end(&m);
    if (status != TSR_OK) tsr_live_state_free(out);
    return status;
}
