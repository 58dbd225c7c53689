/* Memory, streams and errors of devices. */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/on_devices.h"

#include "tessera/sys/gpu.h"

static void test_cuda_gpu__copies_come_back_as_they_went(void **state)
{
    tsr_gpu *device = device_of(state);
    uint8_t sent[5000], got[5000] = {0}, rows[5000] = {0};
    for (size_t i = 0; i < sizeof sent; i++) sent[i] = (uint8_t)(i * 7 + i / 256);
    tsr_gpu_stream *stream;
    OK(tsr_gpu_stream_new(device, &stream, err));
    uint8_t *there = upload(device, stream, sent, sizeof sent);
    assert_int_equal((uintptr_t)there % 256, 0);
    download(stream, got, there, sizeof got);
    assert_memory_equal(got, sent, sizeof sent);
    OK(tsr_gpu_copy_2d(stream, &(tsr_gpu_rows){rows, 100, there + 3, 70, 61, 50}, err));
    OK(tsr_gpu_stream_wait(stream, err));
    for (size_t i = 0; i < 5000; i++) assert_int_equal(rows[i], i % 100 < 61 ? sent[3 + i / 100 * 70 + i % 100] : 0);
    assert_int_equal(tsr_gpu_copy_2d(stream, &(tsr_gpu_rows){rows, 60, there, 70, 61, 2}, NULL), TSR_E_USAGE);
    tsr_gpu_free(device, there);
    tsr_gpu_stream_free(stream);
}

static void test_cuda_gpu__memory_knows_its_place(void **state)
{
    tsr_gpu *device = device_of(state);
    void *there, *pinned, *nothing;
    OK(tsr_gpu_alloc(device, 1000, &there, err));
    OK(tsr_gpu_host_alloc(device, 1000, &pinned, err));
    OK(tsr_gpu_alloc(device, 0, &nothing, err));
    assert_null(nothing);
    assert_int_equal(tsr_gpu_place_of(device, there), TSR_PLACE_DEVICE);
    assert_int_equal(tsr_gpu_place_of(device, pinned), TSR_PLACE_PINNED);
    assert_int_equal(tsr_gpu_place_of(device, &device), TSR_PLACE_PAGEABLE);
    for (size_t i = 0; i < 1000; i++) assert_int_equal(((uint8_t *)pinned)[i], 0);
    tsr_gpu_free(device, there);
    tsr_gpu_host_free(device, pinned);
    tsr_gpu_free(device, NULL);
    tsr_gpu_host_free(device, NULL);
}

static void test_cuda_gpu__exhausted_memory_is_an_error_that_is_survived(void **state)
{
    tsr_gpu *device = device_of(state);
    tsr_gpu_info info;
    tsr_error error = {0};
    void *none = &error, *some;
    OK(tsr_gpu_about(device, &info, err));
    assert_int_equal(tsr_gpu_alloc(device, info.memory_bytes * 2, &none, &error), TSR_E_NOMEM);
    assert_null(none);
    assert_non_null(strstr(error.message, "bytes"));
    tsr_gpu_stream *stream;
    OK(tsr_gpu_stream_new(device, &stream, err));
    some = upload(device, stream, &info, sizeof info);
    tsr_gpu_info back;
    download(stream, &back, some, sizeof back);
    assert_memory_equal(&back, &info, sizeof info);
    tsr_gpu_free(device, some);
    tsr_gpu_stream_free(stream);
}

static void test_cuda_gpu__events_are_reached_when_earlier_work_is_done(void **state)
{
    tsr_gpu *device = device_of(state);
    enum { SIZE = 1 << 20 };
    uint8_t *first = malloc(SIZE), *second = malloc(SIZE);
    memset(first, 1, SIZE);
    memset(second, 2, SIZE);
    tsr_gpu_stream *stream;
    tsr_gpu_event *event;
    OK(tsr_gpu_stream_new(device, &stream, err));
    OK(tsr_gpu_event_new(device, &event, err));
    OK(tsr_gpu_event_wait(event, err)); /* an event that was never recorded: the wait ends immediately */
    void *there = upload(device, stream, first, SIZE);
    OK(tsr_gpu_copy(stream, second, there, SIZE, err));
    OK(tsr_gpu_event_record(event, stream, err));
    OK(tsr_gpu_event_wait(event, err));
    assert_memory_equal(second, first, SIZE);
    tsr_gpu_event_free(event);
    tsr_gpu_stream_free(stream);
    tsr_gpu_free(device, there);
    free(first);
    free(second);
}

/* ---- the simulation's own rules ---- */

static void test_cuda_gpu__simulated_work_happens_when_waited_for(void **state)
{
    tsr_gpu *device = *state;
    uint32_t number = 7;
    tsr_gpu_stream *stream;
    OK(tsr_gpu_stream_new(device, &stream, err));
    void *there = upload(device, stream, &number, sizeof number);
    number = 8;
    OK(tsr_gpu_copy(stream, &number, there, sizeof number, err));
    assert_int_equal(number, 8);
    OK(tsr_gpu_stream_wait(stream, err));
    assert_int_equal(number, 7);
    tsr_gpu_free(device, there);
    tsr_gpu_stream_free(stream);
}

static void test_cuda_gpu__simulated_memory_cannot_be_touched(void **state)
{
    tsr_gpu *device = *state;
    void *there;
    OK(tsr_gpu_alloc(device, 16, &there, err));
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* sanitizers install a handler of their own */
        *(volatile uint8_t *)there = 1;
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    tsr_gpu_free(device, there);
}

static void test_cuda_gpu__simulated_addresses_are_checked(void **state)
{
    tsr_gpu *device = *state;
    uint8_t bytes[64] = {0}, pageable[64];
    uint8_t *there;
    const uint64_t size = 64, one = 1, two = 2;
    tsr_gpu_stream *stream;
    tsr_error error = {0};
    OK(tsr_gpu_stream_new(device, &stream, err));
    OK(tsr_gpu_alloc(device, 64, (void **)&there, err));
    assert_int_equal(tsr_gpu_copy(stream, bytes, there + 1, 64, &error), TSR_E_USAGE);
    assert_non_null(strstr(error.message, "64 bytes at offset 1 are not inside one allocation"));
    const tsr_gpu_box beyond = {there, there, TSR_UINT8, TSR_UINT8, 1, &size, &one, &two, {0}};
    assert_int_equal(tsr_gpu_move_boxes(stream, &beyond, 1, NULL), TSR_E_USAGE);
    const tsr_gpu_box from_host = {there, pageable, TSR_UINT16, TSR_UINT16, 1, (const uint64_t[]){16}, &one, &two, {0}};
    assert_int_equal(tsr_gpu_move_boxes(stream, &from_host, 1, NULL), TSR_E_USAGE);
    tsr_gpu_free(device, there);
    assert_int_equal(tsr_gpu_copy(stream, bytes, there, 1, NULL), TSR_E_USAGE);
    tsr_gpu_stream_free(stream);
}

/* ---- CUDA, or its absence ---- */

static void test_cuda_gpu__absence_is_told_with_its_reason(void **state)
{
    (void)state;
    tsr_gpu_runtime runtime;
    tsr_gpu_info info;
    tsr_gpu *device;
    tsr_error error = {0};
    tsr_gpu_runtime_describe(&runtime);
    assert_int_equal(runtime.devices == 0, *runtime.reason != 0);
    assert_int_equal(tsr_gpu_open(&test_host, runtime.devices, &device, &error), TSR_E_NOT_FOUND);
    assert_null(device);
    assert_non_null(strstr(error.message, runtime.devices ? "the machine has" : runtime.reason));
    assert_int_equal(tsr_gpu_describe(runtime.devices, &info, NULL), TSR_E_NOT_FOUND);
#if defined(TSR_TEST_HAS_CUDA) || defined(TSR_TEST_HOSTED)
    assert_true(runtime.is_built && runtime.runtime_version >= 13000);
#else
    assert_false(runtime.is_built);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_DEVICES(test_cuda_gpu__copies_come_back_as_they_went),
        ON_DEVICES(test_cuda_gpu__memory_knows_its_place),
        ON_DEVICES(test_cuda_gpu__exhausted_memory_is_an_error_that_is_survived),
        ON_DEVICES(test_cuda_gpu__events_are_reached_when_earlier_work_is_done),
        cmocka_unit_test_setup_teardown(test_cuda_gpu__simulated_work_happens_when_waited_for, open_twins, close_any),
        cmocka_unit_test_setup_teardown(test_cuda_gpu__simulated_memory_cannot_be_touched, open_twins, close_any),
        cmocka_unit_test_setup_teardown(test_cuda_gpu__simulated_addresses_are_checked, open_grid, close_any),
        cmocka_unit_test(test_cuda_gpu__absence_is_told_with_its_reason),
    };
    filter_tests();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
