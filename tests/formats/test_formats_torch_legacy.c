/* The format of torch.save before zip, built part by part. Files in it that PyTorch wrote are in test_formats_torch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/checkpoint_opening.h"
#include "support/torch_pickle.h"
#include "tessera/checkpoint.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"

static zip_image image; /* used as a byte buffer; there is no zip archive here */

#define MAGIC              "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
#define VERSION            "\x80\x02M\xe9\x03."
#define STORAGE(key, view) "(S'storage'\nctorch\nFloatStorage\nS'" key "'\nS'cpu'\nI6\n" view "tQ"
#define TENSOR(key, view, offset, size, stride) \
    "ctorch._utils\n_rebuild_tensor_v2\n(" STORAGE(key, view) "I" offset "\n" size stride \
                                                              "I00\nccollections\nOrderedDict\n)RtR"
#define GOOD TENSOR("k", "N", "0", PICKLED_2("2", "3"), PICKLED_2("3", "1")) "."

typedef struct legacy {
    const char *version;
    const char *object;
    const char *keys;
    uint64_t elements[2]; /* the count stored before each storage */
    size_t storage_count;
    size_t storage_bytes;
} legacy;

typedef struct opened {
    tsr_host host;
    tsr_store *store;
    tsr_checkpoint *checkpoint;
    tsr_error err;
    tsr_status status;
    size_t data; /* where the first storage begins */
} opened;

static void open_legacy(opened *o, const legacy *l)
{
    static const char zeros[64];
    zip_start(&image, 0);
    zip_put_bytes(&image, MAGIC, sizeof MAGIC - 1);
    zip_put_bytes(&image, l->version, strlen(l->version));
    zip_put_bytes(&image, "\x80\x02}.", 4);
    zip_put_bytes(&image, l->object, strlen(l->object));
    zip_put_bytes(&image, l->keys, strlen(l->keys));
    *o = (opened){.host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()}, .data = image.size + 8};
    for (size_t i = 0; i < l->storage_count; i++) {
        zip_put(&image, 8, l->elements[i]);
        zip_put_bytes(&image, zeros, l->storage_bytes);
    }
    tsr_memory_file file = {TSR_STR("x.pt"), {(const char *)image.bytes, image.size}};
    assert_int_equal(tsr_store_from_memory(o->host.allocator, &file, 1, &o->store, NULL), TSR_OK);
    o->status = tsr_checkpoint_open(o->store, &o->host, NULL, &o->checkpoint, &o->err);
}

static void drop(opened *o)
{
    tsr_checkpoint_close(o->checkpoint);
    o->store->close(o->store);
}

static const struct row {
    legacy file;
    tsr_status status;
    const char *message;
} rows[] = {
    {{VERSION, GOOD, "(lS'k'\na.", {6}, 1, 24}, TSR_OK, ""},
    {{VERSION, "I1\n.", "(l.", {0}, 0, 0}, TSR_OK, ""},
    {{"\x80\x02M\xea\x03.", GOOD, "(lS'k'\na.", {6}, 1, 24},
     TSR_E_UNSUPPORTED,
     "unknown version 1002 of the legacy format; only 1001 is supported"},
    {{VERSION, GOOD, "(l.", {0}, 0, 0}, TSR_E_FORMAT, "storage 'k' is not in the file"},
    {{VERSION, GOOD, "(lS'k'\naS'j'\na.", {6, 6}, 2, 24},
     TSR_E_FORMAT,
     "storage 1 of the list after the object is not used"},
    {{VERSION, GOOD, "(lS'k'\naS'k'\na.", {6, 6}, 2, 24}, TSR_E_FORMAT, "storage 'k' occurs twice"},
    {{VERSION, GOOD, "(lS'k'\na.", {5}, 1, 20},
     TSR_E_FORMAT,
     "has 24 bytes in the pickle but 5 elements of float32 in the file"},
    {{VERSION, GOOD, "(lS'k'\na.", {UINT64_MAX}, 1, 24}, TSR_E_FORMAT, "in the pickle"},
    {{VERSION, GOOD, "(lS'k'\na.", {6}, 1, 20},
     TSR_E_FORMAT,
     "storage 'k' has 24 bytes, but the file ends after 20 of them"},
    {{VERSION, GOOD, "(lS'k'\na.", {0}, 0, 0}, TSR_E_FORMAT, "the file ends before storage 'k'"},
    {{VERSION, GOOD, "", {0}, 0, 0}, TSR_E_FORMAT, "in x.pt"},
    {{VERSION,
      "ctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\nFloatStorage\nS'k'\nS'meta'\nI6\nNtQI0\n" PICKLED_1("6")
          PICKLED_1("1") "I00\nNtR.",
      "(l.",
      {0},
      0,
      0},
     TSR_OK,
     ""}, /* on the meta device, so it has no bytes */
    {{VERSION, TENSOR("k", "(S'v'\nI4\nI3\nt", "0", PICKLED_1("1"), PICKLED_1("1")) ".", "(lS'k'\na.", {6}, 1, 24},
     TSR_E_FORMAT,
     "a view of a storage reaches beyond it"},
    {{VERSION, TENSOR("k", "(S'v'\nI-1\nI3\nt", "0", PICKLED_1("1"), PICKLED_1("1")) ".", "(lS'k'\na.", {6}, 1, 24},
     TSR_E_FORMAT,
     "a view of a storage reaches beyond it"},
    {{VERSION, TENSOR("k", "(S'v'\nI4\nI2\nt", "1", PICKLED_1("2"), PICKLED_1("1")) ".", "(lS'k'\na.", {6}, 1, 24},
     TSR_E_FORMAT,
     "reaches beyond its storage 'k' (8 bytes)"},
};

static void test_formats_torch_legacy__parts_that_disagree_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        opened o;
        open_legacy(&o, &rows[i].file);
        if (o.status != rows[i].status || !strstr(o.err.message, rows[i].message))
            fail_msg("row %zu: status %d: %s", i, (int)o.status, o.err.message);
        assert_int_equal(must_bear_failures(open_and_walk, NULL, o.store, &o.host), o.status);
        drop(&o);
    }
}

static void test_formats_torch_legacy__views_of_storages_shift_the_tensor(void **state)
{
    (void)state;
    static const legacy file = {
        VERSION, TENSOR("k", "(S'v'\nI2\nI4\nt", "1", PICKLED_1("3"), PICKLED_1("1")) ".", "(lS'k'\na.", {6}, 1, 24};
    opened o;
    open_legacy(&o, &file);
    assert_int_equal(o.status, TSR_OK);
    const tsr_entry *entry = tsr_checkpoint_entry(o.checkpoint, TSR_STR(""));
    assert_int_equal(entry->chunks[0].byte_offset, o.data + (2 + 1) * 4);
    assert_int_equal(entry->chunks[0].byte_length, 12);
    drop(&o);
}

static void test_formats_torch_legacy__classes_of_modules_stand_for_themselves(void **state)
{
    (void)state;
    static const legacy file = {
        VERSION, "(S'module'\ncmy\nNet\nS'net.py'\nS'class Net: pass'\ntQ)\x81(dS'a'\nI1\nsb.", "(l.", {0}, 0, 0};
    opened o;
    open_legacy(&o, &file);
    if (o.status != TSR_OK) fail_msg("%s", o.err.message);
    const tsr_entry *entry = tsr_checkpoint_entry(o.checkpoint, TSR_STR(""));
    assert_int_equal(entry->kind, TSR_ENTRY_OPAQUE);
    assert_true(tsr_str_equal(entry->type, TSR_STR("my.Net")));
    drop(&o);
}

/* Pickles longer than the first read: the beginning of the file is read again, with a larger size. */
static void test_formats_torch_legacy__long_pickles_are_read_whole(void **state)
{
    (void)state;
    enum { LONG = 200 * 1024 };
    static char object[LONG + 64];
    legacy file = {VERSION, object, "(l.", {0}, 0, 0};
    opened o;
    memcpy(object, "(S'", 3);
    memset(object + 3, 'x', LONG);
    memcpy(object + 3 + LONG, "'\nt.", 5);
    open_legacy(&o, &file);
    if (o.status != TSR_OK) fail_msg("%s", o.err.message);
    assert_int_equal(tsr_checkpoint_entry(o.checkpoint, TSR_STR(""))->value->items[0]->text.size, LONG);
    drop(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_torch_legacy__parts_that_disagree_are_refused),
        cmocka_unit_test(test_formats_torch_legacy__views_of_storages_shift_the_tensor),
        cmocka_unit_test(test_formats_torch_legacy__classes_of_modules_stand_for_themselves),
        cmocka_unit_test(test_formats_torch_legacy__long_pickles_are_read_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
