/* Operations of every communicator, implemented with its few primitives. */
#include "tessera/comm.h"

#include "tessera/sys/collectives.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

#include <inttypes.h>
#include <string.h>

void tsr_comm_drop_kept(tsr_comm *comm)
{
    if (!comm->kept || !*comm->kept) return;
    (*comm->kept)->free(*comm->kept);
    *comm->kept = NULL;
}

tsr_status tsr_comm_barrier(tsr_comm *comm, tsr_error *err)
{
    uint64_t nothing = 0;
    return comm->largest(comm, &nothing, err);
}

/* Whether the message of a failure already names a rank, because the ranks have agreed on it before. */
static bool names_rank(const char *message)
{
    static const char word[] = "rank ";
    size_t at = sizeof word - 1;
    if (strncmp(message, word, at) != 0) return false;
    while (tsr_is_digit(message[at])) at++;
    return at > sizeof word - 1 && message[at] == ':';
}

/* Allocates nothing, because this must work on a rank that has run out of memory. */
tsr_status tsr_comm_agree(tsr_comm *comm, tsr_status mine, tsr_error *err)
{
    uint64_t failed = mine == TSR_OK ? 0 : (uint64_t)comm->size - comm->rank; /* largest for the lowest rank */
    tsr_error told = {0}, failure = {0};
    tsr_status status = comm->largest(comm, &failed, &failure);
    if (status == TSR_OK && failed == 0) return TSR_OK;
    uint32_t root = comm->size - (uint32_t)failed;
    if (status == TSR_OK && root == comm->rank) {
        if (err) told = *err;
        told.status = mine;
    }
    if (status == TSR_OK) status = comm->broadcast(comm, &told, sizeof told, root, &failure);
    if (err) *err = (tsr_error){0};
    if (status != TSR_OK) return tsr_raise_again(err, status, &failure);
    told.message[sizeof told.message - 1] = 0;
    if (names_rank(told.message)) return tsr_raise_again(err, told.status, &told);
    return tsr_raise(told.names_subject ? tsr_naming(err) : err, told.status, told.byte_position, "rank %" PRIu32 ": %s",
                     root, *told.message ? told.message : tsr_status_name(told.status));
}

/* Allocates memory. If one rank is out of memory, all ranks fail. */
static tsr_status need(tsr_comm *comm, const tsr_allocator *allocator, size_t count, size_t item_size, void **out,
                       tsr_error *err)
{
    *out = tsr_alloc(allocator, count, item_size, err);
    return *out ? TSR_OK : comm->poison(comm, TSR_E_NOMEM, err);
}

/* ---- point to point ---- */

static void list_pieces(tsr_message *messages, uint32_t count, const void *base, const size_t *sizes)
{
    char *at = (char *)(uintptr_t)base;
    for (uint32_t r = 0; r < count; at += sizes[r++]) messages[r] = (tsr_message){r, at, sizes[r]};
}

tsr_status tsr_comm_gather(tsr_ranks ranks, const void *mine, const size_t *sizes, uint32_t root, void *all, tsr_error *err)
{
    tsr_comm *comm = ranks.comm;
    const tsr_allocator *allocator = ranks.allocator;
    const tsr_message send = {root, (void *)(uintptr_t)mine, sizes[comm->rank]};
    if (comm->rank != root) return comm->exchange(comm, &send, 1, NULL, 0, err);
    void *memory;
    TSR_TRY(need(comm, allocator, comm->size, sizeof(tsr_message), &memory, err));
    tsr_message *receives = memory;
    list_pieces(receives, comm->size, all, sizes);
    tsr_status status = comm->exchange(comm, &send, 1, receives, comm->size, err);
    tsr_free(allocator, receives, comm->size, sizeof *receives);
    return status;
}

tsr_status tsr_comm_all_to_all(tsr_ranks ranks, const void *mine, const size_t *send_sizes, void *all,
                               const size_t *receive_sizes, tsr_error *err)
{
    tsr_comm *comm = ranks.comm;
    const tsr_allocator *allocator = ranks.allocator;
    void *memory;
    TSR_TRY(need(comm, allocator, comm->size, 2 * sizeof(tsr_message), &memory, err));
    tsr_message *messages = memory;
    list_pieces(messages, comm->size, mine, send_sizes);
    list_pieces(messages + comm->size, comm->size, all, receive_sizes);
    tsr_status status = comm->exchange(comm, messages, comm->size, messages + comm->size, comm->size, err);
    tsr_free(allocator, messages, comm->size, 2 * sizeof *messages);
    return status;
}

/* ---- blobs ---- */

tsr_status tsr_comm_broadcast_blob(tsr_ranks ranks, tsr_str mine, uint32_t root, void **out, size_t *size, tsr_error *err)
{
    tsr_comm *comm = ranks.comm;
    const tsr_allocator *allocator = ranks.allocator;
    size_t count = mine.size;
    *out = NULL;
    *size = 0;
    TSR_TRY(comm->broadcast(comm, &count, sizeof count, root, err));
    if (count == 0) return TSR_OK;
    void *copy = tsr_alloc(allocator, count, 1, err);
    tsr_status status = tsr_comm_agree(comm, copy ? TSR_OK : TSR_E_NOMEM, err);
    if (status == TSR_OK && comm->rank == root) memcpy(copy, mine.data, count);
    if (status == TSR_OK) status = comm->broadcast(comm, copy, count, root, err);
    if (status != TSR_OK) {
        tsr_free(allocator, copy, count, 1);
        return status;
    }
    *out = copy;
    *size = count;
    return TSR_OK;
}

void tsr_comm_blobs_free(tsr_comm_blobs *b)
{
    if (!b->allocator) return;
    tsr_free(b->allocator, b->blobs, b->count, sizeof *b->blobs);
    tsr_free(b->allocator, b->bytes, b->byte_count, 1);
    tsr_free(b->allocator, b->sizes, b->count, sizeof *b->sizes);
    *b = (tsr_comm_blobs){0};
}

/* Gathers the sizes of all ranks' blobs in b->sizes. */
static tsr_status gather_sizes(tsr_comm *comm, size_t mine, tsr_comm_blobs *b, tsr_error *err)
{
    void *memory;
    TSR_TRY(need(comm, b->allocator, b->count, sizeof(size_t), &memory, err));
    size_t *widths = memory;
    for (uint32_t r = 0; r < b->count; r++) widths[r] = sizeof mine;
    tsr_status status = comm->all_gather(comm, &mine, widths, b->sizes, err);
    tsr_free(b->allocator, widths, b->count, sizeof *widths);
    return status;
}

static tsr_status gather_blobs(tsr_comm *comm, tsr_str mine, tsr_comm_blobs *b, tsr_error *err)
{
    void *memory;
    TSR_TRY(need(comm, b->allocator, b->count, sizeof *b->sizes, &memory, err));
    b->sizes = memory;
    TSR_TRY(need(comm, b->allocator, b->count, sizeof *b->blobs, &memory, err));
    b->blobs = memory;
    TSR_TRY(gather_sizes(comm, mine.size, b, err));
    size_t total = 0;
    for (uint32_t r = 0; r < b->count; r++) { /* the same on every rank, so all ranks fail alike */
        TSR_FAIL_IF(b->sizes[r] > SIZE_MAX - total, err, TSR_E_LIMIT, "comm: the ranks' data is too large in total");
        total += b->sizes[r];
    }
    TSR_TRY(need(comm, b->allocator, total, 1, &memory, err));
    b->bytes = memory;
    b->byte_count = total;
    TSR_TRY(comm->all_gather(comm, mine.data, b->sizes, b->bytes, err));
    total = 0;
    for (uint32_t r = 0; r < b->count; total += b->sizes[r++]) b->blobs[r] = (tsr_str){b->bytes + total, b->sizes[r]};
    return TSR_OK;
}

tsr_status tsr_comm_gather_blobs(tsr_ranks ranks, tsr_str mine, tsr_comm_blobs *out, tsr_error *err)
{
    *out = (tsr_comm_blobs){.count = ranks.comm->size, .allocator = ranks.allocator};
    tsr_status status = gather_blobs(ranks.comm, mine, out, err);
    if (status != TSR_OK) tsr_comm_blobs_free(out);
    return status;
}

/* ---- comparing values between ranks ---- */

/* Broadcasts rank 0's bytes in pieces, which each rank compares with its own, so that no memory is needed. */
tsr_status tsr_comm_same(tsr_comm *comm, tsr_str value, const char *what, tsr_error *err)
{
    char piece[1024];
    uint64_t size = value.size;
    TSR_TRY(comm->broadcast(comm, &size, sizeof size, 0, err));
    bool same = size == value.size;
    for (uint64_t at = 0; at < size; at += sizeof piece) {
        size_t count = size - at < sizeof piece ? (size_t)(size - at) : sizeof piece;
        if (comm->rank == 0) memcpy(piece, value.data + at, count);
        TSR_TRY(comm->broadcast(comm, piece, count, 0, err));
        if (same) same = memcmp(piece, value.data + at, count) == 0;
    }
    uint64_t differs = same ? 0 : (uint64_t)comm->size - comm->rank;
    TSR_TRY(comm->largest(comm, &differs, err));
    TSR_FAIL_IF(differs, err, TSR_E_USAGE, "%s: rank %" PRIu32 " differs from rank 0", what, comm->size - (uint32_t)differs);
    return TSR_OK;
}

tsr_status tsr_comm_agree_as_one(tsr_comm *comm, tsr_status mine, tsr_error *err)
{
    static const char first[] = "rank 0: ";
    tsr_error other = {0}, unwanted = {0};
    uint64_t failed = mine != TSR_OK;
    if (!err) err = &unwanted;
    if (comm->largest(comm, &failed, &other) != TSR_OK) {
        if (mine == TSR_OK) *err = other;
        return err->status;
    }
    if (!failed) return TSR_OK;
    if (tsr_comm_same(comm, tsr_str_from(err->message), "errors", &other) == TSR_OK) return mine;
    mine = tsr_comm_agree(comm, mine, err);
    if (tsr_str_starts(tsr_str_from(err->message), TSR_STR(first)))
        memmove(err->message, err->message + sizeof first - 1, strlen(err->message) + 2 - sizeof first);
    return mine;
}

/* A communicator with a single rank: it receives what it sends. */

typedef struct self {
    tsr_comm base;
    const tsr_allocator *allocator;
    tsr_error failed; /* the error that every further call returns */
} self;

static tsr_status again(const self *s, tsr_error *err)
{
    if (s->failed.status == TSR_OK) return TSR_OK;
    return tsr_raise_again(err, s->failed.status, &s->failed);
}

static tsr_status all_gather(tsr_comm *comm, const void *mine, const size_t *sizes, void *all, tsr_error *err)
{
    TSR_TRY(again((self *)comm, err));
    if (sizes[0]) memcpy(all, mine, sizes[0]);
    return TSR_OK;
}

static tsr_status broadcast(tsr_comm *comm, void *data, size_t size, uint32_t root, tsr_error *err)
{
    self *s = (self *)comm;
    (void)data;
    (void)size;
    if (s->failed.status == TSR_OK && root != 0) {
        tsr_fail(&s->failed, TSR_E_USAGE, "comm: rank %u cannot broadcast: there is only rank 0", (unsigned)root);
    }
    return again(s, err);
}

static tsr_status move(const tsr_message *sends, size_t send_count, const tsr_message *receives, size_t receive_count,
                       tsr_error *err)
{
    TSR_FAIL_IF(send_count != receive_count, err, TSR_E_USAGE,
                "rank 0: comm: rank 0 sends %zu messages to rank 0, which expects %zu", send_count, receive_count);
    for (size_t i = 0; i < send_count; i++) {
        TSR_FAIL_IF(sends[i].peer || receives[i].peer, err, TSR_E_USAGE,
                    "rank 0: comm: message %zu is for rank %u, but there is only rank 0", i,
                    (unsigned)(sends[i].peer ? sends[i].peer : receives[i].peer));
        TSR_FAIL_IF(sends[i].size != receives[i].size, err, TSR_E_USAGE,
                    "rank 0: comm: message %zu has %zu bytes for rank 0, which expects %zu", i, sends[i].size,
                    receives[i].size);
    }
    for (size_t i = 0; i < send_count; i++) {
        if (sends[i].size) memcpy(receives[i].data, sends[i].data, sends[i].size);
    }
    return TSR_OK;
}

static tsr_status exchange(tsr_comm *comm, const tsr_message *sends, size_t send_count, const tsr_message *receives,
                           size_t receive_count, tsr_error *err)
{
    self *s = (self *)comm;
    if (s->failed.status == TSR_OK) move(sends, send_count, receives, receive_count, &s->failed);
    return again(s, err);
}

static tsr_status largest(tsr_comm *comm, uint64_t *value, tsr_error *err)
{
    (void)value;
    return again((self *)comm, err);
}

static tsr_status split(tsr_comm *comm, uint32_t group, uint32_t order, tsr_comm **out, tsr_error *err)
{
    (void)order;
    *out = NULL;
    TSR_TRY(again((self *)comm, err));
    return group == TSR_COMM_NO_GROUP ? TSR_OK : tsr_comm_self(((self *)comm)->allocator, out, err);
}

static tsr_status poison(tsr_comm *comm, tsr_status mine, tsr_error *err)
{
    self *s = (self *)comm;
    const bool told = err && *err->message;
    if (s->failed.status == TSR_OK) {
        tsr_raise(&s->failed, mine, err ? err->byte_position : TSR_NO_POSITION, "rank 0: %s",
                  told ? err->message : tsr_status_name(mine));
    }
    if (err) *err = (tsr_error){0};
    return again(s, err);
}

static void close_self(tsr_comm *comm)
{
    const tsr_allocator *allocator = ((self *)comm)->allocator;
    tsr_free(allocator, comm, 1, sizeof(self));
}

tsr_status tsr_comm_self(const tsr_allocator *allocator, tsr_comm **out, tsr_error *err)
{
    self *s = tsr_alloc(allocator, 1, sizeof *s, err);
    if (!s) return TSR_E_NOMEM;
    *s = (self){.base = {.size = 1,
                         .all_gather = all_gather,
                         .broadcast = broadcast,
                         .exchange = exchange,
                         .largest = largest,
                         .split = split,
                         .poison = poison,
                         .close = close_self},
                .allocator = allocator};
    *out = &s->base;
    return TSR_OK;
}
