/* Compares values across shardings, both bitwise and with tolerances. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/made.h"
#include "tessera/compare.h"
#include "tessera/sys/check.h"

static const tsr_tolerance exact = {.exact = true};

static tsr_difference compare(tsr_made *a, uint64_t entry_a, tsr_made *b, uint64_t entry_b, const tsr_tolerance *tolerance)
{
    tsr_ring *ring;
    tsr_difference difference;
    tsr_error err = {0};
    tsr_ring_new(&a->host, 1, &ring, NULL);
    tsr_status status =
        tsr_compare_tensors((tsr_stored_tensor){&a->checkpoint, &a->entries[entry_a]},
                            (tsr_stored_tensor){&b->checkpoint, &b->entries[entry_b]}, tolerance, ring, &difference, &err);
    if (status != TSR_OK) fail_msg("%s", err.message);
    tsr_ring_free(ring);
    return difference;
}

static void test_check_compare__sharding_does_not_count_and_every_flipped_bit_does(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        tsr_made a, b;
        const uint64_t shape[] = {50, 20, 37};
        const tsr_dtype dtype = seed % 2 ? TSR_COMPLEX64 : TSR_INT16;
        tsr_made_start(&a, seed, 1);
        tsr_made_start(&b, seed, 1);
        b.random += seed / 2 * 2; /* the same contents, but split differently */
        tsr_made_tensor(&a, "t", dtype, 3, shape, 0, TSR_MADE_PLAIN);
        tsr_made_tensor(&b, "t", dtype, 3, shape, (unsigned)(seed % 9), (tsr_made_how)(seed % 3));
        memcpy(a.truth[0], b.truth[0], 50 * 20 * 37 * tsr_dtype_size(dtype));
        memcpy((uint8_t *)a.file.items + a.entries[0].chunks[0].byte_offset, a.truth[0],
               50 * 20 * 37 * tsr_dtype_size(dtype));
        tsr_made_open(&a);
        tsr_made_open(&b);
        assert_int_equal(compare(&a, 0, &b, 0, &exact).differing, 0);
        const uint64_t element = tsr_made_random(&a, 50 * 20 * 37);
        ((uint8_t *)a.file.items)[a.entries[0].chunks[0].byte_offset + element * tsr_dtype_size(dtype)] ^= 1;
        const tsr_difference one = compare(&b, 0, &a, 0, &exact);
        assert_int_equal(one.differing, 1);
        assert_int_equal(one.first, element);
        assert_int_equal(one.elements, 50 * 20 * 37);
        assert_true(one.numeric);
        tsr_made_end(&a);
        tsr_made_end(&b);
    }
}

typedef struct pair {
    tsr_dtype dtype;
    uint64_t elements;
    const void *a, *b;
    tsr_tolerance tolerance;
    uint64_t differing;
    double max_abs;
    uint64_t max_ulp;
} pair;

static void test_check_compare__tolerances_are_those_of_torch_isclose(void **state)
{
    (void)state;
    static const float ones[] = {1, NAN, INFINITY, -0.0f}, others[] = {1.0000001f, NAN, INFINITY, 0.0f};
    static const float apart[] = {1, 2, INFINITY, NAN}, from[] = {1.5f, 2, -INFINITY, 0};
    static const double wide[] = {-1.0, 1.0}, narrow[] = {1.0, 1.0 + 2.220446049250313e-16};
    static const uint16_t halves[] = {0x3c00, 0x8001}, near[] = {0x3c02, 0x0001};
    static const int64_t numbers[] = {5, -7}, beside[] = {6, -7};
    static const int64_t large[] = {INT64_C(1) << 62, INT64_MAX}, larger[] = {(INT64_C(1) << 62) + 1, INT64_MIN};
    static const float complex_a[] = {3, 4, 0, 0}, complex_b[] = {3, 5, NAN, 1};
    static const uint8_t bits[] = {1, 2, 3}, bits_b[] = {1, 0, 3};
    const pair rows[] = {
        {TSR_FLOAT32, 4, ones, ones, exact, 0, 0, 0},
        {TSR_FLOAT32, 4, ones, others, exact, 2, 1.1920928955078125e-07, 1},
        {TSR_FLOAT32, 4, ones, others, {false, 0, 1e-6}, 0, 0, 0},
        {TSR_FLOAT32, 4, ones, others, {false, 1e-9, 0}, 1, 1.1920928955078125e-07, 1},
        {TSR_FLOAT32, 4, apart, from, {false, 0.4, 0}, 3, INFINITY, 0xff000000},
        {TSR_FLOAT32, 4, apart, from, {false, 0.25, 0.25}, 2, INFINITY, 0xff000000},
        {TSR_FLOAT64, 2, wide, narrow, exact, 2, 2, UINT64_C(0x7fe0000000000000)},
        {TSR_FLOAT16, 2, halves, near, exact, 2, 0.001953125, 2},
        {TSR_INT64, 2, numbers, beside, exact, 1, 1, 0},
        {TSR_INT64, 2, large, larger, {false, 0.5, 0}, 2, 0x1p64, 0}, /* more digits than a double has */
        {TSR_INT64, 2, large, larger, {false, 1, 1}, 1, 0x1p64, 0},
        {TSR_UINT64, 2, large, larger, {false, 0.5, 0}, 2, 1, 0},
        {TSR_INT64, 2, numbers, beside, {false, 1, 0}, 0, 0, 0},
        {TSR_COMPLEX64, 2, complex_a, complex_b, {false, 0.5, 0}, 2, 1, 0x00200000},
        {TSR_COMPLEX64, 1, complex_a, complex_b, {false, 0, 0.2}, 0, 0, 0},
        {TSR_BITS8, 3, bits, bits_b, {false, 9, 9}, 1, 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const pair *row = &rows[i];
        const size_t size = row->elements * tsr_dtype_size(row->dtype);
        tsr_made made;
        tsr_made_start(&made, i, 2);
        for (unsigned side = 0; side < 2; side++) {
            tsr_made_tensor(&made, side ? "b" : "a", row->dtype, 1, &row->elements, 0, TSR_MADE_PLAIN);
            memcpy((uint8_t *)made.file.items + made.entries[side].chunks[0].byte_offset, side ? row->b : row->a, size);
        }
        tsr_made_open(&made);
        const tsr_difference got = compare(&made, 0, &made, 1, &row->tolerance);
        if (got.differing != row->differing || got.max_abs != row->max_abs || got.max_ulp != row->max_ulp) {
            fail_msg("row %d: differing %d, max_abs %.17g, max_ulp %llx", (int)i, (int)got.differing, got.max_abs,
                     (unsigned long long)got.max_ulp);
        }
        tsr_made_end(&made);
    }
}

static void test_check_compare__unlike_tensors_are_refused(void **state)
{
    (void)state;
    tsr_made made;
    const uint64_t shape[] = {4, 2}, other[] = {2, 4};
    tsr_made_start(&made, 1, 3);
    tsr_made_tensor(&made, "a", TSR_FLOAT32, 2, shape, 0, TSR_MADE_PLAIN);
    tsr_made_tensor(&made, "shape", TSR_FLOAT32, 2, other, 0, TSR_MADE_PLAIN);
    tsr_made_tensor(&made, "dtype", TSR_INT32, 2, shape, 0, TSR_MADE_PLAIN);
    tsr_made_open(&made);
    for (uint64_t i = 1; i < 3; i++) {
        tsr_ring *ring;
        tsr_difference difference;
        tsr_error err = {0};
        tsr_ring_new(&made.host, 1, &ring, NULL);
        assert_int_equal(tsr_compare_tensors((tsr_stored_tensor){&made.checkpoint, made.entries},
                                             (tsr_stored_tensor){&made.checkpoint, &made.entries[i]}, &exact, ring,
                                             &difference, &err),
                         TSR_E_USAGE);
        assert_non_null(strstr(err.message, "differ in dtype or shape"));
        tsr_ring_free(ring);
    }
    tsr_made_end(&made);
}

static void test_check_compare__an_error_names_its_side(void **state)
{
    (void)state;
    tsr_made made;
    const uint64_t shape[] = {4};
    tsr_made_start(&made, 1, 2);
    tsr_made_tensor(&made, "a", TSR_FLOAT32, 1, shape, 0, TSR_MADE_PLAIN);
    tsr_made_tensor(&made, "b", TSR_FLOAT32, 1, shape, 0, TSR_MADE_ZSTD);
    tsr_made_open(&made);
    made.host.zstd = NULL;
    tsr_ring *ring;
    tsr_difference difference;
    tsr_error err = {0};
    tsr_ring_new(&made.host, 1, &ring, NULL);
    assert_int_equal(tsr_compare_tensors((tsr_stored_tensor){&made.checkpoint, made.entries},
                                         (tsr_stored_tensor){&made.checkpoint, &made.entries[1]}, &exact, ring, &difference,
                                         &err),
                     TSR_E_NOT_BUILT);
    assert_non_null(strstr(err.message, ", in b"));
    tsr_ring_free(ring);
    tsr_made_end(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check_compare__sharding_does_not_count_and_every_flipped_bit_does),
        cmocka_unit_test(test_check_compare__tolerances_are_those_of_torch_isclose),
        cmocka_unit_test(test_check_compare__unlike_tensors_are_refused),
        cmocka_unit_test(test_check_compare__an_error_names_its_side),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
