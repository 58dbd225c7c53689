/* Runs the kernels' source on the host's threads, without a GPU. The bytes must be the same for any order of blocks and
 * threads and for grids of any size. Also tests every call of the runtime failing once, and how often the host waits. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda_runtime_api.h"
#include "hosted/hosted.h"
#include "live/cuda/kernel_body.h"
#include "on_devices.h"
#include "support/random.h"
#include "tessera/statedict.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/gpu.h"
#include "tessera/sys/host_calls.h"

/* ---- order ---- */

#define AREA ((size_t)1 << 18)

/* Boxes, fills, casts and runs of all sizes, drawn from `seed`; each writes bytes of its own. */
static void move_all(tsr_gpu_stream *stream, uint8_t *to, const uint8_t *from, uint64_t seed)
{
    static const tsr_dtype dtypes[] = {TSR_UINT8, TSR_BFLOAT16, TSR_FLOAT32, TSR_FLOAT64, TSR_COMPLEX128};
    random_source random = {seed};
    tsr_gpu_box boxes[24];
    uint64_t sizes[24][3], strides[24][3], sources[24][3];
    tsr_gpu_run runs[300];
    size_t at = 0, count = 0;
    for (size_t i = 0; i < 24; i++) {
        const tsr_dtype dtype = dtypes[random_in(&random, 0, 4)];
        const bool casts = dtype == TSR_FLOAT32 && random_in(&random, 0, 1);
        const size_t item = tsr_dtype_size(dtype), shift = casts || random_in(&random, 0, 1) ? 0 : random_in(&random, 0, 15);
        uint64_t step = 1;
        for (size_t d = 3; d-- > 0;) {
            sizes[i][d] = random_in(&random, 1, 12);
            strides[i][d] = step;
            sources[i][2 - d] = 16 * (d + 1) + random_in(&random, 0, 3);
            step *= sizes[i][d];
        }
        boxes[i] = (tsr_gpu_box){.to = to + at + shift,
                                 .from = random_in(&random, 0, 5) ? from + 16 * random_in(&random, 0, 900) + shift : NULL,
                                 .to_dtype = casts ? TSR_FLOAT16 : dtype,
                                 .from_dtype = dtype,
                                 .ndim = 3,
                                 .sizes = sizes[i],
                                 .to_strides = strides[i],
                                 .from_strides = sources[i]};
        if (casts && !boxes[i].from) boxes[i].from = from;
        memset(boxes[i].fill, (int)i + 1, sizeof boxes[i].fill);
        at += (step * item + 31) / 16 * 16;
    }
    OK(tsr_gpu_move_boxes(stream, boxes, 24, err));
    for (; count < 300; count++) {
        const size_t bytes = random_in(&random, 0, 9) ? random_in(&random, 1, 200) : random_in(&random, 30000, 36000) / 20;
        runs[count] = (tsr_gpu_run){to + at + random_in(&random, 0, 3), from + random_in(&random, 0, AREA / 2), bytes};
        at += bytes + 4;
        assert_true(at < AREA);
    }
    OK(tsr_gpu_move_runs(stream, runs, count, err));
}

static uint8_t *work_in(tsr_gpu *device, enum hosted_order order, uint64_t seed)
{
    random_source random = {99};
    uint8_t *bytes = malloc(AREA), *moved = malloc(AREA);
    tsr_gpu_stream *stream;
    for (size_t i = 0; i < AREA; i++) bytes[i] = (uint8_t)random_next(&random);
    hosted_set_order(order, seed);
    OK(tsr_gpu_stream_new(device, &stream, err));
    uint8_t *from = upload(device, stream, bytes, AREA), *to = upload(device, stream, bytes, AREA);
    for (uint64_t i = 0; i < 3; i++) move_all(stream, to, from, i + 1);
    download(stream, moved, to, AREA);
    tsr_gpu_free(device, from);
    tsr_gpu_free(device, to);
    tsr_gpu_stream_free(stream);
    free(bytes);
    return moved;
}

static void test_hosted_kernels__any_order_of_blocks_and_threads_gives_the_same_bytes(void **state)
{
    tsr_gpu *device = device_of(state), *grid;
    uint8_t *first = work_in(device, HOSTED_FORWARD, 0);
    for (uint64_t i = 0; i < 6; i++) {
        uint8_t *again = work_in(device, i == 0 ? HOSTED_REVERSE : HOSTED_SHUFFLED, i);
        assert_memory_equal(again, first, AREA);
        free(again);
    }
    OK(tsr_gpu_simulate(&test_host, SIMULATED_BYTES, TSR_SIMULATE_TWINS, &grid, err));
    uint8_t *twins = work_in(grid, HOSTED_FORWARD, 0);
    assert_memory_equal(twins, first, AREA);
    free(twins);
    free(first);
    tsr_gpu_close(grid);
}

/* ---- index arithmetic ---- */

/* Tests units at the end of a box of 2,147,412,690 bytes and more, in memory of which only the touched pages exist. */
static void test_hosted_kernels__units_near_2_31_vectors_find_their_elements(void **state)
{
    (void)state;
    static const uint64_t sizes[][3] = {{1289, 1290, 1291}, {2, 3, 357913941}, {1, 1, 2147483647}, {715827882, 3, 1}};
    const size_t span = (size_t)5 << 30;
    uint8_t *from = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint8_t *to = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(from != MAP_FAILED && to != MAP_FAILED);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        const uint64_t count = sizes[s][0] * sizes[s][1] * sizes[s][2];
        tsr_kernel_box box = {.to = (uintptr_t)to, .from = (uintptr_t)from, .axes = 3, .width = 1, .count = (uint32_t)count};
        uint64_t inner = 1, outer = 1;
        for (uint32_t a = 3; a-- > 0; inner *= sizes[s][a]) box.axis[a].to = inner;
        for (uint32_t a = 0; a < 3; outer *= sizes[s][a++]) {
            uint32_t shift = 0;
            const uint32_t size = (uint32_t)sizes[s][a];
            while ((UINT64_C(1) << shift) < size) shift++;
            box.axis[a].from = outer;
            box.axis[a].size = size;
            box.shift[a] = (uint8_t)shift;
            box.axis[a].magic = (uint32_t)((((UINT64_C(1) << shift) - size) << 32) / size + 1);
        }
        const uint32_t last = (uint32_t)((count - 1) / TSR_KERNEL_BOX_UNIT);
        const uint32_t units[] = {0, 1, last / 2 + 1, last - 1, last};
        for (size_t u = 0; u < 5; u++) {
            const uint64_t begin = (uint64_t)units[u] * TSR_KERNEL_BOX_UNIT;
            for (uint64_t i = begin; i < count && i < begin + TSR_KERNEL_BOX_UNIT; i++) {
                const uint64_t z = i % sizes[s][2], y = i / sizes[s][2] % sizes[s][1], x = i / sizes[s][2] / sizes[s][1];
                from[x + y * sizes[s][0] + z * sizes[s][0] * sizes[s][1]] = (uint8_t)(i * 31 + i / 253 + 1);
            }
            for (uint32_t thread = 0; thread < TSR_KERNEL_THREADS; thread++) tsr_body_boxes(&box, 1, units[u], thread);
            for (uint64_t i = begin; i < count && i < begin + TSR_KERNEL_BOX_UNIT; i++)
                assert_int_equal(to[i], (uint8_t)(i * 31 + i / 253 + 1));
        }
        madvise(from, span, MADV_DONTNEED);
        madvise(to, span, MADV_DONTNEED);
    }
    munmap(from, span);
    munmap(to, span);
}

/* ---- failing calls ---- */

enum { SIZE = 400000 };

static tsr_status use_all(tsr_gpu *device, tsr_error *err)
{
    static uint8_t bytes[SIZE], back[SIZE];
    const uint64_t sizes[] = {30, 40}, to[] = {40, 1}, from[] = {1, 30};
    uint8_t *a = NULL, *b = NULL, *pinned = NULL;
    tsr_gpu_stream *stream = NULL;
    tsr_gpu_event *event = NULL;
    tsr_device *memory = NULL;
    for (size_t i = 0; i < SIZE; i++) bytes[i] = (uint8_t)(i % 251 * 3);
    tsr_status status = tsr_gpu_stream_new(device, &stream, err);
    if (status == TSR_OK) status = tsr_gpu_event_new(device, &event, err);
    if (status == TSR_OK) status = tsr_gpu_device_new(device, 0, &memory, err);
    if (status == TSR_OK) status = tsr_gpu_alloc(device, SIZE, (void **)&a, err);
    if (status == TSR_OK) status = tsr_gpu_alloc(device, SIZE, (void **)&b, err);
    if (status == TSR_OK) status = tsr_gpu_host_alloc(device, SIZE, (void **)&pinned, err);
    if (status == TSR_OK) status = tsr_gpu_copy(stream, b, bytes, SIZE, err);
    if (status == TSR_OK) {
        const tsr_gpu_box box = {a, b, TSR_FLOAT32, TSR_FLOAT32, 2, sizes, to, from, {0}};
        const tsr_gpu_run runs[] = {{a + 8192, b, 100}, {a + 8500, b + 131, 77}, {pinned, b + 1000, 50}};
        status = tsr_gpu_move_boxes(stream, &box, 1, err);
        if (status == TSR_OK) status = tsr_gpu_move_runs(stream, runs, 3, err);
    }
    if (status == TSR_OK) status = tsr_gpu_event_record(event, stream, err);
    if (status == TSR_OK) status = tsr_gpu_event_wait(event, err);
    if (status == TSR_OK) status = memory->from_host(memory, a, bytes, 100, err);
    if (status == TSR_OK) status = memory->to_host(memory, back, a, 100, err);
    if (status == TSR_OK) status = memory->synchronize(memory, err);
    if (status == TSR_OK) status = tsr_gpu_copy(stream, back, b, SIZE, err);
    if (status == TSR_OK) status = tsr_gpu_stream_wait(stream, err);
    if (status == TSR_OK && memcmp(back, bytes, SIZE) != 0)
        status = tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "other bytes came back");
    tsr_gpu_device_free(memory);
    tsr_gpu_event_free(event);
    tsr_gpu_stream_free(stream);
    tsr_gpu_host_free(device, pinned);
    tsr_gpu_free(device, a);
    tsr_gpu_free(device, b);
    return status;
}

static void test_hosted_kernels__every_call_that_fails_is_told_with_its_device(void **state)
{
    tsr_gpu *device = device_of(state);
    static const struct {
        int code;
        tsr_status status;
        const char *name;
    } kinds[] = {{cudaErrorLaunchFailure, TSR_E_IO, "unspecified launch failure (cudaErrorLaunchFailure)"},
                 {cudaErrorMemoryAllocation, TSR_E_NOMEM, "out of memory (cudaErrorMemoryAllocation)"}};
    for (size_t k = 0; k < 2; k++) {
        uint64_t told = 0;
        for (uint64_t n = 0;; n++) {
            tsr_error error = {0};
            hosted_fail_call(n, kinds[k].code);
            const tsr_status status = use_all(device, &error);
            const bool failed = hosted_has_failed();
            hosted_fail_call(UINT64_MAX, 0);
            const hosted_live live = hosted_what_lives();
            if (live.blocks || live.pinned || live.streams || live.events)
                fail_msg("call %u: %u blocks, %u of pinned memory, %u streams, %u events are left", (unsigned)n,
                         (unsigned)live.blocks, (unsigned)live.pinned, (unsigned)live.streams, (unsigned)live.events);
            assert_int_equal(cudaGetLastError(), cudaSuccess); /* no later call finds this error */
            if (!failed) {
                if (status != TSR_OK) fail_msg("%s", error.message);
                break;
            }
            if (status == TSR_OK) continue; /* the question where memory is failed: the memory then counts as pageable */
            if (status != kinds[k].status || strncmp(error.message, "cuda: device 0: ", 16) != 0 ||
                !strstr(error.message, kinds[k].name))
                fail_msg("call %u: status %d: %s", (unsigned)n, status, error.message);
            told++;
        }
        assert_true(told > 40);
    }
}

/* ---- waits ---- */

/* D3: all copies are followed by one wait, for any number of tensors. */
static void test_hosted_kernels__offloading_waits_once(void **state)
{
    tsr_gpu *device = device_of(state);
    const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_device *memory;
    tsr_state_dict *dict, *out;
    tsr_comm *comm;
    OK(tsr_comm_self(&tsr_allocator_libc, &comm, err));
    OK(tsr_gpu_device_new(device, 0, &memory, err));
    OK(tsr_state_dict_new(&host, &dict, err));
    OK(tsr_state_dict_new(&host, &out, err));
    static uint8_t bytes[300000];
    static uint64_t shapes[20];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(i * 13 + i / 255);
    for (uint64_t i = 0; i < 20; i++) {
        const tsr_value *value;
        char name[16];
        shapes[i] = i < 3 ? 90000 + i : i * i;
        tsr_tensor tensor = tsr_tensor_whole(TSR_UINT8, 1, &shapes[i], NULL);
        tensor.device = memory;
        OK(tsr_state_dict_allocate(dict, &tensor, &value, err));
        if (shapes[i]) OK(memory->from_host(memory, tsr_tensor_of(value)->data, bytes + i, shapes[i], err));
        snprintf(name, sizeof name, "t%u", (unsigned)i);
        OK(tsr_state_dict_put(dict, tsr_str_from(name), value, err));
    }
    OK(memory->synchronize(memory, err));
    const uint64_t before = hosted_waits();
    OK(tsr_state_dict_offload(tsr_state_dict_root(dict), comm, NULL, out, err));
    assert_int_equal(hosted_waits() - before, 1);
    for (uint64_t i = 0; i < 20; i++) {
        const tsr_tensor *tensor = tsr_tensor_of(tsr_state_dict_root(out)->items[2 * i + 1]);
        assert_null(tensor->device);
        assert_memory_equal(tensor->data, bytes + i, shapes[i]);
    }
    tsr_state_dict_free(out);
    tsr_state_dict_free(dict);
    tsr_gpu_device_free(memory);
    comm->close(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_DEVICES(test_hosted_kernels__any_order_of_blocks_and_threads_gives_the_same_bytes),
        cmocka_unit_test(test_hosted_kernels__units_near_2_31_vectors_find_their_elements),
        ON_DEVICES(test_hosted_kernels__every_call_that_fails_is_told_with_its_device),
        ON_DEVICES(test_hosted_kernels__offloading_waits_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
