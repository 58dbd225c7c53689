/* A pipe of slots: threads fill or empty some of them while others are being copied. */
#include "live/cuda/pipe.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store_read.h"

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

tsr_status tsr_pipe_direct(tsr_gpu_pipe *pipe, tsr_range from, void *to, tsr_error *err)
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
    const tsr_status direct = tsr_pipe_direct(pipe, from, to, err);
    return direct == TSR_E_UNSUPPORTED ? pipe_in(pipe, to, (size_t)from.byte_length, fill_from_file, &part, err) : direct;
}

tsr_status tsr_gpu_write_file(tsr_gpu_pipe *pipe, tsr_output_range to, const void *from, tsr_error *err)
{
    file_part part = {.output = to.output, .file = to.file, .offset = to.byte_offset};
    return pipe_out(pipe, from, to.byte_length, empty_to_file, &part, err);
}
