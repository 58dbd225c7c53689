/* Flat parameters: originals one behind the other, with padding between and behind them. */
#include "cuda/backend.h"

#include "tessera/sys/alloc.h"
#include "tessera/sys/vec.h"

typedef struct flat_job {
    tsr_dtype dtype;
    size_t itemsize;
    tsr_vec runs;
    tsr_vec paddings; /* tsr_gpu_box; gathers only */
} flat_job;

static tsr_status add_padding(flat_job *job, uint8_t *at, const uint64_t *numel, const void *padding, tsr_error *err)
{
    static const uint64_t one = 1;
    tsr_gpu_box *box = tsr_vec_push(&job->paddings, err);
    if (!box) return TSR_E_NOMEM;
    *box = (tsr_gpu_box){
        .to = at, .to_dtype = job->dtype, .from_dtype = job->dtype, .rank = 1, .sizes = numel, .to_strides = &one};
    memcpy(box->fill, padding, job->itemsize);
    return TSR_OK;
}

/* What of the span [begin, end) of the flat parameter lies in [flat_begin, flat_end). */
static tsr_status add_span(flat_job *job, void *param, uint64_t begin, uint64_t end, uint64_t flat_begin, uint64_t flat_end,
                           uint8_t *flat, bool gathers, uint64_t *numel, const void *padding, tsr_error *err)
{
    const uint64_t from = begin > flat_begin ? begin : flat_begin, to = end < flat_end ? end : flat_end;
    if (from >= to) return TSR_OK;
    uint8_t *at = flat + (from - flat_begin) * job->itemsize;
    *numel = to - from;
    if (!param) return gathers ? add_padding(job, at, numel, padding, err) : TSR_OK;
    tsr_gpu_run *run = tsr_vec_push(&job->runs, err);
    if (!run) return TSR_E_NOMEM;
    uint8_t *original = (uint8_t *)param + (from - begin) * job->itemsize;
    *run = (tsr_gpu_run){gathers ? at : original, gathers ? original : at, (size_t)(to - from) * job->itemsize};
    return TSR_OK;
}

static tsr_status check_flat(tsr_dtype dtype, const tsr_gpu_span *spans, size_t count, uint64_t flat_begin,
                             uint64_t flat_end, tsr_error *err)
{
    uint64_t bytes, total = 0;
    bool fits = flat_begin <= flat_end && tsr_dtype_bytes(dtype, flat_end, &bytes);
    for (size_t i = 0; i < count && fits; i++)
        fits = !__builtin_add_overflow(total, spans[i].numel, &total) && tsr_dtype_bytes(dtype, total, &bytes) &&
               bytes <= SIZE_MAX / 2;
    if (tsr_dtype_size(dtype) == 0)
        return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "flat parameter: %s elements are not byte-aligned",
                         tsr_dtype_describe(dtype)->name);
    return fits ? TSR_OK
                : tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "flat parameter: the range or the spans are too large");
}

static tsr_status run_flat(tsr_gpu_stream *stream, tsr_dtype dtype, const tsr_gpu_span *spans, size_t count,
                           uint64_t flat_begin, uint64_t flat_end, uint8_t *flat, bool gathers, const void *padding,
                           tsr_error *err)
{
    const tsr_allocator *allocator = stream->device->host->allocator;
    TRY(check_flat(dtype, spans, count, flat_begin, flat_end, err));
    flat_job job = {dtype, tsr_dtype_size(dtype), tsr_vec_of(allocator, sizeof(tsr_gpu_run)),
                    tsr_vec_of(allocator, sizeof(tsr_gpu_box))};
    uint64_t *numels = tsr_alloc(allocator, count + 1, sizeof *numels, err); /* the boxes' sizes */
    tsr_status status = numels ? TSR_OK : TSR_E_NOMEM;
    uint64_t at = 0;
    for (size_t i = 0; i < count && status == TSR_OK; at += spans[i++].numel)
        status = add_span(&job, spans[i].param, at, at + spans[i].numel, flat_begin, flat_end, flat, gathers, &numels[i],
                          padding, err);
    if (status == TSR_OK && at < flat_end)
        status = add_span(&job, NULL, at, flat_end, flat_begin, flat_end, flat, gathers, &numels[count], padding, err);
    if (status == TSR_OK) status = tsr_gpu_move_runs(stream, job.runs.items, job.runs.count, err);
    if (status == TSR_OK) status = tsr_gpu_move_boxes(stream, job.paddings.items, job.paddings.count, err);
    tsr_free(allocator, numels, count + 1, sizeof *numels);
    tsr_vec_free(&job.runs);
    tsr_vec_free(&job.paddings);
    return status;
}

tsr_status tsr_gpu_flat_gather(tsr_gpu_stream *stream, tsr_dtype dtype, const tsr_gpu_span *spans, size_t count,
                               uint64_t flat_begin, uint64_t flat_end, void *flat, const void *padding, tsr_error *err)
{
    return run_flat(stream, dtype, spans, count, flat_begin, flat_end, flat, true, padding, err);
}

tsr_status tsr_gpu_flat_scatter(tsr_gpu_stream *stream, tsr_dtype dtype, const tsr_gpu_span *spans, size_t count,
                                uint64_t flat_begin, uint64_t flat_end, const void *flat, tsr_error *err)
{
    return run_flat(stream, dtype, spans, count, flat_begin, flat_end, (uint8_t *)(uintptr_t)flat, false, NULL, err);
}
