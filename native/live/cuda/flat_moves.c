/* Moves flat parameters: the original parameters one after the other, with padding between and after them. */
#include "live/cuda/backend.h"

#include "tessera/sys/alloc.h"
#include "tessera/sys/dtype_forms.h"
#include "tessera/sys/vec.h"

typedef struct flat_job {
    const tsr_gpu_flat *what;
    uint8_t *flat;
    bool gathers;
    const void *padding; /* the value of padding, when gathering */
    size_t itemsize;
    tsr_vec runs;
    tsr_vec paddings; /* of tsr_gpu_box */
} flat_job;

static tsr_status add_padding(flat_job *job, uint8_t *at, const uint64_t *numel, tsr_error *err)
{
    static const uint64_t one = 1;
    const tsr_dtype dtype = job->what->dtype;
    tsr_gpu_box *box = tsr_vec_push(&job->paddings, err);
    if (!box) return TSR_E_NOMEM;
    *box = (tsr_gpu_box){.to = at, .to_dtype = dtype, .from_dtype = dtype, .ndim = 1, .sizes = numel, .to_strides = &one};
    memcpy(box->fill, job->padding, job->itemsize);
    return TSR_OK;
}

/* Adds the part of a span that is in the range. The span begins at element `begin` of the flat parameter. *numel becomes the
 * number of elements in that part, and must not be freed, because a box may borrow it. */
static tsr_status add_span(flat_job *job, tsr_gpu_span span, uint64_t begin, uint64_t *numel, tsr_error *err)
{
    const uint64_t end = begin + span.numel, low = job->what->flat_begin, high = job->what->flat_end;
    const uint64_t from = begin > low ? begin : low, to = end < high ? end : high;
    if (from >= to) return TSR_OK;
    uint8_t *at = job->flat + (from - low) * job->itemsize;
    *numel = to - from;
    if (!span.param) return job->gathers ? add_padding(job, at, numel, err) : TSR_OK;
    tsr_gpu_run *run = tsr_vec_push(&job->runs, err);
    if (!run) return TSR_E_NOMEM;
    uint8_t *original = (uint8_t *)span.param + (from - begin) * job->itemsize;
    *run = (tsr_gpu_run){job->gathers ? at : original, job->gathers ? original : at, (size_t)(to - from) * job->itemsize};
    return TSR_OK;
}

static tsr_status check_flat(const tsr_gpu_flat *what, tsr_error *err)
{
    const tsr_dtype dtype = what->dtype;
    uint64_t bytes, total = 0;
    bool fits = what->flat_begin <= what->flat_end && tsr_dtype_bytes(dtype, what->flat_end, &bytes);
    for (size_t i = 0; i < what->span_count && fits; i++)
        fits = !__builtin_add_overflow(total, what->spans[i].numel, &total) && tsr_dtype_bytes(dtype, total, &bytes) &&
               bytes <= SIZE_MAX / 2;
    if (tsr_dtype_size(dtype) == 0)
        return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "flat parameter: %s elements are not byte-aligned",
                         tsr_dtype_describe(dtype)->name);
    return fits ? TSR_OK
                : tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "flat parameter: the range or the spans are too large");
}

/* `numels` has room for the size of one box per span, and of one for the padding after the spans. */
static tsr_status add_spans(flat_job *job, uint64_t *numels, tsr_error *err)
{
    const tsr_gpu_flat *what = job->what;
    uint64_t at = 0;
    for (size_t i = 0; i < what->span_count; at += what->spans[i++].numel)
        TSR_TRY(add_span(job, what->spans[i], at, &numels[i], err));
    const tsr_gpu_span rest = {NULL, at < what->flat_end ? what->flat_end - at : 0};
    return add_span(job, rest, at, &numels[what->span_count], err);
}

static tsr_status run_flat(tsr_gpu_stream *stream, const tsr_gpu_flat *what, uint8_t *flat, bool gathers,
                           const void *padding, tsr_error *err)
{
    const tsr_allocator *allocator = stream->device->host->allocator;
    TSR_TRY(check_flat(what, err));
    flat_job job = {what,
                    flat,
                    gathers,
                    padding,
                    tsr_dtype_size(what->dtype),
                    tsr_vec_of(allocator, sizeof(tsr_gpu_run)),
                    tsr_vec_of(allocator, sizeof(tsr_gpu_box))};
    uint64_t *numels = tsr_alloc(allocator, what->span_count + 1, sizeof *numels, err);
    tsr_status status = numels ? add_spans(&job, numels, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = tsr_gpu_move_runs(stream, job.runs.items, job.runs.count, err);
    if (status == TSR_OK) status = tsr_gpu_move_boxes(stream, job.paddings.items, job.paddings.count, err);
    tsr_free(allocator, numels, what->span_count + 1, sizeof *numels);
    tsr_vec_free(&job.runs);
    tsr_vec_free(&job.paddings);
    return status;
}

tsr_status tsr_gpu_flat_gather(tsr_gpu_stream *stream, const tsr_gpu_flat *what, void *flat, const void *padding,
                               tsr_error *err)
{
    return run_flat(stream, what, flat, true, padding, err);
}

tsr_status tsr_gpu_flat_scatter(tsr_gpu_stream *stream, const tsr_gpu_flat *what, const void *flat, tsr_error *err)
{
    return run_flat(stream, what, (uint8_t *)(uintptr_t)flat, false, NULL, err);
}
