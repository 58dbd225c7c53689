
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/failing_allocator.h"
#include "support/pickle_render.h"
#include "tessera/sys/host_calls.h"

static tsr_host host_of(const tsr_allocator *allocator)
{
    return (tsr_host){.allocator = allocator, .limits = tsr_limits_default()};
}

static tsr_status parse(tsr_str data, tsr_pickle **out, tsr_error *err)
{
    tsr_host host = host_of(&tsr_allocator_libc);
    return tsr_pickle_parse(data, &host, NULL, out, NULL, err);
}

/* Parses with every allocation failing in turn: the status must be out of memory, or that of a parse in which none fails. */
static void must_bear_failures(tsr_str data, tsr_status sound)
{
    for (size_t n = 0;; n++) {
        failing_allocator failing;
        failing_start(&failing, n);
        tsr_host host = host_of(&failing.allocator);
        tsr_pickle *pickle;
        tsr_error err = {0};
        tsr_status status = tsr_pickle_parse(data, &host, NULL, &pickle, NULL, &err);
        tsr_pickle_free(pickle);
        if (status != (failing.failed ? TSR_E_NOMEM : sound) || failing.live)
            fail_msg("allocation %zu fails: status %d, %zu blocks left: %s", n, (int)status, failing.live, err.message);
        if (!failing.failed) break;
    }
}

#define BYTES(literal) \
    { \
        (literal), sizeof(literal) - 1 \
    }

static int hex_value(char c)
{
    return c <= '9' ? c - '0' : c - 'a' + 10;
}

/* tests/golden/pickle_values.tsv has pickles that CPython wrote, and what a machine that calls nothing must read from
 * them. */
static void test_codec_pickle__reads_what_cpython_writes(void **state)
{
    static char line[1 << 16], shown[1 << 16];
    (void)state;
    FILE *file = fopen(TSR_TEST_DATA "/tests/golden/pickle_values.tsv", "r");
    size_t rows = 0;
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        char *tab = strchr(line, '\t');
        line[strcspn(line, "\n")] = '\0';
        size_t size = (size_t)(tab - line) / 2;
        for (size_t i = 0; i < size; i++) line[i] = (char)(hex_value(line[2 * i]) << 4 | hex_value(line[2 * i + 1]));
        tsr_pickle *pickle;
        tsr_error err = {0};
        if (parse((tsr_str){line, size}, &pickle, &err) != TSR_OK) fail_msg("row %zu: %s", rows, err.message);
        render_pickle(pickle, shown, sizeof shown);
        tsr_pickle_free(pickle);
        assert_string_equal(shown, tab + 1);
        rows++;
    }
    fclose(file);
    assert_in_range(rows, 300, 10000);
}

/* Opcodes that today's picklers do not write, written by hand. Their meanings are those of Lib/pickletools.py. */
static void test_codec_pickle__reads_every_other_opcode(void **state)
{
    static const struct {
        tsr_str data;
        const char *shown;
    } rows[] = {
        {BYTES("I01\n."), "True"},
        {BYTES("I00\n."), "False"},
        {BYTES("I-12\n."), "-12"},
        {BYTES("L9223372036854775808L\n."), "big:000000000000008000"},
        {BYTES("L-9223372036854775808L\n."), "-9223372036854775808"},
        {BYTES("S'a\\x41\\n\\101\\q'\n."), "'aA\\x0aA\\x5cq'"},
        {BYTES("S'\\xff'\n."), "b'\\xff'"},
        {BYTES("U\003abc."), "'abc'"},
        {BYTES("U\001\377."), "b'\\xff'"},
        {BYTES("T\003\0\0\0abc."), "'abc'"},
        {BYTES("Vh\351\\u20ac\\U0001f600\\\\u0041\n."), "'h\\xc3\\xa9\\xe2\\x82\\xac\\xf0\\x9f\\x98\\x80\\x5c\\x5cu0041'"},
        {BYTES("\x8d\003\0\0\0\0\0\0\0abc."), "'abc'"},
        {BYTES("\x8e\002\0\0\0\0\0\0\0\0\1."), "b'\\x00\\x01'"},
        {BYTES("(K\1K\2l."), "[1,2,]"},
        {BYTES("(K\1K\2d."), "{1:2,}"},
        {BYTES("(K\1K\2t."), "(1,2,)"},
        {BYTES("(t."), "()"},
        {BYTES("K\1K\0020."), "1"},
        {BYTES("K\1(0."), "1"},
        {BYTES("K\1(K\2K\0031."), "1"},
        {BYTES("K\0072\x86."), "(7,7,)"},
        {BYTES("]p0\nK\1ag0\n\x86."), "([1,],[1,],)"},
        {BYTES("(i__builtin__\nset\n."), "call(<builtins.set>;())"},
        {BYTES("c__builtin__\nxrange\n."), "<builtins.range>"},
        {BYTES("cbuiltins\nlong\n."), "<builtins.long>"},
        {BYTES("(ccopy_reg\n_reconstructor\nK\1o."), "call(<copyreg._reconstructor>;(1,))"},
        {BYTES("Pthing\n."), "persistent('thing')"},
        {BYTES("(K\1K\2tQ."), "persistent((1,2,))"},
        {BYTES("cm\nC\n)\x81}b."), "new(<m.C>;();state={})"},
        {BYTES("cm\nC\n)\x81K\1bK\2b."), "new(<m.C>;();state=2)"},
        {BYTES("cm\nC\n)R(K\1K\2eK\3a."), "call(<m.C>;();appended=[1,2,3,])"},
        {BYTES("cm\nC\n)R(K\1K\2uK\3K\4s."), "call(<m.C>;();set={1:2,3:4,})"},
        {BYTES("\x8f(K\1K\1\x90."), "{1,1,}"},
        {BYTES("]\x94h\0a."), "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[...,],],],],],],],],],],],],],],],],],],],],],],],],]"
                              ",],],],],],],],],],],],],],],]"},
        {BYTES("\x8a\0."), "0"},
        {BYTES("\x8b\2\0\0\0\377\377."), "-1"},
        {BYTES("\x8a\012\1\0\0\0\0\0\0\0\0\0."), "1"},
        {BYTES("\x80\5K\1."), "1"},
        {BYTES("]r\0\0\0\0K\1aj\0\0\0\0\x86."), "([1,],[1,],)"},
        {BYTES("B\2\0\0\0ab."), "b'ab'"},
        {BYTES("I+12\n."), "12"},
        {BYTES("F1e5\n."), "100000"},
        {BYTES("F-inf\n."), "-inf"},
        {BYTES("S'\\xAf\\xfA'\n."), "b'\\xaf\\xfa'"},
        {BYTES("S\"a'\"\n."), "'a\\x27'"},
        {BYTES("S'\\\0'\n."), "'\\x5c\\x00'"},
        {BYTES("S'\\8\\!\\18\\1!\\1'\n."), "'\\x5c8\\x5c!\\x018\\x01!\\x01'"},
        {BYTES("S'\\1234'\n."), "'S4'"},
        {BYTES("V\\\n."), "'\\x5c'"},
        {BYTES("V\\x\n."), "'\\x5cx'"},
        {BYTES("V\\ud800\n."), "'\\xed\\xa0\\x80'"},
        {BYTES("V\n."), "''"},
        {BYTES("X\4\0\0\0\xed\xbf\xbfz."), "'\\xed\\xbf\\xbfz'"},
        {BYTES("cm\nC\n)}K\1K\2s\x92."), "new(<m.C>;((),{1:2,},))"},
        {BYTES("cm\nC\n)}\x92."), "new(<m.C>;())"},
        {BYTES("(K\1K\1\x91."), "{1,1,}"},
        /* Memo slots with gaps. A pickle may use any numbers; MEMOIZE takes the number of slots that are set. */
        {BYTES("(K\1q\7K\2q\3K\3q\310h\3h\310h\7t."), "(1,2,3,2,3,1,)"},
        {BYTES("(K\1r\377\377\377\377K\2p99999999999\nj\377\377\377\377g99999999999\nt."), "(1,2,1,2,)"},
        {BYTES("(K\1q\5K\2\x94K\3\x94h\5h\1h\2t."), "(1,2,3,1,2,3,)"},
        {BYTES("(K\1q\0K\2q\2K\3q\1K\4\x94K\5q\2h\0h\1h\2h\3t."), "(1,2,3,4,5,1,3,5,4,)"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char shown[4096];
        tsr_pickle *pickle;
        tsr_error err = {0};
        if (parse(rows[i].data, &pickle, &err) != TSR_OK) fail_msg("row %zu: %s", i, err.message);
        render_pickle(pickle, shown, sizeof shown);
        tsr_pickle_free(pickle);
        if (strcmp(shown, rows[i].shown) != 0) fail_msg("row %zu: %s, expected %s", i, shown, rows[i].shown);
        must_bear_failures(rows[i].data, TSR_OK);
    }
}

static void test_codec_pickle__refuses_with_position_and_opcode(void **state)
{
    static const struct {
        tsr_str data;
        tsr_status status;
        uint64_t position;
        const char *part;
    } rows[] = {
        {BYTES(""), TSR_E_FORMAT, 0, "empty"},
        {BYTES("K\1"), TSR_E_FORMAT, 2, "ends without STOP"},
        {BYTES("NJ\1\2"), TSR_E_FORMAT, 1, "ends inside the operand of opcode BININT"},
        {BYTES("."), TSR_E_FORMAT, 0, "STOP with 0 items"},
        {BYTES("NN."), TSR_E_FORMAT, 2, "STOP with 2 items"},
        {BYTES("N(."), TSR_E_FORMAT, 2, "1 marks"},
        {BYTES("\xff."), TSR_E_FORMAT, 0, "unknown opcode 0xff"},
        {BYTES("\x80\6N."), TSR_E_UNSUPPORTED, 0, "protocol 6"},
        {BYTES("\x82\1."), TSR_E_UNSUPPORTED, 0, "EXT1"},
        {BYTES("\x97."), TSR_E_UNSUPPORTED, 0, "NEXT_BUFFER"},
        {BYTES("\x98."), TSR_E_UNSUPPORTED, 0, "READONLY_BUFFER"},
        {BYTES("\x95\7\0\0\0\0\0\0\0N."), TSR_E_FORMAT, 0, "FRAME announces 7 bytes, but only 2 remain"},
        {BYTES("\x95\014\0\0\0\0\0\0\0\x95\2\0\0\0\0\0\0\0N.."), TSR_E_FORMAT, 9, "inside another frame"},
        {BYTES("\x8d\0\0\0\0\0\0\0@abc."), TSR_E_FORMAT, 0,
         "BINUNICODE8 announces 4611686018427387904 bytes, but only 4 remain"},
        {BYTES("\x8e\377\377\377\377\377\377\377\377abc."), TSR_E_FORMAT, 0, "BINBYTES8 announces 18446744073709551615"},
        {BYTES("X\5\0\0\0abc."), TSR_E_FORMAT, 0, "BINUNICODE announces 5 bytes, but only 4 remain"},
        {BYTES("\x8c\2\377\377."), TSR_E_FORMAT, 0, "not UTF-8"},
        {BYTES("\x8b\377\377\377\377."), TSR_E_FORMAT, 0, "negative length"},
        {BYTES("h\0."), TSR_E_FORMAT, 0, "memo slot 0, which was never set"},
        {BYTES("]q\0h\1."), TSR_E_FORMAT, 3, "memo slot 1"},
        {BYTES("g-1\n."), TSR_E_FORMAT, 0, "not a decimal number"},
        {BYTES("\x94."), TSR_E_FORMAT, 0, "MEMOIZE needs 1 items on the stack, but there are 0"},
        {BYTES("N(\x94."), TSR_E_FORMAT, 2, "MEMOIZE needs 1 items"},
        {BYTES("N\x86."), TSR_E_FORMAT, 1, "TUPLE2 needs 2 items on the stack, but there are 1"},
        {BYTES("N(N\x86."), TSR_E_FORMAT, 3, "TUPLE2 needs 2 items on the stack, but there are 1"},
        {BYTES("Nt."), TSR_E_FORMAT, 1, "TUPLE without a mark"},
        {BYTES("Ne."), TSR_E_FORMAT, 1, "APPENDS without a mark"},
        {BYTES("(Ne."), TSR_E_FORMAT, 2, "APPENDS needs 1 items"},
        {BYTES("}(Nu."), TSR_E_FORMAT, 3, "SETITEMS with a key that has no value"},
        {BYTES("(Nd."), TSR_E_FORMAT, 2, "DICT with a key that has no value"},
        {BYTES("}Na."), TSR_E_FORMAT, 2, "APPEND cannot add items"},
        {BYTES("]NNs."), TSR_E_FORMAT, 3, "SETITEM cannot add items"},
        {BYTES("K\1Na."), TSR_E_FORMAT, 3, "APPEND cannot add items"},
        {BYTES("NN\x93."), TSR_E_FORMAT, 2, "STACK_GLOBAL with a module or name that is not a string"},
        {BYTES("cm\nC\nNR."), TSR_E_FORMAT, 6, "REDUCE with arguments that are not a tuple"},
        {BYTES("cm\nC\nN\x81."), TSR_E_FORMAT, 6, "NEWOBJ with arguments that are not a tuple"},
        {BYTES("cm\nC\n))\x92."), TSR_E_FORMAT, 7, "NEWOBJ_EX with arguments"},
        {BYTES("]Nb."), TSR_E_FORMAT, 2, "BUILD sets the state"},
        {BYTES("cm\nC\n)\x81(Nb."), TSR_E_FORMAT, 9, "BUILD sets the state"},
        {BYTES("(o."), TSR_E_FORMAT, 1, "OBJ without a class"},
        {BYTES("cmodule"), TSR_E_FORMAT, 0, "GLOBAL does not end with a line feed"},
        {BYTES("Ix\n."), TSR_E_FORMAT, 0, "'x' is not a valid number"},
        {BYTES("L\n."), TSR_E_FORMAT, 0, "is not a valid number"},
        {BYTES("F0x10\n."), TSR_E_FORMAT, 0, "is not a valid number"},
        {BYTES("F1e5e\n."), TSR_E_FORMAT, 0, "is not a valid number"},
        {BYTES("Sabc\n."), TSR_E_FORMAT, 0, "without a quoted string"},
        {BYTES("S'\n."), TSR_E_FORMAT, 0, "without a quoted string"},
        {BYTES("S'\\'\n."), TSR_E_FORMAT, 0, "without a quoted string"},
        {BYTES("S'\\x4'\n."), TSR_E_FORMAT, 0, "without a quoted string"},
        {BYTES("V\\u12\n."), TSR_E_FORMAT, 0, "invalid \\u escape"},
        {BYTES("V\\U00110000\n."), TSR_E_FORMAT, 0, "invalid \\u escape"},
        {BYTES("(0 1."), TSR_E_FORMAT, 2, "unknown opcode 0x20"},
        {BYTES("0."), TSR_E_FORMAT, 0, "POP needs 1 items"},
        {BYTES("1."), TSR_E_FORMAT, 0, "POP_MARK without a mark"},
        {BYTES("2."), TSR_E_FORMAT, 0, "DUP needs 1 items"},
        {BYTES("Q."), TSR_E_FORMAT, 0, "BINPERSID needs 1 items"},
        {BYTES("q\0."), TSR_E_FORMAT, 0, "BINPUT needs 1 items"},
        {BYTES("p0\n."), TSR_E_FORMAT, 0, "PUT needs 1 items"},
        {BYTES("g000000000000000000\n."), TSR_E_FORMAT, 0, "memo slot 0, which was never set"},
        {BYTES("g0000000000000000000\n."), TSR_E_FORMAT, 0, "not a decimal number"},
        {BYTES("g\n."), TSR_E_FORMAT, 0, "not a decimal number"},
        {BYTES("Np\n."), TSR_E_FORMAT, 1, "not a decimal number"},
        {BYTES("g0"), TSR_E_FORMAT, 0, "GET does not end with a line feed"},
        {BYTES("NNNNNNq\5h\1."), TSR_E_FORMAT, 8, "memo slot 1, which was never set"},
        {BYTES("N\x94g1\n."), TSR_E_FORMAT, 2, "memo slot 1, which was never set"},
        {BYTES("R."), TSR_E_FORMAT, 0, "REDUCE needs 2 items"},
        {BYTES("\x81."), TSR_E_FORMAT, 0, "NEWOBJ needs 2 items"},
        {BYTES("NN\x92."), TSR_E_FORMAT, 2, "NEWOBJ_EX needs 3 items"},
        {BYTES("cm\nC\nN}\x92."), TSR_E_FORMAT, 7, "NEWOBJ_EX with arguments"},
        {BYTES("b."), TSR_E_FORMAT, 0, "BUILD needs 1 items"},
        {BYTES("Nb."), TSR_E_FORMAT, 1, "BUILD sets the state"},
        {BYTES("a."), TSR_E_FORMAT, 0, "APPEND needs"},
        {BYTES("Na."), TSR_E_FORMAT, 1, "APPEND needs 2 items"},
        {BYTES("N(Na."), TSR_E_FORMAT, 3, "APPEND needs 2 items"},
        {BYTES("}NNNs."), TSR_E_FORMAT, 4, "SETITEM cannot add items"},
        {BYTES("\x85."), TSR_E_FORMAT, 0, "TUPLE1 needs 1 items"},
        {BYTES("NN\x87."), TSR_E_FORMAT, 2, "TUPLE3 needs 3 items"},
        {BYTES("N\x93."), TSR_E_FORMAT, 1, "STACK_GLOBAL needs 2 items"},
        {BYTES("\x8c\1mN\x93."), TSR_E_FORMAT, 4, "STACK_GLOBAL with a module or name that is not a string"},
        {BYTES("\x90."), TSR_E_FORMAT, 0, "ADDITEMS without a mark"},
        {BYTES("(N\x90."), TSR_E_FORMAT, 2, "ADDITEMS needs 1 items"},
        {BYTES("K\1(N\x90."), TSR_E_FORMAT, 4, "ADDITEMS cannot add items"},
        {BYTES("l."), TSR_E_FORMAT, 0, "LIST without a mark"},
        {BYTES("o."), TSR_E_FORMAT, 0, "OBJ without a mark"},
        {BYTES("im\nC\n."), TSR_E_FORMAT, 0, "INST without a mark"},
        {BYTES("(im"), TSR_E_FORMAT, 1, "INST does not end with a line feed"},
        {BYTES("cm\nC"), TSR_E_FORMAT, 0, "GLOBAL does not end with a line feed"},
        {BYTES("c\xff\nC\n."), TSR_E_FORMAT, 0, "not UTF-8"},
        {BYTES("cm\n\xff\n."), TSR_E_FORMAT, 0, "not UTF-8"},
        {BYTES("P\xff\n."), TSR_E_FORMAT, 0, "not UTF-8"},
        {BYTES("X\2\0\0\0\xed\xa0."), TSR_E_FORMAT, 0, "not UTF-8"},
        {BYTES("X\3\0\0\0\xed\xa0z."), TSR_E_FORMAT, 0, "not UTF-8"},
        {BYTES("X\3\0\0\0\xed\xc0\x80."), TSR_E_FORMAT, 0, "not UTF-8"},
        {BYTES("X\3\0\0\0\xed\x41\x80."), TSR_E_FORMAT, 0, "not UTF-8"},
        {BYTES("I+\n."), TSR_E_FORMAT, 0, "'+' is not a valid number"},
        {BYTES("I-\n."), TSR_E_FORMAT, 0, "'-' is not a valid number"},
        {BYTES("F\n."), TSR_E_FORMAT, 0, "is not a valid number"},
        {BYTES("F1\0\n."), TSR_E_FORMAT, 0, "is not a valid number"},
        {BYTES("S'\\xg0'\n."), TSR_E_FORMAT, 0, "without a quoted string"},
        {BYTES("S'\\x0G'\n."), TSR_E_FORMAT, 0, "without a quoted string"},
        {BYTES("S'\\x:0'\n."), TSR_E_FORMAT, 0, "without a quoted string"},
        {BYTES("S'a\"\n."), TSR_E_FORMAT, 0, "without a quoted string"},
        {BYTES("\x8a\5\1."), TSR_E_FORMAT, 0, "LONG1 announces 5 bytes, but only 2 remain"},
        {BYTES("G\0\0."), TSR_E_FORMAT, 0, "ends inside the operand of opcode BINFLOAT"},
        {BYTES("C\5a."), TSR_E_FORMAT, 0, "SHORT_BINBYTES announces 5 bytes"},
        {BYTES("U\5a."), TSR_E_FORMAT, 0, "SHORT_BINSTRING announces 5 bytes"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tsr_pickle *pickle;
        tsr_error err = {0};
        tsr_status status = parse(rows[i].data, &pickle, &err);
        if (status != rows[i].status || err.byte_position != rows[i].position || !strstr(err.message, rows[i].part)) {
            fail_msg("row %zu: status %d at %llu: %s", i, (int)status, (unsigned long long)err.byte_position, err.message);
        }
        assert_null(pickle);
        must_bear_failures(rows[i].data, status);
    }
}

static void test_codec_pickle__every_prefix_is_refused(void **state)
{
    static const char whole[] = "\x80\4\x95\x31\0\0\0\0\0\0\0}\x94(\x8c\1a\x94]\x94(K\1M\1\1J\1\0\1\0\x8a\5\0\0\0\0\1G?"
                                "\xf0\0\0\0\0\0\0e\x8c\1b\x94K\1K\2\x86\x94u.";
    (void)state;
    for (size_t size = 0; size < sizeof whole - 1; size++) {
        char *copy = malloc(size ? size : 1); /* in a block of its own, so that sanitizers notice a read beyond it */
        tsr_pickle *pickle;
        tsr_error err = {0};
        memcpy(copy, whole, size);
        assert_int_equal(parse((tsr_str){copy, size}, &pickle, &err), TSR_E_FORMAT);
        assert_in_range(err.byte_position, 0, size);
        free(copy);
    }
}

static void test_codec_pickle__says_where_a_pickle_ends(void **state)
{
    tsr_host host = host_of(&tsr_allocator_libc);
    tsr_pickle *pickle;
    size_t consumed = 0;
    (void)state;
    assert_int_equal(tsr_pickle_parse(TSR_STR("K\1.K\2."), &host, NULL, &pickle, &consumed, NULL), TSR_OK);
    assert_int_equal(consumed, 3);
    tsr_pickle_free(pickle);
}

/* ---- bounds ---- */

/* Returns `count` copies of `unit` between a head and a tail. */
static tsr_str repeated(tsr_str head, tsr_str unit, size_t count, tsr_str tail)
{
    size_t size = head.size + unit.size * count + tail.size;
    char *data = malloc(size), *at = data + head.size;
    memcpy(data, head.data, head.size);
    for (size_t i = 0; i < count; i++, at += unit.size) memcpy(at, unit.data, unit.size);
    memcpy(at, tail.data, tail.size);
    return (tsr_str){data, size};
}

static void test_codec_pickle__memory_is_a_small_multiple_of_the_input(void **state)
{
    static const struct {
        tsr_str head, unit, tail;
    } rows[] = {
        {BYTES("]"), BYTES("K\1a"), BYTES(".")}, /* a list that grows by one item at a time */
        {BYTES("]"), BYTES("]a"), BYTES(".")},   /* the same, while other lists are made in between */
        {BYTES("](\x8f\x90]"), BYTES("(K\1K\2e"), BYTES("0.")},
        {BYTES("]"), BYTES("]\x94"), BYTES("e.")}, /* stack and memo; ends in an error */
        {BYTES("N"), BYTES("("), BYTES(".")},      /* marks */
        {BYTES("]"), BYTES("2"), BYTES(".")},
        {BYTES("cm\nC\n\x94"), BYTES("h\0)\x81"), BYTES(".")},
        {BYTES("N"), BYTES("\x85"), BYTES(".")},
        {BYTES("N"), BYTES("]2a"), BYTES(".")},
        {BYTES("}"), BYTES("}}s"), BYTES(".")},
        {BYTES("N"), BYTES("I99999999999\n0"), BYTES(".")},
        {BYTES("N"), BYTES("S'a'\n0"), BYTES(".")},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tsr_str data = repeated(rows[i].head, rows[i].unit, 100000, rows[i].tail);
        tsr_host host = host_of(&tsr_allocator_libc);
        host.limits.memory_bytes = 48 * data.size + (1 << 16);
        tsr_error err = {0};
        tsr_pickle *pickle;
        tsr_status status = tsr_pickle_parse(data, &host, NULL, &pickle, NULL, &err);
        if (status != TSR_OK && status != TSR_E_FORMAT) fail_msg("row %zu: %s", i, err.message);
        tsr_pickle_free(pickle);
        free((char *)data.data);
    }
}

/* Numbers with more digits than Python reads, and a text whose size needs more bits than a node has for it. */
static void test_codec_pickle__long_operands_are_bounded_or_kept(void **state)
{
    static const struct {
        tsr_str head;
        size_t digits;
        tsr_status status;
    } rows[] = {{BYTES("I"), 4300, TSR_OK},
                {BYTES("I"), 4301, TSR_E_FORMAT},
                {BYTES("F"), 400, TSR_OK},
                {BYTES("F"), 401, TSR_E_FORMAT}};
    tsr_pickle *pickle;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tsr_str data = repeated(rows[i].head, TSR_STR("9"), rows[i].digits, TSR_STR("\n."));
        tsr_error err = {0};
        assert_int_equal(parse(data, &pickle, &err), rows[i].status);
        if (rows[i].status != TSR_OK) assert_non_null(strstr(err.message, "is not a valid number"));
        tsr_pickle_free(pickle);
        free((char *)data.data);
    }
    enum { LONG = 0x1000001 };
    tsr_str data = repeated((tsr_str)BYTES("X\1\0\0\1"), TSR_STR("x"), LONG, TSR_STR("."));
    assert_int_equal(parse(data, &pickle, NULL), TSR_OK);
    assert_int_equal(tsr_pickle_text(pickle, tsr_pickle_root(pickle)).size, LONG);
    tsr_pickle_free(pickle);
    free((char *)data.data);
}

/* Makes more nodes of every kind than there is room for at first. */
static void test_codec_pickle__pools_that_grow_bear_failures(void **state)
{
    static const char *const units[] = {"K\1",      "I99999999999\n", "F1.5\n", "S'a\\x41'\n", "]",
                                        "(K\1K\2t", "cm\nC\n)R",      "P1\n",   "N\x94",       "("};
    (void)state;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        tsr_str data = repeated(TSR_STR("("), tsr_str_from(units[i]), 200, TSR_STR("t."));
        tsr_pickle *pickle;
        tsr_status status = parse(data, &pickle, NULL);
        tsr_pickle_free(pickle);
        must_bear_failures(data, status);
        free((char *)data.data);
    }
    static char globals[8192];
    size_t used = 0;
    for (int i = 0; i < 100; i++)
        used += (size_t)snprintf(globals + used, sizeof globals - used, "c%s\nC%d\n0", i % 2 ? "m" : "copy_reg", i);
    memcpy(globals + used, "N.", 2);
    must_bear_failures((tsr_str){globals, used + 2}, TSR_OK);
}

static void test_codec_pickle__depth_costs_no_stack(void **state)
{
    (void)state;
    tsr_str data = repeated(TSR_STR("N"), TSR_STR("\x85"), 1000000, TSR_STR("."));
    tsr_pickle *pickle;
    assert_int_equal(parse(data, &pickle, NULL), TSR_OK);
    tsr_ref ref = tsr_pickle_root(pickle);
    size_t depth = 0;
    for (; tsr_pickle_kind_of(pickle, ref) == TSR_PICKLE_TUPLE; ref = tsr_pickle_item(pickle, ref, 0)) depth++;
    assert_int_equal(depth, 1000000);
    tsr_pickle_free(pickle);
    free((char *)data.data);
}

/* Thirty levels with ten references each are 10^30 leaves as a tree, but 60 nodes here. */
static void test_codec_pickle__shared_parts_are_not_expanded(void **state)
{
    char data[2048];
    size_t size = 0;
    (void)state;
    data[size++] = ')';
    data[size++] = '\x94';
    for (int level = 0; level < 30; level++) {
        data[size++] = '(';
        for (int i = 0; i < 10; i++) {
            data[size++] = 'h';
            data[size++] = (char)level;
        }
        data[size++] = 't';
        data[size++] = '\x94';
    }
    for (int i = 0; i < 30; i++) data[size++] = '\x86'; /* ((((), level 1), level 2), …) */
    data[size++] = '.';
    tsr_host host = host_of(&tsr_allocator_libc);
    host.limits.memory_bytes = 1 << 14;
    tsr_pickle *pickle;
    assert_int_equal(tsr_pickle_parse((tsr_str){data, size}, &host, NULL, &pickle, NULL, NULL), TSR_OK);
    assert_int_equal(tsr_pickle_count(pickle, tsr_pickle_root(pickle)), 2);
    tsr_pickle_free(pickle);
}

static void test_codec_pickle__limits_are_kept(void **state)
{
    tsr_host host = host_of(&tsr_allocator_libc);
    tsr_error err = {0};
    tsr_pickle *pickle;
    (void)state;
    host.limits.metadata_bytes = 2;
    assert_int_equal(tsr_pickle_parse(TSR_STR("K\1."), &host, NULL, &pickle, NULL, &err), TSR_E_LIMIT);
    assert_non_null(strstr(err.message, "2 (metadata_bytes)"));
    host = host_of(&tsr_allocator_libc);
    host.limits.memory_bytes = 16;
    err = (tsr_error){0};
    assert_int_equal(tsr_pickle_parse(TSR_STR("K\1."), &host, NULL, &pickle, NULL, &err), TSR_E_LIMIT);
    assert_non_null(strstr(err.message, "16 bytes (memory_bytes)"));
    host.limits.memory_bytes = 0; /* no limit, as for arenas */
    assert_int_equal(tsr_pickle_parse(TSR_STR("K\1."), &host, NULL, &pickle, NULL, NULL), TSR_OK);
    tsr_pickle_free(pickle);
}

static void test_codec_pickle__survives_every_allocation_failure(void **state)
{
    static const char whole[] = "\x80\4}\x94(\x8c\1a\x94]\x94(K\1G?\xf0\0\0\0\0\0\0Pid\ncm\nC\n)"
                                "\x81K\1be\x8c\1b\x94Vx\\u20ac\nL99999999999999999999L\n\x86\x94u.";
    (void)state;
    must_bear_failures((tsr_str){whole, sizeof whole - 1}, TSR_OK);
}

/* ---- accessors ---- */

static void test_codec_pickle__accessors_give_nothing_of_another_kind(void **state)
{
    tsr_pickle *pickle;
    (void)state;
    assert_int_equal(parse(TSR_STR("}(\x8c\1aK\1\x8c\1a]K\2e\x8c\1bK\3u."), &pickle, NULL), TSR_E_FORMAT);
    assert_int_equal(parse(TSR_STR("}(\x8c\1aK\1\x8c\1bK\2\x8c\1aK\3u."), &pickle, NULL), TSR_OK);
    tsr_ref root = tsr_pickle_root(pickle);
    bool found;
    int64_t ints[2];
    assert_int_equal(tsr_pickle_count(pickle, root), 3); /* a repeated key is listed twice */
    /* The last value of a repeated key is used. */
    assert_int_equal(tsr_pickle_int(pickle, tsr_pickle_get(pickle, root, "a", &found)), 3);
    assert_true(found);
    assert_int_equal(tsr_pickle_get(pickle, root, "c", &found), TSR_REF_NONE);
    assert_false(found);
    assert_int_equal(tsr_pickle_item(pickle, root, 0), TSR_REF_NONE);
    assert_int_equal(tsr_pickle_key(pickle, root, 3), TSR_REF_NONE);
    assert_int_equal(tsr_pickle_text(pickle, root).size, 0);
    assert_int_equal(tsr_pickle_int(pickle, root), 0);
    assert_int_equal(tsr_pickle_class(pickle, root), TSR_REF_NONE);
    assert_int_equal(tsr_pickle_id(pickle, root), 0);
    assert_true(tsr_pickle_position(pickle, root) == TSR_NO_POSITION);
    assert_int_equal(tsr_pickle_ints(pickle, root, ints, 2), -1);
    assert_true(tsr_pickle_float(pickle, root) == 0);
    tsr_pickle_free(pickle);
    assert_int_equal(parse(TSR_STR("}K\1K\2s."), &pickle, NULL), TSR_OK);
    assert_int_equal(tsr_pickle_get(pickle, tsr_pickle_root(pickle), "1", &found),
                     TSR_REF_NONE); /* a key that is not a string */
    tsr_pickle_free(pickle);
    assert_int_equal(parse(TSR_STR("K\1N\x86."), &pickle, NULL), TSR_OK);
    root = tsr_pickle_root(pickle);
    assert_int_equal(tsr_pickle_key(pickle, root, 0), TSR_REF_NONE);
    assert_int_equal(tsr_pickle_value(pickle, root, 0), TSR_REF_NONE);
    assert_int_equal(tsr_pickle_ints(pickle, root, ints, 2), -1);
    tsr_pickle_free(pickle);
    assert_int_equal(parse(TSR_STR("K\1J\377\377\377\377K\3\x87."), &pickle, NULL), TSR_OK);
    assert_int_equal(tsr_pickle_ints(pickle, tsr_pickle_root(pickle), ints, 2), -1); /* too many */
    tsr_pickle_free(pickle);
    assert_int_equal(parse(TSR_STR("K\1J\377\377\377\377\x86."), &pickle, NULL), TSR_OK);
    assert_int_equal(tsr_pickle_ints(pickle, tsr_pickle_root(pickle), ints, 2), 2);
    assert_int_equal(ints[1], -1);
    tsr_pickle_free(pickle);
}

static void note_use(void *ctx, tsr_ref global, tsr_pickle_use use)
{
    (void)global;
    ((int *)ctx)[use]++;
}

static void test_codec_pickle__lists_unknown_globals_once_with_their_use(void **state)
{
    static const tsr_pickle_name names[] = {{"m", "Known", 7}};
    const tsr_pickle_sink sink = {.names = names, .count = 1};
    tsr_host host = host_of(&tsr_allocator_libc);
    tsr_pickle *pickle;
    int uses[3] = {0};
    (void)state;
    tsr_str data = TSR_STR("(cm\nKnown\n)Rcm\nKnown2\ncm\nBuilt\n)\x81"
                           "cm\nBuilt\n)\x81"
                           "cos\nsystem\n)\x81"
                           "cos\nsystem\n)Rt.");
    assert_int_equal(tsr_pickle_parse(data, &host, &sink, &pickle, NULL, NULL), TSR_OK);
    tsr_pickle_unknown(pickle, note_use, uses);
    assert_int_equal(uses[TSR_PICKLE_NAMED], 1);
    assert_int_equal(uses[TSR_PICKLE_USE_BUILT], 1);
    assert_int_equal(uses[TSR_PICKLE_USE_CALLED], 1);
    tsr_ref first = tsr_pickle_item(pickle, tsr_pickle_root(pickle), 0);
    assert_int_equal(tsr_pickle_class_id(pickle, first), 7);
    assert_int_equal(tsr_pickle_position(pickle, first), 11);
    tsr_pickle_free(pickle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codec_pickle__reads_what_cpython_writes),
        cmocka_unit_test(test_codec_pickle__reads_every_other_opcode),
        cmocka_unit_test(test_codec_pickle__refuses_with_position_and_opcode),
        cmocka_unit_test(test_codec_pickle__every_prefix_is_refused),
        cmocka_unit_test(test_codec_pickle__says_where_a_pickle_ends),
        cmocka_unit_test(test_codec_pickle__memory_is_a_small_multiple_of_the_input),
        cmocka_unit_test(test_codec_pickle__long_operands_are_bounded_or_kept),
        cmocka_unit_test(test_codec_pickle__pools_that_grow_bear_failures),
        cmocka_unit_test(test_codec_pickle__depth_costs_no_stack),
        cmocka_unit_test(test_codec_pickle__shared_parts_are_not_expanded),
        cmocka_unit_test(test_codec_pickle__limits_are_kept),
        cmocka_unit_test(test_codec_pickle__survives_every_allocation_failure),
        cmocka_unit_test(test_codec_pickle__accessors_give_nothing_of_another_kind),
        cmocka_unit_test(test_codec_pickle__lists_unknown_globals_once_with_their_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
