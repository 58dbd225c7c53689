/* Compares statistics and histograms that are computed in steps with a single pass over the elements. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/made.h"
#include "tessera/sys/check.h"

enum { BINS = 20 };

static tsr_tally *tally_of(tsr_made *made)
{
    tsr_tally *tally = NULL;
    tsr_error err = {0};
    if (tsr_tally_new(&made->checkpoint, &made->entries[0], &tally, &err)) fail_msg("%s", err.message);
    return tally;
}

static unsigned run_to_end(tsr_tally *tally, size_t budget)
{
    tsr_error err = {0};
    unsigned steps = 0;
    for (bool done = false; !done; steps++) {
        if (tsr_tally_step(tally, budget, &done, &err)) fail_msg("%s", err.message);
    }
    return steps;
}

/* Values on a grid, far from the borders of all bins, so that the counts are exact: bin i gets `weights[i]`. */
static void test_check_tally__bins_are_exact_away_from_borders(void **state)
{
    (void)state;
    static const double scales[] = {1, 1e-30, 1e30, -1, 1e-44};
    for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
        tsr_made made;
        const uint64_t shape[] = {40, 1050};
        tsr_made_start(&made, s + 1, 1);
        tsr_made_tensor(&made, "t", scales[s] == 1e-44 ? TSR_FLOAT64 : TSR_FLOAT32, 2, shape, 0, TSR_MADE_PLAIN);
        uint8_t *to = (uint8_t *)made.file.items + made.entries[0].chunks[0].byte_offset;
        uint64_t want[BINS] = {0};
        for (size_t i = 0; i < 42000; i++) {
            const size_t bin = (i * i + i / 7) % BINS;
            const double x = (i == 5 ? 0 : i == 6 ? BINS : (double)bin + 0.5) * scales[s];
            const float f = (float)x;
            if (scales[s] == 1e-44) memcpy(to + 8 * i, &x, 8);
            else memcpy(to + 4 * i, &f, 4);
            const size_t in = i == 5 ? 0 : i == 6 ? BINS - 1 : bin;
            want[scales[s] < 0 ? BINS - 1 - in : in]++;
        }
        tsr_made_open(&made);
        tsr_tally *tally = tally_of(&made);
        run_to_end(tally, 1);
        uint64_t got[BINS];
        tsr_tally_histogram(tally, got, BINS);
        for (size_t b = 0; b < BINS; b++) assert_int_equal(got[b], want[b]);
        tsr_tally_free(tally);
        tsr_made_end(&made);
    }
}

/* The first values are small; later ones are far outside, on both sides. NaN and infinities are in no bin. */
static void test_check_tally__late_outliers_and_special_values(void **state)
{
    (void)state;
    enum { COUNT = 5000 };
    double values[COUNT];
    for (size_t i = 0; i < COUNT; i++) values[i] = 0;
    values[2000] = 1e308;
    values[3000] = -1e308;
    values[4000] = NAN;
    values[4001] = INFINITY;
    values[4500] = 1e-300;
    tsr_made made;
    const uint64_t shape[] = {COUNT};
    tsr_made_start(&made, 1, 1);
    tsr_made_tensor(&made, "t", TSR_FLOAT64, 1, shape, 0, TSR_MADE_PLAIN);
    memcpy((uint8_t *)made.file.items + made.entries[0].chunks[0].byte_offset, values, sizeof values);
    tsr_made_open(&made);
    tsr_tally *tally = tally_of(&made);
    run_to_end(tally, 1 << 20);
    uint64_t got[3];
    tsr_tally_histogram(tally, got, 3);
    assert_int_equal(got[0], 1);
    assert_int_equal(got[1], COUNT - 4);
    assert_int_equal(got[2], 1);
    tsr_tally_free(tally);
    tsr_made_end(&made);
}

/* Steps of any size give the same result as a single pass, for all kinds of shardings. */
static void test_check_tally__steps_do_not_matter(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        tsr_made made;
        uint64_t shape[4] = {400, 3, 257};
        tsr_made_start(&made, seed, 1);
        const uint32_t ndim = seed % 3 ? 3 : tsr_made_shape(&made, shape, 12);
        tsr_made_tensor(&made, "t", seed % 2 ? TSR_FLOAT32 : TSR_COMPLEX64, ndim, shape, 5,
                        seed % 5 == 0 ? TSR_MADE_STRIDED : TSR_MADE_PLAIN);
        tsr_made_open(&made);
        tsr_ring *ring = NULL;
        tsr_stats want, got;
        tsr_error err = {0};
        tsr_ring_new(&made.host, 0, &ring, &err);
        assert_int_equal(tsr_tensor_stats(&made.checkpoint, &made.entries[0], ring, &want, &err), TSR_OK);
        tsr_tally *tally = tally_of(&made);
        const unsigned steps = run_to_end(tally, seed % 4 ? 1 << 30 : 1);
        uint64_t done, total, counts[BINS], sum = 0;
        tsr_tally_progress(tally, &done, &total);
        assert_true(done == total && steps >= 1 && (seed % 4 == 0 || steps == 1));
        tsr_tally_stats(tally, &got);
        tsr_tally_histogram(tally, counts, BINS);
        for (size_t b = 0; b < BINS; b++) sum += counts[b];
        assert_int_equal(sum, want.count - want.nan - want.inf);
        assert_true(got.count == want.count && got.nan == want.nan && got.zero == want.zero && got.min == want.min &&
                    got.max == want.max);
        tsr_tally_free(tally);
        tsr_ring_free(ring);
        tsr_made_end(&made);
    }
}

static void test_check_tally__types_without_numbers_are_refused(void **state)
{
    (void)state;
    tsr_made made;
    const uint64_t shape[] = {8};
    tsr_made_start(&made, 1, 1);
    tsr_made_tensor(&made, "t", TSR_BITS8, 1, shape, 0, TSR_MADE_PLAIN);
    tsr_made_open(&made);
    tsr_tally *tally;
    tsr_error err = {0};
    assert_int_equal(tsr_tally_new(&made.checkpoint, &made.entries[0], &tally, &err), TSR_E_UNSUPPORTED);
    assert_string_equal(err.message, "'t': no statistics can be computed for bits8");
    tsr_made_end(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check_tally__bins_are_exact_away_from_borders),
        cmocka_unit_test(test_check_tally__late_outliers_and_special_values),
        cmocka_unit_test(test_check_tally__steps_do_not_matter),
        cmocka_unit_test(test_check_tally__types_without_numbers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
