/* Digests, statistics, and the check of every byte. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/made.h"
#include "tessera/check.h"
#include "tessera/sys/check.h"
#include "tessera/sys/host_calls.h"

/* Sets the bytes of entry 0, which has one contiguous chunk. */
static void set_bytes(tsr_made *made, const void *bytes, size_t size)
{
    memcpy((uint8_t *)made->file.items + made->entries[0].chunks[0].byte_offset, bytes, size);
    made->extents[0].crc32 =
        tsr_crc32(NULL, 0, (uint8_t *)made->file.items + made->extents[0].byte_offset, (size_t)made->extents[0].byte_length);
}

static void start_one(tsr_made *made, tsr_dtype dtype, uint64_t elements, const void *bytes, size_t size)
{
    tsr_made_start(made, 1, 1);
    tsr_made_tensor(made, "t", dtype, 1, &elements, 0, TSR_MADE_PLAIN);
    set_bytes(made, bytes, size);
    tsr_made_open(made);
}

static tsr_stats stats_of(tsr_made *made)
{
    tsr_ring *ring;
    tsr_stats stats;
    tsr_error err = {0};
    tsr_ring_new(&made->host, 1, &ring, NULL);
    if (tsr_tensor_stats(&made->checkpoint, &made->entries[0], ring, &stats, &err)) fail_msg("%s", err.message);
    tsr_ring_free(ring);
    return stats;
}

/* Values of torch.tensor(…, dtype=…) and their bytes; min, max, mean and std of the finite ones were computed by torch. */
static void test_check_deep__stats_of_every_dtype(void **state)
{
    (void)state;
    static const struct {
        tsr_dtype dtype;
        uint64_t elements;
        const char *bytes;
        size_t size;
        tsr_stats want;
    } rows[] = {
        {TSR_FLOAT32,
         4,
         "\0\0\x80\x3f\0\0\0\x80\0\0\xc0\x7f\0\0\x40\x40",
         16,
         {4, 1, 0, 1, 0, 3, 4.0 / 3, 1.5275252316519468}},
        {TSR_FLOAT64, 2, "\0\0\0\0\0\0\xf0\x7f\0\0\0\0\0\0\0\xc0", 16, {2, 0, 1, 0, -2, -2, -2, 0}},
        {TSR_BFLOAT16, 3, "\x80\x3f\x80\xbf\x80\xff", 6, {3, 0, 1, 0, -1, 1, 0, 1.4142135623730951}},
        {TSR_FLOAT16,
         3,
         "\x00\x3c\x01\x00\x00\x7e",
         6,
         {3, 1, 0, 0, 5.9604644775390625e-08, 1, 0.5000000298023224, 0.707106739039699}},
        {TSR_FLOAT8_E4M3FN, 4, "\x38\x7e\x7f\xff", 4, {4, 2, 0, 0, 1, 448, 224.5, 316.0767311903867}},
        {TSR_FLOAT8_E4M3FNUZ, 3, "\x40\x80\x7f", 3, {3, 1, 0, 0, 1, 240, 120.5, 168.99852070358486}},
        {TSR_FLOAT8_E5M2, 3, "\x3c\xfc\x7d", 3, {3, 1, 1, 0, 1, 1, 1, 0}},
        {TSR_FLOAT8_E5M2FNUZ, 2, "\x40\x80", 2, {2, 1, 0, 0, 1, 1, 1, 0}},
        {TSR_FLOAT8_E8M0FNU, 3, "\x7f\x80\xff", 3, {3, 1, 0, 0, 1, 2, 1.5, 0.7071067811865476}},
        {TSR_INT8, 3, "\x80\x00\x7f", 3, {3, 0, 0, 1, -128, 127, -1.0 / 3, 127.50032679696682}},
        {TSR_UINT16, 2, "\xff\xff\x01\x00", 4, {2, 0, 0, 0, 1, 65535, 32768, 46339.535798279205}},
        {TSR_INT64, 1, "\xff\xff\xff\xff\xff\xff\xff\xff", 8, {1, 0, 0, 0, -1, -1, -1, 0}},
        {TSR_BOOL, 3, "\x01\x00\x02", 3, {3, 0, 0, 1, 0, 1, 2.0 / 3, 0.5773502691896257}},
        {TSR_COMPLEX64, 1, "\0\0\x80\x3f\0\0\x80\x7f", 8, {2, 0, 1, 0, 1, 1, 1, 0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tsr_made made;
        start_one(&made, rows[i].dtype, rows[i].elements, rows[i].bytes, rows[i].size);
        const tsr_stats got = stats_of(&made), want = rows[i].want;
        const bool counts = got.count == want.count && got.nan == want.nan && got.inf == want.inf && got.zero == want.zero;
        const bool range = got.min == want.min && got.max == want.max;
        if (!counts || !range || fabs(got.mean - want.mean) > 1e-12 * fabs(want.mean) + 1e-15 ||
            fabs(got.std - want.std) > 1e-12 * want.std) {
            fail_msg("%s: count %d nan %d inf %d zero %d min %.17g max %.17g mean %.17g std %.17g",
                     tsr_dtype_describe(rows[i].dtype)->name, (int)got.count, (int)got.nan, (int)got.inf, (int)got.zero,
                     got.min, got.max, got.mean, got.std);
        }
        tsr_made_end(&made);
    }
}

static void test_check_deep__stats_do_not_depend_on_tiles(void **state)
{
    (void)state;
    enum { COUNT = 300000 };
    float *values = malloc(COUNT * sizeof *values);
    double mean = 0, squares = 0;
    for (int i = 0; i < COUNT; i++) values[i] = (float)(1e6 + i % 7919);
    for (int i = 0; i < COUNT; i++) mean += (double)values[i] / COUNT;
    for (int i = 0; i < COUNT; i++) squares += ((double)values[i] - mean) * ((double)values[i] - mean);
    tsr_made made;
    start_one(&made, TSR_FLOAT32, COUNT, values, COUNT * sizeof *values);
    const tsr_stats stats = stats_of(&made);
    assert_true(fabs(stats.mean - mean) < 1e-6);
    assert_true(fabs(stats.std - sqrt(squares / (COUNT - 1))) < 1e-6);
    tsr_made_end(&made);
    free(values);
}

/* A digest that can be computed by hand: the sum of the bytes, weighted by position. */
typedef struct toy {
    uint64_t sum, at;
} toy;
static void *toy_start(void)
{
    return calloc(1, sizeof(toy));
}
static void toy_update(void *state, const void *data, size_t size)
{
    toy *t = state;
    for (size_t i = 0; i < size; i++) t->sum += ++t->at * ((const uint8_t *)data)[i];
}
static void toy_finish(void *state, uint8_t *out)
{
    memcpy(out, &((toy *)state)->sum, 8);
    free(state);
}
static const tsr_digest_ops toy_ops = {8, toy_start, toy_update, toy_finish, free};

static void test_check_deep__digests_run_over_the_elements_in_order(void **state)
{
    (void)state;
    tsr_made made;
    tsr_made_start(&made, 9, 1);
    const uint64_t shape[] = {90, 80, 70};
    uint64_t want = 0;
    tsr_made_tensor(&made, "t", TSR_FLOAT32, 3, shape, 12, TSR_MADE_STRIDED);
    for (uint64_t i = 0; i < 4 * 90 * 80 * 70; i++) want += (i + 1) * made.truth[0][i];
    tsr_made_open(&made);
    made.host.xxh3 = &toy_ops;
    tsr_ring *ring;
    tsr_digest digest;
    tsr_error err = {0};
    tsr_ring_new(&made.host, 0, &ring, NULL);
    assert_int_equal(tsr_tensor_digest(&made.checkpoint, made.entries, TSR_DIGEST_XXH3, ring, &digest, &err), TSR_OK);
    assert_int_equal(digest.size, 8);
    assert_memory_equal(digest.bytes, &want, 8);
    assert_int_equal(tsr_tensor_digest(&made.checkpoint, made.entries, TSR_DIGEST_SHA256, ring, &digest, &err),
                     TSR_E_UNSUPPORTED);
    assert_string_equal(err.message, "built without sha256");
    ((tsr_view *)made.entries[0].chunks[0].view)->byte_offset = UINT64_MAX;
    assert_int_equal(tsr_tensor_digest(&made.checkpoint, made.entries, TSR_DIGEST_XXH3, ring, &digest, NULL), TSR_E_FORMAT);
    tsr_ring_free(ring);
    tsr_made_end(&made);
}

static size_t check_deep(tsr_made *made, const tsr_progress *progress, tsr_status want)
{
    tsr_ring *ring;
    tsr_error err = {0};
    tsr_ring_new(&made->host, 1, &ring, NULL);
    tsr_status status = tsr_check_deep(&made->checkpoint, ring, progress, &err);
    if (status != want) fail_msg("status %d: %s", (int)status, err.message);
    tsr_ring_free(ring);
    return tsr_findings_count(made->checkpoint.findings);
}

static const tsr_finding *finding(tsr_made *made, size_t index)
{
    return tsr_findings_at(made->checkpoint.findings, index);
}

typedef struct seen {
    uint64_t read, done, total; /* `read`: before the last report, which is about all bytes of the files */
} seen;

static bool count_bytes(void *ctx, uint64_t done, uint64_t total)
{
    seen *s = ctx;
    assert_true(done >= s->done && done <= total);
    s->read = s->done;
    s->done = done;
    s->total = total;
    return true;
}

static bool stop_at_once(void *ctx, uint64_t done, uint64_t total)
{
    (void)ctx, (void)done, (void)total;
    return false;
}

static void test_check_deep__a_sound_checkpoint_is_read_whole_and_clean(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        tsr_made made;
        tsr_made_start(&made, seed, 2);
        const uint64_t shape[] = {100 + seed, 2000};
        tsr_made_tensor(&made, "a", TSR_INT32, 2, shape, 6, (tsr_made_how)(seed % 3));
        tsr_made_tensor(&made, "b", TSR_INT8, 2, shape, 6, TSR_MADE_PLAIN);
        tsr_made_open(&made);
        seen bytes_seen = {0};
        uint64_t bytes = 0;
        for (uint64_t i = 0; i < made.extent_count; i++) bytes += made.extents[i].byte_length;
        assert_int_equal(check_deep(&made, &(tsr_progress){count_bytes, &bytes_seen}, TSR_OK), 0);
        assert_int_equal(bytes_seen.read, bytes);
        assert_int_equal(bytes_seen.done, bytes_seen.total);
        check_deep(&made, &(tsr_progress){stop_at_once, NULL}, TSR_E_CANCELLED);
        tsr_made_end(&made);
    }
}

static void test_check_deep__every_flipped_byte_is_found(void **state)
{
    (void)state;
    for (uint64_t at = 0; at < 200000; at += 9973) {
        tsr_made made;
        const uint64_t elements = 200000;
        tsr_made_start(&made, at, 1);
        tsr_made_tensor(&made, "t", TSR_UINT8, 1, &elements, 0, TSR_MADE_PLAIN);
        ((uint8_t *)made.file.items)[made.extents[0].byte_offset + at] ^= 0x10;
        tsr_made_open(&made);
        assert_int_equal(check_deep(&made, NULL, TSR_OK), 1);
        assert_string_equal(finding(&made, 0)->rule->id, "zip/crc");
        assert_int_equal(finding(&made, 0)->byte_offset, made.extents[0].byte_offset);
        assert_non_null(strstr(finding(&made, 0)->message.data, "member 'data/0'"));
        tsr_made_end(&made);
    }
}

static void test_check_deep__bools_other_than_0_and_1_are_counted(void **state)
{
    (void)state;
    for (unsigned strided = 0; strided < 2; strided++) {
        tsr_made made;
        tsr_made_start(&made, 2, 1);
        const uint64_t shape[] = {50000};
        tsr_made_tensor(&made, "t", TSR_BOOL, 1, shape, 0, TSR_MADE_PLAIN);
        uint8_t *stored = (uint8_t *)made.file.items + made.entries[0].chunks[0].byte_offset;
        memset(stored, 1, 50000);
        stored[0] = 2;
        stored[1] = 0;
        stored[49998] = 255;
        tsr_view *view = (tsr_view *)made.entries[0].chunks[0].view;
        static const uint64_t minus[] = {2};
        if (strided) { /* every second element, so that only a gather sees the values */
            ((uint64_t *)made.entries[0].shape)[0] = ((uint64_t *)made.entries[0].chunks[0].sizes)[0] = 25000;
            view->strides = minus;
        }
        made.extents[0].view = *view;
        made.extents[0].has_crc = false;
        tsr_made_open(&made);
        assert_int_equal(check_deep(&made, NULL, TSR_OK), 1);
        assert_string_equal(finding(&made, 0)->rule->id, "values/bool");
        assert_non_null(strstr(finding(&made, 0)->message.data, "2 bytes"));
        tsr_made_end(&made);
    }
}

static void test_check_deep__nan_and_infinity_are_counted_once(void **state)
{
    (void)state;
    const float odd[] = {NAN, INFINITY, -INFINITY, NAN};
    for (unsigned how = 0; how < 3; how++) {
        tsr_made made;
        tsr_made_start(&made, 2 + how, 1);
        const uint64_t shape[] = {50000};
        tsr_made_tensor(&made, "t", TSR_FLOAT32, 1, shape, 0, TSR_MADE_PLAIN);
        uint8_t *stored = (uint8_t *)made.file.items + made.entries[0].chunks[0].byte_offset;
        memset(stored, 0, 200000);
        memcpy(stored, odd, sizeof odd);
        memcpy(stored + 199984, odd, sizeof odd);
        tsr_view *view = (tsr_view *)made.entries[0].chunks[0].view;
        static const uint64_t minus[] = {2};
        if (how == 1) { /* every second element, so that only a gather sees the values */
            ((uint64_t *)made.entries[0].shape)[0] = ((uint64_t *)made.entries[0].chunks[0].sizes)[0] = 25000;
            view->strides = minus;
        }
        made.extents[0].view = *view;
        made.extents[0].byte_offset -= how == 2 ? 3 : 0; /* the elements begin inside of the extent */
        made.extents[0].byte_length += how == 2 ? 3 : 0;
        made.extents[0].has_crc = false;
        tsr_made_open(&made);
        assert_int_equal(check_deep(&made, NULL, TSR_OK), 1);
        assert_string_equal(finding(&made, 0)->rule->id, "values/nan");
        assert_string_equal(finding(&made, 0)->message.data,
                            how == 1 ? "2 NaN and 2 infinite values" : "4 NaN and 4 infinite values");
        tsr_made_end(&made);
    }
}

static void test_check_deep__replicas_must_be_equal(void **state)
{
    (void)state;
    for (unsigned flip = 0; flip < 2; flip++) {
        tsr_made made;
        tsr_made_start(&made, 7, 2);
        const uint64_t shape[] = {30, 5};
        tsr_made_tensor(&made, "t", TSR_INT16, 2, shape, 4, TSR_MADE_STRIDED);
        tsr_made_tensor(&made, "copy", TSR_INT16, 2, shape, 0, TSR_MADE_PLAIN);
        uint8_t *copy = (uint8_t *)made.file.items + made.entries[1].chunks[0].byte_offset;
        memcpy(copy, made.truth[0], 300);
        copy[151] ^= (uint8_t)flip;
        made.entries[0].replicas = made.entries[1].chunks;
        made.entries[0].replica_count = 1;
        made.count = 1;
        made.extent_count--;
        tsr_made_open(&made);
        assert_int_equal(check_deep(&made, NULL, TSR_OK), flip);
        if (flip) assert_string_equal(finding(&made, 0)->rule->id, "layout/replica-differs");
        if (flip) assert_string_equal(finding(&made, 0)->message.data, "1 of 150 elements differ from the first copy");
        tsr_made_end(&made);
    }
}

static void test_check_deep__unreadable_ranges_are_findings(void **state)
{
    (void)state;
    tsr_made made;
    tsr_made_start(&made, 7, 1);
    const uint64_t elements = 300000;
    tsr_made_tensor(&made, "t", TSR_UINT8, 1, &elements, 0, TSR_MADE_PLAIN);
    made.extents[0].byte_length += 300000;
    tsr_made_open(&made);
    assert_int_equal(check_deep(&made, NULL, TSR_OK), 1);
    assert_string_equal(finding(&made, 0)->rule->id, "file/io");
    tsr_made_end(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check_deep__stats_of_every_dtype),
        cmocka_unit_test(test_check_deep__stats_do_not_depend_on_tiles),
        cmocka_unit_test(test_check_deep__digests_run_over_the_elements_in_order),
        cmocka_unit_test(test_check_deep__a_sound_checkpoint_is_read_whole_and_clean),
        cmocka_unit_test(test_check_deep__every_flipped_byte_is_found),
        cmocka_unit_test(test_check_deep__bools_other_than_0_and_1_are_counted),
        cmocka_unit_test(test_check_deep__nan_and_infinity_are_counted_once),
        cmocka_unit_test(test_check_deep__replicas_must_be_equal),
        cmocka_unit_test(test_check_deep__unreadable_ranges_are_findings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
