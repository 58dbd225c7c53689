/* What all kinds of devices have in common: empty requests are handled, and arguments are checked. */
#include "tessera/sys/gpu.h"
#include "live/cuda/backend.h"

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

tsr_status tsr_gpu_host_alloc(tsr_gpu *device, size_t size, void **out, tsr_error *err)
{
    *out = NULL;
    return size ? device->ops->host_alloc(device, size, out, err) : TSR_OK;
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
