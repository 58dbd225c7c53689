/* See live_exchange.h. */
#include "optim/live_exchange.h"

#include <inttypes.h>

#include "base/cursor.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/map.h"
#include "tessera/sys/try.h"

typedef struct wanted {
    uint32_t rank;
    tsr_live_request what;
    char *to;
} wanted;

uint32_t tsr_live_scalar_file(const tsr_live_exchange *m)
{
    return m->comm->size;
}

static uint32_t zeros_file(const tsr_live_exchange *m)
{
    return m->comm->size + 1;
}

tsr_live_exchange tsr_live_start(const tsr_live_call *call, tsr_live_state *out)
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

void tsr_live_end(tsr_live_exchange *m)
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

tsr_fsdp_context tsr_live_context(tsr_live_exchange *m)
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
    if (file == tsr_live_scalar_file(m)) {
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

tsr_status tsr_live_fetch(tsr_live_exchange *m, const tsr_value *tree, tsr_error *err)
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
    const tsr_unpacked_into into = {tsr_live_scalar_file(m), &m->scalars, m->host, m->arena};
    for (uint32_t r = 0; r < m->comm->size; r++) TSR_TRY(tsr_tree_unpack(blobs->blobs[r], r, &into, &ranks[r], err));
    return TSR_OK;
}

tsr_status tsr_live_share_trees(tsr_live_exchange *m, const tsr_value *mine, const tsr_value ***out, tsr_error *err)
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
