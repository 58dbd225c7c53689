/* The names of nested values: those that PyTorch's flatten_state_dict gives (tests/golden/torch_flatten.*), and what happens
 * where it has no answer: collisions, roots that are no mapping, modules, values that stand for more than they are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "formats/torch_flatten.h"
#include "support/sample.h"
#include "support/zip_image.h"
#include "tessera/checkpoint.h"

static zip_image image;

typedef struct opened {
    tsr_host host;
    tsr_store *store;
    tsr_checkpoint *checkpoint;
    const tsr_catalog *catalog;
    tsr_error err;
    tsr_status status;
} opened;

static void open_bytes(opened *o, tsr_str bytes, uint64_t expansion)
{
    tsr_memory_file file = {TSR_STR("x.pt"), bytes};
    *o = (opened){.host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()}};
    if (expansion) o->host.limits.expansion = expansion;
    assert_int_equal(tsr_store_from_memory(o->host.allocator, &file, 1, &o->store, NULL), TSR_OK);
    o->status = tsr_checkpoint_open(o->store, &o->host, NULL, &o->checkpoint, &o->err);
    if (o->status == TSR_OK) o->catalog = tsr_checkpoint_catalog(o->checkpoint);
}

static void open_pickle(opened *o, const char *pickle, uint64_t expansion)
{
    zip_start(&image, 0);
    zip_add(&image, "a/data.pkl", pickle, strlen(pickle), ZIP_DESCRIPTOR);
    zip_add(&image, "a/data/0", "12345678", 8, ZIP_DESCRIPTOR);
    zip_finish(&image, true);
    open_bytes(o, (tsr_str){(const char *)image.bytes, image.size}, expansion);
}

static void drop(opened *o)
{
    tsr_checkpoint_close(o->checkpoint);
    o->store->close(o->store);
}

/* An entry as a line of the golden. */
static void print_entry(const tsr_entry *entry, char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "%c", entry->kind == TSR_ENTRY_TENSOR ? 't' : 'o');
    for (uint32_t i = 0; i < entry->path_length; i++) {
        const tsr_path_item *item = &entry->path[i];
        if (item->kind == TSR_PATH_KEY) used += (size_t)snprintf(out + used, size - used, " k:%.*s", TSR_STR_ARG(item->key));
        else used += (size_t)snprintf(out + used, size - used, " %c:%lld", item->kind == TSR_PATH_INDEX ? 'i' : 'k', (long long)item->integer);
    }
    tsr_str type = entry->kind == TSR_ENTRY_TENSOR ? TSR_STR("tensor") : entry->type;
    if (tsr_str_equal(type, TSR_STR("torch.Size"))) type = TSR_STR("Size");
    snprintf(out + used, size - used, " = %.*s", TSR_STR_ARG(type));
}

static void test_formats_torch_flatten__names_are_those_of_flatten_state_dict(void **state)
{
    (void)state;
    tsr_str bytes = sample_read("../../tests/golden/torch_flatten.pt");
    FILE *golden = fopen(TSR_TEST_DATA "/tests/golden/torch_flatten.txt", "r");
    assert_non_null(golden);
    opened o;
    char line[512], ours[512];
    uint64_t at = 0;
    open_bytes(&o, bytes, 0);
    if (o.status != TSR_OK) fail_msg("%s", o.err.message);
    for (; fgets(line, sizeof line, golden); at++) {
        line[strcspn(line, "\n")] = 0;
        assert_true(at < o.catalog->entry_count);
        print_entry(&o.catalog->entries[at], ours, sizeof ours);
        assert_string_equal(ours, line);
    }
    assert_int_equal(at, o.catalog->entry_count);
    fclose(golden);
    drop(&o);
    free((char *)bytes.data);
}

#define TENSOR                                                                                                            \
    "ctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\nI2\ntQI0\n(I2\nt(I1\ntI00\n"     \
    "ccollections\nOrderedDict\n)RtR"
#define MODULE(class_name, parameters, buffers, modules, hidden)                                                           \
    "c" class_name "\n)\x81(dS'training'\nI01\nsS'_parameters'\n(d" parameters "sS'_buffers'\n(d" buffers                  \
    "sS'_modules'\n(d" modules "sS'_non_persistent_buffers_set'\nc__builtin__\nset\n((l" hidden "tRsb"

static const struct row {
    const char *pickle;
    const char *names; /* "name:t" or "name:o", joined by '|' */
} rows[] = {
    {TENSOR ".", ":t"},
    {"I7\n.", ":o"},
    {"(I7\nt.", ":o"},
    {"(lI7\na.", ":o"},
    {"(l" TENSOR "aI7\na.", "0:t|1:o"},
    {"(d.", ""},
    {"(dI7\nI1\nsI-3\nI1\nsI01\nI2\nsNI3\ns.", "7:o|-3:o|True:o|None:o"},
    {"(dS'a.b'\nI1\nsS''\nI2\ns.", "a.b:o|:o"},
    {"(d(I1\nI2\ntI1\ns.", ":o"},                                  /* keys without a name: the mapping stays whole */
    {"(dS'x'\n(dF1.5\nI1\nssS'y'\nI2\ns.", "x:o|y:o"},
    {"(dS'x'\ncmy\nConfig\n)\x81(dS'_parameters'\nI1\nsbs.", "x:o"}, /* not a module */
    {MODULE("my\nNet", "S'w'\n" TENSOR "sS'bias'\nNs", "S'b'\n" TENSOR "sS'tmp'\n" TENSOR "s",
            "S'sub'\n" MODULE("my\nSub", "S'w'\n" TENSOR "s", "", "", "") "sS'gone'\nNs", "S'tmp'\na") ".", "w:t|b:t|sub.w:t"},
    {"(dS'm'\n" MODULE("my\nNet", "S'w'\n" TENSOR "s", "", "", "") "s.", "m.w:t"},
    {"(l" MODULE("my\nNet", "S'w'\n" TENSOR "s", "", "", "") "a.", "0.w:t"},
};

static void test_formats_torch_flatten__roots_keys_and_modules(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        opened o;
        char names[256] = "";
        size_t used = 0;
        open_pickle(&o, rows[i].pickle, 0);
        if (o.status != TSR_OK) fail_msg("row %zu: %s", i, o.err.message);
        for (uint64_t k = 0; k < o.catalog->entry_count; k++)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%.*s:%c", k ? "|" : "", TSR_STR_ARG(o.catalog->entries[k].fqn),
                                     o.catalog->entries[k].kind == TSR_ENTRY_TENSOR ? 't' : 'o');
        if (strcmp(names, rows[i].names) != 0) fail_msg("row %zu: %s, expected %s", i, names, rows[i].names);
        drop(&o);
    }
}

static void test_formats_torch_flatten__a_modules_names_are_one_key(void **state)
{
    (void)state;
    opened o;
    open_pickle(&o, "(dS'm'\n" MODULE("my\nNet", "", "", "S'sub'\n" MODULE("my\nSub", "S'w'\n" TENSOR "s", "", "", "") "s", "") "s.", 0);
    const tsr_entry *entry = &o.catalog->entries[0];
    assert_int_equal(entry->path_length, 2);
    assert_true(tsr_str_equal(entry->path[0].key, TSR_STR("m")));
    assert_true(tsr_str_equal(entry->path[1].key, TSR_STR("sub.w")));
    drop(&o);
}

static void test_formats_torch_flatten__colliding_names_are_refused_with_both_paths(void **state)
{
    (void)state;
    static const struct {
        const char *pickle, *message;
    } twins[] = {
        {"(dS'a.b'\nI1\nsS'a'\n(dS'b'\nI2\nss.", "the paths [a.b] and [a][b] both give the name 'a.b'"},
        {"(dS'7'\nI1\nsI7\nI2\ns.", "the paths [7] and [7] both give the name '7'"},
        {"(dS'a'\nI1\nsS'a'\nI2\ns.", "both give the name 'a'"},
    };
    for (size_t i = 0; i < sizeof twins / sizeof twins[0]; i++) {
        opened o;
        open_pickle(&o, twins[i].pickle, 0);
        assert_int_equal(o.status, TSR_E_FORMAT);
        if (!strstr(o.err.message, twins[i].message)) fail_msg("%s", o.err.message);
        drop(&o);
    }
}

/* {"a": X, "b": X} with X the same again, 40 deep: 2^40 names from 600 bytes. */
static void test_formats_torch_flatten__what_stands_for_too_much_is_refused(void **state)
{
    (void)state;
    static char pickle[4096];
    static const char *const starts[] = {"(dS'z'\nI1\ns", "(d"}; /* with leaves, and without any */
    for (size_t k = 0; k < 2; k++) {
        opened o;
        size_t used = (size_t)snprintf(pickle, sizeof pickle, "%sp0\n0", starts[k]);
        for (int i = 0; i < 40; i++)
            used += (size_t)snprintf(pickle + used, sizeof pickle - used, "(dS'a'\ng%d\nsS'b'\ng%d\nsp%d\n0", i, i, i + 1);
        snprintf(pickle + used, sizeof pickle - used, "g40\n.");
        open_pickle(&o, pickle, 10000);
        if (o.status != TSR_E_LIMIT) fail_msg("status %d: %s", (int)o.status, o.err.message);
        assert_non_null(strstr(o.err.message, "expansion"));
        drop(&o);
    }
}

/* {"b": 1, "a": {"b": 1, "a": …}}: every name is as long as its depth. */
static void test_formats_torch_flatten__names_that_grow_with_depth_are_bounded(void **state)
{
    (void)state;
    enum { DEPTH = 1000 };
    static char pickle[DEPTH * 20];
    opened o;
    size_t used = 0;
    for (int i = 0; i < DEPTH; i++) used += (size_t)snprintf(pickle + used, sizeof pickle - used, "(dS'b'\nI1\nsS'a'\n");
    used += (size_t)snprintf(pickle + used, sizeof pickle - used, "I1\n");
    for (int i = 0; i < DEPTH; i++) pickle[used++] = 's';
    memcpy(pickle + used, ".", 2);
    open_pickle(&o, pickle, 100000);
    assert_int_equal(o.status, TSR_E_LIMIT);
    drop(&o);
    open_pickle(&o, pickle, 0);
    assert_int_equal(o.status, TSR_OK);
    assert_int_equal(o.catalog->entry_count, DEPTH + 1);
    drop(&o);
}

/* Lists of lists: each is looked through once, and one that holds only lists is a leaf. */
static void test_formats_torch_flatten__shared_lists_are_looked_through_once(void **state)
{
    (void)state;
    static char pickle[4096];
    opened o;
    size_t used = (size_t)snprintf(pickle, sizeof pickle, "(lI1\nap0\n0");
    for (int i = 0; i < 60; i++) used += (size_t)snprintf(pickle + used, sizeof pickle - used, "(lg%d\nag%d\nap%d\n0", i, i, i + 1);
    snprintf(pickle + used, sizeof pickle - used, "(dS'x'\ng60\ns.");
    open_pickle(&o, pickle, 10000);
    assert_int_equal(o.status, TSR_OK);
    assert_int_equal(o.catalog->entry_count, 1);
    drop(&o);
    open_pickle(&o, "(lp0\ng0\naI1\na.", 10000); /* a list inside itself */
    assert_int_equal(o.status, TSR_OK);
    drop(&o);
    open_pickle(&o, "(dp0\nS'a'\ng0\ns.", 10000); /* a mapping inside itself has no end */
    assert_int_equal(o.status, TSR_E_LIMIT);
    drop(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_torch_flatten__names_are_those_of_flatten_state_dict),
        cmocka_unit_test(test_formats_torch_flatten__roots_keys_and_modules),
        cmocka_unit_test(test_formats_torch_flatten__a_modules_names_are_one_key),
        cmocka_unit_test(test_formats_torch_flatten__colliding_names_are_refused_with_both_paths),
        cmocka_unit_test(test_formats_torch_flatten__what_stands_for_too_much_is_refused),
        cmocka_unit_test(test_formats_torch_flatten__names_that_grow_with_depth_are_bounded),
        cmocka_unit_test(test_formats_torch_flatten__shared_lists_are_looked_through_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
