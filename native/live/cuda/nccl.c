/* NCCL with its C API. The library is opened with dlopen, not linked, so programs start without it. */
#include "live/cuda/backend.h"

#include <stdio.h>

#include "io/sys.h"
#include "live/cuda/nccl_api.h"

#include "tessera/sys/containers.h"

/* The functions of NCCL that are used. Their types come from its header. */
#define FUNCTIONS(X) \
    X(ncclGetVersion) \
    X(ncclGetUniqueId) \
    X(ncclCommInitRank) \
    X(ncclCommDestroy) \
    X(ncclCommAbort) \
    X(ncclGetErrorString) X(ncclGroupStart) X(ncclGroupEnd) X(ncclSend) X(ncclRecv) X(ncclBroadcast) X(ncclAllGather)

typedef struct library {
    void *handle;
#define MEMBER(name) __typeof__(&name) name;
    FUNCTIONS(MEMBER)
#undef MEMBER
} library;

struct nccl_ranks {
    library nccl;
    tsr_gpu *gpu;
    tsr_gpu_stream *stream;
    ncclComm_t comm;
    uint32_t rank, size;
    bool is_broken; /* it has failed, so other ranks may hang; it is then aborted rather than destroyed */
};

static tsr_status open_library(library *out, tsr_error *err)
{
    static const char *const names[] = {"libnccl.so.2", NULL};
#define CALL(name) {#name, &out->name},
    const tsr_library_call calls[] = {FUNCTIONS(CALL)};
#undef CALL
    return tsr_library_open(names, calls, sizeof calls / sizeof *calls, &out->handle, err);
}

uint32_t tsr_gpu_nccl_version(char *reason, size_t capacity)
{
    library nccl;
    tsr_error err = {0};
    int version = 0;
    const bool is_open = open_library(&nccl, &err) == TSR_OK;
    snprintf(reason, capacity, "%s", err.message);
    if (!is_open) return 0;
    if (nccl.ncclGetVersion(&version) != ncclSuccess) {
        version = 0;
        snprintf(reason, capacity, "libnccl.so.2 does not report its version");
    }
    dlclose(nccl.handle);
    return (uint32_t)version;
}

static tsr_status check(nccl_ranks *ranks, ncclResult_t code, const char *doing, tsr_error *err)
{
    if (code == ncclSuccess) return TSR_OK;
    ranks->is_broken = true;
    return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "nccl: rank %u: %s: %s", (unsigned)ranks->rank, doing,
                     ranks->nccl.ncclGetErrorString(code));
}

static tsr_status prepare(nccl_ranks *ranks, tsr_comm *below, ncclUniqueId *id, tsr_error *err)
{
    if (!tsr_cuda_is(ranks->gpu))
        return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "nccl: not available on a simulated device");
    TSR_TRY(open_library(&ranks->nccl, err));
    TSR_TRY(tsr_gpu_stream_new(ranks->gpu, &ranks->stream, err));
    return below->rank == 0 ? check(ranks, ranks->nccl.ncclGetUniqueId(id), "creating an id", err) : TSR_OK;
}

/* NCCL needs a device for each rank; ranks that share one can wait for each other for ever. */
static tsr_status check_devices(nccl_ranks *ranks, tsr_comm *below, tsr_error *err)
{
    const tsr_allocator *allocator = ranks->gpu->host->allocator;
    uint8_t mine[TSR_CUDA_UUID_BYTES] = {0}, *all = tsr_alloc(allocator, below->size, sizeof mine, err);
    size_t *sizes = tsr_alloc(allocator, below->size, sizeof *sizes, err);
    tsr_status status = all && sizes ? tsr_cuda_uuid(ranks->gpu, mine, err) : TSR_E_NOMEM;
    status = tsr_comm_agree(below, status, err);
    for (uint32_t r = 0; r < below->size && status == TSR_OK; r++) sizes[r] = sizeof mine;
    if (status == TSR_OK) status = below->all_gather(below, mine, sizes, all, err);
    for (uint32_t r = 0; r < below->size && status == TSR_OK; r++) {
        if (r != below->rank && memcmp(all + r * sizeof mine, mine, sizeof mine) == 0)
            status = tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION,
                               "nccl: ranks %u and %u use the same device; NCCL needs a device for each rank",
                               (unsigned)(r < below->rank ? r : below->rank), (unsigned)(r < below->rank ? below->rank : r));
    }
    tsr_free(allocator, all, below->size, sizeof mine);
    tsr_free(allocator, sizes, below->size, sizeof *sizes);
    return tsr_comm_agree(below, status, err);
}

tsr_status tsr_nccl_open(tsr_comm *below, tsr_gpu *gpu, nccl_ranks **out, tsr_error *err)
{
    const tsr_allocator *allocator = gpu->host->allocator;
    ncclUniqueId id;
    memset(&id, 0, sizeof id);
    *out = NULL;
    nccl_ranks *ranks = tsr_alloc(allocator, 1, sizeof *ranks, err);
    if (ranks) *ranks = (nccl_ranks){.gpu = gpu, .rank = below->rank, .size = below->size};
    tsr_status status = ranks ? prepare(ranks, below, &id, err) : TSR_E_NOMEM;
    status = tsr_comm_agree(below, status, err);
    if (status == TSR_OK) status = check_devices(ranks, below, err);
    if (status == TSR_OK) status = below->broadcast(below, &id, sizeof id, 0, err);
    if (status == TSR_OK) status = tsr_cuda_use(gpu, err);
    if (status == TSR_OK)
        status =
            check(ranks, ranks->nccl.ncclCommInitRank(&ranks->comm, (int)below->size, id, (int)below->rank), "joining", err);
    if (status == TSR_OK) *out = ranks;
    else tsr_nccl_close(ranks);
    return status;
}

void tsr_nccl_close(nccl_ranks *ranks)
{
    if (!ranks) return;
    if (ranks->comm && ranks->is_broken) ranks->nccl.ncclCommAbort(ranks->comm);
    else if (ranks->comm) ranks->nccl.ncclCommDestroy(ranks->comm);
    tsr_gpu_stream_free(ranks->stream);
    if (ranks->nccl.handle) dlclose(ranks->nccl.handle);
    tsr_free(ranks->gpu->host->allocator, ranks, 1, sizeof *ranks);
}

static tsr_status begin(nccl_ranks *ranks, tsr_error *err)
{
    TSR_TRY(tsr_cuda_use(ranks->gpu, err));
    return check(ranks, ranks->nccl.ncclGroupStart(), "starting a group", err);
}

/* Ends a group, even if a call in it has failed, and waits. */
static tsr_status end(nccl_ranks *ranks, tsr_status so_far, tsr_error *err)
{
    tsr_status ended = check(ranks, ranks->nccl.ncclGroupEnd(), "ending a group", err);
    if (so_far != TSR_OK) return so_far;
    return ended == TSR_OK ? tsr_gpu_stream_wait(ranks->stream, err) : ended;
}

tsr_status tsr_nccl_all_gather(nccl_ranks *ranks, const void *mine, const size_t *sizes, void *all, tsr_error *err)
{
    const library *nccl = &ranks->nccl;
    const cudaStream_t stream = tsr_cuda_stream(ranks->stream);
    bool equal = true;
    for (uint32_t r = 1; r < ranks->size; r++) equal = equal && sizes[r] == sizes[0];
    TSR_TRY(begin(ranks, err));
    tsr_status status = TSR_OK;
    if (equal && sizes[0])
        status = check(ranks, nccl->ncclAllGather(mine, all, sizes[0], ncclUint8, ranks->comm, stream), "gathering", err);
    uint8_t *at = all;
    for (uint32_t r = 0; r < ranks->size && !equal && status == TSR_OK; at += sizes[r++]) {
        if (sizes[r] == 0) continue;
        const void *from = r == ranks->rank ? mine : at;
        status =
            check(ranks, nccl->ncclBroadcast(from, at, sizes[r], ncclUint8, (int)r, ranks->comm, stream), "gathering", err);
    }
    return end(ranks, status, err);
}

tsr_status tsr_nccl_broadcast(nccl_ranks *ranks, void *data, size_t size, uint32_t root, tsr_error *err)
{
    const cudaStream_t stream = tsr_cuda_stream(ranks->stream);
    if (size == 0) return TSR_OK;
    TSR_TRY(begin(ranks, err));
    return end(ranks,
               check(ranks, ranks->nccl.ncclBroadcast(data, data, size, ncclUint8, (int)root, ranks->comm, stream),
                     "broadcasting", err),
               err);
}

tsr_status tsr_nccl_exchange(nccl_ranks *ranks, const tsr_message *sends, size_t send_count, const tsr_message *receives,
                             size_t receive_count, tsr_error *err)
{
    const library *nccl = &ranks->nccl;
    const cudaStream_t stream = tsr_cuda_stream(ranks->stream);
    tsr_status status = TSR_OK;
    TSR_TRY(begin(ranks, err));
    for (size_t i = 0; i < send_count && status == TSR_OK; i++) {
        const tsr_message *m = &sends[i];
        if (m->size)
            status =
                check(ranks, nccl->ncclSend(m->data, m->size, ncclUint8, (int)m->peer, ranks->comm, stream), "sending", err);
    }
    for (size_t i = 0; i < receive_count && status == TSR_OK; i++) {
        const tsr_message *m = &receives[i];
        if (m->size)
            status = check(ranks, nccl->ncclRecv(m->data, m->size, ncclUint8, (int)m->peer, ranks->comm, stream),
                           "receiving", err);
    }
    return end(ranks, status, err);
}
