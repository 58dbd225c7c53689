/* Nested values built from paths, and the paths of renamed entries. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/failing_allocator.h"
#include "tessera/sys/catalog.h"

static const tsr_limits limits = {1000, 1000000, 1u << 30, 1u << 30, 1000, 1u << 30};

/* Parses a path: ".key", "#7" for an int key, "@2" for a list position. */
static uint32_t parse_path(const char *text, tsr_path_item *out)
{
    uint32_t count = 0;
    while (*text) {
        const char kind = *text++;
        const size_t size = strcspn(text, ".#@");
        out[count] = (tsr_path_item){.kind = kind == '.'   ? TSR_PATH_KEY
                                             : kind == '#' ? TSR_PATH_INT_KEY
                                                           : TSR_PATH_INDEX,
                                     .key = {text, size}};
        if (kind != '.') out[count] = (tsr_path_item){.kind = out[count].kind, .integer = strtoll(text, NULL, 10)};
        text += size;
        count++;
    }
    return count;
}

static void render(const tsr_value *value, char **out)
{
    if (value->kind == TSR_VALUE_NONE) *out += sprintf(*out, "-");
    if (value->kind == TSR_VALUE_INT) *out += sprintf(*out, "%d", (int)value->as.integer);
    if (value->kind == TSR_VALUE_STR) *out += sprintf(*out, "%.*s", TSR_STR_ARG(value->text));
    if (value->kind != TSR_VALUE_LIST && value->kind != TSR_VALUE_DICT) return;
    const bool list = value->kind == TSR_VALUE_LIST;
    if (!list && value->ordered_dict) *out += sprintf(*out, "ordered");
    if (tsr_value_attributes(value)) *out += sprintf(*out, "(+%d)", (int)value->as.attributes->as.integer);
    *out += sprintf(*out, list ? "[" : "{");
    for (size_t i = 0; i < value->count; i++) {
        render(value->items[i], out);
        *out += sprintf(*out, "%s", i + 1 == value->count ? "" : !list && i % 2 == 0 ? ":" : ",");
    }
    *out += sprintf(*out, list ? "]" : "}");
}

/* A path after '!' stands for an empty OrderedDict, one after '~' for an OrderedDict with items and an attribute. */
static tsr_status nest(const char *const *paths, size_t count, const tsr_allocator *allocator, char *text, tsr_error *err)
{
    tsr_path_item items[8][8];
    tsr_leaf leaves[8];
    const tsr_host host = {.allocator = allocator, .limits = limits};
    const tsr_value *root;
    tsr_value numbers[8], dicts[8];
    for (size_t i = 0; i < count; i++) {
        const bool empty = paths[i][0] == '!', mapping = empty || paths[i][0] == '~';
        numbers[i] = (tsr_value){.kind = TSR_VALUE_INT, .as.integer = (int64_t)i};
        dicts[i] = (tsr_value){.kind = TSR_VALUE_DICT, .ordered_dict = true, .count = empty ? 0 : 2};
        if (!empty) dicts[i].as.attributes = &numbers[i];
        leaves[i] = (tsr_leaf){.path = items[i],
                               .path_length = parse_path(paths[i] + mapping, items[i]),
                               .value = mapping ? &dicts[i] : &numbers[i],
                               .name = tsr_str_from(paths[i] + mapping),
                               .mapping = mapping};
    }
    tsr_arena *arena = tsr_arena_new(allocator, 0, err);
    tsr_status status = arena ? tsr_nest(leaves, count, &host, arena, &root, err) : TSR_E_NOMEM;
    if (status == TSR_OK) render(root, &text);
    tsr_arena_free(arena);
    return status;
}

static void test_formats_nest__paths_become_dicts_and_lists(void **state)
{
    (void)state;
    static const struct {
        const char *paths[6];
        size_t count;
        const char *want;
    } rows[] = {
        {{0}, 0, "{}"},
        {{""}, 1, "0"},
        {{".a"}, 1, "{a:0}"},
        {{".m.w", ".m.b", ".n"}, 3, "{m:{w:0,b:1},n:2}"},
        {{".n", ".m.w", ".n2", ".m.b"}, 4, "{n:0,m:{w:1,b:3},n2:2}"},
        {{".s#0", ".s#10", ".s.0"}, 3, "{s:{0:0,10:1,0:2}}"},
        {{".l@1", ".l@0@0", ".l@0@1"}, 3, "{l:[[1,2],0]}"},
        {{"@2", "@0"}, 2, "[1,-,0]"},
        {{"~", ".a"}, 2, "ordered(+0){a:1}"},
        {{"~.m", ".m.w", ".n"}, 3, "{m:ordered(+0){w:1},n:2}"},
        {{"~.m", ".n"}, 2, "{n:1}"},             /* none of its items exist */
        {{"~.m", ".m", "!"}, 3, "ordered{m:1}"}, /* a leaf has its name */
        {{".n", "!.e", ".m.w", "!.m.e"}, 4, "{n:0,e:ordered{},m:{w:2,e:ordered{}}}"},
        {{"!.l@0", ".l@1", "!.k@1"}, 3, "{l:[ordered{},1],k:[-,ordered{}]}"},
        {{"~.l", ".l@0"}, 2, "{l:[1]}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[256] = "";
        tsr_error err = {0};
        if (nest(rows[i].paths, rows[i].count, &tsr_allocator_libc, text, &err)) fail_msg("row %d: %s", (int)i, err.message);
        assert_string_equal(text, rows[i].want);
    }
}

static void test_formats_nest__paths_that_contradict_each_other_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *paths[3];
        size_t count;
        tsr_status status;
        const char *part;
    } rows[] = {
        {{".a", ".a.b"}, 2, TSR_E_USAGE, "'.a.b' is inside '.a'"},
        {{".a.b", ".a"}, 2, TSR_E_USAGE, "'.a' has the same path as another entry"},
        {{".a", ".a"}, 2, TSR_E_USAGE, "has the same path"},
        {{".a", "!.a.b"}, 2, TSR_E_USAGE, "'.a.b' is inside '.a'"},
        {{"", ".a"}, 2, TSR_E_USAGE, "'.a' is inside ''"},
        {{".l@0", ".l.x"}, 2, TSR_E_USAGE, "'.l.x': its container would be both a list and a dict"},
        {{".l@-1"}, 1, TSR_E_USAGE, "the list position -1 is out of range"},
        {{".l@5000"}, 1, TSR_E_LIMIT, "a list has 5001 positions, but only 1 of them are present"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[256];
        tsr_error err = {0};
        assert_int_equal(nest(rows[i].paths, rows[i].count, &tsr_allocator_libc, text, &err), rows[i].status);
        if (!strstr(err.message, rows[i].part)) fail_msg("row %d: %s", (int)i, err.message);
    }
}

static void test_formats_nest__renamed_entries_keep_what_the_rename_left(void **state)
{
    (void)state;
    static const struct {
        const char *path; /* NULL for no path */
        const char *fqn, *name, *want;
    } rows[] = {
        {NULL, "a.b", "a.b", ".a.b"}, /* a single key, including the dots */
        {NULL, "a.b", "c", ".c"},
        {".m.a", "m.a", "m.a", ".m|.a"},
        {".model.w", "model.w", "w", ".w"}, /* --rename model.= */
        {".model.w", "model.w", "net.w", ".net|.w"},
        {".model.w", "model.w", "net.inner.w", ".net.inner|.w"},
        {".model.w", "model.w", "model.v", ".model|.v"},
        {".m.x.w", "m.x.w", "m.y.w", ".m|.y|.w"},
        {".o#3.w", "o.3.w", "p.3.w", ".p|#3|.w"},
        {".l@0", "l.0", "k.0", ".k|@0"},
        {".a", "a", "b.a", ".b|.a"},
    };
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tsr_path_item items[8];
        const tsr_path_item *path;
        uint32_t length;
        char text[128], *at = text;
        tsr_entry entry = {.fqn = tsr_str_from(rows[i].fqn)};
        if (rows[i].path) {
            entry.path_length = parse_path(rows[i].path, items);
            entry.path = items;
        }
        assert_int_equal(tsr_renamed_path(&entry, tsr_str_from(rows[i].name), arena, &path, &length, NULL), TSR_OK);
        for (uint32_t p = 0; p < length; p++) {
            const bool key = path[p].kind == TSR_PATH_KEY;
            at += sprintf(at, "%s%c", p ? "|" : "", key ? '.' : path[p].kind == TSR_PATH_INT_KEY ? '#' : '@');
            at += key ? sprintf(at, "%.*s", TSR_STR_ARG(path[p].key)) : sprintf(at, "%d", (int)path[p].integer);
        }
        if (strcmp(text, rows[i].want) != 0) fail_msg("row %d: %s, expected %s", (int)i, text, rows[i].want);
    }
    tsr_arena_free(arena);
}

static void test_formats_nest__every_failed_allocation_ends_cleanly(void **state)
{
    (void)state;
    static const char *const paths[] = {".m.w", ".m.b", ".l@1", ".s#3.x", "~.m", "!.e.f"};
    for (size_t n = 0;; n++) {
        failing_allocator failing;
        char text[256];
        failing_start(&failing, n);
        const tsr_status status = nest(paths, 6, &failing.allocator, text, NULL);
        assert_int_equal(status, failing.failed ? TSR_E_NOMEM : TSR_OK);
        assert_int_equal(failing.live, 0);
        if (!failing.failed) break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_nest__paths_become_dicts_and_lists),
        cmocka_unit_test(test_formats_nest__paths_that_contradict_each_other_are_refused),
        cmocka_unit_test(test_formats_nest__renamed_entries_keep_what_the_rename_left),
        cmocka_unit_test(test_formats_nest__every_failed_allocation_ends_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
