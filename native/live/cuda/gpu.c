/* What all kinds of devices have in common: empty requests are handled, and arguments are checked. */
#include "tessera/sys/gpu.h"
#include "live/cuda/backend.h"
#include "live/cuda/kernel_cast.h"
#include "tessera/sys/catalog.h"

void tsr_gpu_close(tsr_gpu *device)
{
    if (device) device->ops->close(device);
}

tsr_status tsr_gpu_about(tsr_gpu *device, tsr_gpu_info *out, tsr_error *err)
{
    return device->ops->about(device, out, err);
}

tsr_status tsr_gpu_alloc(tsr_gpu *device, size_t size, void **out, tsr_error *err)
{
    *out = NULL;
    return size ? device->ops->alloc(device, size, out, err) : TSR_OK;
}

void tsr_gpu_free(tsr_gpu *device, void *memory)
{
    if (memory) device->ops->free(device, memory);
}

tsr_status tsr_gpu_host_alloc(tsr_gpu *device, size_t size, unsigned flags, void **out, tsr_error *err)
{
    *out = NULL;
    return size ? device->ops->host_alloc(device, size, flags, out, err) : TSR_OK;
}

void tsr_gpu_host_free(tsr_gpu *device, void *memory)
{
    if (memory) device->ops->host_free(device, memory);
}

tsr_status tsr_gpu_pin(tsr_gpu *device, void *memory, size_t size, tsr_error *err)
{
    return size ? device->ops->pin(device, memory, size, err) : TSR_OK;
}

void tsr_gpu_unpin(tsr_gpu *device, void *memory)
{
    if (memory) device->ops->unpin(device, memory);
}

tsr_gpu_place tsr_gpu_place_of(tsr_gpu *device, const void *memory)
{
    return device->ops->place_of(device, memory);
}

tsr_status tsr_gpu_stream_new(tsr_gpu *device, tsr_gpu_stream **out, tsr_error *err)
{
    *out = NULL;
    return device->ops->stream_new(device, out, err);
}

void tsr_gpu_stream_free(tsr_gpu_stream *stream)
{
    if (stream) stream->device->ops->stream_free(stream);
}

tsr_status tsr_gpu_stream_wait(tsr_gpu_stream *stream, tsr_error *err)
{
    return stream->device->ops->stream_wait(stream, err);
}

tsr_status tsr_gpu_event_new(tsr_gpu *device, tsr_gpu_event **out, tsr_error *err)
{
    *out = NULL;
    return device->ops->event_new(device, out, err);
}

void tsr_gpu_event_free(tsr_gpu_event *event)
{
    if (event) event->device->ops->event_free(event);
}

tsr_status tsr_gpu_event_record(tsr_gpu_event *event, tsr_gpu_stream *stream, tsr_error *err)
{
    return event->device->ops->event_record(event, stream, err);
}

tsr_status tsr_gpu_event_wait(tsr_gpu_event *event, tsr_error *err)
{
    return event->device->ops->event_wait(event, err);
}

tsr_status tsr_gpu_stream_after(tsr_gpu_stream *stream, tsr_gpu_event *event, tsr_error *err)
{
    return stream->device->ops->stream_after(stream, event, err);
}

tsr_status tsr_gpu_copy(tsr_gpu_stream *stream, void *to, const void *from, size_t size, tsr_error *err)
{
    return tsr_gpu_copy_2d(stream, &(tsr_gpu_rows){to, size, from, size, size, 1}, err);
}

tsr_status tsr_gpu_copy_2d(tsr_gpu_stream *stream, const tsr_gpu_rows *what, tsr_error *err)
{
    if (what->rows == 0 || what->row_bytes == 0) return TSR_OK;
    size_t span;
    if (what->to_pitch < what->row_bytes || what->from_pitch < what->row_bytes)
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION,
                         "device copy: rows of %zu bytes do not fit strides of %zu and %zu bytes", what->row_bytes,
                         what->to_pitch, what->from_pitch);
    if (__builtin_mul_overflow(what->rows, what->to_pitch > what->from_pitch ? what->to_pitch : what->from_pitch, &span))
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "device copy: %zu rows are too many", what->rows);
    return stream->device->ops->copy_2d(stream, what, err);
}

tsr_status tsr_gpu_checksum(tsr_gpu_stream *stream, const void *data, size_t size, uint32_t *crc, tsr_error *err)
{
    *crc = 0;
    return size ? stream->device->ops->checksum(stream, data, size, crc, err) : TSR_OK;
}

static double double_of(uint64_t ordinal)
{
    const uint64_t bits = tsr_body_of_ordinal(ordinal);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

tsr_status tsr_gpu_scan(tsr_gpu_stream *stream, tsr_dtype dtype, const void *data, uint64_t count, tsr_gpu_sums *sums,
                        tsr_error *err)
{
    tsr_kernel_scan scan;
    uint64_t bytes;
    *sums = (tsr_gpu_sums){0};
    if (tsr_body_form_of((int)dtype).bytes == 0)
        return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
                         "device scan: %s is not a byte-aligned floating-point type", tsr_dtype_describe(dtype)->name);
    if (!tsr_dtype_bytes(dtype, count, &bytes) || bytes > SIZE_MAX)
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "device scan: too many elements");
    if ((uintptr_t)data % tsr_dtype_size(dtype))
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION,
                         "gpu scan: the address is not a multiple of the element size (%u bytes)",
                         (unsigned)tsr_dtype_size(dtype));
    if (count == 0) return TSR_OK;
    TSR_TRY(stream->device->ops->scan(stream, dtype, data, count, &scan, err));
    *sums = (tsr_gpu_sums){.nan = scan.nan, .inf = scan.inf, .finite = scan.finite};
    if (scan.finite) {
        sums->min = double_of(scan.least);
        sums->max = double_of(scan.greatest);
    }
    return TSR_OK;
}
