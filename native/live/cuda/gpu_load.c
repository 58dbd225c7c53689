/* Loads checkpoints into device memory. core's ring is made of pinned memory, so tiles are copied from where they were
 * gathered. One half of the ring is copied while the other is filled. */
#include "live/cuda/pipe.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/cast.h"
#include "tessera/sys/checkpoint_bytes.h"
#include "tessera/sys/checkpoint_files.h"
#include "tessera/sys/read_run.h"

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
        return tsr_raise(err, TSR_E_CANCELLED, TSR_NO_POSITION, "loading was cancelled");
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
    return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "'%.*s': %s cannot be cast to %s", TSR_STR_ARG(entry->fqn),
                     tsr_dtype_describe(part->from)->name, tsr_dtype_describe(part->to)->name);
}

/* Whether the whole tensor is wanted, and is one contiguous run of a file in the wanted form. *view is its location. */
static bool is_one_run(const load_part *part, tsr_checkpoint *checkpoint, tsr_arena *scratch, tsr_view *view)
{
    const tsr_entry *entry = part->load->entry;
    if (part->load->offsets || part->load->sizes || part->from != part->to || entry->chunk_count != 1) return false;
    for (uint32_t i = 0; i < entry->ndim; i++) {
        if (entry->chunks[0].sizes[i] != entry->shape[i]) return false;
    }
    return tsr_checkpoint_locate(checkpoint, entry, &entry->chunks[0], scratch, view, NULL) == TSR_OK && !view->strides &&
           !view->conj && !view->neg && !view->swap && !view->zstd;
}

/* Reads from the file directly into device memory. TSR_E_UNSUPPORTED: must be read through the ring. */
static tsr_status load_direct(const load_part *part, tsr_checkpoint *checkpoint, tsr_error *err)
{
    tsr_view view;
    uint64_t bytes;
    tsr_gpu_pipe *pipe = part->run->pipe;
    if (!pipe->direct.read || tsr_tensor_bytes(part->load->entry, &bytes, NULL) != TSR_OK) return TSR_E_UNSUPPORTED;
    tsr_arena *scratch = tsr_arena_new(pipe->gpu->host->allocator, 0, err);
    if (!scratch) return TSR_E_NOMEM;
    tsr_status status = TSR_E_UNSUPPORTED;
    if (is_one_run(part, checkpoint, scratch, &view))
        status = tsr_pipe_direct(pipe, (tsr_range){tsr_checkpoint_store(checkpoint), view.file, view.byte_offset, bytes},
                                 part->load->to, err);
    tsr_arena_free(scratch);
    return status == TSR_OK ? tell_progress(part->run, bytes, err) : status;
}

/* Loads directly what can be, and sets up a box for each of the others, *box_count in all. */
static tsr_status sort_loads(load_part *parts, size_t count, tsr_checkpoint *checkpoint, tsr_streamed_box *boxes,
                             size_t *box_count, tsr_error *err)
{
    for (size_t i = 0; i < count; i++) {
        const tsr_gpu_load *load = parts[i].load;
        TSR_TRY(choose_types(&parts[i], err));
        const tsr_status direct = load_direct(&parts[i], checkpoint, err);
        if (direct == TSR_OK) continue;
        if (direct != TSR_E_UNSUPPORTED) return direct;
        boxes[(*box_count)++] = (tsr_streamed_box){load->entry, load->offsets, load->sizes, &parts[i]};
    }
    return TSR_OK;
}

static tsr_status load_all(load_run *run, tsr_checkpoint *checkpoint, const tsr_gpu_load *loads, size_t count,
                           tsr_error *err)
{
    tsr_gpu_pipe *pipe = run->pipe;
    const tsr_allocator *allocator = pipe->gpu->host->allocator;
    load_part *parts = tsr_alloc(allocator, count, sizeof *parts, err);
    tsr_streamed_box *boxes = tsr_alloc(allocator, count, sizeof *boxes, err);
    size_t box_count = 0;
    tsr_status status = parts && boxes ? TSR_OK : TSR_E_NOMEM;
    for (size_t i = 0; i < count && status == TSR_OK; i++) parts[i] = (load_part){.run = run, .load = &loads[i]};
    if (status == TSR_OK) status = need_ring(pipe, err);
    if (status == TSR_OK) status = sort_loads(parts, count, checkpoint, boxes, &box_count, err);
    const tsr_tile_sink sink = {send_tile, wait_for_earlier_tiles, run};
    if (status == TSR_OK) status = tsr_stream_boxes(checkpoint, boxes, box_count, pipe->ring, &sink, err);
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
