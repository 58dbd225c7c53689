/* CUDA devices, with the C API of the runtime. The runtime is linked. It looks for the driver when it is first called, so
 * programs also start without a driver. The error of a failed call names the call, the device and CUDA's error. */
#include <cuda_runtime_api.h>
#include <stdio.h>

#include "io/sys.h"
#include "live/cuda/backend.h"
#include "live/cuda/kernels.h"
#include "live/cuda/nccl_api.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/gpu.h"
#include "tessera/sys/try.h"

#define MOST_PITCH ((size_t)0x7fffffff) /* limit of CUDA's 2-D copies, on all devices so far */

typedef struct cuda_device {
    tsr_gpu base;
    int ordinal;
} cuda_device;

typedef struct cuda_stream {
    tsr_gpu_stream base;
    cudaStream_t handle;
    /* Device memory for tables and results of this stream's kernels; because operations in a stream are ordered, one is
     * enough. */
    uint8_t *scratch;
    size_t scratch_size;
    uint8_t *table; /* pinned memory for tables that are being copied to `scratch` */
    size_t table_size;
    cudaEvent_t uploaded; /* recorded when the table may be overwritten */
} cuda_stream;

typedef struct cuda_event {
    tsr_gpu_event base;
    cudaEvent_t handle;
} cuda_event;

enum { UUID_BYTES = 16 };

/* Raises the error that CUDA reported, and clears it, so that later calls do not report it again. */
static tsr_status check(const tsr_gpu *device, cudaError_t code, const char *doing, tsr_error *err)
{
    if (code == cudaSuccess) return TSR_OK;
    cudaGetLastError();
    const tsr_status status = code == cudaErrorMemoryAllocation ? TSR_E_NOMEM
                              : code == cudaErrorInvalidValue   ? TSR_E_USAGE
                                                                : TSR_E_IO;
    return tsr_fail(err, status, "cuda: device %d: %s: %s (%s)", ((const cuda_device *)device)->ordinal, doing,
                    cudaGetErrorString(code), cudaGetErrorName(code));
}

/* Makes the device current. Each thread has its own current device, so every call must do this. */
static tsr_status use(const tsr_gpu *device, tsr_error *err)
{
    return check(device, cudaSetDevice(((const cuda_device *)device)->ordinal), "choosing it", err);
}

/* ---- devices ---- */

void tsr_gpu_runtime_describe(tsr_gpu_runtime *out)
{
    int runtime = 0, driver = 0, devices = 0;
    cudaRuntimeGetVersion(&runtime);
    if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
    const cudaError_t code = cudaGetDeviceCount(&devices);
    cudaGetLastError();
    *out = (tsr_gpu_runtime){.is_built = true, .runtime_version = (uint32_t)runtime, .driver_version = (uint32_t)driver};
    if (code == cudaSuccess) out->devices = (uint32_t)devices;
    if (driver == 0) snprintf(out->reason, sizeof out->reason, "no CUDA driver (libcuda.so.1)");
    else if (code != cudaSuccess)
        snprintf(out->reason, sizeof out->reason, "%s (%s)", cudaGetErrorString(code), cudaGetErrorName(code));
    else if (devices == 0) snprintf(out->reason, sizeof out->reason, "the driver sees no device");
}

static tsr_status check_ordinal(uint32_t ordinal, tsr_error *err)
{
    tsr_gpu_runtime runtime;
    tsr_gpu_runtime_describe(&runtime);
    if (ordinal < runtime.devices) return TSR_OK;
    if (*runtime.reason)
        return tsr_fail(err, TSR_E_NOT_FOUND, "cuda: there is no device %u: %s", (unsigned)ordinal, runtime.reason);
    return tsr_fail(err, TSR_E_NOT_FOUND, "cuda: there is no device %u; the machine has %u", (unsigned)ordinal,
                    (unsigned)runtime.devices);
}

static tsr_status about(tsr_gpu *device, tsr_gpu_info *out, tsr_error *err)
{
    struct cudaDeviceProp properties;
    size_t free_bytes, bytes;
    const int ordinal = ((const cuda_device *)device)->ordinal;
    TSR_TRY(use(device, err));
    TSR_TRY(check(device, cudaGetDeviceProperties(&properties, ordinal), "getting its properties", err));
    TSR_TRY(check(device, cudaMemGetInfo(&free_bytes, &bytes), "getting its free memory", err));
    *out = (tsr_gpu_info){.ordinal = (uint32_t)ordinal,
                          .major = (uint32_t)properties.major,
                          .minor = (uint32_t)properties.minor,
                          .memory_bytes = bytes,
                          .free_bytes = free_bytes};
    snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof out->name - 1, properties.name);
    return TSR_OK;
}

tsr_status tsr_gpu_describe(uint32_t ordinal, tsr_gpu_info *out, tsr_error *err)
{
    TSR_TRY(check_ordinal(ordinal, err));
    cuda_device device = {.ordinal = (int)ordinal};
    return about(&device.base, out, err);
}

/* ---- memory ---- */

static tsr_status alloc(tsr_gpu *device, size_t size, void **out, tsr_error *err)
{
    char doing[64];
    snprintf(doing, sizeof doing, "allocating %zu bytes", size);
    TSR_TRY(use(device, err));
    return check(device, cudaMalloc(out, size), doing, err);
}

/* Frees memory even if the device cannot be made current, because nobody tries again. */
static void release(tsr_gpu *device, void *memory)
{
    use(device, NULL);
    cudaFree(memory);
    cudaGetLastError();
}

static tsr_status pin(tsr_gpu *device, void *memory, size_t size, tsr_error *err)
{
    char doing[64];
    snprintf(doing, sizeof doing, "pinning %zu bytes of host memory", size);
    TSR_TRY(use(device, err));
    return check(device, cudaHostRegister(memory, size, cudaHostRegisterPortable), doing, err);
}

static void unpin(tsr_gpu *device, void *memory)
{
    use(device, NULL);
    cudaDeviceSynchronize();
    cudaHostUnregister(memory);
    cudaGetLastError();
}

static tsr_status host_alloc(tsr_gpu *device, size_t size, void **out, tsr_error *err)
{
    char doing[64];
    snprintf(doing, sizeof doing, "pinning %zu bytes of host memory", size);
    TSR_TRY(use(device, err));
    TSR_TRY(check(device, cudaHostAlloc(out, size, cudaHostAllocPortable), doing, err));
    memset(*out, 0, size);
    return TSR_OK;
}

static void host_free(tsr_gpu *device, void *memory)
{
    use(device, NULL);
    cudaFreeHost(memory);
    cudaGetLastError();
}

static tsr_gpu_place place_of(tsr_gpu *device, const void *memory)
{
    struct cudaPointerAttributes attributes = {0};
    const cudaError_t code = use(device, NULL) == TSR_OK ? cudaPointerGetAttributes(&attributes, memory) : cudaErrorUnknown;
    cudaGetLastError();
    if (code != cudaSuccess) return TSR_PLACE_PAGEABLE;
    if (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged) return TSR_PLACE_DEVICE;
    return attributes.type == cudaMemoryTypeHost ? TSR_PLACE_PINNED : TSR_PLACE_PAGEABLE;
}

/* The end of an allocation is known only to the driver, not to the runtime. */
static size_t reach(tsr_gpu *device, const void *memory)
{
    typedef int address_range(unsigned long long *base, size_t *size, unsigned long long pointer);
    union {
        void *found;
        address_range *call;
    } range = {NULL};
    enum cudaDriverEntryPointQueryResult result;
    unsigned long long base = 0;
    size_t size = 0;
    if (place_of(device, memory) == TSR_PLACE_PAGEABLE) return SIZE_MAX;
    if (cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &range.found, 13000, cudaEnableDefault, &result) !=
            cudaSuccess ||
        result != cudaDriverEntryPointSuccess || range.call(&base, &size, (unsigned long long)(uintptr_t)memory) != 0) {
        cudaGetLastError();
        return 0;
    }
    return (size_t)(base + size - (unsigned long long)(uintptr_t)memory);
}

/* ---- streams and events ---- */

static tsr_status stream_new(tsr_gpu *device, tsr_gpu_stream **out, tsr_error *err)
{
    cuda_stream *stream = tsr_alloc(device->host->allocator, 1, sizeof *stream, err);
    if (!stream) return TSR_E_NOMEM;
    *stream = (cuda_stream){.base = {device}};
    tsr_status status = use(device, err);
    if (status == TSR_OK)
        status = check(device, cudaStreamCreateWithFlags(&stream->handle, cudaStreamNonBlocking), "creating a stream", err);
    if (status == TSR_OK)
        status =
            check(device, cudaEventCreateWithFlags(&stream->uploaded, cudaEventDisableTiming), "creating an event", err);
    if (status == TSR_OK) {
        *out = &stream->base;
        return TSR_OK;
    }
    if (stream->handle) cudaStreamDestroy(stream->handle);
    tsr_free(device->host->allocator, stream, 1, sizeof *stream);
    return status;
}

static tsr_status stream_wait(tsr_gpu_stream *base, tsr_error *err)
{
    TSR_TRY(use(base->device, err));
    return check(base->device, cudaStreamSynchronize(((cuda_stream *)base)->handle), "waiting for a stream", err);
}

static void stream_free(tsr_gpu_stream *base)
{
    cuda_stream *stream = (cuda_stream *)base;
    stream_wait(base, NULL);
    cudaEventDestroy(stream->uploaded);
    cudaStreamDestroy(stream->handle);
    if (stream->scratch) cudaFree(stream->scratch);
    if (stream->table) cudaFreeHost(stream->table);
    cudaGetLastError();
    tsr_free(base->device->host->allocator, stream, 1, sizeof *stream);
}

static tsr_status event_new(tsr_gpu *device, tsr_gpu_event **out, tsr_error *err)
{
    cuda_event *event = tsr_alloc(device->host->allocator, 1, sizeof *event, err);
    if (!event) return TSR_E_NOMEM;
    *event = (cuda_event){.base = {device}};
    tsr_status status = use(device, err);
    if (status == TSR_OK)
        status = check(device, cudaEventCreateWithFlags(&event->handle, cudaEventDisableTiming), "creating an event", err);
    if (status == TSR_OK) *out = &event->base;
    else tsr_free(device->host->allocator, event, 1, sizeof *event);
    return status;
}

static void event_free(tsr_gpu_event *base)
{
    use(base->device, NULL);
    cudaEventDestroy(((cuda_event *)base)->handle);
    cudaGetLastError();
    tsr_free(base->device->host->allocator, base, 1, sizeof(cuda_event));
}

static tsr_status event_record(tsr_gpu_event *base, tsr_gpu_stream *stream, tsr_error *err)
{
    TSR_TRY(use(base->device, err));
    return check(base->device, cudaEventRecord(((cuda_event *)base)->handle, ((cuda_stream *)stream)->handle),
                 "recording an event", err);
}

static tsr_status event_wait(tsr_gpu_event *base, tsr_error *err)
{
    TSR_TRY(use(base->device, err));
    return check(base->device, cudaEventSynchronize(((cuda_event *)base)->handle), "waiting for an event", err);
}

/* ---- copies and kernels ---- */

static tsr_status copy_2d(tsr_gpu_stream *base, const tsr_gpu_rows *what, tsr_error *err)
{
    const cudaStream_t handle = ((cuda_stream *)base)->handle;
    char doing[64];
    snprintf(doing, sizeof doing, "copying %zu × %zu bytes", what->rows, what->row_bytes);
    TSR_TRY(use(base->device, err));
    if (what->rows == 1 || (what->to_pitch == what->row_bytes && what->from_pitch == what->row_bytes))
        return check(base->device,
                     cudaMemcpyAsync(what->to, what->from, what->rows * what->row_bytes, cudaMemcpyDefault, handle), doing,
                     err);
    if (what->to_pitch > MOST_PITCH || what->from_pitch > MOST_PITCH) {
        for (size_t i = 0; i < what->rows; i++)
            TSR_TRY(check(base->device,
                          cudaMemcpyAsync((uint8_t *)what->to + i * what->to_pitch,
                                          (const uint8_t *)what->from + i * what->from_pitch, what->row_bytes,
                                          cudaMemcpyDefault, handle),
                          doing, err));
        return TSR_OK;
    }
    return check(base->device,
                 cudaMemcpy2DAsync(what->to, what->to_pitch, what->from, what->from_pitch, what->row_bytes, what->rows,
                                   cudaMemcpyDefault, handle),
                 doing, err);
}

/* Provides device memory for a kernel's table or results. The old memory may still be in use, so enlarging it waits. */
static tsr_status need_scratch(cuda_stream *stream, size_t size, tsr_error *err)
{
    tsr_gpu *device = stream->base.device;
    TSR_TRY(use(device, err));
    if (size <= stream->scratch_size) return TSR_OK;
    if (stream->scratch) {
        TSR_TRY(stream_wait(&stream->base, err));
        cudaFree(stream->scratch);
    }
    stream->scratch = NULL;
    stream->scratch_size = 0;
    size = size < 65536 ? 65536 : size;
    TSR_TRY(alloc(device, size, (void **)&stream->scratch, err));
    stream->scratch_size = size;
    return TSR_OK;
}

static tsr_status need_table(cuda_stream *stream, size_t size, tsr_error *err)
{
    const tsr_gpu *device = stream->base.device;
    TSR_TRY(check(device, cudaEventSynchronize(stream->uploaded), "waiting for a kernel's table", err));
    if (size <= stream->table_size) return TSR_OK;
    if (stream->table) cudaFreeHost(stream->table);
    stream->table = NULL;
    stream->table_size = 0;
    size = size < 65536 ? 65536 : size;
    TSR_TRY(check(device, cudaHostAlloc((void **)&stream->table, size, cudaHostAllocPortable), "pinning memory for tables",
                  err));
    stream->table_size = size;
    return TSR_OK;
}

/* Copies a table to memory where kernels can read it. */
static tsr_status upload(cuda_stream *stream, const void *table, size_t size, tsr_error *err)
{
    const tsr_gpu *device = stream->base.device;
    TSR_TRY(need_scratch(stream, size, err));
    TSR_TRY(need_table(stream, size, err));
    memcpy(stream->table, table, size);
    TSR_TRY(check(device, cudaMemcpyAsync(stream->scratch, stream->table, size, cudaMemcpyDefault, stream->handle),
                  "copying a kernel's table", err));
    return check(device, cudaEventRecord(stream->uploaded, stream->handle), "recording an event", err);
}

static tsr_status runs(tsr_gpu_stream *base, const tsr_kernel_run *table, uint32_t count, uint32_t units, tsr_error *err)
{
    cuda_stream *stream = (cuda_stream *)base;
    TSR_TRY(upload(stream, table, count * sizeof *table, err));
    return check(base->device, (cudaError_t)tsr_kernel_launch_runs((void *)stream->scratch, count, units, stream->handle),
                 "starting the kernel of runs", err);
}

static tsr_status boxes(tsr_gpu_stream *base, const tsr_kernel_box *table, uint32_t count, uint32_t units, tsr_error *err)
{
    cuda_stream *stream = (cuda_stream *)base;
    TSR_TRY(upload(stream, table, count * sizeof *table, err));
    return check(base->device, (cudaError_t)tsr_kernel_launch_boxes((void *)stream->scratch, count, units, stream->handle),
                 "starting the kernel of boxes", err);
}

/* ---- the device ---- */

static void close_device(tsr_gpu *base)
{
    cuda_device *device = (cuda_device *)base;
    tsr_free(base->host->allocator, device, 1, sizeof *device);
}

static const tsr_backend backend = {
    .close = close_device,
    .about = about,
    .alloc = alloc,
    .free = release,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .pin = pin,
    .unpin = unpin,
    .place_of = place_of,
    .reach = reach,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .stream_wait = stream_wait,
    .event_new = event_new,
    .event_free = event_free,
    .event_record = event_record,
    .event_wait = event_wait,
    .copy_2d = copy_2d,
    .runs = runs,
    .boxes = boxes,
};

tsr_status tsr_gpu_open(const tsr_host *host, uint32_t ordinal, tsr_gpu **out, tsr_error *err)
{
    *out = NULL;
    TSR_TRY(check_ordinal(ordinal, err));
    cuda_device *device = tsr_alloc(host->allocator, 1, sizeof *device, err);
    if (!device) return TSR_E_NOMEM;
    *device = (cuda_device){.base = {&backend, host}, .ordinal = (int)ordinal};
    *out = &device->base;
    return TSR_OK;
}

/* UUID_BYTES bytes, which differ between all devices of all machines. */
static tsr_status read_uuid(tsr_gpu *device, uint8_t *uuid, tsr_error *err)
{
    struct cudaDeviceProp properties;
    TSR_TRY(use(device, err));
    TSR_TRY(check(device, cudaGetDeviceProperties(&properties, ((const cuda_device *)device)->ordinal),
                  "getting its properties", err));
    memcpy(uuid, &properties.uuid, UUID_BYTES);
    return TSR_OK;
}

static cudaStream_t stream_of(tsr_gpu_stream *stream)
{
    return ((cuda_stream *)stream)->handle;
}

/* ---- NCCL, whose library is opened when it is used, so that programs start without it ---- */

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

static tsr_status check_nccl(nccl_ranks *ranks, ncclResult_t code, const char *doing, tsr_error *err)
{
    if (code == ncclSuccess) return TSR_OK;
    ranks->is_broken = true;
    return tsr_fail(err, TSR_E_IO, "nccl: rank %u: %s: %s", (unsigned)ranks->rank, doing,
                    ranks->nccl.ncclGetErrorString(code));
}

static tsr_status prepare(nccl_ranks *ranks, tsr_comm *below, ncclUniqueId *id, tsr_error *err)
{
    if (ranks->gpu->ops != &backend) return tsr_fail(err, TSR_E_UNSUPPORTED, "nccl: not available on a simulated device");
    TSR_TRY(open_library(&ranks->nccl, err));
    TSR_TRY(tsr_gpu_stream_new(ranks->gpu, &ranks->stream, err));
    return below->rank == 0 ? check_nccl(ranks, ranks->nccl.ncclGetUniqueId(id), "creating an id", err) : TSR_OK;
}

/* NCCL needs a device for each rank; ranks that share one can wait for each other for ever. */
static tsr_status check_devices(nccl_ranks *ranks, tsr_comm *below, tsr_error *err)
{
    const tsr_allocator *allocator = ranks->gpu->host->allocator;
    uint8_t mine[UUID_BYTES] = {0}, *all = tsr_alloc(allocator, below->size, sizeof mine, err);
    size_t *sizes = tsr_alloc(allocator, below->size, sizeof *sizes, err);
    tsr_status status = all && sizes ? read_uuid(ranks->gpu, mine, err) : TSR_E_NOMEM;
    status = tsr_comm_agree(below, status, err);
    for (uint32_t r = 0; r < below->size && status == TSR_OK; r++) sizes[r] = sizeof mine;
    if (status == TSR_OK) status = below->all_gather(below, mine, sizes, all, err);
    for (uint32_t r = 0; r < below->size && status == TSR_OK; r++) {
        if (r != below->rank && memcmp(all + r * sizeof mine, mine, sizeof mine) == 0)
            status =
                tsr_fail(err, TSR_E_USAGE, "nccl: ranks %u and %u use the same device; NCCL needs a device for each rank",
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
    if (status == TSR_OK) status = use(gpu, err);
    if (status == TSR_OK)
        status = check_nccl(ranks, ranks->nccl.ncclCommInitRank(&ranks->comm, (int)below->size, id, (int)below->rank),
                            "joining", err);
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
    TSR_TRY(use(ranks->gpu, err));
    return check_nccl(ranks, ranks->nccl.ncclGroupStart(), "starting a group", err);
}

/* Ends a group, even if a call in it has failed, and waits. */
static tsr_status end(nccl_ranks *ranks, tsr_status so_far, tsr_error *err)
{
    tsr_status ended = check_nccl(ranks, ranks->nccl.ncclGroupEnd(), "ending a group", err);
    if (so_far != TSR_OK) return so_far;
    return ended == TSR_OK ? tsr_gpu_stream_wait(ranks->stream, err) : ended;
}

tsr_status tsr_nccl_all_gather(nccl_ranks *ranks, const void *mine, const size_t *sizes, void *all, tsr_error *err)
{
    const library *nccl = &ranks->nccl;
    const cudaStream_t stream = stream_of(ranks->stream);
    bool equal = true;
    for (uint32_t r = 1; r < ranks->size; r++) equal = equal && sizes[r] == sizes[0];
    TSR_TRY(begin(ranks, err));
    tsr_status status = TSR_OK;
    if (equal && sizes[0])
        status =
            check_nccl(ranks, nccl->ncclAllGather(mine, all, sizes[0], ncclUint8, ranks->comm, stream), "gathering", err);
    uint8_t *at = all;
    for (uint32_t r = 0; r < ranks->size && !equal && status == TSR_OK; at += sizes[r++]) {
        if (sizes[r] == 0) continue;
        const void *from = r == ranks->rank ? mine : at;
        status = check_nccl(ranks, nccl->ncclBroadcast(from, at, sizes[r], ncclUint8, (int)r, ranks->comm, stream),
                            "gathering", err);
    }
    return end(ranks, status, err);
}

tsr_status tsr_nccl_broadcast(nccl_ranks *ranks, void *data, size_t size, uint32_t root, tsr_error *err)
{
    const cudaStream_t stream = stream_of(ranks->stream);
    if (size == 0) return TSR_OK;
    TSR_TRY(begin(ranks, err));
    return end(ranks,
               check_nccl(ranks, ranks->nccl.ncclBroadcast(data, data, size, ncclUint8, (int)root, ranks->comm, stream),
                          "broadcasting", err),
               err);
}

tsr_status tsr_nccl_exchange(nccl_ranks *ranks, const tsr_message *sends, size_t send_count, const tsr_message *receives,
                             size_t receive_count, tsr_error *err)
{
    const library *nccl = &ranks->nccl;
    const cudaStream_t stream = stream_of(ranks->stream);
    tsr_status status = TSR_OK;
    TSR_TRY(begin(ranks, err));
    for (size_t i = 0; i < send_count && status == TSR_OK; i++) {
        const tsr_message *m = &sends[i];
        if (m->size)
            status = check_nccl(ranks, nccl->ncclSend(m->data, m->size, ncclUint8, (int)m->peer, ranks->comm, stream),
                                "sending", err);
    }
    for (size_t i = 0; i < receive_count && status == TSR_OK; i++) {
        const tsr_message *m = &receives[i];
        if (m->size)
            status = check_nccl(ranks, nccl->ncclRecv(m->data, m->size, ncclUint8, (int)m->peer, ranks->comm, stream),
                                "receiving", err);
    }
    return end(ranks, status, err);
}
