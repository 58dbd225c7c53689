/* The names of nested values: those that PyTorch's flatten_state_dict gives (tests/golden/torch_flatten.*), and cases in
 * which it has no answer: collisions, roots that are not mappings, modules, and small values that expand to very large
 * ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "formats/torch/torch_flatten.h"
#include "support/checkpoint_opening.h"
#include "support/sample.h"
#include "support/zip_image.h"
#include "tessera/checkpoint.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"

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
    zip_add(&image, "a/version", "3\n", 2, ZIP_DESCRIPTOR);
    zip_finish(&image, true);
    open_bytes(o, (tsr_str){(const char *)image.bytes, image.size}, expansion);
}

static void drop(opened *o)
{
    tsr_checkpoint_close(o->checkpoint);
    o->store->close(o->store);
}

/* Formats an entry as a line of the golden file. */
static void print_entry(const tsr_entry *entry, char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "%c", entry->kind == TSR_ENTRY_TENSOR ? 't' : 'o');
    for (uint32_t i = 0; i < entry->path_length; i++) {
        const tsr_path_item *item = &entry->path[i];
        if (item->kind == TSR_PATH_KEY) used += (size_t)snprintf(out + used, size - used, " k:%.*s", TSR_STR_ARG(item->key));
        else
            used += (size_t)snprintf(out + used, size - used, " %c:%lld", item->kind == TSR_PATH_INDEX ? 'i' : 'k',
                                     (long long)item->integer);
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

#define TENSOR \
    "ctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\nI2\ntQI0\n(I2\nt(I1\ntI00\n" \
    "ccollections\nOrderedDict\n)RtR"
#define MODULE(class_name, parameters, buffers, modules, hidden) \
    "c" class_name "\n)\x81(dS'training'\nI01\nsS'_parameters'\n(d" parameters "sS'_buffers'\n(d" buffers \
    "sS'_modules'\n(d" modules "sS'_non_persistent_buffers_set'\nc__builtin__\nset\n((l" hidden "tRsb"

#define SIZED_STORAGE(class_name) "(S'storage'\n" class_name "S'0'\nS'cpu'\nI8\ntQ"
#define QUANTIZED(class_name, size) \
    "ctorch._utils\n_rebuild_qtensor\n(" SIZED_STORAGE( \
        "ctorch\n" class_name "\n") "I0\n" size "(I1\nt" \
                                    "(ctorch\nper_tensor_affine\nF0.5\nI3\ntI00\nccollections\nOrderedDict\n)RtR"
#define ODD               QUANTIZED("QInt8Storage", "(I8\nt")
#define META(dtype, size) "ctorch._utils\n_rebuild_meta_tensor_no_storage\n(" dtype size "(I1\ntI00\ntR"
#define SPARSE(values, size) \
    "ctorch._utils\n_rebuild_sparse_tensor\n(ctorch.serialization\n_get_layout\n(S'torch.sparse_coo'\ntR(" TENSOR values \
        size "ttR"

static const struct row {
    const char *pickle;
    const char *names; /* "name:t" for a tensor or "name:o" for an object, separated by '|' */
} rows[] = {
    {TENSOR ".", ":t"},
    {"I7\n.", ":o"},
    {"(I7\nt.", ":o"},
    {"(lI7\na.", ":o"},
    {"(l" TENSOR "aI7\na.", "0:t|1:o"},
    {"(d.", ""},
    {"(dI7\nI1\nsI-3\nI1\nsI01\nI2\nsNI3\ns.", "7:o|-3:o|True:o|None:o"},
    {"(dS'a.b'\nI1\nsS''\nI2\ns.", "a.b:o|:o"},
    {"(d(I1\nI2\ntI1\ns.", "(1, 2):o"}, /* str() of any other kind of key */
    {"(dS'x'\n(dF1.5\nI1\nssS'y'\nI2\ns.", "x.1.5:o|y:o"},
    {"(dF10\nI1\nsF1e16\nI2\nsF-0.0\nI3\nsFinf\nI4\ns.", "10.0:o|1e+16:o|-0.0:o|inf:o"},
    {"(d(S'a'\n(I1\nt(tNtI1\nsL1180591620717411303424L\nI2\nsctorch\nbfloat16\nI3\ns.",
     "('a', (1,), (), None):o|1180591620717411303424:o|torch.bfloat16:o"},
    {"(dC\1aI1\nsctorch\ndevice\n(S'cuda'\nI1\ntRI2\ns.", "b'a':o|cuda:1:o"},
    {"(dcmy\nC\n)\x81I1\ns.", ":o"},               /* keys without a text: the mapping stays whole */
    {"(d(S'\\''\ntI1\ns.", ":o"},                  /* and keys that Python might quote differently */
    {"(d(((((tttttI1\ns.", ":o"},                  /* a deep key */
    {"cmy\nDict\n)\x81S'a'\n" TENSOR "s.", "a:t"}, /* an instance of a class derived from dict, or from list */
    {"(dS'x'\ncmy\nList\n)\x81(" TENSOR "I1\nes.", "x.0:t|x.1:o"},
    {"cmy\nDict\n)\x81S'a'\nI1\nsI2\na.", ":o"},                     /* neither of them */
    {"(dS'x'\ncmy\nConfig\n)\x81(dS'_parameters'\nI1\nsbs.", "x:o"}, /* not a module */
    {MODULE("my\nNet", "S'w'\n" TENSOR "sS'bias'\nNs", "S'b'\n" TENSOR "sS'tmp'\n" TENSOR "s",
            "S'sub'\n" MODULE("my\nSub", "S'w'\n" TENSOR "s", "", "", "") "sS'gone'\nNs", "S'tmp'\na") ".",
     "w:t|b:t|sub.w:t"},
    {"(dS'm'\n" MODULE("my\nNet", "S'w'\n" TENSOR "s", "", "", "") "s.", "m.w:t"},
    {"(l" MODULE("my\nNet", "S'w'\n" TENSOR "s", "", "", "") "a.", "0.w:t"},
    /* Odd keys. */
    {MODULE("my\nNet", "S'w'\n" TENSOR "s(I1\ntI1\ns", "S'b'\n" TENSOR "s", "", "I7\na") ".", "w:t|(1,):o|b:t"},
    {"cmy\nNet\n)\x81(dS'_parameters'\n(dS'w'\nI1\nssS'_buffers'\n(dsS'_modules'\n(dsb.",
     "w:o"}, /* without the set of non-persistent buffers */
    {"cmy\nNet\n)\x81(dS'_parameters'\n(dS'w'\nI1\nssS'_buffers'\n(dsS'_modules'\n(dsS'_non_persistent_buffers_set'"
     "\nI1\nsb.",
     "w:o"},
    {"cmy\nNet\n)\x81I1\nb.", ":o"}, /* a state that is not a dict */
    {"(dI12\nI1\nsI00\nI2\ns.", "12:o|False:o"},
    {"(l(lI1\naa(l" TENSOR "aa.", "0:o|1.0:t"},
    {"(l" ODD "aI1\na.", "0:o|1:o"},                /* a quantized tensor expands a list, as a dense one does */
    {"(lcmy\nC\n)\x81(dS'a'\nI1\nsbaI1\na.", ":o"}, /* other objects do not */
    {"(lcmy\nC\n((dS'a'\nI1\nstRaI1\na.", ":o"},
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
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%.*s:%c", k ? "|" : "",
                                     TSR_STR_ARG(o.catalog->entries[k].fqn),
                                     o.catalog->entries[k].kind == TSR_ENTRY_TENSOR ? 't' : 'o');
        if (strcmp(names, rows[i].names) != 0) fail_msg("row %zu: %s, expected %s", i, names, rows[i].names);
        drop(&o);
    }
}

static const struct leaf {
    const char *pickle, *type;
    tsr_entry_kind kind;
    tsr_dtype dtype;
    uint32_t ndim;
    uint64_t size; /* that of the first dimension */
} leaves[] = {
    {"I1\n.", "int", TSR_ENTRY_OBJECT, TSR_DTYPE_NONE, 0, 0},
    {"cmy\nfunction\n.", "type", TSR_ENTRY_OPAQUE, TSR_DTYPE_NONE, 0, 0},
    {"ctorch.nn.functional\nrelu\n.", "type", TSR_ENTRY_OBJECT, TSR_DTYPE_NONE, 0, 0},
    {"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR.", "numpy.ndarray", TSR_ENTRY_OPAQUE,
     TSR_DTYPE_NONE, 0, 0},
    {"ccopyreg\n_reconstructor\n(cmy\nC\nc__builtin__\nobject\nNtR.", "my.C", TSR_ENTRY_OPAQUE, TSR_DTYPE_NONE, 0, 0},
    {"ccopyreg\n_reconstructor\n(I1\ntR.", "copyreg._reconstructor", TSR_ENTRY_OPAQUE, TSR_DTYPE_NONE, 0, 0},
    {"ccopyreg\n_reconstructor\n)R.", "copyreg._reconstructor", TSR_ENTRY_OPAQUE, TSR_DTYPE_NONE, 0, 0},
    {"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_wrapper_subclass\ncmy\n_reconstruct\n("
     "Nctorch\nx\nNtNtR.",
     "my._reconstruct", TSR_ENTRY_OPAQUE, TSR_DTYPE_NONE, 0, 0},
    {ODD ".", "torch.quantized", TSR_ENTRY_OPAQUE, TSR_QINT8, 1, 8},
    {QUANTIZED("QUInt4x2Storage", "(I16\nt") ".", "torch.quantized", TSR_ENTRY_OPAQUE, TSR_QUINT4X2, 1,
     16}, /* two elements per byte */
    {META("ctorch\nint8\n", "(I5\nt") ".", "torch.meta", TSR_ENTRY_OPAQUE, TSR_INT8, 1, 5},
    {META("ctorch\nint8\n", "ctorch\nSize\n((I5\nttR") ".", "torch.meta", TSR_ENTRY_OPAQUE, TSR_INT8, 1, 5},
    {META("I1\n", "(I5\nt") ".", "torch.meta", TSR_ENTRY_OPAQUE, TSR_DTYPE_NONE, 1, 5},
    {META("ctorch\nint8\n", "I5\n") ".", "torch.meta", TSR_ENTRY_OPAQUE, TSR_INT8, 0, 0},
    {META("ctorch\nint8\n", "(I-5\nt") ".", "torch.meta", TSR_ENTRY_OPAQUE, TSR_INT8, 0, 0},
    {META("ctorch\nint8\n", "(S'5'\nt") ".", "torch.meta", TSR_ENTRY_OPAQUE, TSR_INT8, 0, 0},
    {SPARSE(TENSOR, "(I9\nt") ".", "torch.sparse_coo", TSR_ENTRY_OPAQUE, TSR_FLOAT32, 1, 9},
    {SPARSE("I1\n", "(I9\nt") ".", "torch.sparse_coo", TSR_ENTRY_OPAQUE, TSR_DTYPE_NONE, 1, 9},
    {"ctorch._utils\n_rebuild_device_tensor_from_cpu_tensor\n(I1\nctorch\nint8\nS'xla:0'\nI00\ntR.", "torch.Tensor",
     TSR_ENTRY_OPAQUE, TSR_INT8, 0, 0},
};

static void test_formats_torch_flatten__leaves_say_their_type_dtype_and_shape(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof leaves / sizeof leaves[0]; i++) {
        opened o;
        open_pickle(&o, leaves[i].pickle, 0);
        if (o.status != TSR_OK) fail_msg("row %zu: %s", i, o.err.message);
        const tsr_entry *e = &o.catalog->entries[0];
        if (!tsr_str_equal(e->type, tsr_str_from(leaves[i].type)) || e->kind != leaves[i].kind ||
            e->dtype != leaves[i].dtype || e->ndim != leaves[i].ndim || (e->ndim && e->shape[0] != leaves[i].size))
            fail_msg("row %zu: %.*s, kind %d, dtype %d, rank %u", i, TSR_STR_ARG(e->type), (int)e->kind, (int)e->dtype,
                     e->ndim);
        drop(&o);
    }
}

/* The name of a tensor inside an object is the path to it, if that is not too long. */
static void test_formats_torch_flatten__tensors_inside_objects_are_named(void **state)
{
    (void)state;
    static char pickle[8192], key[1100];
    static const char fill[] = "kkkkkkkkkk";
    for (size_t i = 0; i < 110; i++) memcpy(key + 10 * i, fill, 10);
    key[1099] = 0;
    static const struct {
        const char *pickle, *name;
    } named[] = {
        {"cmy\nC\n(" TENSOR "tR.", "args.0"},
        {"cmy\nC\n)\x81(dS'x'\n" TENSOR "sb.", "state.x"},
        {"cmy\nC\n)\x81(dI1\n(lI0\na" TENSOR "asb.", "state.0.1"}, /* for a key that is not a string, its number counts */
        {"cmy\nC\n)R(I0\nI1\nI2\nI3\nI4\nI5\nI6\nI7\nI8\nI9\nI10\n" TENSOR "e.", "items.11"},
        {"cmy\nC\n(I1\ntRS'x'\n" TENSOR "s.", "dict.x"},
    };
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        opened o;
        open_pickle(&o, named[i].pickle, 0);
        if (o.status != TSR_OK) fail_msg("row %zu: %s", i, o.err.message);
        const tsr_value *v = o.catalog->entries[0].value;
        while (v->kind != TSR_VALUE_TENSOR) v = v->items[v->count - 1];
        if (!tsr_str_equal(v->as.tensor->fqn, tsr_str_from(named[i].name)))
            fail_msg("row %zu: '%.*s'", i, TSR_STR_ARG(v->as.tensor->fqn));
        drop(&o);
    }
    static const char *const forms[] = {"cmy\nC\n)\x81(dS'%s'\n" TENSOR "sb.", "cmy\nC\n)\x81(dS'%.1000s'\n(dS'%.1000s'\n(d"
                                                                               "S'x'\n" TENSOR "sssb."};
    for (size_t i = 0; i < 2; i++) {
        opened o;
        snprintf(pickle, sizeof pickle, forms[i], key, key);
        open_pickle(&o, pickle, 0);
        const tsr_value *v = o.catalog->entries[0].value;
        while (v->kind != TSR_VALUE_TENSOR) v = v->items[v->count - 1];
        assert_int_equal(v->as.tensor->fqn.size, 0);
        drop(&o);
    }
}

/* More of everything than the tables have room for at first. */
static void test_formats_torch_flatten__failing_allocations_and_reads_end_cleanly(void **state)
{
    (void)state;
    static char pickle[1 << 14];
    size_t used = (size_t)snprintf(pickle, sizeof pickle, "(d");
    for (int i = 0; i < 20; i++)
        used += (size_t)snprintf(
            pickle + used, sizeof pickle - used,
            "S'k%d'\n(l(lI1\naactorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\nFloatStorage\nS'%d'\nS'meta'\nI2\n"
            "tQI0\n(I2\nt(I1\ntI00\nccollections\nOrderedDict\n)RtRas",
            i, i + 1);
    used += (size_t)snprintf(pickle + used, sizeof pickle - used, "S'm'\n" MODULE("my\nNet", "", "", "", "S'a'\na") "s.");
    assert_true(used < sizeof pickle - 1);
    const char *pickles[] = {pickle, "(dS'a.b'\nI1\nsS'a'\n(dS'b'\nI2\nss."};
    for (size_t i = 0; i < 2; i++) {
        opened o;
        open_pickle(&o, pickles[i], 0);
        assert_int_equal(must_bear_failures(open_and_walk, NULL, o.store, &o.host), i == 0 ? TSR_OK : TSR_E_FORMAT);
        drop(&o);
    }
}

static void test_formats_torch_flatten__entries_and_depth_are_bounded_by_limits(void **state)
{
    (void)state;
    opened o;
    open_pickle(&o, "(dS'a'\nI1\nsS'b'\n(dS'c'\nI2\nss.", 0);
    tsr_checkpoint *checkpoint;
    tsr_error err = {0};
    tsr_host host = o.host;
    host.limits.entries = 1;
    assert_int_equal(tsr_checkpoint_open(o.store, &host, NULL, &checkpoint, &err), TSR_E_LIMIT);
    assert_non_null(strstr(err.message, "more than 1 entries"));
    drop(&o);
}

static void test_formats_torch_flatten__a_modules_names_are_one_key(void **state)
{
    (void)state;
    opened o;
    open_pickle(
        &o, "(dS'm'\n" MODULE("my\nNet", "", "", "S'sub'\n" MODULE("my\nSub", "S'w'\n" TENSOR "s", "", "", "") "s", "") "s.",
        0);
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
        {"(dS'a.b'\nI1\nsS'a'\n(dS'b'\nI2\nss.", "the paths [a.b] and [a][b] both result in the name 'a.b'"},
        {"(dS'7'\nI1\nsI7\nI2\ns.", "the paths [7] and [7] both result in the name '7'"},
        {"(dS'a'\nI1\nsS'a'\nI2\ns.", "both result in the name 'a'"},
    };
    for (size_t i = 0; i < sizeof twins / sizeof twins[0]; i++) {
        opened o;
        open_pickle(&o, twins[i].pickle, 0);
        assert_int_equal(o.status, TSR_E_FORMAT);
        if (!strstr(o.err.message, twins[i].message)) fail_msg("%s", o.err.message);
        drop(&o);
    }
}

/* {"a": X, "b": X}, where X has the same form, nested 40 deep: 2^40 names from 600 bytes. */
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
        assert_non_null(strstr(o.err.message, "expand"));
        drop(&o);
    }
}

/* {"b": 1, "a": {"b": 1, "a": …}}: the length of a name grows with its depth. */
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

/* Nested lists: each is searched once, and a list that only contains lists is a leaf. */
static void test_formats_torch_flatten__shared_lists_are_looked_through_once(void **state)
{
    (void)state;
    static char pickle[4096];
    opened o;
    size_t used = (size_t)snprintf(pickle, sizeof pickle, "(lI1\nap0\n0");
    for (int i = 0; i < 60; i++)
        used += (size_t)snprintf(pickle + used, sizeof pickle - used, "(lg%d\nag%d\nap%d\n0", i, i, i + 1);
    snprintf(pickle + used, sizeof pickle - used, "(dS'x'\ng60\ns.");
    open_pickle(&o, pickle, 10000);
    assert_int_equal(o.status, TSR_OK);
    assert_int_equal(o.catalog->entry_count, 1);
    drop(&o);
    open_pickle(&o, "(lp0\ng0\naI1\na.", 10000); /* a list that contains itself */
    assert_int_equal(o.status, TSR_OK);
    drop(&o);
    open_pickle(&o, "(dp0\nS'a'\ng0\ns.", 10000); /* a mapping that contains itself */
    assert_int_equal(o.status, TSR_E_LIMIT);
    drop(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_torch_flatten__names_are_those_of_flatten_state_dict),
        cmocka_unit_test(test_formats_torch_flatten__roots_keys_and_modules),
        cmocka_unit_test(test_formats_torch_flatten__leaves_say_their_type_dtype_and_shape),
        cmocka_unit_test(test_formats_torch_flatten__tensors_inside_objects_are_named),
        cmocka_unit_test(test_formats_torch_flatten__failing_allocations_and_reads_end_cleanly),
        cmocka_unit_test(test_formats_torch_flatten__entries_and_depth_are_bounded_by_limits),
        cmocka_unit_test(test_formats_torch_flatten__a_modules_names_are_one_key),
        cmocka_unit_test(test_formats_torch_flatten__colliding_names_are_refused_with_both_paths),
        cmocka_unit_test(test_formats_torch_flatten__what_stands_for_too_much_is_refused),
        cmocka_unit_test(test_formats_torch_flatten__names_that_grow_with_depth_are_bounded),
        cmocka_unit_test(test_formats_torch_flatten__shared_lists_are_looked_through_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
