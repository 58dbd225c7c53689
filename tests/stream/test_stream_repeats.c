/* Tensors that repeat their stored elements. Counting the stored elements must agree with enumerating every element, and a
 * catalog whose tensors together repeat too much is rejected. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/zip_image.h"
#include "tessera/sys/document.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/read.h"
#include "tessera/sys/store.h"

static zip_image image;
static char pickle[8192];
static uint8_t zeros[1 << 16];

typedef struct opened {
    tsr_host host;
    tsr_store *store;
    tsr_checkpoint *checkpoint;
} opened;

/* Opens tensors on one storage of 16,384 floats. `shapes` holds the text of each tensor's sizes and strides, as the pickle
 * has it. */
static void open_tensors(opened *o, const char *const *shapes, size_t count)
{
    size_t used = (size_t)snprintf(pickle, sizeof pickle, "(d");
    for (size_t i = 0; i < count; i++)
        used +=
            (size_t)snprintf(pickle + used, sizeof pickle - used,
                             "S'w%zu'\nctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\n"
                             "I16384\ntQI0\n%sI00\nccollections\nOrderedDict\n)RtRs",
                             i, shapes[i]);
    snprintf(pickle + used, sizeof pickle - used, ".");
    zip_start(&image, 0);
    zip_add(&image, "a/data.pkl", pickle, strlen(pickle), ZIP_DESCRIPTOR);
    zip_add(&image, "a/data/0", (const char *)zeros, sizeof zeros, ZIP_DESCRIPTOR);
    zip_finish(&image, true);
    tsr_memory_file file = {TSR_STR("x.pt"), {(const char *)image.bytes, image.size}};
    *o = (opened){.host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()}};
    tsr_error err = {0};
    assert_int_equal(tsr_store_from_memory(o->host.allocator, &file, 1, &o->store, NULL), TSR_OK);
    if (tsr_checkpoint_open(o->store, &o->host, NULL, &o->checkpoint, &err) != TSR_OK) fail_msg("%s", err.message);
}

static void drop(opened *o)
{
    tsr_checkpoint_close(o->checkpoint);
    o->store->close(o->store);
}

/* Counts the distinct places of all elements, one element at a time. */
static uint64_t enumerate(const tsr_entry *entry, const uint64_t *strides)
{
    static bool touched[16384];
    uint64_t at[8] = {0}, distinct = 0;
    memset(touched, 0, sizeof touched);
    for (bool more = true; more;) {
        uint64_t place = 0;
        for (uint32_t d = 0; d < entry->ndim; d++) place += at[d] * strides[d];
        distinct += !touched[place];
        touched[place] = true;
        more = false;
        for (uint32_t d = entry->ndim; d-- > 0 && !more;) {
            more = ++at[d] < entry->shape[d];
            if (!more) at[d] = 0;
        }
    }
    return distinct;
}

static void test_stream_repeats__stored_elements_are_those_of_an_enumeration(void **state)
{
    (void)state;
    static const char *const shapes[] = {
        "(I4096\nI4\nt(I0\nI1\nt",
        "(I2048\nI2048\nt(I1\nI1\nt",
        "(I64\nI64\nI2048\nt(I0\nI0\nI2\nt",
        "(I128\nI64\nI2\nI64\nt(I1\nI1\nI64\nI1\nt",
        "(I8192\nt(I0\nt",
        "(I3\nI4000\nI5\nt(I7\nI0\nI100\nt",
        "(I2000\nI2000\nt(I4\nI4\nt",
    };
    enum { COUNT = sizeof shapes / sizeof *shapes };
    opened o;
    open_tensors(&o, shapes, COUNT);
    const tsr_catalog *catalog = tsr_checkpoint_catalog(o.checkpoint);
    for (size_t i = 0; i < COUNT; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        uint64_t bytes;
        bool counts;
        tsr_repeats r;
        tsr_repeats_open(&r, o.checkpoint);
        assert_int_equal(tsr_repeats_add(&r, entry, NULL, NULL, &counts, NULL), TSR_OK);
        assert_true(tsr_entry_bytes(entry, &bytes));
        const uint64_t stored = 4 * enumerate(entry, entry->chunks[0].view->strides);
        assert_int_equal(counts, bytes > 1024 * stored);
        if (counts) assert_int_equal(r.named[0].stored, stored);
        tsr_repeats_close(&r);
    }
    drop(&o);
}

static void test_stream_repeats__the_limit_is_for_all_together(void **state)
{
    (void)state;
    static const char *const shapes[] = {"(I100000\nI100\nt(I0\nI1\nt", "(I100000\nI100\nt(I0\nI1\nt",
                                         "(I128\nI128\nt(I128\nI1\nt"};
    opened o;
    tsr_repeats r;
    tsr_error err = {0};
    open_tensors(&o, shapes, 3);
    const tsr_entry *entries = tsr_checkpoint_catalog(o.checkpoint)->entries;
    o.host.limits.repetition = 60000000; /* one tensor alone has 40 MB */
    tsr_repeats_open(&r, o.checkpoint);
    assert_int_equal(tsr_repeats_add(&r, &entries[0], NULL, NULL, NULL, NULL), TSR_OK);
    assert_int_equal(tsr_repeats_add(&r, &entries[2], NULL, NULL, NULL, NULL), TSR_OK);
    assert_int_equal(tsr_repeats_check(&r, &err), TSR_OK);
    assert_int_equal(tsr_repeats_add(&r, &entries[1], NULL, NULL, NULL, NULL), TSR_OK);
    assert_int_equal(tsr_repeats_check(&r, &err), TSR_E_LIMIT);
    assert_non_null(strstr(err.message, "'w0'"));
    assert_non_null(strstr(err.message, "'w1'"));
    assert_null(strstr(err.message, "'w2'"));
    tsr_repeats_close(&r);
    o.host.limits.repetition = UINT64_MAX;
    assert_int_equal(tsr_repeats_check_catalog(o.checkpoint, &(tsr_selection){NULL, NULL}, &err), TSR_OK);
    /* A box counts with its own size. Tensors that repeat little are accepted up to 64 times the limit. */
    o.host.limits.repetition = 1000;
    const uint64_t offsets[] = {5, 5}, sizes[] = {2000, 1};
    tsr_repeats_open(&r, o.checkpoint);
    assert_int_equal(tsr_repeats_add(&r, &entries[0], offsets, sizes, NULL, NULL), TSR_OK);
    assert_int_equal(tsr_repeats_check(&r, &err), TSR_E_LIMIT);
    tsr_repeats_close(&r);
    tsr_repeats_open(&r, o.checkpoint);
    assert_int_equal(tsr_repeats_add(&r, &entries[0], offsets, (uint64_t[]){1000, 1}, NULL, NULL), TSR_OK);
    assert_int_equal(tsr_repeats_check(&r, &err), TSR_OK);
    tsr_repeats_close(&r);
    drop(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream_repeats__stored_elements_are_those_of_an_enumeration),
        cmocka_unit_test(test_stream_repeats__the_limit_is_for_all_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
