/* Every failing allocation, and device or pinned memory that runs out, must end in a clean error: nothing leaks, and what
 * existed before still works. */
#include <string.h>

#include "cuda/on_devices.h"
#include "support/failing_allocator.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/gpu.h"

typedef struct scene {
    tsr_host host;
    tsr_gpu *gpu;
    tsr_gpu_stream *stream;
    tsr_gpu_event *event;
    tsr_gpu_pipe *pipe;
    tsr_comm *below, *comm;
    tsr_device *device;
    uint8_t *a, *b, *pinned;
} scene;

#define SIZE ((size_t)400000)

static tsr_status make(scene *s, tsr_gpu_simulation how, tsr_error *err)
{
    tsr_status status = tsr_gpu_simulate(&s->host, 8 * SIZE, how, &s->gpu, err);
    if (status == TSR_OK) status = tsr_gpu_stream_new(s->gpu, &s->stream, err);
    if (status == TSR_OK) status = tsr_gpu_event_new(s->gpu, &s->event, err);
    if (status == TSR_OK) status = tsr_gpu_pipe_new(s->gpu, 0, &s->pipe, err);
    if (status == TSR_OK) status = tsr_comm_self(s->host.allocator, &s->below, err);
    if (status == TSR_OK) status = tsr_gpu_comm_new(s->below, s->gpu, NULL, &s->comm, err);
    if (status == TSR_OK) status = tsr_gpu_device_new(s->gpu, 0, &s->device, err);
    if (status == TSR_OK) status = tsr_gpu_alloc(s->gpu, SIZE, (void **)&s->a, err);
    if (status == TSR_OK) status = tsr_gpu_alloc(s->gpu, SIZE, (void **)&s->b, err);
    if (status == TSR_OK) status = tsr_gpu_host_alloc(s->gpu, SIZE, (void **)&s->pinned, err);
    return status;
}

static tsr_status use(scene *s, tsr_error *err)
{
    static uint8_t bytes[SIZE];
    const uint64_t sizes[] = {30, 40}, to[] = {40, 1}, from[] = {1, 30}, one = 1, many = 1000;
    const tsr_gpu_box boxes[] = {{s->a, s->b, TSR_FLOAT32, TSR_FLOAT32, 2, sizes, to, from, {0}},
                                 {s->a + 8192, NULL, TSR_INT16, TSR_INT16, 1, &many, &one, NULL, {1, 2}},
                                 {s->a + 16384, s->b, TSR_BFLOAT16, TSR_FLOAT32, 1, &many, &one, &one, {0}}};
    const tsr_gpu_run runs[] = {{s->a, s->b, 100}, {s->a + 500, s->b + 131, 77}, {s->pinned, s->b + 1000, 50}};
    const size_t gathered = SIZE;
    const tsr_message message = {0, s->a, 1000}, back = {0, s->b, 1000};
    tsr_status status = tsr_gpu_copy(s->stream, s->b, bytes, SIZE, err);
    if (status == TSR_OK) status = tsr_gpu_move_boxes(s->stream, boxes, 3, err);
    if (status == TSR_OK) status = tsr_gpu_move_runs(s->stream, runs, 3, err);
    if (status == TSR_OK) status = tsr_gpu_event_record(s->event, s->stream, err);
    if (status == TSR_OK) status = tsr_gpu_event_wait(s->event, err);
    if (status == TSR_OK) status = s->comm->all_gather(s->comm, s->b, &gathered, s->a, err);
    if (status == TSR_OK) status = s->comm->broadcast(s->comm, s->a, SIZE, 0, err);
    if (status == TSR_OK) status = s->comm->exchange(s->comm, &message, 1, &back, 1, err);
    if (status == TSR_OK) status = s->device->from_host(s->device, s->a, bytes, 100, err);
    if (status == TSR_OK) status = s->device->to_host(s->device, bytes, s->a, 100, err);
    if (status == TSR_OK) status = s->device->synchronize(s->device, err);
    return status;
}

static void end(scene *s)
{
    tsr_gpu_info info;
    tsr_gpu_device_free(s->device);
    if (s->comm) s->comm->close(s->comm);
    if (s->below) s->below->close(s->below);
    tsr_gpu_pipe_free(s->pipe);
    if (!s->gpu) return;
    tsr_gpu_event_free(s->event);
    tsr_gpu_stream_free(s->stream);
    tsr_gpu_free(s->gpu, s->a);
    tsr_gpu_free(s->gpu, s->b);
    tsr_gpu_host_free(s->gpu, s->pinned);
    OK(tsr_gpu_about(s->gpu, &info, err));
    assert_int_equal(info.free_bytes, info.memory_bytes);
    tsr_gpu_close(s->gpu);
}

static void test_cuda_faults__every_failed_allocation_ends_cleanly(void **state)
{
    (void)state;
    for (int how = TSR_SIMULATE_TWINS; how <= TSR_SIMULATE_GRID; how++) {
        size_t n = 0;
        for (;; n++) {
            failing_allocator failing;
            failing_start(&failing, n);
            scene s = {.host = {.allocator = &failing.allocator}};
            tsr_error error = {0};
            tsr_status status = make(&s, (tsr_gpu_simulation)how, &error);
            if (status == TSR_OK) status = use(&s, &error);
            if (failing.failed && status != TSR_E_NOMEM) fail_msg("allocation %zu: %s", n, error.message);
            if (!failing.failed && status != TSR_OK) fail_msg("%s", error.message);
            end(&s);
            assert_int_equal(failing.live, 0);
            if (!failing.failed) break;
        }
        assert_true(n > 20);
    }
}

static void test_cuda_faults__full_devices_can_still_be_used(void **state)
{
    (void)state;
    scene s = {.host = test_host};
    void *blocks[64], *more = NULL;
    size_t count = 0;
    OK(make(&s, TSR_SIMULATE_GRID, err));
    while (count < 64 && tsr_gpu_alloc(s.gpu, SIZE, &blocks[count], NULL) == TSR_OK) count++;
    assert_in_range(count, 1, 8);
    tsr_error error = {0};
    assert_int_equal(s.device->alloc(s.device, SIZE, &more, &error), TSR_E_NOMEM);
    assert_non_null(strstr(error.message, "out of memory for 400000 bytes"));
    OK(use(&s, err));
    tsr_gpu_free(s.gpu, blocks[--count]);
    OK(s.device->alloc(s.device, SIZE, &more, err));
    s.device->free(s.device, more, SIZE);
    while (count) tsr_gpu_free(s.gpu, blocks[--count]);
    end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_faults__every_failed_allocation_ends_cleanly),
        cmocka_unit_test(test_cuda_faults__full_devices_can_still_be_used),
    };
    filter_tests();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
