/* What access to device memory costs: bench_gpu [--simulate] JOB ARG…
 *
 *   probe                       the device, or "no CUDA device: …" and status 3 (as for every job)
 *   copy BYTES                  one copy from the device into pinned memory: the limit for all jobs below
 *   memory BYTES                one copy within the device
 *   shard ROWS COLUMNS PARTS    packs 1/PARTS of the columns of a float32 tensor into pinned memory
 *   pieces BYTES COUNT          copies many small pieces at irregular places into pinned memory, in one call
 *   batch BYTES COUNT           copies the same pieces one by one, and waits once at the end
 *   load PATH [MIB]             loads a checkpoint's tensors into device memory, through MIB of pinned memory
 *   Simulated devices (--simulate) serve to try this program; their times mean nothing.
 *
 * Prints {"wall": s, "cpu": s, "bytes": n} of the job's third run. The copied bytes are compared with what they must be. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tessera/box.h"
#include "tessera/native_host.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/gpu.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/read.h"

#define NO_DEVICE 3
#define SIMULATED ((size_t)1 << 30)

static tsr_error failure;

static void must(tsr_status status)
{
    if (status == TSR_OK) return;
    fprintf(stderr, "bench_gpu: %s\n", failure.message);
    exit(1);
}

static void must_be(bool right)
{
    if (right) return;
    fprintf(stderr, "bench_gpu: the bytes that came over are not those that were there\n");
    exit(1);
}

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

typedef struct bench {
    tsr_native_host native;
    tsr_gpu *gpu;
    tsr_gpu_stream *stream;
    uint8_t *there, *here; /* in device memory, and in pinned host memory */
} bench;

/* Runs `job` three times: the first two runs fill caches, contexts and rings. */
static void measure(bench *b, void (*job)(bench *b, const uint64_t *numbers), const uint64_t *numbers, uint64_t bytes)
{
    double wall = 0, cpu = 0;
    for (int i = 0; i < 3; i++) {
        wall = now(CLOCK_MONOTONIC);
        cpu = now(CLOCK_PROCESS_CPUTIME_ID);
        job(b, numbers);
        wall = now(CLOCK_MONOTONIC) - wall;
        cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    }
    printf("{\"wall\": %.9f, \"cpu\": %.9f, \"bytes\": %" PRIu64 "}\n", wall, cpu, bytes);
}

static uint8_t content(uint64_t at)
{
    return (uint8_t)((at * UINT64_C(0x9e3779b97f4a7c15)) >> 56);
}

#define CONTENT_PART ((size_t)1 << 20)

typedef struct content_job {
    uint8_t *bytes;
    size_t size;
} content_job;

static void fill_part(void *arg, size_t part)
{
    const content_job *job = arg;
    const size_t begin = part * CONTENT_PART, end = begin + CONTENT_PART < job->size ? begin + CONTENT_PART : job->size;
    for (size_t i = begin; i < end; i++) job->bytes[i] = content(i);
}

static void prepare(bench *b, size_t there, size_t here)
{
    must(tsr_gpu_alloc(b->gpu, there, (void **)&b->there, &failure));
    must(tsr_gpu_host_alloc(b->gpu, here, (void **)&b->here, &failure));
    uint8_t *bytes = malloc(there);
    tsr_parallel(&b->native.host, there / CONTENT_PART + 1, fill_part, &(content_job){bytes, there});
    must(tsr_gpu_copy(b->stream, b->there, bytes, there, &failure));
    must(tsr_gpu_stream_wait(b->stream, &failure));
    free(bytes);
}

/* ---- jobs ---- */

static void do_copy(bench *b, const uint64_t *n)
{
    must(tsr_gpu_copy(b->stream, b->here, b->there, n[0], &failure));
    must(tsr_gpu_stream_wait(b->stream, &failure));
}

static void bench_copy(bench *b, const uint64_t *n)
{
    prepare(b, n[0], n[0]);
    measure(b, do_copy, n, n[0]);
    for (uint64_t i = 0; i < n[0]; i += 4097) must_be(b->here[i] == content(i));
}

static void do_memory(bench *b, const uint64_t *n)
{
    must(tsr_gpu_copy(b->stream, b->there + n[0], b->there, n[0], &failure));
    must(tsr_gpu_stream_wait(b->stream, &failure));
}

static void bench_memory(bench *b, const uint64_t *n)
{
    prepare(b, 2 * n[0], 4096);
    measure(b, do_memory, n, 2 * n[0]); /* each byte is read and written */
}

static void do_shard(bench *b, const uint64_t *n)
{
    const uint64_t columns = n[1] / n[2], sizes[] = {n[0], columns}, to[] = {columns, 1}, from[] = {n[1], 1};
    const tsr_gpu_box box = {.to = b->here,
                             .from = b->there + columns * 4,
                             .to_dtype = TSR_FLOAT32,
                             .from_dtype = TSR_FLOAT32,
                             .ndim = 2,
                             .sizes = sizes,
                             .to_strides = to,
                             .from_strides = from};
    must(tsr_gpu_move_boxes(b->stream, &box, 1, &failure));
    must(tsr_gpu_stream_wait(b->stream, &failure));
}

static void bench_shard(bench *b, const uint64_t *n)
{
    const uint64_t row = n[1] / n[2] * 4, bytes = n[0] * row;
    prepare(b, n[0] * n[1] * 4, bytes);
    measure(b, do_shard, n, bytes);
    for (uint64_t i = 0; i < bytes; i += 1021) must_be(b->here[i] == content(i / row * n[1] * 4 + row + i % row));
}

/* Returns the offset of a piece. Pieces are about three times their size apart, at multiples of 16 bytes, but at irregular
 * distances. */
static uint64_t piece_at(const uint64_t *n, uint64_t i)
{
    return i * 3 * n[0] + content(i) % 16 * (n[0] / 16 / 16 * 16);
}

static tsr_gpu_run *pieces; /* listed before the clock starts: callers have their list */

static void do_pieces(bench *b, const uint64_t *n)
{
    must(tsr_gpu_move_runs(b->stream, pieces, n[1], &failure));
    must(tsr_gpu_stream_wait(b->stream, &failure));
}

static void do_batch(bench *b, const uint64_t *n)
{
    for (uint64_t i = 0; i < n[1]; i++)
        must(tsr_gpu_copy(b->stream, b->here + i * n[0], b->there + piece_at(n, i), n[0], &failure));
    must(tsr_gpu_stream_wait(b->stream, &failure));
}

static void bench_pieces(bench *b, const uint64_t *n, void (*job)(bench *b, const uint64_t *n))
{
    prepare(b, n[0] * n[1] * 3 + 2 * n[0], n[0] * n[1]);
    pieces = malloc(n[1] * sizeof *pieces);
    for (uint64_t i = 0; i < n[1]; i++) pieces[i] = (tsr_gpu_run){b->here + i * n[0], b->there + piece_at(n, i), n[0]};
    measure(b, job, n, n[0] * n[1]);
    free(pieces);
    for (uint64_t i = 0; i < n[0] * n[1]; i += 509) must_be(b->here[i] == content(piece_at(n, i / n[0]) + i % n[0]));
}

/* ---- load ---- */

typedef struct loading {
    tsr_gpu_pipe *pipe;
    tsr_checkpoint *checkpoint;
    tsr_gpu_load *loads;
    size_t count;
} loading;

static loading work;

static void do_load(bench *b, const uint64_t *n)
{
    (void)b, (void)n;
    must(tsr_gpu_load_tensors(work.pipe, work.checkpoint, work.loads, work.count, NULL, &failure));
}

static void bench_load(bench *b, const char *path, size_t ring_bytes)
{
    tsr_store *store;
    uint64_t total = 0, bytes;
    must(tsr_directory_store_open(NULL, b->native.host.allocator, path, &store, &failure));
    must(tsr_checkpoint_open(store, &b->native.host, NULL, &work.checkpoint, &failure));
    const tsr_catalog *catalog = tsr_checkpoint_catalog(work.checkpoint);
    work.loads = calloc(catalog->entry_count + 1, sizeof *work.loads);
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        if (catalog->entries[i].kind != TSR_ENTRY_TENSOR || tsr_tensor_bytes(&catalog->entries[i], &bytes, NULL) != TSR_OK)
            continue;
        work.loads[work.count].entry = &catalog->entries[i];
        must(tsr_gpu_alloc(b->gpu, bytes, &work.loads[work.count++].to, &failure));
        total += bytes;
    }
    must(tsr_gpu_pipe_new(b->gpu, ring_bytes, &work.pipe, &failure));
    measure(b, do_load, NULL, total);
    for (size_t i = 0; i < work.count; i++) {
        must(tsr_tensor_bytes(work.loads[i].entry, &bytes, &failure));
        uint8_t *back = malloc(bytes + 1), *expected = malloc(bytes + 1);
        must(tsr_gpu_copy(b->stream, back, work.loads[i].to, bytes, &failure));
        must(tsr_gpu_stream_wait(b->stream, &failure));
        const uint64_t zeros[TSR_MAX_NDIM] = {0};
        must(tsr_read_box(work.checkpoint, work.loads[i].entry,
                          (tsr_box){work.loads[i].entry->ndim, zeros, work.loads[i].entry->shape}, expected, bytes,
                          &failure));
        must_be(memcmp(back, expected, bytes) == 0);
        free(back);
        free(expected);
        tsr_gpu_free(b->gpu, work.loads[i].to);
    }
    tsr_gpu_pipe_free(work.pipe);
    free(work.loads);
    tsr_checkpoint_close(work.checkpoint);
    store->close(store);
}

/* ---- */

static void open_device(bench *b, bool simulate)
{
    tsr_gpu_runtime runtime;
    tsr_gpu_runtime_describe(&runtime);
    tsr_native_host_open(&b->native, 0);
    if (!simulate && runtime.devices == 0) {
        fprintf(stderr, "no CUDA device: %s\n", runtime.reason);
        exit(NO_DEVICE);
    }
    must(simulate ? tsr_gpu_simulate(&b->native.host, SIMULATED, TSR_SIMULATE_TWINS, &b->gpu, &failure)
                  : tsr_gpu_open(&b->native.host, 0, &b->gpu, &failure));
    must(tsr_gpu_stream_new(b->gpu, &b->stream, &failure));
}

static void probe(bench *b)
{
    tsr_gpu_info info;
    must(tsr_gpu_about(b->gpu, &info, &failure));
    printf("{\"device\": \"%s\", \"compute\": \"%u.%u\", \"memory\": %" PRIu64 "}\n", info.name, (unsigned)info.major,
           (unsigned)info.minor, info.memory_bytes);
}

static bool run_job(bench *b, const char *job, int count, char **args)
{
    uint64_t n[3] = {0};
    for (int i = 0; i < count && i < 3; i++) n[i] = strtoull(args[i], NULL, 10);
    if (strcmp(job, "probe") == 0 && count == 0) probe(b);
    else if (strcmp(job, "copy") == 0 && count == 1) bench_copy(b, n);
    else if (strcmp(job, "memory") == 0 && count == 1) bench_memory(b, n);
    else if (strcmp(job, "shard") == 0 && count == 3 && n[2]) bench_shard(b, n);
    else if (strcmp(job, "pieces") == 0 && count == 2) bench_pieces(b, n, do_pieces);
    else if (strcmp(job, "batch") == 0 && count == 2) bench_pieces(b, n, do_batch);
    else if (strcmp(job, "load") == 0 && (count == 1 || count == 2)) bench_load(b, args[0], (size_t)n[1] << 20);
    else return false;
    return true;
}

int main(int argc, char **argv)
{
    static bench b;
    const bool simulate = argc > 1 && strcmp(argv[1], "--simulate") == 0;
    const int first = simulate ? 2 : 1;
    if (argc <= first) {
        fprintf(stderr, "usage: bench_gpu [--simulate] probe|copy|memory|shard|pieces|batch|load ARG…\n");
        return 2;
    }
    open_device(&b, simulate);
    const bool known = run_job(&b, argv[first], argc - first - 1, argv + first + 1);
    if (!known) fprintf(stderr, "bench_gpu: '%s' is not a job, or has other arguments\n", argv[first]);
    tsr_gpu_stream_free(b.stream);
    tsr_gpu_free(b.gpu, b.there);
    tsr_gpu_host_free(b.gpu, b.here);
    tsr_gpu_close(b.gpu);
    tsr_native_host_close(&b.native);
    return known ? 0 : 2;
}
