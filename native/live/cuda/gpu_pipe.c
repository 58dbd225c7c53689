/* Loads checkpoints into device memory. core's ring is made of pinned memory, so tiles are copied from where they were
 * gathered. One half of the ring is copied while the other is filled. */
#include "live/cuda/backend.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

struct tsr_gpu_pipe {
    tsr_gpu *gpu;
    tsr_gpu_stream *stream;
    size_t ring_bytes;
    tsr_allocator pinned; /* allocator of the ring into which checkpoints are read */
    tsr_host pinned_host;
    tsr_ring *ring; /* NULL until needed, as half_sent */
    tsr_gpu_event *half_sent[2];
};

/* ---- an allocator of pinned memory ---- */

static void *resize_pinned(void *ctx, void *pointer, size_t old_size, size_t new_size)
{
    tsr_gpu *gpu = ctx;
    void *made = NULL;
    if (new_size && tsr_gpu_host_alloc(gpu, new_size, &made, NULL) != TSR_OK) return NULL;
    if (made && pointer) memcpy(made, pointer, old_size < new_size ? old_size : new_size);
    tsr_gpu_host_free(gpu, pointer);
    return made;
}

/* ---- a pipe ---- */

tsr_status tsr_gpu_pipe_new(tsr_gpu *gpu, size_t ring_bytes, tsr_gpu_pipe **out, tsr_error *err)
{
    *out = NULL;
    if (ring_bytes == 0) ring_bytes = TSR_GPU_RING_DEFAULT_BYTES;
    if (ring_bytes < TSR_GPU_RING_LEAST_BYTES) ring_bytes = TSR_GPU_RING_LEAST_BYTES;
    tsr_gpu_pipe *pipe = tsr_alloc(gpu->host->allocator, 1, sizeof *pipe, err);
    if (!pipe) return TSR_E_NOMEM;
    *pipe = (tsr_gpu_pipe){.gpu = gpu, .ring_bytes = ring_bytes, .pinned = {resize_pinned, gpu}, .pinned_host = *gpu->host};
    pipe->pinned_host.allocator = &pipe->pinned;
    tsr_status status = tsr_gpu_stream_new(gpu, &pipe->stream, err);
    if (status != TSR_OK) {
        tsr_free(gpu->host->allocator, pipe, 1, sizeof *pipe);
        return status;
    }
    *out = pipe;
    return TSR_OK;
}

void tsr_gpu_pipe_free(tsr_gpu_pipe *pipe)
{
    if (!pipe) return;
    tsr_gpu_stream_free(pipe->stream);
    tsr_ring_free(pipe->ring);
    for (size_t i = 0; i < 2; i++) tsr_gpu_event_free(pipe->half_sent[i]);
    tsr_free(pipe->gpu->host->allocator, pipe, 1, sizeof *pipe);
}

/* ---- load ---- */

/* What all loads of a call share. */
typedef struct load_run {
    tsr_gpu_pipe *pipe;
    const tsr_progress *progress;
    uint64_t byte_done, byte_total;
    unsigned half; /* of the ring, whose tiles were sent last */
} load_run;

/* One load. */
typedef struct load_part {
    load_run *run;
    const tsr_gpu_load *load;
    tsr_dtype from, to; /* element types; if they are the same, nothing is cast */
} load_part;

/* The type of elements when they leave core's ring. */
static tsr_dtype stored_dtype(const tsr_entry *entry)
{
    return entry->dtype == TSR_FLOAT4_E2M1FN ? TSR_FLOAT4_E2M1FN_X2 : entry->dtype;
}

static tsr_status cast_tile(const load_part *part, const void *data, size_t size, uint64_t byte_at, tsr_error *err)
{
    const uint64_t count = size / tsr_dtype_size(part->from), first = byte_at / tsr_dtype_size(part->from), one = 1;
    const tsr_gpu_box box = {.to = (uint8_t *)part->load->to + first * tsr_dtype_size(part->to),
                             .from = data,
                             .to_dtype = part->to,
                             .from_dtype = part->from,
                             .ndim = 1,
                             .sizes = &count,
                             .to_strides = &one,
                             .from_strides = &one};
    return tsr_gpu_move_boxes(part->run->pipe->stream, &box, 1, err);
}

static tsr_status tell_progress(load_run *run, uint64_t bytes, tsr_error *err)
{
    run->byte_done += bytes;
    if (run->progress && run->progress->step && !run->progress->step(run->progress->ctx, run->byte_done, run->byte_total))
        return tsr_fail(err, TSR_E_CANCELLED, "loading was cancelled");
    return TSR_OK;
}

static tsr_status send_tile(void *ctx, const void *data, size_t size, uint64_t byte_at, tsr_error *err)
{
    const load_part *part = ctx;
    tsr_gpu_stream *stream = part->run->pipe->stream;
    if (part->from == part->to) TSR_TRY(tsr_gpu_copy(stream, (uint8_t *)part->load->to + byte_at, data, size, err));
    else TSR_TRY(cast_tile(part, data, size, byte_at, err));
    return tell_progress(part->run, size, err);
}

/* Waits for the tiles that had been sent when this was called before. */
static tsr_status wait_for_earlier_tiles(void *ctx, tsr_error *err)
{
    load_run *run = ctx;
    tsr_gpu_event *const *sent = run->pipe->half_sent;
    TSR_TRY(tsr_gpu_event_record(sent[run->half], run->pipe->stream, err));
    run->half = 1 - run->half;
    return tsr_gpu_event_wait(sent[run->half], err);
}

static tsr_status need_ring(tsr_gpu_pipe *pipe, tsr_error *err)
{
    for (unsigned i = 0; i < 2; i++)
        if (!pipe->half_sent[i]) TSR_TRY(tsr_gpu_event_new(pipe->gpu, &pipe->half_sent[i], err));
    return pipe->ring ? TSR_OK : tsr_ring_new(&pipe->pinned_host, pipe->ring_bytes, &pipe->ring, err);
}

static tsr_status choose_types(load_part *part, tsr_error *err)
{
    const tsr_entry *entry = part->load->entry;
    part->from = part->to = stored_dtype(entry);
    if (part->load->dtype == TSR_DTYPE_NONE || part->load->dtype == entry->dtype) return TSR_OK;
    part->to = part->load->dtype;
    if (part->from == part->to || tsr_cast_possible(part->from, part->to)) return TSR_OK;
    return tsr_fail(err, TSR_E_UNSUPPORTED, "'%.*s': %s cannot be cast to %s", TSR_STR_ARG(entry->fqn),
                    tsr_dtype_describe(part->from)->name, tsr_dtype_describe(part->to)->name);
}

static tsr_status load_all(load_run *run, tsr_checkpoint *checkpoint, const tsr_gpu_load *loads, size_t count,
                           tsr_error *err)
{
    tsr_gpu_pipe *pipe = run->pipe;
    const tsr_allocator *allocator = pipe->gpu->host->allocator;
    load_part *parts = tsr_alloc(allocator, count, sizeof *parts, err);
    tsr_streamed_box *boxes = tsr_alloc(allocator, count, sizeof *boxes, err);
    tsr_status status = parts && boxes ? TSR_OK : TSR_E_NOMEM;
    if (status == TSR_OK) status = need_ring(pipe, err);
    for (size_t i = 0; i < count && status == TSR_OK; i++) {
        parts[i] = (load_part){.run = run, .load = &loads[i]};
        boxes[i] = (tsr_streamed_box){loads[i].entry, loads[i].offsets, loads[i].sizes, &parts[i]};
        status = choose_types(&parts[i], err);
    }
    const tsr_tile_sink sink = {send_tile, wait_for_earlier_tiles, run};
    if (status == TSR_OK) status = tsr_stream_boxes(checkpoint, boxes, count, pipe->ring, &sink, err);
    tsr_free(allocator, boxes, count, sizeof *boxes);
    tsr_free(allocator, parts, count, sizeof *parts);
    return status;
}

/* The number of bytes of a load, for progress. The result does not matter if the box is invalid, because the reader will
 * report that. */
static uint64_t bytes_of(const tsr_gpu_load *load)
{
    uint64_t bytes = 0;
    if (tsr_tensor_bytes(load->entry, &bytes, NULL) != TSR_OK || !load->sizes) return bytes;
    bytes = tsr_dtype_size(stored_dtype(load->entry));
    for (uint32_t i = 0; i < load->entry->ndim; i++) bytes *= load->sizes[i];
    return bytes;
}

tsr_status tsr_gpu_load_tensors(tsr_gpu_pipe *pipe, tsr_checkpoint *checkpoint, const tsr_gpu_load *loads, size_t count,
                                const tsr_progress *progress, tsr_error *err)
{
    load_run run = {.pipe = pipe, .progress = progress};
    for (size_t i = 0; i < count; i++) run.byte_total += bytes_of(&loads[i]);
    tsr_status status = count ? load_all(&run, checkpoint, loads, count, err) : TSR_OK;
    if (status != TSR_OK) tsr_gpu_stream_wait(pipe->stream, NULL);
    return status;
}
