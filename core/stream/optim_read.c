/* Reads sharded optimizer state in batches. The threads of the host perform the reads of a batch. */
#include "tessera/sys/optim_read.h"

#include "base/cursor.h"
#include "tessera/box.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/try.h"

#define BATCH 64u

typedef struct task {
    const tsr_optim_read *read;
    void *buffer;
    size_t bytes;
    tsr_status status;
    tsr_error err;
} task;

/* The state of all reads, which are performed one batch after the other. */
typedef struct reading {
    tsr_checkpoint *checkpoint;
    task *tasks; /* of the current batch */
    const tsr_optim_sink *sink;
    const tsr_progress *progress;
    uint64_t done, total; /* in bytes */
} reading;

/* Computes the size of the rank's part; 0 if there is nothing to read. */
static tsr_status part_bytes(const tsr_optim_read *read, size_t *bytes, tsr_error *err)
{
    uint64_t volume = 1, size = tsr_dtype_size(read->dtype);
    *bytes = 0;
    if (read->kind == TSR_READ_OBJECT) return TSR_OK;
    bool fits = true;
    for (uint32_t d = 0; d < read->entry->ndim && read->kind == TSR_READ_BOX; d++)
        fits = fits && tsr_mul_u64(volume, read->sizes[d], &volume);
    TSR_FAIL_IF(!fits || size == 0 || !tsr_mul_u64(volume, size, &volume) || volume > SIZE_MAX, err, TSR_E_UNSUPPORTED,
                "optim: a part of '%.*s' is too large, or its elements are not byte-aligned", TSR_STR_ARG(read->entry->fqn));
    *bytes = (size_t)volume;
    return TSR_OK;
}

static void run_task(void *arg, size_t index)
{
    static const uint64_t zeros[TSR_MAX_NDIM] = {0};
    const reading *r = arg;
    task *t = &r->tasks[index];
    if (!t->bytes) return;
    bool box = t->read->kind == TSR_READ_BOX;
    t->status = tsr_read_box(
        r->checkpoint, t->read->entry,
        (tsr_box){t->read->entry->ndim, box ? t->read->storage_offsets : zeros, box ? t->read->sizes : t->read->shape},
        t->buffer, t->bytes, &t->err);
}

static tsr_status prepare(const reading *r, const tsr_optim_read *reads, size_t count, tsr_error *err)
{
    task *tasks = r->tasks;
    for (size_t i = 0; i < count; i++) {
        tasks[i] = (task){.read = &reads[i]};
        TSR_TRY(part_bytes(&reads[i], &tasks[i].bytes, err));
        if (tasks[i].bytes) tasks[i].buffer = r->sink->buffer(r->sink->ctx, &reads[i], tasks[i].bytes);
        TSR_FAIL_IF(tasks[i].bytes && !tasks[i].buffer, err, TSR_E_NOMEM,
                    "'%.*s': the buffer is missing (%zu bytes are needed)", TSR_STR_ARG(reads[i].entry->fqn),
                    tasks[i].bytes);
    }
    return TSR_OK;
}

static tsr_status run_batch(reading *r, size_t count, tsr_error *err)
{
    const tsr_host *host = tsr_checkpoint_host(r->checkpoint);
    if (host->parallel_for) host->parallel_for(host->parallel_ctx, count, run_task, r);
    for (size_t i = 0; i < count; i++) {
        if (!host->parallel_for) run_task(r, i);
        TSR_FAIL_AT(r->tasks[i].status != TSR_OK, err, r->tasks[i].status, r->tasks[i].err.byte_position, "%s",
                    r->tasks[i].err.message);
    }
    return TSR_OK;
}

static tsr_status run(reading *r, const tsr_optim_read *reads, size_t count, tsr_error *err)
{
    const tsr_progress *progress = r->progress;
    for (size_t at = 0; at < count; at += BATCH) {
        size_t now = count - at < BATCH ? count - at : BATCH;
        TSR_TRY(prepare(r, reads + at, now, err));
        TSR_TRY(run_batch(r, now, err));
        for (size_t i = 0; i < now; i++) r->done += r->tasks[i].bytes;
        TSR_FAIL_IF(progress && progress->step && !progress->step(progress->ctx, r->done, r->total), err, TSR_E_CANCELLED,
                    "interrupted");
    }
    return TSR_OK;
}

tsr_status tsr_optim_read_all(tsr_checkpoint *checkpoint, const tsr_optim_read *reads, size_t count,
                              const tsr_optim_sink *sink, const tsr_progress *progress, tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(checkpoint)->allocator;
    reading r = {.checkpoint = checkpoint, .sink = sink, .progress = progress};
    for (size_t i = 0; i < count; i++) {
        size_t bytes;
        TSR_TRY(part_bytes(&reads[i], &bytes, err));
        r.total += bytes;
    }
    r.tasks = tsr_alloc(allocator, BATCH, sizeof(task), err);
    if (!r.tasks) return TSR_E_NOMEM;
    tsr_status status = run(&r, reads, count, err);
    tsr_free(allocator, r.tasks, BATCH, sizeof(task));
    return status;
}
