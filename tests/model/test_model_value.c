/* Values: equality, what JSON can represent, and bounded walks over deep, shared and cyclic trees. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <math.h>

#include <cmocka.h>

#include "tessera/catalog.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/json.h"

static tsr_arena *arena;

static tsr_value *str(const char *text)
{
    return tsr_value_str(arena, tsr_str_from(text), NULL);
}
static tsr_value *integer(int64_t value)
{
    return tsr_value_int(arena, value, NULL);
}

static tsr_value *real(double value)
{
    tsr_value *v = tsr_value_new(arena, TSR_VALUE_FLOAT, NULL);
    v->as.real = value;
    return v;
}

static tsr_value *boolean(bool value)
{
    tsr_value *v = tsr_value_new(arena, TSR_VALUE_BOOL, NULL);
    v->as.boolean = value;
    return v;
}

/* Up to eight items; the list ends with NULL. */
static tsr_value *many(tsr_value_kind kind, const tsr_value *first, ...)
{
    const tsr_value **items = tsr_arena_array(arena, 8, sizeof *items, NULL);
    size_t count = 0;
    va_list rest;
    va_start(rest, first);
    for (const tsr_value *v = first; v; v = va_arg(rest, const tsr_value *)) items[count++] = v;
    va_end(rest);
    return tsr_value_items(arena, kind, items, count, NULL);
}
#define END ((const tsr_value *)NULL)

static int start(void **state)
{
    (void)state;
    arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    return arena == NULL;
}

static int stop(void **state)
{
    (void)state;
    tsr_arena_free(arena);
    return 0;
}

static tsr_match match(const tsr_value *a, const tsr_value *b)
{
    tsr_match forth = tsr_value_match(a, b, 100, 100000), back = tsr_value_match(b, a, 100, 100000);
    assert_int_equal(forth, back);
    return forth;
}

static void test_model_value__equality_is_deep_and_exact(void **state)
{
    (void)state;
    const tsr_value *none = tsr_value_new(arena, TSR_VALUE_NONE, NULL);
    assert_int_equal(match(none, tsr_value_new(arena, TSR_VALUE_NONE, NULL)), TSR_SAME);
    assert_int_equal(match(integer(1), integer(1)), TSR_SAME);
    assert_int_equal(match(integer(1), integer(2)), TSR_DIFFERENT);
    assert_int_equal(match(integer(1), real(1)), TSR_DIFFERENT);
    assert_int_equal(match(integer(1), boolean(true)), TSR_DIFFERENT);
    assert_int_equal(match(boolean(false), boolean(true)), TSR_DIFFERENT);
    assert_int_equal(match(real(NAN), real(-NAN)), TSR_SAME);
    assert_int_equal(match(real(0.0), real(-0.0)), TSR_DIFFERENT);
    assert_int_equal(match(str("a"), str("a")), TSR_SAME);
    assert_int_equal(match(str("a"), str("ab")), TSR_DIFFERENT);
    assert_int_equal(match(many(TSR_VALUE_LIST, integer(1), str("x"), END), many(TSR_VALUE_LIST, integer(1), str("x"), END)),
                     TSR_SAME);
    assert_int_equal(match(many(TSR_VALUE_LIST, integer(1), str("x"), END), many(TSR_VALUE_LIST, str("x"), integer(1), END)),
                     TSR_DIFFERENT);
    assert_int_equal(match(many(TSR_VALUE_LIST, integer(1), END), many(TSR_VALUE_TUPLE, integer(1), END)), TSR_DIFFERENT);
    assert_int_equal(match(many(TSR_VALUE_LIST, integer(1), END), many(TSR_VALUE_LIST, integer(1), integer(1), END)),
                     TSR_DIFFERENT);
    tsr_value *c = tsr_value_new(arena, TSR_VALUE_COMPLEX, NULL), *d = tsr_value_new(arena, TSR_VALUE_COMPLEX, NULL);
    c->as.complex.im = 1;
    assert_int_equal(match(c, d), TSR_DIFFERENT);
    c->as.complex.im = 0;
    assert_int_equal(match(c, d), TSR_SAME);
    tsr_value *f = tsr_value_new(arena, TSR_VALUE_DTYPE, NULL), *g = tsr_value_new(arena, TSR_VALUE_DTYPE, NULL);
    f->as.dtype = TSR_INT8;
    assert_int_equal(match(f, g), TSR_DIFFERENT);
}

static void test_model_value__order_of_dicts_and_sets_does_not_count(void **state)
{
    (void)state;
    const tsr_value *ab = many(TSR_VALUE_DICT, str("a"), integer(1), str("b"), integer(2), integer(3), integer(4), END);
    assert_int_equal(
        match(ab, many(TSR_VALUE_DICT, integer(3), integer(4), str("b"), integer(2), str("a"), integer(1), END)), TSR_SAME);
    assert_int_equal(
        match(ab, many(TSR_VALUE_DICT, str("a"), integer(2), str("b"), integer(1), integer(3), integer(4), END)),
        TSR_DIFFERENT);
    assert_int_equal(
        match(ab, many(TSR_VALUE_DICT, str("a"), integer(1), str("c"), integer(2), integer(3), integer(4), END)),
        TSR_DIFFERENT);
    const tsr_value *deep =
        many(TSR_VALUE_DICT, many(TSR_VALUE_TUPLE, integer(1), str("k"), END), many(TSR_VALUE_LIST, ab, END), END);
    assert_int_equal(match(deep, many(TSR_VALUE_DICT, many(TSR_VALUE_TUPLE, integer(1), str("k"), END),
                                      many(TSR_VALUE_LIST, ab, END), END)),
                     TSR_SAME);
    assert_int_equal(match(many(TSR_VALUE_SET, integer(1), integer(2), integer(3), END),
                           many(TSR_VALUE_SET, integer(3), integer(1), integer(2), END)),
                     TSR_SAME);
    assert_int_equal(
        match(many(TSR_VALUE_SET, integer(1), integer(2), END), many(TSR_VALUE_SET, integer(1), integer(4), END)),
        TSR_DIFFERENT);
    assert_int_equal(match(many(TSR_VALUE_DICT, END), many(TSR_VALUE_DICT, END)), TSR_SAME);
}

static void test_model_value__tensors_inside_compare_by_dtype_and_shape(void **state)
{
    (void)state;
    static const uint64_t s23[] = {2, 3}, s24[] = {2, 4};
    tsr_entry a = {.dtype = TSR_INT8, .ndim = 2, .shape = s23}, b = a, c = a;
    c.shape = s24;
    tsr_value *va = tsr_value_new(arena, TSR_VALUE_TENSOR, NULL), *vb = tsr_value_new(arena, TSR_VALUE_TENSOR, NULL);
    va->as.tensor = &a;
    vb->as.tensor = &b;
    assert_int_equal(match(va, vb), TSR_SAME);
    vb->as.tensor = &c;
    assert_int_equal(match(va, vb), TSR_DIFFERENT);
}

static void test_model_value__walks_are_bounded(void **state)
{
    (void)state;
    const tsr_value *items_a[1] = {NULL}, *items_b[1] = {NULL};
    tsr_value *a = tsr_value_items(arena, TSR_VALUE_LIST, items_a, 1, NULL),
              *b = tsr_value_items(arena, TSR_VALUE_LIST, items_b, 1, NULL);
    items_a[0] = a; /* cycles */
    items_b[0] = b;
    assert_int_equal(tsr_value_match(a, b, 1000000, 1000000), TSR_TOO_LARGE);
    assert_false(tsr_value_is_json(a, 1000000, 1000000));
    const tsr_value *x = integer(0), *y = integer(0);
    for (int i = 0; i < 40; i++) { /* 2^40 paths */
        x = many(TSR_VALUE_LIST, x, x, END);
        y = many(TSR_VALUE_LIST, y, y, END);
    }
    assert_int_equal(tsr_value_match(x, y, 100, 10000), TSR_TOO_LARGE);
    assert_false(tsr_value_is_json(x, 100, 10000));
    assert_int_equal(tsr_value_match(x, x, 100, 10), TSR_SAME);
    assert_int_equal(tsr_value_match(x, y, 39, 1000000), TSR_TOO_LARGE);
}

enum { MANY = 20000 };

/* A dict with text and integer keys, forwards or backwards. `last` is the value of its last key. */
static tsr_value *large_dict(bool backwards, int64_t last)
{
    const tsr_value **items = tsr_arena_array(arena, 2 * MANY, sizeof *items, NULL);
    for (size_t i = 0; i < MANY; i++) {
        char text[16];
        const size_t n = backwards ? MANY - 1 - i : i;
        snprintf(text, sizeof text, "k%zu", n);
        tsr_str kept = tsr_arena_str(arena, tsr_str_from(text), NULL);
        items[2 * i] = n % 2 ? tsr_value_str(arena, kept, NULL) : integer((int64_t)n);
        items[2 * i + 1] = integer(n + 1 < MANY ? (int64_t)n : last);
    }
    return tsr_value_items(arena, TSR_VALUE_DICT, items, 2 * MANY, NULL);
}

/* A different order takes about as long as the same order: the limit is a few visits per key. */
static void test_model_value__large_dicts_in_another_order_are_soon_compared(void **state)
{
    (void)state;
    const tsr_value *a = large_dict(false, 7), *b = large_dict(true, 7), *c = large_dict(true, 8);
    assert_int_equal(tsr_value_match(a, b, 10, 100 * MANY), TSR_SAME);
    assert_int_equal(tsr_value_match(b, a, 10, 100 * MANY), TSR_SAME);
    assert_int_equal(tsr_value_match(a, c, 10, 100 * MANY), TSR_DIFFERENT);
}

/* {a: X, b: X}, where X has the same form, nested 60 deep, around one leaf. The dicts are shared as in a pickle, or contain
 * themselves. */
static tsr_value *doubled(int64_t leaf, bool holds_itself)
{
    tsr_value *inner = integer(leaf), *first = NULL;
    for (int i = 0; i < 60; i++) {
        const tsr_value **items = tsr_arena_array(arena, 3, sizeof *items, NULL);
        items[0] = items[1] = inner;
        items[2] = integer(i);
        inner = tsr_value_items(arena, TSR_VALUE_TUPLE, items, 3, NULL);
        inner->expanded = TSR_VALUE_ENDLESS;
        if (!first) first = inner;
    }
    if (holds_itself) ((const tsr_value **)(uintptr_t)first->items)[0] = inner;
    return inner;
}

static void test_model_value__what_is_endless_is_compared_once(void **state)
{
    (void)state;
    for (int cyclic = 0; cyclic < 2; cyclic++) {
        assert_int_equal(tsr_value_match(doubled(1, cyclic), doubled(1, cyclic), 100, 1000), TSR_SAME);
        assert_int_equal(tsr_value_match(doubled(1, cyclic), doubled(2, cyclic), 100, 1000), TSR_DIFFERENT);
    }
}

static void test_model_value__what_is_endless_is_not_written(void **state)
{
    (void)state;
    const tsr_value *one = integer(1);
    tsr_value *a = tsr_value_items(arena, TSR_VALUE_LIST, &one, 1, NULL),
              *b = tsr_value_items(arena, TSR_VALUE_LIST, &one, 1, NULL);
    assert_int_equal(tsr_value_match(a, b, 10, 10), TSR_SAME);
    assert_true(tsr_value_is_json(a, 10, 10));
    a->expanded = TSR_VALUE_ENDLESS;
    assert_int_equal(tsr_value_match(a, b, 10, 10), TSR_SAME);
    assert_int_equal(tsr_value_match(b, a, 10, 10), TSR_SAME);
    assert_false(tsr_value_is_json(a, 10, 10));
}

static void test_model_value__json_holds_only_what_reads_back(void **state)
{
    (void)state;
    const tsr_value *dict =
        many(TSR_VALUE_DICT, str("a"),
             many(TSR_VALUE_LIST, integer(-1), real(0.5), boolean(true), tsr_value_new(arena, TSR_VALUE_NONE, NULL), END),
             str("é"), many(TSR_VALUE_DICT, END), END);
    assert_true(tsr_value_is_json(dict, 10, 100));
    assert_false(tsr_value_is_json(dict, 1, 100));
    assert_false(tsr_value_is_json(dict, 10, 3));
    const tsr_value *bad[] = {real(NAN),
                              real(INFINITY),
                              str("\xED\xA0\x80"),
                              many(TSR_VALUE_TUPLE, END),
                              many(TSR_VALUE_DICT, integer(1), integer(2), END),
                              many(TSR_VALUE_SET, END),
                              tsr_value_new(arena, TSR_VALUE_BYTES, NULL),
                              tsr_value_new(arena, TSR_VALUE_COMPLEX, NULL),
                              tsr_value_new(arena, TSR_VALUE_BIGINT, NULL), /* too long to be written in decimal */
                              tsr_value_new(arena, TSR_VALUE_OBJECT, NULL)};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(tsr_value_is_json(bad[i], 10, 100));
        assert_false(tsr_value_is_json(many(TSR_VALUE_LIST, bad[i], END), 10, 100));
    }
}

static tsr_status append(void *ctx, const char *data, size_t size, tsr_error *err)
{
    (void)err;
    strncat(ctx, data, size);
    return TSR_OK;
}

static void test_model_value__json_text_is_the_value(void **state)
{
    (void)state;
    char text[512] = "";
    tsr_json json;
    const tsr_value *dict =
        many(TSR_VALUE_DICT, str("a"),
             many(TSR_VALUE_LIST, integer(-1), real(1), boolean(false), tsr_value_new(arena, TSR_VALUE_NONE, NULL), END),
             str("e"), many(TSR_VALUE_DICT, END), str("s"), str("x\n"), END);
    tsr_json_start(&json, append, text, 0, NULL);
    tsr_json_array(&json);
    tsr_json_value(&json, integer(7));
    tsr_json_value(&json, dict);
    const tsr_value big = {.kind = TSR_VALUE_BIGINT, .text = TSR_STR("\0\0\0\0\0\0\0\0\1")};
    assert_true(tsr_value_is_json(&big, 10, 100));
    tsr_json_value(&json, &big);
    tsr_json_array_end(&json);
    assert_int_equal(tsr_json_finish(&json), TSR_OK);
    assert_string_equal(text, "[7,{\"a\":[-1,1.0,false,null],\"e\":{},\"s\":\"x\\n\"},18446744073709551616]\n");
}

static void test_model_value__json_beyond_the_emitters_depth_is_an_error(void **state)
{
    (void)state;
    char text[512] = "";
    tsr_json json;
    tsr_error err = {0};
    const tsr_value *v = integer(0);
    for (int i = 0; i < 64; i++) v = many(TSR_VALUE_LIST, v, END);
    tsr_json_start(&json, append, text, 0, &err);
    tsr_json_value(&json, v);
    assert_int_equal(tsr_json_finish(&json), TSR_E_LIMIT);
}

static void test_model_value__members_are_found_by_string_keys(void **state)
{
    (void)state;
    const tsr_value *dict = many(TSR_VALUE_DICT, integer(1), str("n"), str("1"), str("s"), END);
    assert_true(tsr_str_equal(tsr_value_get(dict, TSR_STR("1"))->text, TSR_STR("s")));
    assert_null(tsr_value_get(dict, TSR_STR("2")));
    assert_int_equal(tsr_value_pairs(dict), 2);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)

static void test_model_value__made_in_one_call(void **state)
{
    (void)state;
    tsr_error err = {0};
    tsr_value *betas = tsr_value_list(arena, TSR_VALUE_TUPLE, 2, tsr_value_float(arena, 0.5, &err), real(0.75));
    tsr_value *made =
        tsr_value_dict(arena, 4, "lr", tsr_value_float(arena, 0.25, &err), "amsgrad", tsr_value_bool(arena, true, &err),
                       "foreach", tsr_value_none(arena, &err), "betas", betas);
    assert_int_equal(made->kind, TSR_VALUE_DICT);
    assert_int_equal(tsr_value_pairs(made), 4);
    assert_true(tsr_value_get(made, TSR_STR("lr"))->as.real == 0.25);
    assert_true(tsr_value_get(made, TSR_STR("amsgrad"))->as.boolean);
    assert_int_equal(tsr_value_get(made, TSR_STR("foreach"))->kind, TSR_VALUE_NONE);
    assert_true(betas->kind == TSR_VALUE_TUPLE && betas->count == 2 && betas->items[1]->as.real == 0.75);
    assert_int_equal(tsr_value_dict(arena, 0)->count, 0);
    assert_int_equal(tsr_value_list(arena, TSR_VALUE_LIST, 0)->count, 0);
    assert_null(tsr_value_dict(arena, 1, "x", NULL));
    assert_null(tsr_value_list(arena, TSR_VALUE_LIST, 2, real(1), NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_model_value__made_in_one_call),
        TEST(test_model_value__equality_is_deep_and_exact),
        TEST(test_model_value__order_of_dicts_and_sets_does_not_count),
        TEST(test_model_value__tensors_inside_compare_by_dtype_and_shape),
        TEST(test_model_value__walks_are_bounded),
        TEST(test_model_value__large_dicts_in_another_order_are_soon_compared),
        TEST(test_model_value__what_is_endless_is_compared_once),
        TEST(test_model_value__what_is_endless_is_not_written),
        TEST(test_model_value__json_holds_only_what_reads_back),
        TEST(test_model_value__json_text_is_the_value),
        TEST(test_model_value__json_beyond_the_emitters_depth_is_an_error),
        TEST(test_model_value__members_are_found_by_string_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
