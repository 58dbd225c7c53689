/* The table of functions that state dicts know memory by. */
#include "tessera/gpu_device.h"

#include "cuda/backend.h"

typedef struct gpu_device {
    tsr_device base;
    tsr_gpu *gpu;
    tsr_gpu_stream *stream;
} gpu_device;

static tsr_status alloc(tsr_device *device, uint64_t bytes, void **out, tsr_error *err)
{
    return tsr_gpu_alloc(((gpu_device *)device)->gpu, (size_t)bytes, out, err);
}

static void release(tsr_device *device, void *data, uint64_t bytes)
{
    (void)bytes;
    tsr_gpu_free(((gpu_device *)device)->gpu, data);
}

static tsr_status copy(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    return tsr_gpu_copy(((gpu_device *)device)->stream, to, from, (size_t)bytes, err);
}

static tsr_status synchronize(tsr_device *device, tsr_error *err)
{
    return tsr_gpu_stream_wait(((gpu_device *)device)->stream, err);
}

static tsr_status pin(tsr_device *device, void *data, uint64_t bytes, tsr_error *err)
{
    return tsr_gpu_pin(((gpu_device *)device)->gpu, data, (size_t)bytes, err);
}

static void unpin(tsr_device *device, void *data, uint64_t bytes)
{
    (void)bytes;
    tsr_gpu_unpin(((gpu_device *)device)->gpu, data);
}

tsr_status tsr_gpu_device_new(tsr_gpu *gpu, uint32_t index, tsr_device **out, tsr_error *err)
{
    *out = NULL;
    gpu_device *device = tsr_alloc(gpu->host->allocator, 1, sizeof *device, err);
    if (!device) return TSR_E_NOMEM;
    *device = (gpu_device){.base = {.kind = TSR_DEVICE_CUDA,
                                    .index = index,
                                    .alloc = alloc,
                                    .free = release,
                                    .to_host = copy,
                                    .from_host = copy,
                                    .within = copy,
                                    .synchronize = synchronize,
                                    .pin = pin,
                                    .unpin = unpin},
                           .gpu = gpu};
    tsr_status status = tsr_gpu_stream_new(gpu, &device->stream, err);
    if (status == TSR_OK) *out = &device->base;
    else tsr_free(gpu->host->allocator, device, 1, sizeof *device);
    return status;
}

void tsr_gpu_device_free(tsr_device *base)
{
    gpu_device *device = (gpu_device *)base;
    if (!device) return;
    tsr_gpu_stream_free(device->stream);
    tsr_free(device->gpu->host->allocator, device, 1, sizeof *device);
}

tsr_gpu *tsr_gpu_of_device(const tsr_device *device)
{
    return device && device->alloc == alloc ? ((const gpu_device *)device)->gpu : NULL;
}

tsr_gpu_stream *tsr_gpu_stream_of_device(const tsr_device *device)
{
    return device && device->alloc == alloc ? ((const gpu_device *)device)->stream : NULL;
}
