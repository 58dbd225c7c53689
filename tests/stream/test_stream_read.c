/* Compares boxes and whole tensors with an element-by-element reference. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/failing_allocator.h"
#include "support/made.h"
#include "tessera/read.h"
#include "tessera/sys/read.h"

static const tsr_dtype dtypes[] = {
    TSR_FLOAT64, TSR_FLOAT32,   TSR_BFLOAT16,   TSR_FLOAT8_E5M2, TSR_INT64,      TSR_INT16,           TSR_UINT8,
    TSR_BOOL,    TSR_COMPLEX64, TSR_COMPLEX128, TSR_COMPLEX32,   TSR_BCOMPLEX32, TSR_FLOAT4_E2M1FN_X2};

static tsr_dtype any_dtype(tsr_made *made)
{
    return dtypes[tsr_made_random(made, sizeof dtypes / sizeof *dtypes)];
}

/* Runs the jobs in reverse order, so that a result that depends on their order differs. */
static void backwards(void *ctx, size_t count, void (*body)(void *arg, size_t index), void *arg)
{
    (void)ctx;
    while (count-- > 0) body(arg, count);
}

static void test_stream_read__any_box_of_any_chunks_equals_the_oracle(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 600; seed++) {
        tsr_made made;
        tsr_made_start(&made, seed, 1);
        uint64_t shape[8], offsets[8], sizes[8], bytes = 0;
        const uint32_t ndim = tsr_made_shape(&made, shape, seed % 7 ? 9 : 40);
        const tsr_dtype dtype = any_dtype(&made);
        tsr_made_tensor(&made, "t", dtype, ndim, shape, (unsigned)(seed % 9), (tsr_made_how)(seed % 3));
        tsr_made_open(&made);
        for (unsigned n = 0; n < 10; n++) {
            uint64_t elements = 1;
            for (uint32_t d = 0; d < ndim; d++) {
                offsets[d] = n ? tsr_made_random(&made, shape[d] + 1) : 0;
                sizes[d] = n ? tsr_made_random(&made, shape[d] - offsets[d] + 1) : shape[d];
                elements *= sizes[d];
            }
            bytes = elements * tsr_dtype_size(dtype);
            uint8_t *got = calloc(1, bytes + 1), *want = calloc(1, bytes + 1);
            tsr_error err = {0};
            tsr_status status = tsr_read_box(&made.checkpoint, &made.entries[0],
                                             (tsr_box){made.entries[0].ndim, offsets, sizes}, got, bytes, &err);
            if (status != TSR_OK) fail_msg("seed %d: %s", (int)seed, err.message);
            tsr_made_box(&made, 0, offsets, sizes, want);
            if (memcmp(got, want, bytes)) fail_msg("seed %d box %u differs", (int)seed, n);
            const uint64_t first = tsr_made_random(&made, elements + 1),
                           count = tsr_made_random(&made, elements - first + 1);
            const tsr_run run = {offsets, sizes, first, count};
            const size_t size = tsr_dtype_size(dtype);
            memset(got, 0, bytes);
            status = tsr_read_run(&made.checkpoint, &made.entries[0], &run, got, count * size, &err);
            if (status != TSR_OK) fail_msg("seed %d: %s", (int)seed, err.message);
            if (memcmp(got, want + first * size, count * size)) fail_msg("seed %d run of box %u differs", (int)seed, n);
            free(got);
            free(want);
        }
        tsr_made_end(&made);
    }
}

typedef struct received {
    uint8_t *bytes;
    uint64_t size, next;
    unsigned pieces, stop_after;
} received;

static tsr_status receive(void *ctx, const void *data, size_t size, uint64_t byte_at, tsr_error *err)
{
    received *r = ctx;
    assert_int_equal(byte_at, r->next);
    assert_true(size > 0 && size <= r->size - byte_at);
    memcpy(r->bytes + byte_at, data, size);
    r->next += size;
    if (r->stop_after && ++r->pieces == r->stop_after) return tsr_raise(err, TSR_E_CANCELLED, TSR_NO_POSITION, "enough");
    return TSR_OK;
}

static void stream_and_compare(tsr_made *made, uint64_t number, size_t ring_bytes)
{
    uint64_t bytes;
    assert_int_equal(tsr_tensor_bytes(&made->entries[number], &bytes, NULL), TSR_OK);
    received r = {calloc(1, bytes + 1), bytes, 0, 0, 0};
    tsr_ring *ring;
    tsr_error err = {0};
    assert_int_equal(tsr_ring_new(&made->host, ring_bytes, &ring, NULL), TSR_OK);
    if (tsr_stream_tensor(&made->checkpoint, &made->entries[number], ring, receive, &r, &err)) fail_msg("%s", err.message);
    assert_int_equal(r.next, bytes);
    assert_memory_equal(r.bytes, made->truth[number], bytes);
    tsr_ring_free(ring);
    free(r.bytes);
}

static void test_stream_read__a_stream_brings_every_byte_once_and_in_order(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        tsr_made made;
        tsr_made_start(&made, seed, 2);
        const uint64_t large[] = {60 + seed, 70, 33}, columns[] = {3, 40000 + seed};
        tsr_made_tensor(&made, "large", any_dtype(&made), 3, large, (unsigned)(seed % 12), (tsr_made_how)(seed % 3));
        tsr_made_tensor(&made, "columns", any_dtype(&made), 2, columns, (unsigned)(seed % 12), (tsr_made_how)(seed % 3));
        tsr_made_open(&made);
        made.host.parallel_for = seed % 2 ? backwards : NULL;
        made.host.threads = (uint32_t)(seed % 5);
        for (uint64_t i = 0; i < 2; i++) stream_and_compare(&made, i, seed % 4 ? 1 : 0);
        tsr_made_end(&made);
    }
}

/* ---- several boxes ---- */

enum { MANY = 150 };

/* Bytes that were handed over, to be read once they are settled. */
typedef struct kept {
    received *by;
    const void *data;
    size_t size;
    uint64_t byte_at;
} kept;

static struct {
    kept kept[1024];
    size_t count;
    unsigned settled;
} late;

static tsr_status keep_for_later(void *ctx, const void *data, size_t size, uint64_t byte_at, tsr_error *err)
{
    (void)err;
    assert_true(late.count < 1024);
    late.kept[late.count++] = (kept){ctx, data, size, byte_at};
    return TSR_OK;
}

static tsr_status take_now(void *ctx, tsr_error *err)
{
    (void)ctx;
    for (size_t i = 0; i < late.count; i++) {
        const kept *k = &late.kept[i];
        assert_int_equal(receive(k->by, k->data, k->size, k->byte_at, err), TSR_OK);
    }
    late.count = 0;
    late.settled++;
    return TSR_OK;
}

typedef struct wanted {
    uint64_t offsets[3], sizes[3];
    received got;
} wanted;

/* A random box of an entry, or every fifth time the whole tensor. */
static void want_box(tsr_made *made, uint64_t number, wanted *w, tsr_streamed_box *out)
{
    const tsr_entry *entry = &made->entries[number];
    uint64_t elements = 1;
    for (uint32_t d = 0; d < 3; d++) {
        w->offsets[d] = number % 5 ? tsr_made_random(made, entry->shape[d]) : 0;
        w->sizes[d] = number % 5 ? tsr_made_random(made, entry->shape[d] - w->offsets[d] + 1) : entry->shape[d];
        elements *= w->sizes[d];
    }
    const size_t bytes = elements * tsr_dtype_size(entry->dtype);
    w->got = (received){calloc(1, bytes + 1), bytes, 0, 0, 0};
    *out = number % 5 ? (tsr_streamed_box){entry, w->offsets, w->sizes, &w->got}
                      : (tsr_streamed_box){.entry = entry, .ctx = &w->got};
}

static void stream_many(tsr_made *made)
{
    static wanted all[MANY];
    tsr_streamed_box boxes[MANY];
    tsr_ring *ring;
    tsr_error err = {0};
    late.count = late.settled = 0;
    for (uint64_t i = 0; i < MANY; i++) want_box(made, i, &all[i], &boxes[i]);
    assert_int_equal(tsr_ring_new(&made->host, 1, &ring, NULL), TSR_OK);
    const tsr_tile_sink sink = {keep_for_later, take_now, NULL};
    if (tsr_stream_boxes(&made->checkpoint, boxes, MANY, ring, &sink, &err)) fail_msg("%s", err.message);
    assert_true(late.count == 0 && late.settled > 0);
    for (uint64_t i = 0; i < MANY; i++) {
        uint8_t *want = calloc(1, all[i].got.size + 1);
        tsr_made_box(made, i, all[i].offsets, all[i].sizes, want);
        assert_int_equal(all[i].got.next, all[i].got.size);
        assert_memory_equal(all[i].got.bytes, want, all[i].got.size);
        free(want);
        free(all[i].got.bytes);
    }
    boxes[7].sizes = (const uint64_t[]){1, made->entries[7].shape[1] + 1, 1};
    boxes[7].offsets = NULL;
    assert_int_equal(tsr_stream_boxes(&made->checkpoint, &boxes[7], 1, ring, &sink, &err), TSR_E_USAGE);
    assert_non_null(strstr(err.message, "beyond the tensor"));
    tsr_ring_free(ring);
}

static void test_stream_read__many_boxes_stream_and_stay_until_they_are_settled(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        tsr_made made;
        tsr_made_start(&made, seed, MANY);
        for (uint64_t i = 0; i < MANY; i++) {
            char name[16];
            snprintf(name, sizeof name, "t%u", (unsigned)i);
            const uint64_t small[] = {1 + i % 7, 5, 3}, large[] = {50 + seed, 90, 33};
            tsr_made_tensor(&made, name, any_dtype(&made), 3, i % 50 == 3 ? large : small, (unsigned)(i % 12),
                            (tsr_made_how)((seed + i) % 3));
        }
        tsr_made_open(&made);
        made.host.parallel_for = seed % 2 ? backwards : NULL;
        made.host.threads = (uint32_t)(seed % 5);
        stream_many(&made);
        tsr_made_end(&made);
    }
}

static void test_stream_read__scalars_and_empty_tensors_stream(void **state)
{
    (void)state;
    tsr_made made;
    tsr_made_start(&made, 1, 3);
    const uint64_t empty[] = {3, 0, 5};
    tsr_made_tensor(&made, "scalar", TSR_COMPLEX128, 0, NULL, 0, TSR_MADE_STRIDED);
    tsr_made_tensor(&made, "empty", TSR_FLOAT32, 3, empty, 4, TSR_MADE_PLAIN);
    tsr_made_open(&made);
    stream_and_compare(&made, 0, 0);
    stream_and_compare(&made, 1, 0);
    tsr_made_end(&made);
}

static void test_stream_read__the_consumer_can_stop(void **state)
{
    (void)state;
    tsr_made made;
    tsr_made_start(&made, 5, 1);
    const uint64_t shape[] = {400000};
    tsr_made_tensor(&made, "t", TSR_FLOAT32, 1, shape, 3, TSR_MADE_PLAIN);
    tsr_made_open(&made);
    received r = {calloc(1, 1600000), 1600000, 0, 0, 2};
    tsr_ring *ring;
    tsr_error err = {0};
    tsr_ring_new(&made.host, 1, &ring, NULL);
    assert_int_equal(tsr_stream_tensor(&made.checkpoint, &made.entries[0], ring, receive, &r, &err), TSR_E_CANCELLED);
    assert_string_equal(err.message, "enough");
    assert_int_equal(r.pieces, 2);
    tsr_ring_free(ring);
    free(r.bytes);
    tsr_made_end(&made);
}

/* Ways to damage the chunk list of a float32 tensor of shape [6, 4] in two row slabs. */
static void make_hole(tsr_made *made, tsr_chunk *chunks)
{
    (void)made, ((uint64_t *)chunks[1].sizes)[0] = 2;
}
static void make_overlap(tsr_made *made, tsr_chunk *chunks)
{
    (void)made, ((uint64_t *)chunks[1].offsets)[0] = 2;
}
static void make_outside(tsr_made *made, tsr_chunk *chunks)
{
    (void)made, ((uint64_t *)chunks[1].sizes)[0] = 4;
}
static void make_beyond(tsr_made *made, tsr_chunk *chunks)
{
    ((tsr_view *)chunks[1].view)->byte_offset = made->file.count - 47;
}
static void make_huge(tsr_made *made, tsr_chunk *chunks)
{
    static const uint64_t strides[] = {UINT64_MAX / 2, UINT64_MAX / 2};
    (void)made;
    ((tsr_view *)chunks[1].view)->strides = strides;
}
static void make_missing(tsr_made *made, tsr_chunk *chunks)
{
    (void)made, chunks[1].file = TSR_NO_FILE;
}

static void test_stream_read__damaged_layouts_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        void (*damage)(tsr_made *made, tsr_chunk *chunks);
        tsr_status status;
        const char *part;
    } rows[] = {
        {make_hole, TSR_E_FORMAT,
         "the chunks of 'w' do not tile it: there is a gap (elements not covered: 4); tessera validate shows where"},
        {make_overlap, TSR_E_FORMAT, "do not tile it: some overlap (elements not covered: 4)"},
        {make_outside, TSR_E_FORMAT, "do not tile it: one reaches beyond it (elements not covered: 0)"},
        {make_beyond, TSR_E_FORMAT, "beyond the end of data"},
        {make_huge, TSR_E_FORMAT, "'w': the strides of a chunk reach beyond the largest possible file"},
        {make_missing, TSR_E_NOT_FOUND,
         "the bytes of 'w' are missing: their file was truncated, or nothing says where they are"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tsr_made made;
        tsr_made_start(&made, 3, 1);
        const uint64_t shape[] = {6, 4};
        tsr_made_tensor(&made, "w", TSR_FLOAT32, 2, shape, 0, TSR_MADE_PLAIN);
        uint64_t boxes[] = {0, 0, 3, 4, 3, 0, 3, 4};
        tsr_view views[2] = {*made.entries[0].chunks[0].view, *made.entries[0].chunks[0].view};
        views[1].byte_offset += 48;
        tsr_chunk chunks[] = {{boxes, boxes + 2, 0, 48, &views[0], 0}, {boxes + 4, boxes + 6, 48, 48, &views[1], 0}};
        made.entries[0].chunks = chunks;
        made.entries[0].chunk_count = 2;
        tsr_made_open(&made);
        stream_and_compare(&made, 0, 0);
        rows[i].damage(&made, chunks);
        tsr_ring *ring;
        tsr_error err = {0};
        received r = {calloc(1, 96), 96, 0, 0, 0};
        tsr_ring_new(&made.host, 0, &ring, NULL);
        assert_int_equal(tsr_stream_tensor(&made.checkpoint, &made.entries[0], ring, receive, &r, &err), rows[i].status);
        if (!strstr(err.message, rows[i].part)) fail_msg("row %d: %s", (int)i, err.message);
        assert_int_equal(r.next, 0);
        const uint64_t zero[] = {0, 0};
        if (rows[i].damage != make_outside) /* with make_outside the box itself is inside the chunks */
            assert_int_equal(
                tsr_read_box(&made.checkpoint, made.entries, (tsr_box){made.entries->ndim, zero, shape}, r.bytes, 96, NULL),
                rows[i].status);
        tsr_ring_free(ring);
        free(r.bytes);
        tsr_made_end(&made);
    }
}

static void test_stream_read__wrong_boxes_and_buffers_are_refused(void **state)
{
    (void)state;
    tsr_made made;
    tsr_made_start(&made, 3, 1);
    const uint64_t shape[] = {6, 4}, zero[] = {0, 0}, inside[] = {6, 4}, outside[] = {6, 5}, far[] = {UINT64_MAX, 0};
    tsr_made_tensor(&made, "w", TSR_FLOAT32, 2, shape, 0, TSR_MADE_PLAIN);
    tsr_made_open(&made);
    uint8_t buffer[128];
    tsr_error err = {0};
    assert_int_equal(
        tsr_read_box(&made.checkpoint, made.entries, (tsr_box){made.entries->ndim, zero, outside}, buffer, 120, &err),
        TSR_E_USAGE);
    assert_non_null(strstr(err.message, "beyond the tensor"));
    assert_int_equal(
        tsr_read_box(&made.checkpoint, made.entries, (tsr_box){made.entries->ndim, far, inside}, buffer, 96, NULL),
        TSR_E_USAGE);
    assert_int_equal(
        tsr_read_box(&made.checkpoint, made.entries, (tsr_box){made.entries->ndim, zero, inside}, buffer, 95, NULL),
        TSR_E_USAGE);
    const tsr_run runs[] = {{NULL, NULL, 20, 5}, {NULL, NULL, 25, 0}, {NULL, NULL, UINT64_MAX, 2}, {NULL, NULL, 0, 4}};
    for (size_t i = 0; i < 4; i++) /* with the last run, the buffer has the wrong size */
        assert_int_equal(tsr_read_run(&made.checkpoint, made.entries, &runs[i], buffer, i == 1 ? 0 : 20, NULL), TSR_E_USAGE);
    made.entries[0].kind = TSR_ENTRY_OPAQUE;
    assert_int_equal(
        tsr_read_box(&made.checkpoint, made.entries, (tsr_box){made.entries->ndim, zero, inside}, buffer, 96, NULL),
        TSR_E_UNSUPPORTED);
    tsr_made_end(&made);
}

static void test_stream_read__compressed_streams_that_end_early_are_refused(void **state)
{
    (void)state;
    tsr_made made;
    tsr_made_start(&made, 8, 1);
    const uint64_t shape[] = {1000};
    tsr_made_tensor(&made, "w", TSR_FLOAT32, 1, shape, 0, TSR_MADE_ZSTD);
    ((tsr_view *)made.entries[0].chunks[0].view)->stream_length -= 1;
    tsr_made_open(&made);
    uint8_t buffer[4000];
    const uint64_t zero = 0;
    tsr_error err = {0};
    assert_int_equal(
        tsr_read_box(&made.checkpoint, made.entries, (tsr_box){made.entries->ndim, &zero, shape}, buffer, 4000, &err),
        TSR_E_FORMAT);
    assert_non_null(strstr(err.message, "ends early"));
    made.host.zstd = NULL;
    err = (tsr_error){0};
    assert_int_equal(
        tsr_read_box(&made.checkpoint, made.entries, (tsr_box){made.entries->ndim, &zero, shape}, buffer, 4000, &err),
        TSR_E_NOT_BUILT);
    assert_non_null(strstr(err.message, "libzstd-dev"));
    tsr_made_end(&made);
}

static void test_stream_read__every_failed_allocation_ends_cleanly(void **state)
{
    (void)state;
    for (size_t n = 0;; n++) {
        failing_allocator failing;
        tsr_made made;
        tsr_made_start(&made, 4, 1);
        const uint64_t shape[] = {30, 4};
        tsr_made_tensor(&made, "w", TSR_COMPLEX64, 2, shape, 5, TSR_MADE_ZSTD);
        tsr_made_open(&made);
        failing_start(&failing, n);
        made.host.allocator = &failing.allocator;
        received r = {calloc(1, 960), 960, 0, 0, 0};
        tsr_ring *ring = NULL;
        tsr_error err = {0};
        tsr_status status = tsr_ring_new(&made.host, 0, &ring, &err);
        if (status == TSR_OK) status = tsr_stream_tensor(&made.checkpoint, made.entries, ring, receive, &r, &err);
        tsr_ring_free(ring);
        assert_int_equal(status, failing.failed ? TSR_E_NOMEM : TSR_OK);
        assert_int_equal(failing.live, 0);
        free(r.bytes);
        tsr_made_end(&made);
        if (!failing.failed) break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream_read__any_box_of_any_chunks_equals_the_oracle),
        cmocka_unit_test(test_stream_read__a_stream_brings_every_byte_once_and_in_order),
        cmocka_unit_test(test_stream_read__many_boxes_stream_and_stay_until_they_are_settled),
        cmocka_unit_test(test_stream_read__scalars_and_empty_tensors_stream),
        cmocka_unit_test(test_stream_read__the_consumer_can_stop),
        cmocka_unit_test(test_stream_read__damaged_layouts_are_refused_by_name),
        cmocka_unit_test(test_stream_read__wrong_boxes_and_buffers_are_refused),
        cmocka_unit_test(test_stream_read__compressed_streams_that_end_early_are_refused),
        cmocka_unit_test(test_stream_read__every_failed_allocation_ends_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
