/* CUDA's runtime on the host's threads, stricter than a GPU's: no GPU is used, and none is claimed. One device, whose memory
 * traps where it is touched outside of copies and kernels. Streams do nothing before somebody waits for them. Wrong calls
 * that CUDA would pass over, and whatever is not given back, fail the program at its end. */
#include <cuda_runtime_api.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "hosted/hosted.h"
#include "hosted/hosted_grid.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, size)   ((void)(at), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#endif

#define MEMORY_BYTES ((size_t)256 << 20)
#define ALIGNMENT    ((size_t)256)
#define FRESH        0xdb

struct CUstream_st {
    std::deque<std::function<void()>> work;
    uint64_t given, done;
};

struct CUevent_st {
    CUstream_st *stream;
    uint64_t position;
};

namespace
{
struct host_block {
    size_t size;
    bool is_registered; /* the program's own memory, else ours */
};

/* References, so that they outlive every destructor. */
std::recursive_mutex mutex; /* of all that follows */
uint8_t *memory;
size_t used;
auto &blocks = *new std::map<uintptr_t, size_t>;
auto &pinned = *new std::map<uintptr_t, host_block>;
size_t pinned_bytes, most_pinned_bytes;
auto &streams = *new std::set<CUstream_st *>;
auto &destroyed = *new std::vector<CUstream_st *>; /* kept, since events may name them */
uint64_t live_events, waits, wrongs;
uint64_t calls, failing_call = UINT64_MAX;
int failing_error;
bool has_failed;
pid_t owner;

thread_local int current_device = -1; /* a thread begins with device 0 in CUDA; here it must choose */
thread_local cudaError_t last_error = cudaSuccess;

typedef std::lock_guard<std::recursive_mutex> lock;

cudaError_t end(cudaError_t error)
{
    if (error != cudaSuccess) last_error = error;
    return error;
}

__attribute__((format(printf, 1, 2))) cudaError_t wrong(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("hosted: ", stderr);
    vfprintf(stderr, format, arguments);
    fputs("\n", stderr);
    va_end(arguments);
    wrongs++;
    return end(cudaErrorInvalidValue);
}

void report()
{
    if (owner != getpid()) return; /* a child that a test made */
    const hosted_live live = hosted_what_lives();
    if (live.blocks || live.pinned || live.streams || live.events)
        wrong("not given back: %llu blocks of device memory, %llu of pinned memory, %llu streams, %llu events",
              (unsigned long long)live.blocks, (unsigned long long)live.pinned, (unsigned long long)live.streams,
              (unsigned long long)live.events);
    if (wrongs == 0) return;
    fflush(nullptr);
    _exit(1);
}

/* Whether this call is the one that must fail; most functions begin so. */
bool fails(cudaError_t *error)
{
    if (!owner) {
        owner = getpid();
        memory = (uint8_t *)mmap(nullptr, MEMORY_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) abort();
        ASAN_POISON_MEMORY_REGION(memory, MEMORY_BYTES);
        atexit(report);
    }
    if (calls++ != failing_call) return false;
    has_failed = true;
    *error = end((cudaError_t)failing_error);
    return true;
}

#define BEGIN \
    lock held(mutex); \
    cudaError_t injected; \
    if (fails(&injected)) return injected

#define BEGIN_ON_DEVICE \
    BEGIN; \
    if (current_device != 0) return wrong("%s before cudaSetDevice on this thread", __func__)

size_t top; /* no block ended beyond it, in whole pages */

/* Closing costs as much as a copy: it is done each eighth time. */
void open_memory(bool opened)
{
    static bool is_open;
    static unsigned times;
    if (!top || (opened && is_open) || (!opened && ++times % 8)) return;
    if (mprotect(memory, top, opened ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) abort();
    is_open = opened;
}

/* ---- streams ---- */

unsigned depth; /* of work that makes other work happen first */

void happen_until(CUstream_st *stream, uint64_t position)
{
    if (stream->done >= position) return;
    if (depth++ == 0) open_memory(true);
    while (stream->done < position) {
        std::function<void()> next = std::move(stream->work.front());
        stream->work.pop_front();
        stream->done++;
        next();
    }
    if (--depth == 0) open_memory(false);
}

void happen_all()
{
    for (CUstream_st *each : streams) happen_until(each, each->given);
}

bool is_stream(cudaStream_t stream)
{
    return streams.count(stream) != 0;
}

void give(cudaStream_t stream, std::function<void()> work)
{
    stream->work.push_back(std::move(work));
    stream->given++;
}

/* ---- addresses ---- */

bool is_device(const void *at)
{
    return memory && (uintptr_t)at - (uintptr_t)memory < MEMORY_BYTES;
}

/* Bytes from `at` to the end of the block that it lies in; 0: in none. */
size_t reach_of(const void *at)
{
    auto next = blocks.upper_bound((uintptr_t)at);
    if (next == blocks.begin()) return 0;
    --next;
    const size_t inside = (uintptr_t)at - next->first;
    return inside < next->second ? next->second - inside : 0;
}

const host_block *pinned_of(const void *at, uintptr_t *begin)
{
    auto next = pinned.upper_bound((uintptr_t)at);
    if (next == pinned.begin()) return nullptr;
    --next;
    *begin = next->first;
    return (uintptr_t)at - next->first < next->second.size ? &next->second : nullptr;
}

bool may_touch(const void *at, size_t size)
{
    return !is_device(at) || size <= reach_of(at);
}

int address_range(unsigned long long *base, size_t *size, unsigned long long pointer)
{
    lock held(mutex);
    const void *at = (const void *)(uintptr_t)pointer;
    if (is_device(at)) {
        auto next = blocks.upper_bound((uintptr_t)pointer);
        if (reach_of(at) == 0) return 1;
        --next;
        *base = next->first;
        *size = next->second;
        return 0;
    }
    uintptr_t begin;
    const host_block *found = pinned_of(at, &begin);
    if (!found || found->is_registered) return 1;
    *base = begin;
    *size = found->size;
    return 0;
}
} // namespace

void hosted_enqueue(cudaStream_t stream, unsigned blocks_wanted, unsigned threads, std::function<void()> thread)
{
    lock held(mutex);
    cudaError_t injected;
    if (fails(&injected)) return;
    if (blocks_wanted == 0 || blocks_wanted > 0x7fffffffu || threads == 0 || threads > 1024 || !is_stream(stream)) {
        end(cudaErrorInvalidConfiguration);
        return;
    }
    give(stream, [=] { hosted_run_grid(blocks_wanted, threads, thread); });
}

extern "C" {

void hosted_fail_call(uint64_t n, int error)
{
    lock held(mutex);
    calls = 0;
    failing_call = n;
    failing_error = error;
    has_failed = false;
}

uint64_t hosted_calls(void)
{
    lock held(mutex);
    return calls;
}

int hosted_has_failed(void)
{
    lock held(mutex);
    return has_failed;
}

hosted_live hosted_what_lives(void)
{
    lock held(mutex);
    return {blocks.size(), pinned.size(), streams.size(), live_events, most_pinned_bytes};
}

void hosted_forget_most(void)
{
    lock held(mutex);
    most_pinned_bytes = pinned_bytes;
}

uint64_t hosted_waits(void)
{
    lock held(mutex);
    return waits;
}

/* ---- the device ---- */

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    BEGIN;
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    BEGIN;
    if (device != 0) return end(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    BEGIN;
    if (device != 0) return end(cudaErrorInvalidDevice);
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "hosted (no GPU)");
    /* Ranks that are threads share the device, but each of them is told another one, as where NCCL works. */
    static std::atomic<unsigned> told{0};
    snprintf(properties->uuid.bytes, sizeof properties->uuid.bytes, "%u", getenv("TSR_HOSTED_ONE_DEVICE") ? 0 : ++told);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    BEGIN_ON_DEVICE;
    waits++;
    happen_all();
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    default: return "cudaErrorUnknown";
    }
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    default: return "unknown error";
    }
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned int, unsigned long long,
                                             enum cudaDriverEntryPointQueryResult *result)
{
    BEGIN;
    const bool is_there = strcmp(symbol, "cuMemGetAddressRange") == 0;
    *function = is_there ? (void *)address_range : nullptr;
    *result = is_there ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

/* ---- memory ---- */

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *bytes)
{
    BEGIN_ON_DEVICE;
    *bytes = MEMORY_BYTES;
    *free_bytes = MEMORY_BYTES - used;
    return cudaSuccess;
}

/* First fit, at least a byte apart, so that reading on from one block into the next is seen. */
cudaError_t cudaMalloc(void **out, size_t size)
{
    BEGIN_ON_DEVICE;
    uintptr_t at = (uintptr_t)memory;
    for (const auto &each : blocks) {
        if (each.first - at >= size + 1 && each.first > at) break;
        at = (each.first + each.second + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    }
    if (size > MEMORY_BYTES || at - (uintptr_t)memory > MEMORY_BYTES - size) return end(cudaErrorMemoryAllocation);
    blocks[at] = size;
    used += size;
    const size_t pages = (at - (uintptr_t)memory + size + 4095) / 4096 * 4096;
    if (pages > top) {
        if (mprotect(memory + top, pages - top, PROT_READ | PROT_WRITE) != 0) abort();
        top = pages;
    }
    ASAN_UNPOISON_MEMORY_REGION((void *)at, size);
    open_memory(true);
    memset((void *)at, FRESH, size);
    if (depth == 0) open_memory(false);
    *out = (void *)at;
    return cudaSuccess;
}

cudaError_t cudaFree(void *at)
{
    lock held(mutex);
    if (!at) return cudaSuccess;
    if (current_device != 0) return wrong("cudaFree before cudaSetDevice on this thread");
    happen_all();
    const auto found = blocks.find((uintptr_t)at);
    if (found == blocks.end()) return wrong("cudaFree of what is no block");
    ASAN_POISON_MEMORY_REGION(at, found->second);
    used -= found->second;
    blocks.erase(found);
    return cudaSuccess;
}

static void pinned_grow(size_t size)
{
    pinned_bytes += size;
    if (pinned_bytes > most_pinned_bytes) most_pinned_bytes = pinned_bytes;
}

cudaError_t cudaHostAlloc(void **out, size_t size, unsigned int)
{
    BEGIN_ON_DEVICE;
    void *at;
    if (posix_memalign(&at, 4096, size) != 0) return end(cudaErrorMemoryAllocation);
    pinned[(uintptr_t)at] = {size, false};
    pinned_grow(size);
    *out = at;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *at)
{
    lock held(mutex);
    if (!at) return cudaSuccess;
    happen_all();
    const auto found = pinned.find((uintptr_t)at);
    if (found == pinned.end() || found->second.is_registered)
        return wrong("cudaFreeHost of what cudaHostAlloc did not give");
    pinned_bytes -= found->second.size;
    pinned.erase(found);
    free(at);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *at, size_t size, unsigned int)
{
    BEGIN_ON_DEVICE;
    uintptr_t begin;
    const auto next = pinned.lower_bound((uintptr_t)at);
    if (size == 0) return wrong("cudaHostRegister of nothing");
    if (pinned_of(at, &begin) || (next != pinned.end() && next->first < (uintptr_t)at + size))
        return end(cudaErrorHostMemoryAlreadyRegistered);
    pinned[(uintptr_t)at] = {size, true};
    pinned_grow(size);
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *at)
{
    lock held(mutex);
    happen_all();
    const auto found = pinned.find((uintptr_t)at);
    if (found == pinned.end() || !found->second.is_registered) return wrong("cudaHostUnregister of what is not registered");
    pinned_bytes -= found->second.size;
    pinned.erase(found);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *at)
{
    BEGIN;
    uintptr_t begin;
    memset(attributes, 0, sizeof *attributes);
    attributes->type = is_device(at)           ? cudaMemoryTypeDevice
                       : pinned_of(at, &begin) ? cudaMemoryTypeHost
                                               : cudaMemoryTypeUnregistered;
    return cudaSuccess;
}

/* ---- streams and events ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned int)
{
    BEGIN_ON_DEVICE;
    *out = new CUstream_st{};
    streams.insert(*out);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    lock held(mutex);
    if (!is_stream(stream)) return wrong("cudaStreamDestroy of what is no stream");
    happen_until(stream, stream->given);
    streams.erase(stream);
    destroyed.push_back(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    BEGIN_ON_DEVICE;
    if (!is_stream(stream)) return wrong("cudaStreamSynchronize of what is no stream");
    waits += stream->done < stream->given;
    happen_until(stream, stream->given);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int)
{
    BEGIN_ON_DEVICE;
    if (!is_stream(stream)) return wrong("cudaStreamWaitEvent of what is no stream");
    CUstream_st *other = event->stream;
    const uint64_t position = event->position;
    if (other && other != stream) give(stream, [=] { happen_until(other, position); });
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned int)
{
    BEGIN_ON_DEVICE;
    *out = new CUevent_st{};
    live_events++;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    lock held(mutex);
    if (!event) return wrong("cudaEventDestroy of NULL");
    delete event;
    live_events--;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    BEGIN_ON_DEVICE;
    if (!is_stream(stream)) return wrong("cudaEventRecord on what is no stream");
    event->stream = stream;
    event->position = stream->given;
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    BEGIN_ON_DEVICE;
    waits += event->stream && event->stream->done < event->position;
    if (event->stream) happen_until(event->stream, event->position);
    return cudaSuccess;
}

/* ---- copies ---- */

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind, cudaStream_t stream)
{
    BEGIN_ON_DEVICE;
    if (!is_stream(stream)) return wrong("a copy on what is no stream");
    if (width == 0 || height == 0) return cudaSuccess;
    if (to_pitch < width || from_pitch < width || to_pitch > 0x7fffffff || from_pitch > 0x7fffffff)
        return end(cudaErrorInvalidValue);
    if (!may_touch(to, (height - 1) * to_pitch + width) || !may_touch(from, (height - 1) * from_pitch + width))
        return end(cudaErrorInvalidValue);
    give(stream, [=] {
        for (size_t i = 0; i < height; i++) memmove((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width);
    });
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind, cudaStream_t stream)
{
    BEGIN_ON_DEVICE;
    if (!is_stream(stream)) return wrong("a copy on what is no stream");
    if (!may_touch(to, size) || !may_touch(from, size)) return end(cudaErrorInvalidValue);
    give(stream, [=] { memmove(to, from, size); });
    return cudaSuccess;
}
}
