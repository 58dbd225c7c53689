
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/failing_allocator.h"
#include "support/pickle_render.h"
#include "tessera/sys/host_calls.h"

/* A sink that folds m.P (built from a dict with 'v') into the int or record under 'v', and m.S (made of ints) into the sum
 * of the ints. These values are the numbers of the records. */
typedef struct recorder {
    size_t folds, restarts;
    bool decline; /* declines every object, so that all are kept generic */
} recorder;

enum { ID_P = 1, ID_S };

static uint32_t number_of(const tsr_pickle *p, tsr_ref ref)
{
    return tsr_pickle_kind_of(p, ref) == TSR_PICKLE_FOLDED ? tsr_pickle_folded_index(ref) : (uint32_t)tsr_pickle_int(p, ref);
}

static tsr_status fold(void *ctx, const tsr_pickle *p, const tsr_pickle_parts *parts, tsr_ref *out, tsr_error *err)
{
    recorder *r = ctx;
    uint32_t number = 0;
    r->folds++;
    if (r->decline) return TSR_OK;
    if (parts->class_id == ID_S) {
        assert_false(parts->built);
        if (!parts->ints) return tsr_raise(err, TSR_E_FORMAT, parts->position, "S without ints");
        for (size_t i = 0; i < parts->int_count; i++) number += (uint32_t)parts->ints[i];
    } else {
        assert_true(parts->built);
        if (parts->kind != TSR_PICKLE_DICT) return tsr_raise(err, TSR_E_FORMAT, parts->position, "P without a dict");
        for (size_t i = 0; i + 1 < parts->count; i += 2) number += number_of(p, parts->items[i + 1]);
    }
    *out = tsr_pickle_folded(number);
    return TSR_OK;
}

static void restart(void *ctx)
{
    ((recorder *)ctx)->restarts++;
    ((recorder *)ctx)->folds = 0;
}

static const tsr_pickle_name names[] = {{"m", "P", ID_P | TSR_PICKLE_FOLD_BUILT}, {"m", "S", ID_S | TSR_PICKLE_FOLD_MADE}};

static tsr_status parse(tsr_str data, recorder *r, const tsr_allocator *allocator, char *shown, size_t room, tsr_error *err)
{
    tsr_host host = {.allocator = allocator, .limits = tsr_limits_default()};
    tsr_pickle_sink sink = {.names = names, .count = 2, .fold = fold, .restart = restart, .ctx = r};
    tsr_pickle *pickle;
    tsr_status status = tsr_pickle_parse(data, &host, &sink, &pickle, NULL, err);
    if (status == TSR_OK) render_pickle(pickle, shown, room);
    tsr_pickle_free(pickle);
    return status;
}

#define BYTES(literal) \
    { \
        (literal), sizeof(literal) - 1 \
    }
#define P      "cm\nP\n\x94" /* memo 0 */
#define S      "cm\nS\n\x94" /* memo 1 */
#define POP2   "00"
#define NEW_P  "h\0)\x81\x94}\x94(" /* the form that the fast path reads */
#define SLOW_P "h\0)\x81}\x94("     /* one memo slot less: read by the main loop */
#define V      "\x8c\1v"

static const struct {
    tsr_str data;
    const char *shown;
    size_t folds, restarts;
} rows[] = {
    {BYTES(P S POP2 NEW_P V "K\7ub."), "#7", 1, 0},
    {BYTES(P S POP2 SLOW_P V "K\7ub."), "#7", 1, 0},
    {BYTES(P S POP2 "h\0)\x81}(" V "K\7ub."), "#7", 1, 0},     /* nothing is memoized */
    {BYTES(P S POP2 "h\0)\x81}(" V "K\7q\11ub."), "#7", 1, 1}, /* a memo slot with a gap before it */
    {BYTES(P S POP2 NEW_P V "\x94M\1\1ub."), "#257", 1, 0},
    {BYTES(P S POP2 NEW_P V "J\0\0\1\0ub."), "#65536", 1, 0},
    {BYTES(P S POP2 NEW_P V "\x8a\2\0\1ub."), "#256", 1, 0},
    {BYTES(P S POP2 NEW_P V "h\1K\1K\2\x86\x94\x85\x94R\x94ub."), "#3", 2, 0},
    {BYTES(P S POP2 SLOW_P V "h\1K\1K\2\x86\x94\x85\x94R\x94ub."), "#3", 2, 0},
    {BYTES(P S POP2 NEW_P V "h\1)\x85\x94R\x94ub."), "#0", 2, 0},
    {BYTES(P S POP2 NEW_P V "h\1(K\1K\2K\3K\4t\x94\x85\x94R\x94ub."), "#10", 2, 0},
    {BYTES(P S POP2 NEW_P V "h\1(K\1K\2K\3K\4K\5K\6K\7K\7K\7t\x94\x85\x94R\x94ub."), "#42", 2,
     0}, /* too many ints for the fast path */
    {BYTES(P S POP2 "](" NEW_P V "K\1ub" NEW_P V "K\2ube."), "[#1,#2,]", 2, 0},
    /* Nested: the outer object is read by the main loop. */
    {BYTES(P S POP2 NEW_P V NEW_P V "K\3ubub."), "#3", 2, 0},
    /* The object itself is fetched again, and gives its record. */
    {BYTES(P S POP2 "](" NEW_P V "K\1ubh\2e."), "[#1,#1,]", 1, 0},
    {BYTES(P S POP2 "](" SLOW_P V "\x94K\1ubh\3e."), "[#1,'v',]", 1, 0}, /* a string that was made inside the object stays */
    {BYTES(P S POP2 "](" NEW_P V "\x94K\1ubh\4e."), "[#1,'v',]", 1, 0},
    /* Parts are fetched again after they were dropped. */
    {BYTES(P S POP2 "](" NEW_P V "K\1ubh\3e."), "[#1,{'v':1,},]", 1, 1},
    {BYTES(P S POP2 "](" SLOW_P V "K\1ubh\2e."), "[#1,{'v':1,},]", 1, 1},
    {BYTES(P S POP2 "](" NEW_P V "h\1K\1K\2\x86\x94\x85\x94R\x94ubh\4e."), "[#3,(1,2,),]", 2, 1},
    {BYTES(P S POP2 "](" NEW_P V "h\1K\1K\2\x86\x94\x85\x94R\x94ubh\6e."), "[#3,#3,]", 2, 0},
    {BYTES(P S POP2 "](" NEW_P V NEW_P V "K\3ububh\5e."), "[#3,{'v':3,},]", 2, 1},
    /* An older object changes while a folded object is open. */
    {BYTES(P S POP2 "]\x94("
                    "h\0)\x81\x94h\2]\x94"
                    "a0}(" V "K\1ub"
                    "h\4e."),
     "[[],#1,[],]", 1, 1},
    {BYTES(P S POP2 "}\x94"
                    "h\0)\x81\x94h\2" V "]s0}(" V "K\1ub"
                    "\x86."),
     "({'v':[],},#1,)", 1, 1},
    {BYTES(P S POP2 "cm\nC\n)\x81\x94"
                    "h\0)\x81\x94h\2]b0}(" V "K\1ub"
                    "\x86."),
     "(new(<m.C>;();state=[]),#1,)", 1, 1},
    {BYTES(P S POP2 "cm\nC\n)\x81\x94"
                    "h\0)\x81\x94h\2]a0}(" V "K\1ub"
                    "\x86."),
     "(new(<m.C>;();appended=[[],]),#1,)", 1, 1},
    {BYTES(P S POP2 "N\x94"
                    "h\0)\x81\x94]q\0020}(" V "K\1ub"
                    "h\2\x87."),
     "(None,#1,[],)", 1, 1},
    /* Another object replaces one that is waiting; a class that is not a class; a state that is a set. */
    {BYTES(P S POP2 "h\0)\x81"
                    "0h\0)\x81}(" V "K\1ub."),
     "#1", 1, 0},
    {BYTES(P S POP2 "K\1)\x81."), "new(1;())", 0, 0},
    {BYTES(P S POP2 "cm\nC\n)\x81\x8f(K\1\x90"
                    "b."),
     "new(<m.C>;();state={1,})", 0, 0},
    /* The object leaves its place on the stack before it gets its state: it is folded, and nothing is dropped. */
    {BYTES(P S POP2 "h\0)\x81\x94"
                    "0]h\2}(" V "K\1ub\x86."),
     "([],#1,)", 1, 0},
    {BYTES(P S POP2 "h\0)\x81\x94"
                    "]\x86."),
     "(new(<m.P>;()),[],)", 0, 0},
    /* An object without a record among the parts keeps all of them. */
    {BYTES(P S POP2 "](" NEW_P V "cm\nC\n)\x81\x94"
                    "0K\1ubh\4e."),
     "[#1,new(<m.C>;()),]", 1, 0},
    {BYTES(P S POP2 "](" NEW_P V "cm\nC\n)\x81\x94"
                    "0K\1ubh\2e."),
     "[#1,#1,]", 1, 0},
    /* Forms that the fast path starts to read and then leaves to the main loop. */
    {BYTES(P S POP2 NEW_P V "J\377\377\377\177ub."), "#268435455", 1, 0},
    {BYTES(P S POP2 NEW_P V "K\1" V "K\2" V "K\3" V "K\4" V "K\5" V "K\6" V "K\7" V "K\x08" V "K\x09ub."), "#45", 1, 0},
    {BYTES(P S POP2 NEW_P V "K\1u00K\5."), "5", 0, 0},
    {BYTES(P S POP2 NEW_P V "h\1K\1K\2\x86\x94\x85R\x94ub."), "#3", 2, 0},
    {BYTES(P S POP2 NEW_P V "\x88ub."), "#1", 1, 0},
    {BYTES(P S POP2 NEW_P V "\x89" V "Nub."), "#0", 1, 0},
    {BYTES(P S POP2 NEW_P V "h\3ub."), "#0", 1, 0}, /* the object's own state */
    {BYTES(P S POP2 NEW_P V "\x8a\0"
                            "ub."),
     "#0", 1, 0},
    {BYTES(P S POP2 NEW_P V "\x8a\x09\1\0\0\0\0\0\0\0\0"
                            "ub."),
     "#1", 1, 0},
    {BYTES(P S POP2 NEW_P V "j\0\0\0\0)\x81}(" V "K\3ubub."), "#3", 2, 0},
    {BYTES(P S POP2 NEW_P V "h\1(t\x94\x85\x94R\x94ub."), "#0", 2, 0},
    {BYTES(P S POP2 NEW_P V "h\1K\1\x85\x85\x94R\x94ub."), "#1", 2, 0}, /* not memoized */
    {BYTES(P S POP2 NEW_P V "h\0ub."), "#0", 1, 0},                     /* a class that is not called */
    {BYTES(P S POP2 "](" NEW_P V "h\1K\1K\2K\3K\4\x87\x85R00h\1K\1\x85\x85Rube."), "[#1,]", 2, 0},
    {BYTES(P S POP2 NEW_P V "h\1(K\1l\x94\x85\x94R\x94ub."), NULL, 0, 0}, /* S of a list */
    {BYTES(P S POP2 NEW_P V "h\1K\1K\2K\3K\4\x87\x94\x85\x94R\x94ub."), NULL, 0, 0},
    {BYTES(P S POP2 NEW_P V "h\1N\x85\x94\x85\x94R\x94ub."), NULL, 0, 0},
    {BYTES(P S POP2 NEW_P V "h\120."), NULL, 0, 0},
    {BYTES(P S POP2 NEW_P V "h\x50ub."), NULL, 0, 0},
    {BYTES(P S POP2 NEW_P V "K\1" V "ub."), NULL, 0, 0}, /* a key without its value */
    {BYTES(P S POP2 NEW_P "\x8c\x30v"), NULL, 0, 0},
    {BYTES(P S POP2 NEW_P "\x8c\2\377\377"
                          "K\1ub."),
     NULL, 0, 0},
    {BYTES(P S POP2 NEW_P V "]K\1" V "K\1u."), NULL, 0, 0},
};

/* The fast path needs some bytes after the object, so a row is parsed with different numbers of them. The bytes are in a
 * block of their own, so that sanitizers notice a read beyond it. */
enum { PADDINGS = 40 };

static tsr_str padded(tsr_str data, size_t padding)
{
    char *copy = malloc(data.size + padding);
    memcpy(copy, data.data, data.size);
    memset(copy + data.size, 'N', padding);
    return (tsr_str){copy, data.size + padding};
}

/* Rows without an expected text are rejected with the same message at the same position, whichever path reads them. */
static void test_codec_pickle_fold__refusals_are_the_same_either_way(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tsr_error first = {0};
        if (rows[i].shown) continue;
        for (size_t padding = 0; padding < PADDINGS; padding++) {
            char shown[512], ended = 0;
            recorder r = {0};
            tsr_error err = {0};
            tsr_str data = padded(rows[i].data, padding);
            tsr_status status = parse(data, &r, &tsr_allocator_libc, shown, sizeof shown, &err);
            free((char *)data.data);
            if (status == TSR_OK) fail_msg("row %zu, padding %zu: %s", i, padding, shown);
            ended = strstr(err.message, "ends ") || strstr(err.message, "announces");
            if (padding == 0) first = err;
            else if (!ended && (strcmp(first.message, err.message) != 0 || first.byte_position != err.byte_position))
                fail_msg("row %zu, padding %zu: %s, but %s", i, padding, first.message, err.message);
        }
    }
}

static void test_codec_pickle_fold__records_stand_for_objects(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof rows / sizeof *rows * PADDINGS; n++) {
        size_t i = n / PADDINGS;
        char shown[512];
        recorder r = {0};
        tsr_error err = {0};
        if (!rows[i].shown) continue;
        tsr_str data = padded(rows[i].data, n % PADDINGS);
        tsr_status status = parse(data, &r, &tsr_allocator_libc, shown, sizeof shown, &err);
        free((char *)data.data);
        if (status != TSR_OK) fail_msg("row %zu: %s", i, err.message);
        if (strcmp(shown, rows[i].shown) != 0) fail_msg("row %zu: %s", i, shown);
        if (r.restarts != rows[i].restarts) fail_msg("row %zu: %zu restarts", i, r.restarts);
        if (r.folds < rows[i].folds || r.folds > rows[i].folds + 2)
            fail_msg("row %zu: %zu folds", i, r.folds); /* an abandoned attempt of the fast path may call the sink twice */
    }
}

/* When the sink declines every object, the result is that of a parse without a sink. */
static void test_codec_pickle_fold__declined_objects_are_generic(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof rows / sizeof *rows * 2; n++) {
        size_t i = n / 2;
        tsr_str data = padded(rows[i].data, n % 2 * PADDINGS);
        char with[512] = "", without[512] = "";
        recorder r = {.decline = true};
        tsr_error err_with = {0}, err_without = {0};
        tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
        tsr_pickle *pickle;
        tsr_status expected = tsr_pickle_parse(data, &host, NULL, &pickle, NULL, &err_without);
        if (expected == TSR_OK) render_pickle(pickle, without, sizeof without);
        tsr_pickle_free(pickle);
        assert_int_equal(parse(data, &r, &tsr_allocator_libc, with, sizeof with, &err_with), expected);
        free((char *)data.data);
        assert_string_equal(with, without);
        assert_string_equal(err_with.message, err_without.message);
        assert_true(err_with.byte_position == err_without.byte_position);
    }
}

static void test_codec_pickle_fold__errors_of_the_sink_end_the_parse(void **state)
{
    static const tsr_str broken[] = {BYTES(P S POP2 "h\1]\x85R."), BYTES(P S POP2 "h\0)\x81K\1b."),
                                     BYTES(P S POP2 "h\0)\x81]b."),
                                     BYTES(P S POP2 "h\0)\x81\x8f"
                                                    "b."),
                                     BYTES(P S POP2 "h\0)\x81)b.")};
    (void)state;
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        char shown[64];
        recorder r = {0};
        tsr_error err = {0};
        assert_int_equal(parse(broken[i], &r, &tsr_allocator_libc, shown, sizeof shown, &err), TSR_E_FORMAT);
        assert_non_null(strstr(err.message, i ? "P without a dict" : "S without ints"));
        assert_int_equal(err.byte_position, broken[i].size - 2);
    }
}

/* Folds many objects, nested deeply or one after another, with memory for a single one. */
static void test_codec_pickle_fold__dropped_parts_give_their_memory_back(void **state)
{
    enum { COUNT = 50000 };
    static const tsr_str units[2][2] = {{BYTES("h\0)\x81\x94}\x94" V), BYTES("sb")},
                                        {BYTES(NEW_P V "h\1K\1K\2\x86\x94\x85\x94R\x94ub0"), BYTES("")}};
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        tsr_str head = TSR_STR(P S POP2), tail = TSR_STR("K\5");
        char *data = malloc(head.size + COUNT * (units[kind][0].size + units[kind][1].size) + tail.size + 1), *at = data;
        memcpy(at, head.data, head.size);
        at += head.size;
        for (int i = 0; i < COUNT; i++, at += units[kind][0].size) memcpy(at, units[kind][0].data, units[kind][0].size);
        memcpy(at, tail.data, tail.size);
        at += tail.size;
        for (int i = 0; i < COUNT; i++, at += units[kind][1].size) memcpy(at, units[kind][1].data, units[kind][1].size);
        *at++ = '.';
        char shown[64];
        recorder r = {0};
        tsr_error err = {0};
        assert_int_equal(parse((tsr_str){data, (size_t)(at - data)}, &r, &tsr_allocator_libc, shown, sizeof shown, &err),
                         TSR_OK);
        assert_string_equal(shown, kind ? "5" : "#5");
        assert_int_equal(r.restarts, 0);
        free(data);
    }
}

static void test_codec_pickle_fold__survives_every_allocation_failure(void **state)
{
    (void)state;
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        if (!rows[row].shown) continue;
        tsr_str data = padded(rows[row].data, PADDINGS);
        for (size_t n = 0;; n++) {
            char shown[512];
            failing_allocator failing;
            failing_start(&failing, n);
            recorder r = {0};
            tsr_error err = {0};
            tsr_status status = parse(data, &r, &failing.allocator, shown, sizeof shown, &err);
            assert_int_equal(status, failing.failed ? TSR_E_NOMEM : TSR_OK);
            assert_int_equal(failing.live, 0);
            if (!failing.failed) break;
        }
        free((char *)data.data);
    }
}

/* A sink with names and flags, but no function to fold; and a sink without a function to restart. */
static void test_codec_pickle_fold__parts_of_a_sink_may_be_absent(void **state)
{
    (void)state;
    tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    static const tsr_str data = BYTES(P S POP2 "](" NEW_P V "h\1K\1\x85\x85Rubh\3e.NNNNNNNNNNNNNNNNNNNNNNNN");
    recorder r = {0};
    const tsr_pickle_sink sinks[] = {{.names = names, .count = 2}, {.names = names, .count = 2, .fold = fold, .ctx = &r}};
    static const char *const shown[] = {"[new(<m.P>;();state={'v':call(<m.S>;((1,),)),}),{'v':call(<m.S>;((1,),)),},]",
                                        "[#1,{'v':#1,},]"};
    for (size_t i = 0; i < 2; i++) {
        char text[512];
        tsr_pickle *pickle;
        tsr_error err = {0};
        if (tsr_pickle_parse(data, &host, &sinks[i], &pickle, NULL, &err) != TSR_OK) fail_msg("%s", err.message);
        render_pickle(pickle, text, sizeof text);
        assert_string_equal(text, shown[i]);
        tsr_pickle_free(pickle);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codec_pickle_fold__records_stand_for_objects),
        cmocka_unit_test(test_codec_pickle_fold__refusals_are_the_same_either_way),
        cmocka_unit_test(test_codec_pickle_fold__parts_of_a_sink_may_be_absent),
        cmocka_unit_test(test_codec_pickle_fold__declined_objects_are_generic),
        cmocka_unit_test(test_codec_pickle_fold__errors_of_the_sink_end_the_parse),
        cmocka_unit_test(test_codec_pickle_fold__dropped_parts_give_their_memory_back),
        cmocka_unit_test(test_codec_pickle_fold__survives_every_allocation_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
