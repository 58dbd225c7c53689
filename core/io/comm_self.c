/* A communicator of one rank: what it sends is what it receives. */
#include "base/try.h"
#include "tessera/comm.h"

typedef struct self {
    tsr_comm base;
    const tsr_allocator *allocator;
} self;

static tsr_status all_gather(tsr_comm *comm, const void *mine, const size_t *sizes, void *all, tsr_error *err)
{
    (void)comm;
    (void)err;
    if (sizes[0]) memcpy(all, mine, sizes[0]);
    return TSR_OK;
}

static tsr_status broadcast(tsr_comm *comm, void *data, size_t size, uint32_t root, tsr_error *err)
{
    (void)comm;
    (void)data;
    (void)size;
    TSR_FAIL_IF(root != 0, err, TSR_E_USAGE, TSR_NO_POSITION, "comm: rank %u is to broadcast, but there is one rank",
                (unsigned)root);
    return TSR_OK;
}

static tsr_status exchange(tsr_comm *comm, const tsr_message *sends, size_t send_count, const tsr_message *receives,
                           size_t receive_count, tsr_error *err)
{
    (void)comm;
    TSR_FAIL_IF(send_count != receive_count, err, TSR_E_USAGE, TSR_NO_POSITION, "comm: %zu messages sent, %zu received",
                send_count, receive_count);
    for (size_t i = 0; i < send_count; i++) {
        TSR_FAIL_IF(sends[i].peer || receives[i].peer || sends[i].size != receives[i].size, err, TSR_E_USAGE,
                    TSR_NO_POSITION, "comm: message %zu of %zu bytes is received as %zu bytes", i, sends[i].size,
                    receives[i].size);
        if (sends[i].size) memcpy(receives[i].data, sends[i].data, sends[i].size);
    }
    return TSR_OK;
}

static tsr_status largest(tsr_comm *comm, uint64_t *value, tsr_error *err)
{
    (void)comm;
    (void)value;
    (void)err;
    return TSR_OK;
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
    *s = (self){{0, 1, all_gather, broadcast, exchange, largest, close_self}, allocator};
    *out = &s->base;
    return TSR_OK;
}
