/* Moves messages in pieces, in an order that cannot deadlock.
 *
 * In step s, rank r sends to r + s and receives from r − s. Every piece has a position (step, message, piece) in an order
 * that its sender and its receiver agree on. Both keep the first WINDOW unfinished pieces of their lists posted, so the
 * first unfinished piece overall is always posted on both sides. */
#include "comm/mpi_rounds.h"

#include "tessera/sys/alloc.h"

enum { WINDOW = 32 };

int tsr_mpi_broadcast(MPI_Comm ranks, void *data, size_t size, uint32_t root, size_t round_bytes)
{
    int code = MPI_SUCCESS;
    for (size_t at = 0; at < size && code == MPI_SUCCESS; at += round_bytes) {
        size_t count = size - at < round_bytes ? size - at : round_bytes;
        code = MPI_Bcast((char *)data + at, (int)count, MPI_BYTE, (int)root, ranks);
    }
    return code;
}

/* Gathers in a single call what fits in one round. If it is more, gathers the part of one rank after the other. */
int tsr_mpi_all_gather(MPI_Comm ranks, const void *mine, const size_t *sizes, void *all, size_t round_bytes, int *scratch)
{
    int rank, size, code = MPI_SUCCESS, *displacements;
    size_t total = 0;
    char *at = all;
    MPI_Comm_rank(ranks, &rank);
    MPI_Comm_size(ranks, &size);
    displacements = scratch + size;
    for (int r = 0; r < size && total <= round_bytes; r++) {
        scratch[r] = (int)(sizes[r] < round_bytes ? sizes[r] : round_bytes);
        displacements[r] = (int)total;
        total += sizes[r] <= round_bytes ? sizes[r] : round_bytes + 1;
    }
    if (total <= round_bytes)
        return MPI_Allgatherv(mine, scratch[rank], MPI_BYTE, all, scratch, displacements, MPI_BYTE, ranks);
    for (int r = 0; r < size && code == MPI_SUCCESS; at += sizes[r++]) {
        if (r == rank && sizes[r]) memcpy(at, mine, sizes[r]);
        code = tsr_mpi_broadcast(ranks, at, sizes[r], (uint32_t)r, round_bytes);
    }
    return code;
}

/* ---- exchange ---- */

static uint32_t step_of(const tsr_mpi_exchange *x, uint32_t peer, bool sends)
{
    return sends ? (peer + x->ranks - x->rank) % x->ranks : (x->rank + x->ranks - peer) % x->ranks;
}

/* A counting sort, which is stable: messages between two ranks keep the order of their list. `starts` has ranks + 1
 * places. */
static void sort_by_step(const tsr_mpi_exchange *x, bool sends, size_t *starts, size_t *order)
{
    const tsr_message *messages = sends ? x->sends : x->receives;
    const size_t count = sends ? x->send_count : x->receive_count;
    for (uint32_t s = 0; s <= x->ranks; s++) starts[s] = 0;
    for (size_t i = 0; i < count; i++) starts[step_of(x, messages[i].peer, sends) + 1]++;
    for (uint32_t s = 0; s < x->ranks; s++) starts[s + 1] += starts[s];
    for (size_t i = 0; i < count; i++) order[starts[step_of(x, messages[i].peer, sends)]++] = i;
}

tsr_status tsr_mpi_exchange_prepare(tsr_mpi_exchange *x, uint32_t rank, uint32_t ranks, const tsr_allocator *allocator,
                                    tsr_error *err)
{
    x->rank = rank;
    x->ranks = ranks;
    size_t *starts = tsr_alloc(allocator, (size_t)ranks + 1, sizeof *starts, err);
    x->send_order = tsr_alloc(allocator, x->send_count, sizeof *x->send_order, err);
    x->receive_order = tsr_alloc(allocator, x->receive_count, sizeof *x->receive_order, err);
    const bool enough = starts && x->send_order && x->receive_order;
    if (enough) {
        sort_by_step(x, true, starts, x->send_order);
        sort_by_step(x, false, starts, x->receive_order);
    }
    tsr_free(allocator, starts, (size_t)ranks + 1, sizeof *starts);
    return enough ? TSR_OK : TSR_E_NOMEM;
}

void tsr_mpi_exchange_free(tsr_mpi_exchange *x, const tsr_allocator *allocator)
{
    tsr_free(allocator, x->send_order, x->send_count, sizeof *x->send_order);
    tsr_free(allocator, x->receive_order, x->receive_count, sizeof *x->receive_order);
}

/* The messages of one direction. Their pieces are posted in order when requests become free. */
typedef struct lane {
    const tsr_message *messages;
    const size_t *order;
    size_t count, next, at; /* the next message, and the byte in it */
    bool sends;
} lane;

typedef struct traffic {
    const tsr_mpi_exchange *exchange;
    MPI_Comm ranks;
    size_t round_bytes;
    lane lanes[2];
    MPI_Request requests[2 * WINDOW]; /* the first half is for sends */
} traffic;

/* Finds the next piece that needs a request. Skips messages that are empty or for this rank itself. */
static bool next_piece(const traffic *t, lane *l, const tsr_message **message, size_t *at, size_t *size)
{
    for (; l->next < l->count; l->next++, l->at = 0) {
        const tsr_message *m = &l->messages[l->order[l->next]];
        if (m->peer == t->exchange->rank || l->at >= m->size) continue;
        *message = m;
        *at = l->at;
        *size = m->size - l->at < t->round_bytes ? m->size - l->at : t->round_bytes;
        l->at += *size;
        return true;
    }
    return false;
}

static int post_pieces(traffic *t, lane *l)
{
    MPI_Request *requests = t->requests + (l->sends ? 0 : WINDOW);
    const tsr_message *m;
    size_t at, size;
    int code = MPI_SUCCESS;
    for (int i = 0; i < WINDOW && code == MPI_SUCCESS; i++) {
        if (requests[i] != MPI_REQUEST_NULL) continue;
        if (!next_piece(t, l, &m, &at, &size)) break;
        char *data = (char *)m->data + at;
        if (l->sends) code = MPI_Isend(data, (int)size, MPI_BYTE, (int)m->peer, 0, t->ranks, &requests[i]);
        else code = MPI_Irecv(data, (int)size, MPI_BYTE, (int)m->peer, 0, t->ranks, &requests[i]);
    }
    return code;
}

static void copy_own(const tsr_mpi_exchange *x)
{
    size_t s = 0;
    for (size_t r = 0; r < x->receive_count; r++) {
        const tsr_message *want = &x->receives[r];
        if (want->peer != x->rank) continue;
        while (x->sends[s].peer != x->rank) s++;
        if (want->size) memcpy(want->data, x->sends[s].data, want->size);
        s++;
    }
}

int tsr_mpi_exchange_run(const tsr_mpi_exchange *x, MPI_Comm ranks, size_t round_bytes)
{
    traffic t = {.exchange = x,
                 .ranks = ranks,
                 .round_bytes = round_bytes,
                 .lanes = {{x->sends, x->send_order, x->send_count, 0, 0, true},
                           {x->receives, x->receive_order, x->receive_count, 0, 0, false}}};
    int code = MPI_SUCCESS, finished[2 * WINDOW], count = 0;
    for (int i = 0; i < 2 * WINDOW; i++) t.requests[i] = MPI_REQUEST_NULL;
    copy_own(x);
    while (code == MPI_SUCCESS && count != MPI_UNDEFINED) { /* undefined: there are no more requests */
        code = post_pieces(&t, &t.lanes[1]);
        if (code == MPI_SUCCESS) code = post_pieces(&t, &t.lanes[0]);
        if (code == MPI_SUCCESS) code = MPI_Waitsome(2 * WINDOW, t.requests, &count, finished, MPI_STATUSES_IGNORE);
    }
    return code;
}
