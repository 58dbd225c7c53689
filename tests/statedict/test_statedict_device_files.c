/* Copies between files and a device that copies as late as it may: bounded pinned memory, halves of a buffer that are used
 * in turn, and every call of the device failing once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/failing_allocator.h"
#include "tessera/device.h"
#include "tessera/save_load.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/host_calls.h"

enum { BUFFER = 8192, TENSORS = 14, COPIES = 4096 };

typedef struct copy {
    uint8_t *to;
    const uint8_t *from;
    uint64_t bytes;
} copy;

/* A device that copies in synchronize, at the last moment, so that a half that is used too early leaves wrong bytes. */
typedef struct late_device {
    tsr_device base;
    copy copies[COPIES];
    size_t count;
    uint8_t *pinned, shadow[BUFFER]; /* content of the buffer when the last copy was requested */
    uint64_t allocated, pinned_bytes, most_pinned;
    uint32_t calls, fail_at; /* UINT32_MAX: never */
    uint32_t waits, overlaps;
} late_device;

static tsr_status call(late_device *d, const char *what, tsr_error *err)
{
    return d->calls++ == d->fail_at ? tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "late device: %s has failed", what) : TSR_OK;
}

static tsr_status late_alloc(tsr_device *device, uint64_t bytes, void **out, tsr_error *err)
{
    late_device *d = (late_device *)device;
    const tsr_status status = call(d, "allocating", err);
    if (status != TSR_OK) return status;
    *out = malloc((size_t)bytes);
    d->allocated += bytes;
    return TSR_OK;
}

static void late_free(tsr_device *device, void *data, uint64_t bytes)
{
    ((late_device *)device)->allocated -= bytes;
    free(data);
}

static tsr_status late_copy(tsr_device *device, void *to, const void *from, uint64_t bytes, const uint8_t *on_host,
                            tsr_error *err)
{
    late_device *d = (late_device *)device;
    const tsr_status status = call(d, "a copy", err);
    if (status != TSR_OK) return status;
    assert_true(d->count < COPIES);
    if (d->pinned) {
        assert_true(on_host >= d->pinned && on_host + bytes <= d->pinned + BUFFER);
        memcpy(d->shadow, d->pinned, BUFFER);
    }
    d->copies[d->count++] = (copy){to, from, bytes};
    return TSR_OK;
}

static tsr_status late_to_host(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    return late_copy(device, to, from, bytes, to, err);
}

static tsr_status late_from_host(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    return late_copy(device, to, from, bytes, from, err);
}

static tsr_status late_within(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    (void)device, (void)to, (void)from, (void)bytes;
    return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "nothing is copied within");
}

/* Counts an overlap when a half was filled after the last copy was requested, that is, while copies were under way. */
static tsr_status late_wait(tsr_device *device, tsr_error *err)
{
    late_device *d = (late_device *)device;
    if (d->pinned && d->count && memcmp(d->shadow, d->pinned, BUFFER) != 0) d->overlaps++;
    d->waits++;
    for (size_t i = 0; i < d->count; i++) memcpy(d->copies[i].to, d->copies[i].from, d->copies[i].bytes);
    d->count = 0;
    return call(d, "waiting", err);
}

static tsr_status late_pin(tsr_device *device, void *data, uint64_t bytes, tsr_error *err)
{
    late_device *d = (late_device *)device;
    const tsr_status status = call(d, "pinning", err);
    if (status != TSR_OK) return status;
    assert_null(d->pinned);
    assert_true(bytes == BUFFER);
    d->pinned = data;
    memset(data, 0x11, (size_t)bytes);
    d->pinned_bytes += bytes;
    if (d->pinned_bytes > d->most_pinned) d->most_pinned = d->pinned_bytes;
    return TSR_OK;
}

static void late_unpin(tsr_device *device, void *data, uint64_t bytes)
{
    late_device *d = (late_device *)device;
    assert_ptr_equal(d->pinned, data);
    assert_true(d->count == 0); /* no copy into or out of it is under way */
    d->pinned = NULL;
    d->pinned_bytes -= bytes;
}

static void late_open(late_device *d, uint32_t fail_at)
{
    memset(d, 0, sizeof *d);
    d->base = (tsr_device){TSR_DEVICE_CUDA, 0,           late_alloc, late_free, late_to_host,
                           late_from_host,  late_within, late_wait,  late_pin,  late_unpin};
    d->fail_at = fail_at;
}

/* ---- state dicts: one large tensor in one run, one by columns of a larger buffer, and many small ones ---- */

static uint8_t content(uint32_t tensor, uint64_t at)
{
    return (uint8_t)(tensor * 37 + at * 151 + at / 251 + 1);
}

static tsr_status put_tensor(tsr_state_dict *dict, uint32_t i, tsr_device *device, bool filled, tsr_error *err)
{
    tsr_arena *arena = tsr_state_dict_arena(dict);
    uint64_t *shape = tsr_arena_array(arena, 2, sizeof *shape, err), bytes;
    const tsr_value *value;
    char name[16];
    if (!shape) return TSR_E_NOMEM;
    shape[0] = i == 0 ? 331 : i == 1 ? 97 : 3;
    shape[1] = i < 2 ? 113 : 1 + i;
    tsr_tensor tensor = tsr_tensor_whole(i % 2 ? TSR_BFLOAT16 : TSR_UINT8, 2, shape, NULL);
    tensor.device = device;
    tsr_status status = tsr_state_dict_allocate(dict, &tensor, &value, err);
    bytes = shape[0] * shape[1] * (i % 2 ? 2 : 1);
    for (uint64_t at = 0; filled && status == TSR_OK && at < bytes; at++)
        ((uint8_t *)tsr_tensor_of(value)->data)[at] = content(i, at);
    snprintf(name, sizeof name, "w%02u", (unsigned)i);
    return status == TSR_OK ? tsr_state_dict_put(dict, tsr_str_from(name), value, err) : status;
}

static tsr_status make(const tsr_host *host, tsr_device *device, bool filled, tsr_state_dict **out, tsr_error *err)
{
    tsr_status status = tsr_state_dict_new(host, out, err);
    for (uint32_t i = 0; i < TENSORS && status == TSR_OK; i++) status = put_tensor(*out, i, device, filled, err);
    return status;
}

static bool holds(const tsr_state_dict *dict)
{
    bool right = true;
    for (uint32_t i = 0; i < TENSORS; i++) {
        const tsr_tensor *tensor = tsr_tensor_of(tsr_state_dict_root(dict)->items[2 * i + 1]);
        const uint64_t *shape = tensor->entry.shape, bytes = shape[0] * shape[1] * (i % 2 ? 2 : 1);
        for (uint64_t at = 0; at < bytes; at++) right = right && ((uint8_t *)tensor->data)[at] == content(i, at);
    }
    return right;
}

/* Saves the tensors on `from`, and loads them to `to`. */
static tsr_status save_and_load(const char *path, const tsr_host *host, tsr_device *from, tsr_device *to, bool *right,
                                tsr_error *err)
{
    const tsr_save_options saving = {.overwrite = true, .buffer_bytes = BUFFER};
    const tsr_load_options loading = {.buffer_bytes = BUFFER};
    tsr_comm *comm;
    tsr_state_dict *saved = NULL, *loaded = NULL, *out = NULL;
    tsr_status status = tsr_comm_self(host->allocator, &comm, err);
    if (status != TSR_OK) return status;
    status = make(host, from, true, &saved, err);
    if (status == TSR_OK) status = tsr_state_dict_save(tsr_state_dict_root(saved), comm, path, &saving, host, err);
    if (status == TSR_OK) status = make(host, to, false, &loaded, err);
    if (status == TSR_OK) status = tsr_state_dict_new(host, &out, err);
    if (status == TSR_OK) status = tsr_state_dict_load(path, tsr_state_dict_root(loaded), comm, &loading, out, err);
    if (status == TSR_OK) *right = holds(loaded);
    tsr_state_dict_free(out);
    tsr_state_dict_free(loaded);
    tsr_state_dict_free(saved);
    comm->close(comm);
    return status;
}

static char directory[] = "/tmp/tessera_device_files_XXXXXX";

static int open_directory(void **state)
{
    (void)state;
    return mkdtemp(directory) ? 0 : 1;
}

static int remove_directory(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    return system(command);
}

static void test_statedict_device_files__halves_take_turns_within_bounds(void **state)
{
    (void)state;
    static late_device from, to;
    const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    char path[80];
    bool right = false;
    tsr_error err = {0};
    late_open(&from, UINT32_MAX);
    late_open(&to, UINT32_MAX);
    snprintf(path, sizeof path, "%s/halves", directory);
    if (save_and_load(path, &host, &from.base, &to.base, &right, &err) != TSR_OK) fail_msg("%s", err.message);
    assert_true(right);
    assert_int_equal(from.most_pinned, BUFFER);
    assert_int_equal(to.most_pinned, BUFFER);
    /* 37,403 and 21,922 bytes through halves of 4,096 bytes: 10 + 6 parts and 12 small tensors, with one wait each, and one
     * wait at the end. */
    assert_int_equal(from.waits, 10 + 6 + (TENSORS - 2) + 1);
    /* A tile is whole rows: 36 rows of 113 bytes, 18 of 226. All small tensors fit in with the last of them. */
    assert_int_equal(to.waits, 10 + 6 - 1 + 1);
    assert_true(to.overlaps >= 10 + 6 - 3);
    assert_true(from.allocated == 0 && to.allocated == 0 && from.pinned_bytes == 0 && to.pinned_bytes == 0);
}

static void test_statedict_device_files__every_failing_call_of_a_device_is_told(void **state)
{
    (void)state;
    static late_device from, to;
    char path[80];
    snprintf(path, sizeof path, "%s/fails", directory);
    for (int loads = 0; loads < 2; loads++) {
        uint32_t told = 0, survived = 0;
        for (uint32_t n = 0;; n++) {
            failing_allocator counted;
            failing_start(&counted, SIZE_MAX);
            const tsr_host host = {.allocator = &counted.allocator, .limits = tsr_limits_default()};
            tsr_error err = {0};
            bool right = false;
            late_open(&from, loads ? UINT32_MAX : n);
            late_open(&to, loads ? n : UINT32_MAX);
            const tsr_status status = save_and_load(path, &host, &from.base, &to.base, &right, &err);
            const late_device *failing = loads ? &to : &from;
            assert_int_equal(counted.live, 0);
            assert_true(from.allocated == 0 && to.allocated == 0 && from.pinned_bytes == 0 && to.pinned_bytes == 0);
            if (failing->calls <= n) break;
            if (status == TSR_OK) {
                assert_true(right); /* memory that cannot be pinned only makes copies slower */
                survived++;
            } else {
                if (status != TSR_E_IO || !strstr(err.message, "late device: ")) fail_msg("call %u: %s", n, err.message);
                if (strstr(err.message, "a copy") && !strstr(err.message, "'w")) fail_msg("call %u: %s", n, err.message);
                told++;
            }
        }
        assert_true(told > 30);
        assert_in_range(survived, 1, 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statedict_device_files__halves_take_turns_within_bounds),
        cmocka_unit_test(test_statedict_device_files__every_failing_call_of_a_device_is_told),
    };
    return cmocka_run_group_tests(tests, open_directory, remove_directory);
}
