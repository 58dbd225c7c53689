/* The functions through which state dicts use device memory (tsr_device). Starting a copy of a few KiB takes longer than the
 * copy itself. Small copies are therefore collected, go through pinned memory (the stage), and are performed by a single
 * launch.
 *
 *   small, from the host   host ─▶ stage immediately  stage ─▶ device with all others
 *   small, to the host     device ─▶ stage            stage ─▶ host in synchronize
 *   small, within          device ─▶ device           with all others
 *   large                  directly, after the copies that were collected
 *
 * A copy that overlaps collected ones in memory causes these to be performed first, so the order is that of the calls. */
#include "tessera/sys/containers.h"
#include "tessera/sys/gpu.h"

#include "live/cuda/backend.h"

#define SMALL_BYTES ((uint64_t)64 << 10)
#define STAGE_BYTES ((size_t)8 << 20)

/* Addresses from `low` up to, but not including, `high`. */
typedef struct range {
    uintptr_t low, high;
} range;

typedef struct gpu_device {
    tsr_device base;
    tsr_gpu *gpu;
    tsr_gpu_stream *stream;
    uint8_t *stage; /* pinned memory; NULL until needed */
    size_t staged;  /* bytes of the stage in use since the last wait */
    tsr_vec runs;   /* of tsr_gpu_run: collected copies, which are not launched yet */
    range written;  /* encloses the memory that `runs` write; no two of them overlap */
    /* Encloses the memory that copies within the device read; no collected copy writes to it. */
    range read;
    enum { FROM_HOST, TO_HOST, WITHIN } kind; /* kind of all collected copies */
    /* Of tsr_gpu_run: copies from the stage to the host, to be done after a wait. */
    tsr_vec due;
    range owed; /* encloses the host memory in `due` */
} gpu_device;

static bool meets(range a, const void *memory, uint64_t bytes)
{
    return (uintptr_t)memory < a.high && (uintptr_t)memory + bytes > a.low;
}

static void extend(range *a, const void *memory, uint64_t bytes)
{
    const uintptr_t low = (uintptr_t)memory, high = low + (uintptr_t)bytes;
    if (a->low == a->high) *a = (range){low, high};
    if (low < a->low) a->low = low;
    if (high > a->high) a->high = high;
}

static tsr_status launch(gpu_device *d, tsr_error *err)
{
    const size_t count = d->runs.count;
    d->runs.count = 0;
    d->written = d->read = (range){0, 0};
    return count ? tsr_gpu_move_runs(d->stream, d->runs.items, count, err) : TSR_OK;
}

/* Performs all copies so far and waits for them, including those in `due`. */
static tsr_status settle(gpu_device *d, tsr_error *err)
{
    tsr_status status = launch(d, err);
    const tsr_status waited = tsr_gpu_stream_wait(d->stream, err);
    if (status == TSR_OK) status = waited;
    const tsr_gpu_run *due = d->due.items;
    for (size_t i = 0; i < d->due.count && status == TSR_OK; i++) memcpy(due[i].to, due[i].from, due[i].bytes);
    d->due.count = 0;
    d->owed = (range){0, 0};
    d->staged = 0;
    return status;
}

static tsr_status add_run(tsr_vec *runs, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    tsr_gpu_run *run = tsr_vec_push(runs, err);
    if (!run) return TSR_E_NOMEM;
    *run = (tsr_gpu_run){to, from, (size_t)bytes};
    return TSR_OK;
}

/* Takes `bytes` bytes of the stage. */
static tsr_status reserve(gpu_device *d, uint64_t bytes, uint8_t **out, tsr_error *err)
{
    if (!d->stage) TSR_TRY(tsr_gpu_host_alloc(d->gpu, STAGE_BYTES, (void **)&d->stage, err));
    if (bytes > STAGE_BYTES - d->staged) TSR_TRY(settle(d, err));
    *out = d->stage + d->staged;
    d->staged += (size_t)bytes;
    return TSR_OK;
}

/* Adds a copy to the collected ones. Launches these first if it must not be performed together with them. */
static tsr_status join(gpu_device *d, int kind, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    const bool crosses =
        meets(d->written, to, bytes) || (kind == WITHIN && (meets(d->written, from, bytes) || meets(d->read, to, bytes)));
    if (d->runs.count && ((int)d->kind != kind || crosses)) TSR_TRY(launch(d, err));
    d->kind = kind;
    TSR_TRY(add_run(&d->runs, to, from, bytes, err));
    extend(&d->written, to, bytes);
    if (kind == WITHIN) extend(&d->read, from, bytes);
    return TSR_OK;
}

static tsr_status copy_small(gpu_device *d, int kind, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    uint8_t *stage;
    if (kind == WITHIN) return join(d, kind, to, from, bytes, err);
    TSR_TRY(reserve(d, bytes, &stage, err));
    if (kind == FROM_HOST) {
        memcpy(stage, from, (size_t)bytes);
        return join(d, kind, to, stage, bytes, err);
    }
    TSR_TRY(join(d, kind, stage, from, bytes, err));
    extend(&d->owed, to, bytes);
    return add_run(&d->due, to, stage, bytes, err);
}

/* Whether a copy in `due` will write to this host memory. The range `owed` alone is not enough, because it also encloses
 * memory between the copies. */
static bool is_owed(const gpu_device *d, const void *memory, uint64_t bytes)
{
    const tsr_gpu_run *due = d->due.items;
    if (!meets(d->owed, memory, bytes)) return false;
    for (size_t i = 0; i < d->due.count; i++) {
        const uintptr_t at = (uintptr_t)due[i].to;
        if (meets((range){at, at + due[i].bytes}, memory, bytes)) return true;
    }
    return false;
}

/* Small copies to the host are done in the order of the calls when they leave the stage. Other copies could overtake them,
 * so they must wait. */
static tsr_status copy(gpu_device *d, int kind, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    const bool is_small = bytes < SMALL_BYTES;
    if ((kind == FROM_HOST && is_owed(d, from, bytes)) || (kind == TO_HOST && !is_small && is_owed(d, to, bytes)))
        TSR_TRY(settle(d, err));
    if (is_small) return copy_small(d, kind, to, from, bytes, err);
    TSR_TRY(launch(d, err));
    return tsr_gpu_copy(d->stream, to, from, (size_t)bytes, err);
}

/* ---- the table ---- */

static tsr_status alloc(tsr_device *device, uint64_t bytes, void **out, tsr_error *err)
{
    return tsr_gpu_alloc(((gpu_device *)device)->gpu, (size_t)bytes, out, err);
}

static void release(tsr_device *device, void *data, uint64_t bytes)
{
    (void)bytes;
    settle((gpu_device *)device, NULL); /* copies that are not launched yet may use the memory */
    tsr_gpu_free(((gpu_device *)device)->gpu, data);
}

static tsr_status to_host(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    return copy((gpu_device *)device, TO_HOST, to, from, bytes, err);
}

static tsr_status from_host(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    return copy((gpu_device *)device, FROM_HOST, to, from, bytes, err);
}

static tsr_status within(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    return copy((gpu_device *)device, WITHIN, to, from, bytes, err);
}

static tsr_status synchronize(tsr_device *device, tsr_error *err)
{
    return settle((gpu_device *)device, err);
}

static tsr_status pin(tsr_device *device, void *data, uint64_t bytes, tsr_error *err)
{
    return tsr_gpu_pin(((gpu_device *)device)->gpu, data, (size_t)bytes, err);
}

static void unpin(tsr_device *device, void *data, uint64_t bytes)
{
    (void)bytes;
    settle((gpu_device *)device, NULL);
    tsr_gpu_unpin(((gpu_device *)device)->gpu, data);
}

tsr_status tsr_gpu_device_new(tsr_gpu *gpu, uint32_t index, tsr_device **out, tsr_error *err)
{
    *out = NULL;
    gpu_device *d = tsr_alloc(gpu->host->allocator, 1, sizeof *d, err);
    if (!d) return TSR_E_NOMEM;
    *d = (gpu_device){.base = {.kind = TSR_DEVICE_CUDA,
                               .index = index,
                               .alloc = alloc,
                               .free = release,
                               .to_host = to_host,
                               .from_host = from_host,
                               .within = within,
                               .synchronize = synchronize,
                               .pin = pin,
                               .unpin = unpin},
                      .gpu = gpu};
    d->runs = tsr_vec_of(gpu->host->allocator, sizeof(tsr_gpu_run));
    d->due = tsr_vec_of(gpu->host->allocator, sizeof(tsr_gpu_run));
    tsr_status status = tsr_gpu_stream_new(gpu, &d->stream, err);
    if (status == TSR_OK) *out = &d->base;
    else tsr_free(gpu->host->allocator, d, 1, sizeof *d);
    return status;
}

void tsr_gpu_device_free(tsr_device *base)
{
    gpu_device *d = (gpu_device *)base;
    if (!d) return;
    settle(d, NULL);
    tsr_gpu_stream_free(d->stream);
    tsr_gpu_host_free(d->gpu, d->stage);
    tsr_vec_free(&d->runs);
    tsr_vec_free(&d->due);
    tsr_free(d->gpu->host->allocator, d, 1, sizeof *d);
}
