/* Compares opcodes with what Python's own pickler writes (pickle.dumps of CPython 3), and memo numbers with what the pickle
 * machine counts. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "codec/pickle.h"
#include "support/failing_allocator.h"

static const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = {1000, 1000000, 1u << 30, 1u << 30, 1000000}};

static void test_codec_pickle_write__integers_are_pythons(void **state)
{
    (void)state;
    static const struct {
        int64_t value;
        const char *bytes;
        size_t size;
    } rows[] = {
        {0, "\x80\x02K\x00.", 5},
        {255, "\x80\x02K\xff.", 5},
        {256, "\x80\x02M\x00\x01.", 6},
        {65535, "\x80\x02M\xff\xff.", 6},
        {65536, "\x80\x02J\x00\x00\x01\x00.", 8},
        {-1, "\x80\x02J\xff\xff\xff\xff.", 8},
        {-129, "\x80\x02J\x7f\xff\xff\xff.", 8},
        {INT32_MAX, "\x80\x02J\xff\xff\xff\x7f.", 8},
        {INT32_MIN, "\x80\x02J\x00\x00\x00\x80.", 8},
        {INT64_C(2147483648), "\x80\x02\x8a\x05\x00\x00\x00\x80\x00.", 10},
        {INT64_C(-2147483649), "\x80\x02\x8a\x05\xff\xff\xff\x7f\xff.", 10},
        {INT64_MAX, "\x80\x02\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f.", 13},
        {INT64_MIN, "\x80\x02\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80.", 13},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tsr_vec out = tsr_vec_of(&tsr_allocator_libc, 1);
        tsr_pickler p;
        tsr_pickler_open(&p, 2, &tsr_allocator_libc, &out, NULL);
        tsr_pickler_int(&p, rows[i].value);
        assert_int_equal(tsr_pickler_finish(&p), TSR_OK);
        tsr_pickler_close(&p);
        assert_int_equal(out.count, rows[i].size);
        assert_memory_equal(out.items, rows[i].bytes, out.count);
        tsr_vec_free(&out);
    }
}

static void put_leaves(tsr_pickler *p)
{
    tsr_pickler_mark(p);
    tsr_pickler_none(p);
    tsr_pickler_bool(p, true);
    tsr_pickler_bool(p, false);
    tsr_pickler_float(p, 1.5);
    tsr_pickler_float(p, -INFINITY);
    tsr_pickler_uint(p, UINT64_MAX);
    tsr_pickler_tuple(p, 0);
    tsr_pickler_empty_list(p);
    tsr_pickler_empty_dict(p);
    tsr_pickler_tuple(p, 9);
}

/* pickletools.optimize(pickle.dumps((None, True, False, 1.5, -inf, 2**64 - 1, (), [], {}), 2)) */
static void test_codec_pickle_write__leaves_are_pythons(void **state)
{
    (void)state;
    static const char want[] =
        "\x80\x02(N\x88\x89G\x3f\xf8\0\0\0\0\0\0G\xff\xf0\0\0\0\0\0\0\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0)]}t.";
    tsr_vec out = tsr_vec_of(&tsr_allocator_libc, 1);
    tsr_pickler p;
    tsr_pickler_open(&p, 2, &tsr_allocator_libc, &out, NULL);
    put_leaves(&p);
    assert_int_equal(tsr_pickler_finish(&p), TSR_OK);
    tsr_pickler_close(&p);
    assert_int_equal(out.count, sizeof want - 1);
    assert_memory_equal(out.items, want, out.count);
    tsr_vec_free(&out);
}

/* Writes a list of strings and globals, each twice, with more memo numbers than fit in one byte, and bytes of every
 * value. */
static void put_names(tsr_pickler *p, unsigned count)
{
    char text[16];
    tsr_pickler_empty_list(p);
    const uint32_t list = tsr_pickler_memoize(p);
    tsr_pickler_mark(p);
    for (unsigned i = 0; i < 2 * count; i++) {
        snprintf(text, sizeof text, "n%u", i % count);
        tsr_pickler_str(p, tsr_str_from(text));
        tsr_pickler_global(p, TSR_STR("module"), tsr_str_from(text));
    }
    char all[256];
    for (unsigned i = 0; i < 256; i++) all[i] = (char)i;
    tsr_pickler_bytes(p, (tsr_str){all, 256});
    tsr_pickler_get(p, list);
    tsr_pickler_appends(p);
}

static void test_codec_pickle_write__repeated_names_come_from_the_memo(void **state)
{
    (void)state;
    for (unsigned protocol = 2; protocol <= 4; protocol += 2) {
        const unsigned count = 300;
        tsr_vec out = tsr_vec_of(&tsr_allocator_libc, 1);
        tsr_pickler p;
        tsr_pickle *read;
        tsr_error err = {0};
        tsr_pickler_open(&p, protocol, &tsr_allocator_libc, &out, &err);
        put_names(&p, count);
        assert_int_equal(tsr_pickler_finish(&p), TSR_OK);
        tsr_pickler_close(&p);
        if (tsr_pickle_parse((tsr_str){out.items, out.count}, &host, NULL, &read, NULL, &err)) fail_msg("%s", err.message);
        const tsr_ref root = tsr_pickle_root(read);
        assert_int_equal(tsr_pickle_count(read, root), 4 * count + 2);
        for (unsigned i = 0; i < 2 * count; i++) {
            char text[16];
            snprintf(text, sizeof text, "n%u", i % count);
            assert_true(tsr_str_equal(tsr_pickle_text(read, tsr_pickle_item(read, root, 2 * i)), tsr_str_from(text)));
            const tsr_ref global = tsr_pickle_item(read, root, 2 * i + 1);
            assert_true(tsr_str_equal(tsr_pickle_name_of(read, global), tsr_str_from(text)));
            assert_true(tsr_str_equal(tsr_pickle_module(read, global), TSR_STR("module")));
        }
        assert_int_equal(tsr_pickle_item(read, root, 4 * count + 1), root);
        tsr_pickle_free(read);
        tsr_vec_free(&out);
    }
}

/* The result of pickle.dumps(b'a\xff', 2), without memo slots for what is used only once. */
static void test_codec_pickle_write__bytes_in_protocol_2_are_encoded_text(void **state)
{
    (void)state;
    static const char want[] = "\x80\x02"
                               "c_codecs\nencode\nq\x00X\x03\x00\x00\x00"
                               "a\xc3\xbfX\x06\x00\x00\x00latin1q\x01\x86R.";
    tsr_vec out = tsr_vec_of(&tsr_allocator_libc, 1);
    tsr_pickler p;
    tsr_pickler_open(&p, 2, &tsr_allocator_libc, &out, NULL);
    tsr_pickler_bytes(&p, TSR_STR("a\xff"));
    assert_int_equal(tsr_pickler_finish(&p), TSR_OK);
    tsr_pickler_close(&p);
    assert_int_equal(out.count, sizeof want - 1);
    assert_memory_equal(out.items, want, out.count);
    tsr_vec_free(&out);
}

/* Integers and bytes with lengths that fit in one byte and that do not: their opcodes, and what is read back. */
static void test_codec_pickle_write__long_ones_take_wider_opcodes(void **state)
{
    (void)state;
    static char bytes[300];
    static const struct {
        bool number;
        unsigned protocol;
        size_t size;
        const char *opcode;
    } rows[] = {{true, 2, 255, "\x8a\xff"},
                {true, 2, 256, "\x8b\0\1\0\0"},
                {false, 4, 255, "C\xff"},
                {false, 4, 256, "\x8e\0\1\0\0\0\0\0\0"}};
    memset(bytes, 0x11, sizeof bytes);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const tsr_str value = {bytes, rows[i].size};
        tsr_vec out = tsr_vec_of(&tsr_allocator_libc, 1);
        tsr_pickler p;
        tsr_pickle *read;
        tsr_pickler_open(&p, rows[i].protocol, &tsr_allocator_libc, &out, NULL);
        if (rows[i].number) tsr_pickler_bigint(&p, value);
        else tsr_pickler_bytes(&p, value);
        assert_int_equal(tsr_pickler_finish(&p), TSR_OK);
        tsr_pickler_close(&p);
        assert_memory_equal((char *)out.items + 2, rows[i].opcode, rows[i].size < 256 ? 2 : rows[i].number ? 5 : 9);
        assert_int_equal(tsr_pickle_parse((tsr_str){out.items, out.count}, &host, NULL, &read, NULL, NULL), TSR_OK);
        assert_int_equal(tsr_pickle_kind_of(read, tsr_pickle_root(read)),
                         rows[i].number ? TSR_PICKLE_BIGINT : TSR_PICKLE_BYTES);
        assert_true(tsr_str_equal(tsr_pickle_text(read, tsr_pickle_root(read)), value));
        tsr_pickle_free(read);
        tsr_vec_free(&out);
    }
}

static void test_codec_pickle_write__names_that_would_break_the_line_are_refused(void **state)
{
    (void)state;
    static const tsr_str names[] = {{"a\nb", 3}, {"", 0}, {"a\0b", 3}};
    for (size_t i = 0; i < 3; i++) {
        tsr_vec out = tsr_vec_of(&tsr_allocator_libc, 1);
        tsr_pickler p;
        tsr_error err = {0};
        tsr_pickler_open(&p, 2, &tsr_allocator_libc, &out, &err);
        tsr_pickler_global(&p, TSR_STR("os"), names[i]);
        assert_int_equal(tsr_pickler_finish(&p), TSR_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, "is not a valid class name"));
        tsr_pickler_close(&p);
        tsr_vec_free(&out);
    }
}

/* The metadata of a million tensors names eleven classes a million times. */
static void test_codec_pickle_write__names_that_were_written_take_no_more_memory(void **state)
{
    (void)state;
    failing_allocator counting;
    tsr_pickler p;
    tsr_vec out = tsr_vec_of(&tsr_allocator_libc, 1);
    failing_start(&counting, SIZE_MAX);
    tsr_pickler_open(&p, 4, &counting.allocator, &out, NULL);
    put_names(&p, 20);
    const size_t before = counting.calls;
    for (unsigned i = 0; i < 10000; i++) put_names(&p, 20);
    assert_int_equal(counting.calls, before);
    assert_int_equal(tsr_pickler_finish(&p), TSR_OK);
    tsr_pickler_close(&p);
    tsr_vec_free(&out);
    assert_int_equal(counting.live, 0);
}

static void test_codec_pickle_write__every_failed_allocation_ends_cleanly(void **state)
{
    (void)state;
    for (size_t n = 0;; n++) {
        failing_allocator failing;
        tsr_pickler p;
        failing_start(&failing, n);
        tsr_vec out = tsr_vec_of(&failing.allocator, 1);
        tsr_pickler_open(&p, 4, &failing.allocator, &out, NULL);
        put_names(&p, 20);
        assert_int_equal(tsr_pickler_finish(&p), failing.failed ? TSR_E_NOMEM : TSR_OK);
        tsr_pickler_close(&p);
        tsr_vec_free(&out);
        assert_int_equal(failing.live, 0);
        if (!failing.failed) break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codec_pickle_write__integers_are_pythons),
        cmocka_unit_test(test_codec_pickle_write__leaves_are_pythons),
        cmocka_unit_test(test_codec_pickle_write__repeated_names_come_from_the_memo),
        cmocka_unit_test(test_codec_pickle_write__bytes_in_protocol_2_are_encoded_text),
        cmocka_unit_test(test_codec_pickle_write__long_ones_take_wider_opcodes),
        cmocka_unit_test(test_codec_pickle_write__names_that_would_break_the_line_are_refused),
        cmocka_unit_test(test_codec_pickle_write__names_that_were_written_take_no_more_memory),
        cmocka_unit_test(test_codec_pickle_write__every_failed_allocation_ends_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
