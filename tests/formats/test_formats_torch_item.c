/* Malicious and odd pickles in torch.save archives. The pickles are written in protocol 0, which is text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "support/torch_opening.h"

#define STORAGE_OF(class_name, key, numel) "(S'storage'\n" class_name "S'" key "'\nS'cpu'\nI" numel "\ntQ"
#define FLOATS(numel)                      STORAGE_OF("ctorch\nFloatStorage\n", "0", numel)
#define FLOATS_VIEW(view)                  "(S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\nI6\n(" view "ttQ"
#define TUPLE2(a, b)                       "(I" a "\nI" b "\nt"
#define V2_OPEN                            "ctorch._utils\n_rebuild_tensor_v2\n("
#define HOOKS                              "I00\nccollections\nOrderedDict\n)R"
#define V2(storage, offset, size, stride)  V2_OPEN storage "I" offset "\n" size stride HOOKS "tR"
#define GOOD                               V2(FLOATS("6"), "0", TUPLE2("2", "3"), TUPLE2("3", "1"))

static zip_image image;

static void make_image(const char *pickle, size_t storage_bytes, const char *byteorder)
{
    static const char zeros[256];
    zip_start(&image, 0);
    zip_add(&image, "a/data.pkl", pickle, strlen(pickle), ZIP_DESCRIPTOR);
    if (byteorder) zip_add(&image, "a/byteorder", byteorder, strlen(byteorder), ZIP_DESCRIPTOR);
    if (storage_bytes != SIZE_MAX) zip_add(&image, "a/data/0", zeros, storage_bytes, ZIP_DESCRIPTOR);
    zip_add(&image, "a/version", "3\n", 2, ZIP_DESCRIPTOR);
    zip_finish(&image, true);
}

static void open_pickle(torch_opening *o, const char *pickle)
{
    make_image(pickle, 24, NULL);
    torch_open(o, &image, NULL);
    if (o->status != TSR_OK) fail_msg("%s", o->err.message);
}

/* ---- rejected ---- */

static const struct refusal {
    const char *pickle;
    size_t storage_bytes;
    tsr_status status;
    const char *message;
} refusals[] = {
    {GOOD ".", 24, TSR_OK, ""},
    {GOOD ".", 20, TSR_E_FORMAT, "storage '0' has 24 bytes, but its member 'data/0' has 20"},
    {GOOD ".", 28, TSR_E_FORMAT, "storage '0' has 24 bytes, but its member 'data/0' has 28"},
    {GOOD ".", SIZE_MAX, TSR_E_FORMAT, "the archive has no 'data/0'"},
    {V2(FLOATS("6"), "1", TUPLE2("2", "3"), TUPLE2("3", "1")) ".", 24, TSR_E_FORMAT,
     "reaches beyond its storage '0' (24 bytes)"},
    {V2(FLOATS("6"), "0", TUPLE2("2", "3"), TUPLE2("4", "1")) ".", 24, TSR_E_FORMAT, "reaches beyond its storage"},
    {V2(FLOATS("6"), "0", TUPLE2("2", "3"), TUPLE2("3", "2")) ".", 24, TSR_E_FORMAT, "reaches beyond its storage"},
    {V2(FLOATS("6"), "-1", TUPLE2("2", "3"), TUPLE2("3", "1")) ".", 24, TSR_E_FORMAT, "at element -1"},
    {V2(FLOATS("6"), "9223372036854775807", TUPLE2("2", "3"), TUPLE2("3", "1")) ".", 24, TSR_E_FORMAT, "reaches beyond"},
    {V2(FLOATS("6"), "0", TUPLE2("-2", "3"), TUPLE2("3", "1")) ".", 24, TSR_E_FORMAT, "non-negative integers"},
    {V2(FLOATS("6"), "0", TUPLE2("2", "3"), TUPLE2("-3", "1")) ".", 24, TSR_E_FORMAT, "non-negative integers"},
    {V2(FLOATS("6"), "0", TUPLE2("4294967296", "4294967296"), TUPLE2("0", "0")) ".", 24, TSR_E_FORMAT, "reaches beyond"},
    {V2(FLOATS("6"), "0", TUPLE2("9223372036854775807", "1"), TUPLE2("9223372036854775807", "1")) ".", 24, TSR_E_FORMAT,
     "reaches beyond"},
    {V2(FLOATS("6"), "0", TUPLE2("2", "3"), "(I1\nt") ".", 24, TSR_E_FORMAT, "1 strides for 2 dimensions"},
    {V2(FLOATS("6"), "0", "(S'x'\nt", "(I1\nt") ".", 24, TSR_E_FORMAT, "non-negative integers"},
    {V2(FLOATS("6"), "0", "I2\n", "(I1\nt") ".", 24, TSR_E_FORMAT, "not a list of at most 64 integers"},
    {V2(FLOATS("-6"), "0", TUPLE2("2", "3"), TUPLE2("3", "1")) ".", 24, TSR_E_FORMAT, "impossible number of elements (-6)"},
    {V2(FLOATS("9223372036854775807"), "0", TUPLE2("2", "3"), TUPLE2("3", "1")) ".", 24, TSR_E_FORMAT,
     "impossible number of elements"},
    {V2(STORAGE_OF("ctorch\nFooStorage\n", "0", "6"), "0", TUPLE2("2", "3"), TUPLE2("3", "1")) ".", 24, TSR_E_UNSUPPORTED,
     "unknown storage class 'torch.FooStorage'"},
    {V2(STORAGE_OF("cos\nFloatStorage\n", "0", "6"), "0", TUPLE2("2", "3"), TUPLE2("3", "1")) ".", 24, TSR_E_UNSUPPORTED,
     "unknown storage class 'os.FloatStorage'"},
    {V2("(S'storage'\nctorch\nFloatStorage\nS'0'\ntQ", "0", TUPLE2("2", "3"), TUPLE2("3", "1")) ".", 24, TSR_E_FORMAT,
     "not a persistent id of five or six parts"},
    {V2("S'0'\n", "0", TUPLE2("2", "3"), TUPLE2("3", "1")) ".", 24, TSR_E_FORMAT, "not a persistent id"},
    {"ctorch._utils\n_rebuild_tensor_v2\n(" FLOATS("6") "tR.", 24, TSR_E_FORMAT,
     "too few arguments to rebuild a tensor (1)"},
    {"ctorch._utils\n_rebuild_tensor_v2\n)R.", 24, TSR_E_FORMAT, "too few arguments"},
    {"ctorch._utils\n_rebuild_tensor_v3\n(" FLOATS("6") "I0\n" TUPLE2("2", "3") TUPLE2("3", "1") HOOKS "ctorch\nfoo\ntR.",
     24, TSR_E_UNSUPPORTED, "unknown dtype"},
    {"ctorch._utils\n_rebuild_tensor_v3\n(" FLOATS("6") "I0\n" TUPLE2("2", "3") TUPLE2("3", "1") HOOKS "I1\ntR.", 24,
     TSR_E_UNSUPPORTED, "unknown dtype"},
    {"ctorch._utils\n_rebuild_tensor_v3\n(" FLOATS("6") "I0\n" TUPLE2("2", "3") TUPLE2("3", "1") HOOKS
     "ctorch\nfloat6_e2m3\ntR.",
     24, TSR_E_UNSUPPORTED, "unknown dtype"},
    {V2(STORAGE_OF("I7\n", "0", "6"), "0", TUPLE2("2", "3"), TUPLE2("3", "1")) ".", 24, TSR_E_UNSUPPORTED,
     "unknown storage class '.'"},
    {V2("(S'file'\nctorch\nFloatStorage\nS'0'\nS'cpu'\nI6\ntQ", "0", TUPLE2("2", "3"), TUPLE2("3", "1")) ".", 24,
     TSR_E_FORMAT, "not a persistent id"},
    {V2("(S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\nS'6'\ntQ", "0", TUPLE2("2", "3"), TUPLE2("3", "1")) ".", 24,
     TSR_E_FORMAT, "impossible number of elements (0)"},
    {V2(FLOATS("6"), "4611686018427387903", TUPLE2("2", "3"), TUPLE2("3", "1")) ".", 24, TSR_E_FORMAT, "reaches beyond"},
    {V2(FLOATS("6"), "0", TUPLE2("4", "1"), TUPLE2("9223372036854775807", "1")) ".", 24, TSR_E_FORMAT, "reaches beyond"},
    {V2(FLOATS("6"), "0", TUPLE2("3", "3"), TUPLE2("9223372036854775807", "9223372036854775807")) ".", 24, TSR_E_FORMAT,
     "reaches beyond"},
    {V2(FLOATS("6"), "0", TUPLE2("3", "2"), TUPLE2("9223372036854775807", "1")) ".", 24, TSR_E_FORMAT, "reaches beyond"},
    {V2(FLOATS("6"), "0", TUPLE2("2", "1"), TUPLE2("9223372036854775807", "1")) ".", 24, TSR_E_FORMAT, "reaches beyond"},
    {V2(FLOATS("6"), "0", TUPLE2("9223372036854775807", "0"), TUPLE2("9223372036854775807", "1")) ".", 24, TSR_OK, ""},
    {V2(FLOATS("6"), "0", "(lI2\naI3\na", "(lI3\naI1\na") ".", 24, TSR_OK, ""},
    /* views of storages, from before PyTorch 0.4: (key, offset, size) */
    {V2(FLOATS_VIEW("S'v'\nI1\nI2\n"), "0", "(I2\nt", "(I1\nt") ".", 24, TSR_OK, ""},
    {V2(FLOATS_VIEW("S'v'\nI1\nI2\n"), "0", "(I3\nt", "(I1\nt") ".", 24, TSR_E_FORMAT,
     "reaches beyond its storage '0' (8 bytes)"},
    {V2(FLOATS_VIEW("S'v'\nI1\n"), "0", "(I2\nt", "(I1\nt") ".", 24, TSR_E_FORMAT, "a view of a storage reaches beyond it"},
    {V2(FLOATS_VIEW("S'v'\nI-1\nI2\n"), "0", "(I2\nt", "(I1\nt") ".", 24, TSR_E_FORMAT,
     "a view of a storage reaches beyond it"},
    {V2(FLOATS_VIEW("S'v'\nI1\nI-2\n"), "0", "(I2\nt", "(I1\nt") ".", 24, TSR_E_FORMAT,
     "a view of a storage reaches beyond it"},
    {V2(FLOATS_VIEW("S'v'\nI4611686018427387904\nI2\n"), "0", "(I2\nt", "(I1\nt") ".", 24, TSR_E_FORMAT,
     "reaches beyond it"},
    {V2(FLOATS_VIEW("S'v'\nI1\nI4611686018427387904\n"), "0", "(I2\nt", "(I1\nt") ".", 24, TSR_E_FORMAT,
     "reaches beyond it"},
    {V2(FLOATS_VIEW("S'v'\nI4611686018427387903\nI1\n"), "0", "(I2\nt", "(I1\nt") ".", 24, TSR_E_FORMAT,
     "reaches beyond it"},
    {V2(FLOATS_VIEW("S'v'\nI5\nI2\n"), "0", "(I2\nt", "(I1\nt") ".", 24, TSR_E_FORMAT,
     "a view of a storage reaches beyond it"},
    {FLOATS_VIEW("S'v'\nI5\nI2\n") ".", 24, TSR_E_FORMAT, "a view of a storage reaches beyond it"},
    {"(" GOOD V2(FLOATS("5"), "0", TUPLE2("2", "2"), TUPLE2("2", "1")) "t.", 24, TSR_E_FORMAT, "24 bytes in another"},
    {"(I1\n", 24, TSR_E_FORMAT, "in a/data.pkl"},
};

static void test_formats_torch_item__tensors_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *r = &refusals[i];
        torch_opening o;
        make_image(r->pickle, r->storage_bytes, NULL);
        torch_open(&o, &image, NULL);
        bool placed = r->status == TSR_OK || (o.err.byte_position != TSR_NO_POSITION && o.err.byte_position <= image.size);
        if (o.status != r->status || !strstr(o.err.message, r->message) || !placed)
            fail_msg("row %zu: status %d at %llu: %s", i, (int)o.status, (unsigned long long)o.err.byte_position,
                     o.err.message);
        torch_opening_drop(&o);
    }
}

static void test_formats_torch_item__archives_without_a_pickle_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *member;
        tsr_status status;
        const char *message;
    } rows[] = {{"a/other", TSR_E_FORMAT, "without a member <directory>/data.pkl"},
                {"a/constants.pkl", TSR_E_UNSUPPORTED, "TorchScript"}};
    for (size_t i = 0; i < 2; i++) {
        torch_opening o;
        zip_start(&image, 0);
        zip_add(&image, rows[i].member, "N.", 2, ZIP_PLAIN);
        zip_finish(&image, false);
        torch_open(&o, &image, NULL);
        assert_int_equal(o.status, rows[i].status);
        assert_non_null(strstr(o.err.message, rows[i].message));
        torch_opening_drop(&o);
    }
}

static void test_formats_torch_item__byteorder_is_little_big_or_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        tsr_status status;
        bool swap;
    } rows[] = {{NULL, TSR_OK, false},           {"little", TSR_OK, false},        {"big", TSR_OK, true},
                {"", TSR_E_FORMAT, false},       {"bag", TSR_E_FORMAT, false},     {"bigger", TSR_E_FORMAT, false},
                {"middle", TSR_E_FORMAT, false}, {"littlest", TSR_E_FORMAT, false}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        torch_opening o;
        make_image(GOOD ".", 24, rows[i].text);
        torch_open(&o, &image, NULL);
        assert_int_equal(o.status, rows[i].status);
        if (o.status == TSR_OK) {
            const tsr_chunk *chunk = o.item.root->as.tensor->chunks;
            assert_int_equal(chunk->view && chunk->view->swap, rows[i].swap);
            assert_int_equal(chunk->byte_offset, image.member[image.count - 2].data);
        }
        torch_opening_drop(&o);
    }
}

static const tsr_view *only_view(const torch_opening *o)
{
    assert_int_equal(o->item.root->kind, TSR_VALUE_TENSOR);
    assert_non_null(o->item.root->as.tensor->chunks[0].view);
    return o->item.root->as.tensor->chunks[0].view;
}

static void test_formats_torch_item__views_say_how_elements_lie(void **state)
{
    (void)state;
    static const struct {
        const char *pickle, *byteorder;
        bool strides, conj, neg, swap;
    } rows[] = {
        {V2(FLOATS("6"), "0", TUPLE2("3", "2"), TUPLE2("1", "3")) ".", NULL, true, false, false, false},
        {V2(FLOATS("6"), "0", TUPLE2("3", "2"), TUPLE2("1", "3")) ".", "big", true, false, false, true},
        {V2_OPEN FLOATS("6") "I0\n" TUPLE2("2", "3") TUPLE2("3", "1") HOOKS "(dS'neg'\nI01\nstR.", NULL, false, false, true,
         false},
        {V2_OPEN STORAGE_OF("ctorch\nComplexFloatStorage\n", "0", "3") "I0\n(I3\nt(I1\nt" HOOKS "(dS'conj'\nI01\nstR.", NULL,
         false, true, false, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        torch_opening o;
        make_image(rows[i].pickle, 24, rows[i].byteorder);
        torch_open(&o, &image, NULL);
        if (o.status != TSR_OK) fail_msg("row %zu: %s", i, o.err.message);
        const tsr_view *view = only_view(&o);
        if ((view->strides != NULL) != rows[i].strides || view->conj != rows[i].conj || view->neg != rows[i].neg ||
            view->swap != rows[i].swap)
            fail_msg("row %zu: strides %d conj %d neg %d swap %d", i, view->strides != NULL, view->conj, view->neg,
                     view->swap);
        assert_int_equal(view->byte_offset, image.member[image.count - 2].data);
        torch_opening_drop(&o);
    }
}

static void test_formats_torch_item__the_pickle_is_bounded_by_limits(void **state)
{
    (void)state;
    torch_opening o;
    static char pickle[8192];
    memset(pickle, 'N', sizeof pickle - 2); /* longer than the archive's directory */
    pickle[0] = '(';
    memcpy(pickle + sizeof pickle - 3, "t.", 3);
    make_image(pickle, SIZE_MAX, NULL);
    torch_open(&o, &image, NULL);
    assert_int_equal(o.status, TSR_OK);
    o.host.limits.metadata_bytes = 4096;
    assert_int_equal(tsr_torch_item_open(&(tsr_torch_source){.range = {o.store, 0, 0, image.size}}, &o.host, o.arena, NULL,
                                         &o.item, &o.err),
                     TSR_E_LIMIT);
    assert_int_equal(o.err.byte_position, image.member[0].data);
    assert_non_null(strstr(o.err.message, "exceed the limit of 4096 (metadata_bytes)"));
    torch_opening_drop(&o);
}

/* ---- findings ---- */

static const struct report {
    const char *pickle;
    const char *rule; /* rule of the only finding; NULL for no finding */
    tsr_level level;
    const char *message;
} reports[] = {
    {GOOD ".", NULL, TSR_NOTE, ""},
    {"cposix\nsystem\n(S'exit 0'\ntR.", "pickle/unlisted-call", TSR_ERROR, "would call posix.system"},
    {"(S'exit 0'\nios\nsystem\n.", "pickle/unlisted-call", TSR_ERROR, "would call os.system"},
    {"c__builtin__\neval\n(S'1'\ntR.", "pickle/unlisted-call", TSR_ERROR, "would call builtins.eval"},
    {"c__builtin__\ngetattr\n(cos\npath\nS'join'\ntR.", "pickle/unlisted-call", TSR_ERROR, "would call builtins.getattr"},
    {"ctorch._tensor\n_rebuild_from_type_v2\n(cposix\nsystem\nctorch\nTensor\n(S'exit 0'\ntNtR.", "pickle/unlisted-call",
     TSR_ERROR, "would call posix.system"},
    {"ctorch\nfloat32\n)R.", "pickle/unlisted-call", TSR_ERROR, "would call torch.float32"},
    {"cmy\nConfig\n)\x81.", "pickle/unlisted-class", TSR_WARNING, "contains objects of my.Config"},
    {"cmy\nConfig\n.", "pickle/unlisted-class", TSR_NOTE, "names my.Config"},
    {"ctorch\nfloat32\n.", NULL, TSR_NOTE, ""},
    {"ctorch\nFloatStorage\n.", NULL, TSR_NOTE, ""},
};

static bool has_finding(const torch_opening *o, const struct report *r)
{
    for (size_t i = 0; i < tsr_findings_count(o->findings); i++) {
        const tsr_finding *f = tsr_findings_at(o->findings, i);
        char message[512];
        snprintf(message, sizeof message, "%.*s", TSR_STR_ARG(f->message));
        if (strcmp(f->rule->id, r->rule) == 0 && f->level == r->level && strstr(message, r->message) &&
            tsr_str_equal(f->file, TSR_STR("x.pt")) && f->byte_offset < image.size)
            return true;
    }
    return false;
}

static void test_formats_torch_item__what_is_not_listed_is_reported_and_never_run(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof reports / sizeof reports[0]; i++) {
        torch_opening o;
        open_pickle(&o, reports[i].pickle);
        bool right = reports[i].rule ? has_finding(&o, &reports[i]) : tsr_findings_count(o.findings) == 0;
        if (!right) fail_msg("row %zu: %zu findings", i, tsr_findings_count(o.findings));
        torch_opening_drop(&o);
    }
}

/* ---- values ---- */

static void test_formats_torch_item__an_unlisted_object_keeps_class_arguments_and_state(void **state)
{
    (void)state;
    torch_opening o;
    open_pickle(&o, "cmy\nConfig\n(I7\ntR(dS'a'\nI1\nsb.");
    const tsr_value *v = o.item.root;
    assert_int_equal(v->kind, TSR_VALUE_OBJECT);
    assert_true(tsr_str_equal(v->text, TSR_STR("my.Config")));
    assert_int_equal(v->count, 2);
    assert_int_equal(v->items[0]->items[0]->as.integer, 7);
    assert_int_equal(tsr_value_get(v->items[1], TSR_STR("a"))->as.integer, 1);
    torch_opening_drop(&o);
}

static void test_formats_torch_item__mappings_take_pairs_from_arguments_and_items(void **state)
{
    (void)state;
    static const char *const pickles[] = {
        "ccollections\nOrderedDict\n((lp0\n(S'a'\nI1\ntatRS'b'\nI2\ns.",
        "ccollections\nCounter\n((dS'a'\nI1\nstRS'b'\nI2\ns.",
        "ccollections\ndefaultdict\n(c__builtin__\nlist\ntRS'a'\nI1\nsS'b'\nI2\ns.",
    };
    for (size_t i = 0; i < 3; i++) {
        torch_opening o;
        open_pickle(&o, pickles[i]);
        assert_int_equal(o.item.root->kind, TSR_VALUE_DICT);
        assert_int_equal(o.item.root->ordered_dict, i == 0);
        assert_int_equal(tsr_value_pairs(o.item.root), 2);
        assert_int_equal(tsr_value_get(o.item.root, TSR_STR("a"))->as.integer, 1);
        assert_int_equal(tsr_value_get(o.item.root, TSR_STR("b"))->as.integer, 2);
        torch_opening_drop(&o);
    }
}

static void test_formats_torch_item__old_tensors_take_their_state(void **state)
{
    (void)state;
    torch_opening o;
    open_pickle(&o, "ctorch\nFloatTensor\n)R(" FLOATS("6") "I2\n(I4\nt(I1\nttb.");
    assert_int_equal(o.item.root->kind, TSR_VALUE_TENSOR);
    assert_int_equal(o.item.root->as.tensor->shape[0], 4);
    assert_int_equal(o.item.root->as.tensor->chunks[0].byte_offset, image.member[1].data + 8);
    torch_opening_drop(&o);
}

static void test_formats_torch_item__values_that_hold_themselves_end(void **state)
{
    (void)state;
    torch_opening o;
    open_pickle(&o, "(lp0\ng0\na.");
    assert_ptr_equal(o.item.root->items[0], o.item.root);
    torch_opening_drop(&o);
    open_pickle(&o, "ctorch._utils\n_rebuild_parameter\np0\n(g0\nI01\nNtR.");
    assert_int_equal(o.item.root->kind, TSR_VALUE_GLOBAL); /* a parameter without a tensor: its data is shown */
    torch_opening_drop(&o);
}

static void test_formats_torch_item__nesting_is_bounded_by_limits(void **state)
{
    (void)state;
    torch_opening o;
    open_pickle(&o, "(((I1\nttt.");
    o.host.limits.depth = 2;
    assert_int_equal(tsr_torch_item_open(&(tsr_torch_source){.range = {o.store, 0, 0, image.size}}, &o.host, o.arena, NULL,
                                         &o.item, &o.err),
                     TSR_E_LIMIT);
    torch_opening_drop(&o);
}

/* A list with n items, and n objects that refer to it: n² items from 14 n bytes. */
static void test_formats_torch_item__objects_of_one_list_are_bounded_by_the_pickle(void **state)
{
    (void)state;
    static char pickle[1 << 17];
    static const struct {
        const char *item, *open, *close; /* an object is `open`, the list, and `close` */
    } kinds[] = {
        {"I1\n", "c__builtin__\nset\n(", "tR"},
        {"(I1\nI1\nt", "ccollections\nOrderedDict\n(", "tR"},
        {"N",
         "ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_wrapper_subclass\nctorch.distributed._shard."
         "sharded_tensor.api\n"
         "ShardedTensor\n(t(",
         "NNNttR"},
    };
    static const struct {
        int n;
        tsr_status status;
    } rows[] = {{4, TSR_OK}, {300, TSR_E_LIMIT}};
    for (size_t k = 0; k < 6; k++) {
        torch_opening o;
        const int n = rows[k / 3].n;
        size_t used = (size_t)snprintf(pickle, sizeof pickle, "(l");
        for (int i = 0; i < n; i++) used += (size_t)snprintf(pickle + used, sizeof pickle - used, "%sa", kinds[k % 3].item);
        used += (size_t)snprintf(pickle + used, sizeof pickle - used, "p0\n0(");
        for (int i = 0; i < n; i++)
            used += (size_t)snprintf(pickle + used, sizeof pickle - used, "%sg0\n%s", kinds[k % 3].open, kinds[k % 3].close);
        assert_true(used + 3 < sizeof pickle);
        snprintf(pickle + used, sizeof pickle - used, "t.");
        make_image(pickle, SIZE_MAX, NULL);
        torch_open(&o, &image, NULL);
        if (o.status != rows[k / 3].status) fail_msg("%d of kind %zu: %s", n, k % 3, o.err.message);
        torch_opening_drop(&o);
    }
}

static void test_formats_torch_item__without_findings_nothing_is_reported(void **state)
{
    (void)state;
    torch_opening o;
    open_pickle(&o, "cposix\nsystem\n(S'exit 0'\ntR.");
    assert_int_equal(tsr_torch_item_open(&(tsr_torch_source){.range = {o.store, 0, 0, image.size}}, &o.host, o.arena, NULL,
                                         &o.item, &o.err),
                     TSR_OK);
    torch_opening_drop(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_torch_item__tensors_that_do_not_fit_are_refused),
        cmocka_unit_test(test_formats_torch_item__archives_without_a_pickle_are_refused_by_name),
        cmocka_unit_test(test_formats_torch_item__byteorder_is_little_big_or_refused),
        cmocka_unit_test(test_formats_torch_item__views_say_how_elements_lie),
        cmocka_unit_test(test_formats_torch_item__the_pickle_is_bounded_by_limits),
        cmocka_unit_test(test_formats_torch_item__what_is_not_listed_is_reported_and_never_run),
        cmocka_unit_test(test_formats_torch_item__an_unlisted_object_keeps_class_arguments_and_state),
        cmocka_unit_test(test_formats_torch_item__mappings_take_pairs_from_arguments_and_items),
        cmocka_unit_test(test_formats_torch_item__old_tensors_take_their_state),
        cmocka_unit_test(test_formats_torch_item__values_that_hold_themselves_end),
        cmocka_unit_test(test_formats_torch_item__nesting_is_bounded_by_limits),
        cmocka_unit_test(test_formats_torch_item__objects_of_one_list_are_bounded_by_the_pickle),
        cmocka_unit_test(test_formats_torch_item__without_findings_nothing_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
