/* A pipe of slots: threads fill or empty some of them while others are being copied. */
#include "live/cuda/backend.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/read.h"
#include "tessera/sys/store.h"

#define PART_BYTES ((size_t)1 << 20) /* number of bytes that a thread fills or empties at a time */
#define PARTS_MOST 64u

/* ---- an allocator of pinned memory ---- */

static void *resize_pinned(void *ctx, void *pointer, size_t old_size, size_t new_size)
{
    tsr_gpu *gpu = ctx;
    void *made = NULL;
    if (new_size && tsr_gpu_host_alloc(gpu, new_size, TSR_HOST_PINNED, &made, NULL) != TSR_OK) return NULL;
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
    pipe->slot_bytes = ring_bytes / PIPE_SLOTS / 4096 * 4096;
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
    for (size_t i = 0; i < PIPE_SLOTS; i++) {
        tsr_gpu_event_free(pipe->slots[i].copied);
        tsr_gpu_host_free(pipe->gpu, pipe->slots[i].memory);
    }
    tsr_ring_free(pipe->ring);
    for (size_t i = 0; i < 2; i++) tsr_gpu_event_free(pipe->half_sent[i]);
    if (pipe->direct.close) pipe->direct.close(pipe->direct.ctx);
    tsr_free(pipe->gpu->host->allocator, pipe, 1, sizeof *pipe);
}

static tsr_status need_slot(tsr_gpu_pipe *pipe, pipe_slot *slot, tsr_error *err)
{
    if (!slot->copied) TSR_TRY(tsr_gpu_event_new(pipe->gpu, &slot->copied, err));
    return slot->memory ? TSR_OK
                        : tsr_gpu_host_alloc(pipe->gpu, pipe->slot_bytes, TSR_HOST_PINNED, (void **)&slot->memory, err);
}

/* ---- one slot, filled by several threads ---- */

/* Fills or empties `size` bytes of pinned memory, which are at offset `at` of all the data. Called by several threads at the
 * same time. */
typedef tsr_status pipe_work(void *ctx, uint8_t *memory, uint64_t at, size_t size, tsr_error *err);

/* The function that fills or empties slots, and its context. */
typedef struct slot_work {
    pipe_work *run;
    void *ctx;
} slot_work;

typedef struct part_job {
    slot_work work;
    uint8_t *memory;
    uint64_t at;
    size_t size, part;
    tsr_error errors[PARTS_MOST];
} part_job;

static void do_part(void *arg, size_t index)
{
    part_job *job = arg;
    const size_t begin = index * job->part, left = job->size - begin;
    tsr_error *err = &job->errors[index];
    tsr_status status =
        job->work.run(job->work.ctx, job->memory + begin, job->at + begin, left < job->part ? left : job->part, err);
    if (status != TSR_OK) tsr_raise(err, status, TSR_NO_POSITION, "%s", tsr_status_name(status));
}

static tsr_status do_slot(tsr_gpu_pipe *pipe, slot_work work, uint8_t *memory, uint64_t at, size_t size, tsr_error *err)
{
    part_job job = {.work = work, .memory = memory, .at = at, .size = size, .part = PART_BYTES};
    while (job.part * PARTS_MOST < size) job.part *= 2;
    const size_t parts = (size + job.part - 1) / job.part;
    for (size_t i = 0; i < parts; i++) job.errors[i] = (tsr_error){0};
    tsr_parallel(pipe->gpu->host, parts, do_part, &job);
    for (size_t i = 0; i < parts; i++) {
        if (job.errors[i].status == TSR_OK) continue;
        if (err && err->status == TSR_OK) *err = job.errors[i];
        return job.errors[i].status;
    }
    return TSR_OK;
}

/* ---- in and out ---- */

static tsr_status in_slots(tsr_gpu_pipe *pipe, uint8_t *to, size_t size, slot_work fill, tsr_error *err)
{
    size_t number = 0;
    for (size_t at = 0; at < size; at += pipe->slot_bytes, number++) {
        pipe_slot *slot = &pipe->slots[number % PIPE_SLOTS];
        const size_t bytes = size - at < pipe->slot_bytes ? size - at : pipe->slot_bytes;
        TSR_TRY(need_slot(pipe, slot, err));
        TSR_TRY(tsr_gpu_event_wait(slot->copied, err));
        TSR_TRY(do_slot(pipe, fill, slot->memory, at, bytes, err));
        TSR_TRY(tsr_gpu_copy(pipe->stream, to + at, slot->memory, bytes, err));
        TSR_TRY(tsr_gpu_event_record(slot->copied, pipe->stream, err));
    }
    return tsr_gpu_stream_wait(pipe->stream, err);
}

/* Copies from the device are started as far ahead as there are slots. */
static tsr_status out_slots(tsr_gpu_pipe *pipe, const uint8_t *from, size_t size, slot_work empty, tsr_error *err)
{
    const size_t slots = size / pipe->slot_bytes + (size % pipe->slot_bytes != 0);
    for (size_t ahead = 0, number = 0; number < slots; number++) {
        for (; ahead < slots && ahead < number + PIPE_SLOTS; ahead++) {
            pipe_slot *slot = &pipe->slots[ahead % PIPE_SLOTS];
            const size_t at = ahead * pipe->slot_bytes, left = size - at;
            TSR_TRY(need_slot(pipe, slot, err));
            TSR_TRY(
                tsr_gpu_copy(pipe->stream, slot->memory, from + at, left < pipe->slot_bytes ? left : pipe->slot_bytes, err));
            TSR_TRY(tsr_gpu_event_record(slot->copied, pipe->stream, err));
        }
        pipe_slot *slot = &pipe->slots[number % PIPE_SLOTS];
        const size_t at = number * pipe->slot_bytes, left = size - at;
        TSR_TRY(tsr_gpu_event_wait(slot->copied, err));
        TSR_TRY(do_slot(pipe, empty, slot->memory, at, left < pipe->slot_bytes ? left : pipe->slot_bytes, err));
    }
    return TSR_OK;
}

static tsr_status pipe_in(tsr_gpu_pipe *pipe, void *to, size_t size, pipe_work *fill, void *ctx, tsr_error *err)
{
    tsr_status status = in_slots(pipe, to, size, (slot_work){fill, ctx}, err);
    if (status != TSR_OK) tsr_gpu_stream_wait(pipe->stream, NULL);
    return status;
}

static tsr_status pipe_out(tsr_gpu_pipe *pipe, const void *from, size_t size, pipe_work *empty, void *ctx, tsr_error *err)
{
    tsr_status status = out_slots(pipe, from, size, (slot_work){empty, ctx}, err);
    if (status != TSR_OK) tsr_gpu_stream_wait(pipe->stream, NULL);
    return status;
}

static tsr_status fill_from_memory(void *ctx, uint8_t *memory, uint64_t at, size_t size, tsr_error *err)
{
    (void)err;
    memcpy(memory, (const uint8_t *)ctx + at, size);
    return TSR_OK;
}

static tsr_status empty_to_memory(void *ctx, uint8_t *memory, uint64_t at, size_t size, tsr_error *err)
{
    (void)err;
    memcpy((uint8_t *)ctx + at, memory, size);
    return TSR_OK;
}

tsr_status tsr_gpu_put(tsr_gpu_pipe *pipe, void *to, const void *from, size_t size, tsr_error *err)
{
    return pipe_in(pipe, to, size, fill_from_memory, (void *)(uintptr_t)from, err);
}

tsr_status tsr_gpu_get(tsr_gpu_pipe *pipe, void *to, const void *from, size_t size, tsr_error *err)
{
    return pipe_out(pipe, from, size, empty_to_memory, to, err);
}

/* ---- files ---- */

typedef struct file_part {
    tsr_store *store;
    tsr_output *output;
    uint32_t file;
    uint64_t offset;
} file_part;

static tsr_status fill_from_file(void *ctx, uint8_t *memory, uint64_t at, size_t size, tsr_error *err)
{
    const file_part *part = ctx;
    return tsr_store_read(part->store, part->file, part->offset + at, memory, size, err);
}

static tsr_status empty_to_file(void *ctx, uint8_t *memory, uint64_t at, size_t size, tsr_error *err)
{
    const file_part *part = ctx;
    return part->output->write_at(part->output, part->file, part->offset + at, memory, size, err);
}

/* TSR_E_UNSUPPORTED if it is not possible. Nothing was read then, and the ring can be used. */
static tsr_status pipe_direct(tsr_gpu_pipe *pipe, tsr_range from, void *to, tsr_error *err)
{
    tsr_error own = {0};
    int fd;
    if (!pipe->direct.read || tsr_folder_store_take_fd(from.store, from.file, &fd, NULL) != TSR_OK) return TSR_E_UNSUPPORTED;
    const tsr_status status = pipe->direct.read(pipe->direct.ctx, fd, from.byte_offset, to, (size_t)from.byte_length, &own);
    tsr_folder_store_give_fd(from.store, from.file);
    if (status != TSR_OK && status != TSR_E_UNSUPPORTED && err && err->status == TSR_OK) *err = own;
    return status;
}

tsr_status tsr_gpu_read_file(tsr_gpu_pipe *pipe, tsr_range from, void *to, tsr_error *err)
{
    const tsr_store *store = from.store;
    file_part part = {.store = from.store, .file = from.file, .offset = from.byte_offset};
    if (from.file >= store->file_count || from.byte_offset > store->files[from.file].size ||
        from.byte_length > store->files[from.file].size - from.byte_offset || from.byte_length > SIZE_MAX)
        return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION,
                         "gpu read: %llu bytes at byte %llu reach beyond the end of the file",
                         (unsigned long long)from.byte_length, (unsigned long long)from.byte_offset);
    const tsr_status direct = pipe_direct(pipe, from, to, err);
    return direct == TSR_E_UNSUPPORTED ? pipe_in(pipe, to, (size_t)from.byte_length, fill_from_file, &part, err) : direct;
}

tsr_status tsr_gpu_write_file(tsr_gpu_pipe *pipe, tsr_output_range to, const void *from, tsr_error *err)
{
    file_part part = {.output = to.output, .file = to.file, .offset = to.byte_offset};
    return pipe_out(pipe, from, to.byte_length, empty_to_file, &part, err);
}

/* ---- load ---- */

/* Loads checkpoints into device memory. core's ring is made of pinned memory, so tiles are copied from where they were
 * gathered. One half of the ring is copied while the other is filled. */

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
        status = pipe_direct(pipe, (tsr_range){tsr_checkpoint_store(checkpoint), view.file, view.byte_offset, bytes},
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
