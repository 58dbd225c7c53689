/* Runs every test on three devices: twins, the kernels' code over a simulated grid, and, in builds with CUDA, device 0.
 * Without such a device, the last run prints why and is skipped. Programs named …_hosted run on a single kind instead: what
 * is built for CUDA, kernels.cu included, on a runtime that is simulated on the host's threads (hosted/). */
#ifndef TESTS_CUDA_ON_DEVICES_H
#define TESTS_CUDA_ON_DEVICES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tessera/gpu.h"
#include "tessera/sys/gpu.h"

#define SIMULATED_BYTES ((size_t)64 << 20)

static tsr_host test_host = {.allocator = &tsr_allocator_libc};

#define OK(call) \
    do { \
        tsr_error ok_err_ = {0}; \
        tsr_error *err = &ok_err_; \
        if ((call) != TSR_OK) fail_msg("%s: %s", #call, ok_err_.message); \
    } while (0)

static inline int open_twins(void **state)
{
    return tsr_gpu_simulate(&test_host, SIMULATED_BYTES, TSR_SIMULATE_TWINS, (tsr_gpu **)state, NULL) != TSR_OK;
}

static inline int open_grid(void **state)
{
    return tsr_gpu_simulate(&test_host, SIMULATED_BYTES, TSR_SIMULATE_GRID, (tsr_gpu **)state, NULL) != TSR_OK;
}

static inline int open_cuda(void **state)
{
    tsr_gpu_runtime runtime;
    tsr_gpu_runtime_describe(&runtime);
    *state = NULL;
    if (runtime.devices) return tsr_gpu_open(&test_host, 0, (tsr_gpu **)state, NULL) != TSR_OK;
    print_message("skipped: no CUDA device: %s\n", runtime.reason);
    return 0;
}

/* Everything that was allocated must have been freed. */
static inline int close_any(void **state)
{
    tsr_gpu *device = *state;
    tsr_gpu_info info;
    if (!device) return 0;
    bool leaks = tsr_gpu_about(device, &info, NULL) != TSR_OK || (info.is_simulated && info.free_bytes != info.memory_bytes);
    if (leaks) print_message("device memory was not given back\n");
    tsr_gpu_close(device);
    return leaks;
}

static inline tsr_gpu *device_of(void **state)
{
    if (!*state) skip();
    return *state;
}

static inline bool is_simulated(tsr_gpu *device)
{
    tsr_gpu_info info;
    OK(tsr_gpu_about(device, &info, err));
    return info.is_simulated;
}

#define ON_SIMULATED(claim) \
    {#claim "__twins", claim, open_twins, close_any, NULL}, \
    { \
#claim "__grid", claim, open_grid, close_any, NULL \
    }
#if defined(TSR_TEST_HOSTED)
#define ON_DEVICES(claim) \
    { \
#claim "__hosted", claim, open_cuda, close_any, NULL \
    }
#elif defined(TSR_TEST_HAS_CUDA)
#define ON_DEVICES(claim) \
    ON_SIMULATED(claim), \
    { \
#claim "__cuda", claim, open_cuda, close_any, NULL \
    }
#else
#define ON_DEVICES(claim) ON_SIMULATED(claim)
#endif

/* With TSR_TEST_FILTER=PATTERN, only the tests with such a name run (tests/cuda/sanitize). */
static inline void filter_tests(void)
{
    if (getenv("TSR_TEST_FILTER")) cmocka_set_test_filter(getenv("TSR_TEST_FILTER"));
}

/* Returns device memory that holds these bytes. */
static inline void *upload(tsr_gpu *device, tsr_gpu_stream *stream, const void *bytes, size_t size)
{
    void *memory;
    OK(tsr_gpu_alloc(device, size, &memory, err));
    OK(tsr_gpu_copy(stream, memory, bytes, size, err));
    OK(tsr_gpu_stream_wait(stream, err));
    return memory;
}

static inline void download(tsr_gpu_stream *stream, void *bytes, const void *memory, size_t size)
{
    OK(tsr_gpu_copy(stream, bytes, memory, size, err));
    OK(tsr_gpu_stream_wait(stream, err));
}

#endif
