/* A communicator with a single rank: it receives what it sends. */
#include "tessera/comm.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/try.h"

typedef struct self {
    tsr_comm base;
    const tsr_allocator *allocator;
    tsr_error failed; /* the error that every further call returns */
} self;

static tsr_status again(const self *s, tsr_error *err)
{
    if (s->failed.status == TSR_OK) return TSR_OK;
    return tsr_raise(err, s->failed.status, s->failed.byte_position, "%s", s->failed.message);
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
