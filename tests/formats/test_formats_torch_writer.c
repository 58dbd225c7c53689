/* Writes value trees with the torch.save writer and reads them back; and values that must not be written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "formats/torch/torch_file.h"
#include "formats/torch/torch_loadable.h"
#include "formats/torch/torch_writer.h"
#include "support/failing_allocator.h"

#include "tessera/sys/catalog.h"
#include "tessera/sys/store.h"

static const tsr_limits limits = {1000, 1000000, 1u << 30, 1u << 30, 1000000, 1u << 30};
static const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = {1000, 1000000, 1u << 30, 1u << 30, 1000000}};

static tsr_value *make(tsr_arena *arena, tsr_value_kind kind, const char *text)
{
    tsr_value *value = tsr_value_new(arena, kind, NULL);
    value->text = tsr_str_from(text);
    return value;
}

static tsr_value *group(tsr_arena *arena, tsr_value_kind kind, size_t count, ...)
{
    const tsr_value **items = tsr_arena_array(arena, count, sizeof *items, NULL);
    va_list args;
    va_start(args, count);
    for (size_t i = 0; i < count; i++) items[i] = va_arg(args, const tsr_value *);
    va_end(args);
    return tsr_value_items(arena, kind, items, count, NULL);
}

static tsr_value *integer(tsr_arena *arena, int64_t value)
{
    return tsr_value_int(arena, value, NULL);
}

/* A value of every kind, some of them twice. */
static const tsr_value *every_kind(tsr_arena *a)
{
    tsr_value *yes = make(a, TSR_VALUE_BOOL, NULL), *real = make(a, TSR_VALUE_FLOAT, NULL),
              *complex = make(a, TSR_VALUE_COMPLEX, NULL);
    tsr_value *dtype = make(a, TSR_VALUE_DTYPE, "torch.bfloat16"), *big = make(a, TSR_VALUE_BIGINT, NULL),
              *bytes = make(a, TSR_VALUE_BYTES, NULL);
    yes->as.boolean = true;
    real->as.real = -0.25;
    complex->as.complex.re = 1;
    complex->as.complex.im = -2;
    dtype->as.dtype = TSR_BFLOAT16;
    big->text = (tsr_str){"\x01\x00\x00\x00\x00\x00\x00\x00\x00\x80", 10};
    bytes->text = (tsr_str){"\x00\xff\n", 3};
    tsr_value *shared = group(a, TSR_VALUE_LIST, 2, make(a, TSR_VALUE_STR, "x"), make(a, TSR_VALUE_NONE, NULL));
    tsr_value *ordered = group(a, TSR_VALUE_DICT, 2, integer(a, 1), integer(a, 2));
    ordered->ordered_dict = true;
    return group(a, TSR_VALUE_DICT, 28, make(a, TSR_VALUE_STR, "bool"), yes, make(a, TSR_VALUE_STR, "float"), real,
                 make(a, TSR_VALUE_STR, "complex"), complex, make(a, TSR_VALUE_STR, "dtype"), dtype,
                 make(a, TSR_VALUE_STR, "big"), big, make(a, TSR_VALUE_STR, "bytes"), bytes, make(a, TSR_VALUE_STR, "list"),
                 shared, make(a, TSR_VALUE_STR, "again"), shared, make(a, TSR_VALUE_STR, "tuple"),
                 group(a, TSR_VALUE_TUPLE, 4, integer(a, 1), integer(a, -1), shared, integer(a, 1 << 20)),
                 make(a, TSR_VALUE_STR, "set"), group(a, TSR_VALUE_SET, 1, integer(a, 7)), make(a, TSR_VALUE_STR, "size"),
                 group(a, TSR_VALUE_SIZE, 2, integer(a, 3), integer(a, 4)), integer(a, -5), ordered,
                 make(a, TSR_VALUE_STR, "device"), make(a, TSR_VALUE_DEVICE, "cuda:1"), make(a, TSR_VALUE_STR, "empty"),
                 group(a, TSR_VALUE_LIST, 0));
}

/* Writes the whole archive of a tree without tensors. */
static tsr_status write_archive(const tsr_value *root, const tsr_host *lent, tsr_vec *out, tsr_error *err)
{
    uint64_t at;
    tsr_torch_archive archive;
    const tsr_torch_tree tree = {.root = root};
    tsr_arena *arena = tsr_arena_new(lent->allocator, 0, err);
    tsr_status status = arena ? tsr_torch_archive_plan(&tree, lent, arena, &archive, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = tsr_torch_archive_piece(&archive, 0, out, &at, err);
    if (status == TSR_OK) assert_int_equal(out->count, archive.size);
    tsr_arena_free(arena);
    return status;
}

static const tsr_value *read_archive(const tsr_vec *bytes, tsr_arena *arena, tsr_store **store)
{
    tsr_torch_item item;
    tsr_error err = {0};
    const tsr_memory_file file = {TSR_STR("a.pt"), {bytes->items, bytes->count}};
    tsr_store_from_memory(&tsr_allocator_libc, &file, 1, store, NULL);
    if (tsr_torch_item_open(&(tsr_torch_source){.range = {*store, 0, 0, bytes->count}}, &host, arena, NULL, &item, &err))
        fail_msg("%s", err.message);
    return item.root;
}

static void test_formats_torch_writer__every_kind_of_value_comes_back(void **state)
{
    (void)state;
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    tsr_vec out = tsr_vec_of(&tsr_allocator_libc, 1);
    tsr_store *store;
    tsr_error err = {0};
    const tsr_value *root = every_kind(arena);
    if (write_archive(root, &host, &out, &err)) fail_msg("%s", err.message);
    const tsr_value *read = read_archive(&out, arena, &store);
    assert_int_equal(read->count, root->count);
    for (size_t i = 0; i < root->count; i++) {
        const bool same = tsr_value_match(root->items[i], read->items[i], limits.depth, limits.expansion) == TSR_SAME;
        if (!same) fail_msg("item %d: kind %d, read as %d", (int)i, (int)root->items[i]->kind, (int)read->items[i]->kind);
    }
    assert_ptr_equal(tsr_value_get(read, TSR_STR("list")), tsr_value_get(read, TSR_STR("again")));
    assert_true(tsr_torch_weights_only(root, &host));
    store->close(store);
    tsr_vec_free(&out);
    tsr_arena_free(arena);
}

static void test_formats_torch_writer__a_list_may_hold_itself(void **state)
{
    (void)state;
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    tsr_vec out = tsr_vec_of(&tsr_allocator_libc, 1);
    tsr_store *store;
    tsr_value *list = group(arena, TSR_VALUE_LIST, 1, integer(arena, 0));
    ((const tsr_value **)list->items)[0] = list;
    assert_int_equal(write_archive(list, &host, &out, NULL), TSR_OK);
    const tsr_value *read = read_archive(&out, arena, &store);
    assert_ptr_equal(read->items[0], read);
    store->close(store);
    tsr_vec_free(&out);
    tsr_arena_free(arena);
}

static tsr_value *instance(tsr_arena *arena, const char *name, bool called, tsr_value *arguments, tsr_value *kept)
{
    tsr_value *object = group(arena, TSR_VALUE_OBJECT, 2, arguments, kept);
    object->text = tsr_str_from(name);
    object->called = called;
    return object;
}

static void test_formats_torch_writer__what_must_not_be_written_is_refused(void **state)
{
    (void)state;
    tsr_arena *a = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    tsr_value *tuple = group(a, TSR_VALUE_TUPLE, 1, integer(a, 0)), *none = make(a, TSR_VALUE_NONE, NULL);
    ((const tsr_value **)tuple->items)[0] = tuple;
    static const tsr_entry entry = {.fqn = {"unknown", 7}};
    tsr_value *unknown = make(a, TSR_VALUE_TENSOR, NULL);
    unknown->as.tensor = &entry;
    const struct {
        const tsr_value *root;
        tsr_status status;
        const char *part;
    } rows[] = {
        {instance(a, "os.system", true, group(a, TSR_VALUE_TUPLE, 1, make(a, TSR_VALUE_STR, "true")), none),
         TSR_E_UNSUPPORTED, "a call of os.system"},
        {instance(a, "builtins.eval", true, group(a, TSR_VALUE_TUPLE, 0), none), TSR_E_UNSUPPORTED,
         "a call of builtins.eval"},
        {instance(a, "nodots", false, none, none), TSR_E_UNSUPPORTED, "nodots"},
        {instance(a, "nodots", true, none, none), TSR_E_UNSUPPORTED, "a call of nodots"},
        {instance(a, ".a", false, none, none), TSR_E_UNSUPPORTED, "the class .a"},
        {instance(a, "a.", false, none, none), TSR_E_UNSUPPORTED, "the class a."},
        {unknown, TSR_E_UNSUPPORTED, "the tensor unknown"},
        {instance(a, "a.b\nc", false, none, none), TSR_E_UNSUPPORTED, "is not a valid class name"},
        {instance(a, "torch._utils._rebuild_sparse_tensor", true, group(a, TSR_VALUE_DICT, 0), none), TSR_E_UNSUPPORTED,
         "an object of class"},
        {tuple, TSR_E_LIMIT, "or contain themselves"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tsr_vec out = tsr_vec_of(&tsr_allocator_libc, 1);
        tsr_error err = {0};
        assert_int_equal(write_archive(rows[i].root, &host, &out, &err), rows[i].status);
        if (!strstr(err.message, rows[i].part)) fail_msg("row %d: %s", (int)i, err.message);
        tsr_vec_free(&out);
    }
    tsr_arena_free(a);
}

static void test_formats_torch_writer__instances_keep_class_arguments_and_state(void **state)
{
    (void)state;
    tsr_arena *a = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    tsr_vec out = tsr_vec_of(&tsr_allocator_libc, 1);
    tsr_store *store;
    tsr_value *attributes = group(a, TSR_VALUE_DICT, 2, make(a, TSR_VALUE_STR, "lr"), integer(a, 3));
    tsr_value *object = group(a, TSR_VALUE_OBJECT, 4, group(a, TSR_VALUE_TUPLE, 1, integer(a, 7)), attributes,
                              group(a, TSR_VALUE_LIST, 2, integer(a, 1), integer(a, 2)), make(a, TSR_VALUE_NONE, NULL));
    object->text = TSR_STR("argparse.Namespace");
    tsr_error err = {0};
    if (write_archive(object, &host, &out, &err)) fail_msg("%s", err.message);
    const tsr_value *read = read_archive(&out, a, &store);
    assert_int_equal(read->kind, TSR_VALUE_OBJECT);
    assert_false(read->called);
    assert_true(tsr_str_equal(read->text, object->text));
    assert_int_equal(tsr_value_match(read->items[1], attributes, limits.depth, limits.expansion), TSR_SAME);
    assert_int_equal(read->items[2]->count, 2);
    assert_false(tsr_torch_weights_only(object, &host));
    store->close(store);
    tsr_vec_free(&out);
    tsr_arena_free(a);
}

/* Attributes of an instance, in addition to its items; and classes in modules that have other names in Python 2. */
static void test_formats_torch_writer__parts_and_names_come_back(void **state)
{
    (void)state;
    tsr_arena *a = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    tsr_value *none = make(a, TSR_VALUE_NONE, NULL),
              *pairs = group(a, TSR_VALUE_DICT, 2, make(a, TSR_VALUE_STR, "k"), integer(a, 3));
    tsr_value *full = group(a, TSR_VALUE_OBJECT, 4, group(a, TSR_VALUE_TUPLE, 1, integer(a, 7)), none, none, pairs);
    tsr_value *bare = group(a, TSR_VALUE_OBJECT, 0);
    full->text = TSR_STR("my.Dict");
    bare->text = TSR_STR("my.Bare");
    tsr_value *root = group(a, TSR_VALUE_LIST, 4, full, bare, make(a, TSR_VALUE_GLOBAL, "builtins.int"),
                            make(a, TSR_VALUE_GLOBAL, "copyreg._reconstructor"));
    tsr_vec out = tsr_vec_of(&tsr_allocator_libc, 1);
    tsr_store *store;
    tsr_error err = {0};
    if (write_archive(root, &host, &out, &err)) fail_msg("%s", err.message);
    const tsr_value *read = read_archive(&out, a, &store);
    assert_int_equal(tsr_value_match(read->items[0]->items[3], pairs, limits.depth, limits.expansion), TSR_SAME);
    assert_int_equal(read->items[0]->items[0]->items[0]->as.integer, 7);
    assert_int_equal(read->items[1]->count, 1); /* no arguments */
    assert_true(tsr_str_equal(read->items[2]->text, TSR_STR("builtins.int")));
    assert_true(tsr_str_equal(read->items[3]->text, TSR_STR("copyreg._reconstructor")));
    store->close(store);
    tsr_vec_free(&out);
    tsr_arena_free(a);
}

static void test_formats_torch_writer__the_careful_loader_takes_plain_values(void **state)
{
    (void)state;
    static char digits[256];
    tsr_arena *a = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    tsr_value *number = make(a, TSR_VALUE_BIGINT, NULL), *longer = make(a, TSR_VALUE_BIGINT, NULL);
    number->text = (tsr_str){digits, 255};
    longer->text = (tsr_str){digits, 256};
    const struct {
        const tsr_value *value;
        bool taken;
    } rows[] = {{number, true},
                {longer, false},
                {make(a, TSR_VALUE_GLOBAL, "my.C"), false},
                {group(a, TSR_VALUE_LIST, 1, number), true},
                {group(a, TSR_VALUE_LIST, 2, number, longer), false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(tsr_torch_weights_only(rows[i].value, &host), rows[i].taken);
    tsr_host small = host;
    small.limits.expansion = 2;
    assert_false(tsr_torch_weights_only(group(a, TSR_VALUE_LIST, 2, number, number), &small));
    for (size_t n = 0; n < 2; n++) {
        failing_allocator failing;
        failing_start(&failing, n);
        small = host;
        small.allocator = &failing.allocator;
        assert_int_equal(tsr_torch_weights_only(group(a, TSR_VALUE_LIST, 1, number), &small), n > 0);
        assert_int_equal(failing.live, 0);
    }
    tsr_arena_free(a);
}

static void test_formats_torch_writer__every_failed_allocation_ends_cleanly(void **state)
{
    (void)state;
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    const tsr_value *root = every_kind(arena);
    for (size_t n = 0;; n++) {
        failing_allocator failing;
        failing_start(&failing, n);
        const tsr_host lent = {.allocator = &failing.allocator, .limits = limits};
        tsr_vec out = tsr_vec_of(&failing.allocator, 1);
        const tsr_status status = write_archive(root, &lent, &out, NULL);
        assert_int_equal(status, failing.failed ? TSR_E_NOMEM : TSR_OK);
        tsr_vec_free(&out);
        assert_int_equal(failing.live, 0);
        if (!failing.failed) break;
    }
    tsr_arena_free(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_torch_writer__every_kind_of_value_comes_back),
        cmocka_unit_test(test_formats_torch_writer__a_list_may_hold_itself),
        cmocka_unit_test(test_formats_torch_writer__what_must_not_be_written_is_refused),
        cmocka_unit_test(test_formats_torch_writer__instances_keep_class_arguments_and_state),
        cmocka_unit_test(test_formats_torch_writer__parts_and_names_come_back),
        cmocka_unit_test(test_formats_torch_writer__the_careful_loader_takes_plain_values),
        cmocka_unit_test(test_formats_torch_writer__every_failed_allocation_ends_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
