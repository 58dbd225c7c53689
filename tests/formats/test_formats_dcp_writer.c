/* Writes `.metadata`, and reads it with the parser for real files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "formats/dcp/dcp_state.h"
#include "support/failing_allocator.h"
#include "tessera/sys/dcp_item.h"

#define SAVE_ID TSR_STR("00000000-1111-2222-3333-444444444444")

static const tsr_limits limits = {1000, 1000000, 1u << 30, 1u << 30, 1000000, 1u << 30};

static const uint64_t shape[] = {6, 2, 3, 4, 5}, zeros[] = {0, 0, 0, 0, 0}, half[] = {3, 2, 3, 4, 5},
                      second[] = {3, 0, 0, 0, 0};
static const tsr_dcp_new_item chunks[] = {{zeros, half, {"__0_0.distcp", 12}, 100, 1577},
                                          {second, half, {"__1_0.distcp", 12}, UINT64_C(1) << 40, 1577}};
static const tsr_dcp_new_item blob = {NULL, NULL, {"__0_0.distcp", 12}, 0, 100};
static const tsr_path_item tensor_path[] = {
    {TSR_PATH_KEY, {"model", 5}, 0, NULL}, {TSR_PATH_INT_KEY, {NULL, 0}, 7, NULL}, {TSR_PATH_INDEX, {NULL, 0}, 2, NULL}};
static const tsr_path_item object_path[] = {{TSR_PATH_KEY, {"step", 4}, 0, NULL}};
static const tsr_dcp_new_entry entries[] = {
    {.fqn = {"model.7.2", 9},
     .path = tensor_path,
     .path_length = 3,
     .tensor = true,
     .requires_grad = true,
     .dtype = TSR_FLOAT8_E4M3FN,
     .ndim = 5,
     .shape = shape,
     .items = chunks,
     .item_count = 2},
    {.fqn = {"step", 4}, .path = object_path, .path_length = 1, .items = &blob, .item_count = 1},
};

static tsr_status write_for(tsr_torch_version version, const tsr_allocator *allocator, tsr_vec *out, tsr_error *err)
{
    const tsr_dcp_new_metadata metadata = {entries, 2, SAVE_ID, version, false};
    const tsr_host host = {.allocator = allocator, .limits = limits};
    *out = tsr_vec_of(allocator, 1);
    return tsr_dcp_metadata_write(&metadata, &host, out, err);
}

static tsr_status write_metadata(const tsr_allocator *allocator, tsr_vec *out, tsr_error *err)
{
    return write_for(TSR_TORCH_NEWEST, allocator, out, err);
}

static void expect_dims(const tsr_dcp_metadata *m, uint32_t id, const uint64_t *want)
{
    uint32_t ndim;
    const uint64_t *dims = tsr_dcp_dims(m, id, &ndim);
    assert_int_equal(ndim, 5);
    assert_memory_equal(dims, want, sizeof shape);
}

static void test_formats_dcp_writer__entries_chunks_and_places_come_back(void **state)
{
    (void)state;
    const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = limits};
    tsr_vec out;
    tsr_dcp_metadata m;
    tsr_error err = {0};
    if (write_metadata(&tsr_allocator_libc, &out, &err)) fail_msg("%s", err.message);
    if (tsr_dcp_metadata_open((tsr_str){out.items, out.count}, &host, &m, &err)) fail_msg("%s", err.message);
    const uint64_t *tensor = tsr_dcp_record(&m, tsr_pickle_get(m.pickle, m.state_dict, "model.7.2", NULL), TSR_DCP_TENSOR);
    assert_non_null(tensor);
    assert_int_equal(tensor[0] >> 8 & 0xff, TSR_FLOAT8_E4M3FN);
    assert_int_equal(tensor[0] >> 16 & 1, 1);
    expect_dims(&m, tsr_dcp_high(tensor[0]), shape);
    assert_int_equal(tensor[1], 2);
    expect_dims(&m, tsr_dcp_chunk_offsets(tsr_dcp_chunks(&m, tensor)[1]), second);
    expect_dims(&m, tsr_dcp_chunk_sizes(tsr_dcp_chunks(&m, tensor)[1]), half);
    assert_non_null(tsr_dcp_record(&m, tsr_pickle_get(m.pickle, m.state_dict, "step", NULL), TSR_DCP_BYTES));
    assert_int_equal(tsr_pickle_count(m.pickle, m.storage_data), 3);
    const uint64_t *place = tsr_dcp_record(&m, tsr_pickle_value(m.pickle, m.storage_data, 1), TSR_DCP_STORAGE);
    assert_int_equal(place[1], UINT64_C(1) << 40);
    assert_int_equal(place[2], 1577);
    tsr_dcp_metadata_close(&m);
    tsr_vec_free(&out);
}

/* Like PyTorch's flatten_state_dict: dict keys become strings, and list positions stay numbers. */
static void test_formats_dcp_writer__int_keys_become_strings_and_positions_stay(void **state)
{
    (void)state;
    const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = limits};
    tsr_vec out;
    tsr_dcp_metadata m;
    assert_int_equal(write_metadata(&tsr_allocator_libc, &out, NULL), TSR_OK);
    assert_int_equal(tsr_dcp_metadata_open((tsr_str){out.items, out.count}, &host, &m, NULL), TSR_OK);
    const tsr_ref path = tsr_pickle_get(m.pickle, m.planner_data, "model.7.2", NULL);
    assert_int_equal(tsr_pickle_count(m.pickle, path), 3);
    assert_true(tsr_str_equal(tsr_pickle_text(m.pickle, tsr_pickle_item(m.pickle, path, 1)), TSR_STR("7")));
    assert_int_equal(tsr_pickle_kind_of(m.pickle, tsr_pickle_item(m.pickle, path, 2)), TSR_PICKLE_INT);
    assert_int_equal(tsr_pickle_int(m.pickle, tsr_pickle_item(m.pickle, path, 2)), 2);
    tsr_dcp_metadata_close(&m);
    tsr_vec_free(&out);
}

static bool contains(const tsr_vec *bytes, const char *text)
{
    const char *all = bytes->items;
    const size_t size = strlen(text);
    for (size_t i = 0; i + size <= bytes->count; i++) {
        if (memcmp(all + i, text, size) == 0) return true;
    }
    return false;
}

/* 2.3 has no class StorageMeta, and 2.14 accepts five items in the state of TensorProperties. */
static void test_formats_dcp_writer__a_version_gets_what_it_reads(void **state)
{
    static const struct {
        tsr_torch_version version;
        bool storage_meta, strides;
    } rows[] = {{0, true, false}, {3, false, false}, {4, true, false}, {14, true, false}, {15, true, true}};
    const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = limits};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tsr_vec out;
        tsr_dcp_metadata m;
        assert_int_equal(write_for(rows[i].version, &tsr_allocator_libc, &out, NULL), TSR_OK);
        assert_int_equal(tsr_dcp_metadata_open((tsr_str){out.items, out.count}, &host, &m, NULL), TSR_OK);
        assert_int_equal(contains(&out, "storage_meta"), rows[i].storage_meta);
        assert_int_equal(contains(&out, "00000000-1111-2222"), rows[i].storage_meta);
        assert_int_equal(m.newer != TSR_NO_POSITION, rows[i].strides);
        /* 2 * 3 * 4 * 5, 3 * 4 * 5, 4 * 5, 5, 1: one byte each after an opcode, then the tuple, and BUILD's */
        assert_int_equal(contains(&out, "\x89(Kx"
                                        "K<"
                                        "K\x14"
                                        "K\x05"
                                        "K\x01"
                                        "tt"),
                         rows[i].strides);
        tsr_dcp_metadata_close(&m);
        tsr_vec_free(&out);
    }
}

static void test_formats_dcp_writer__every_failed_allocation_ends_cleanly(void **state)
{
    (void)state;
    for (size_t n = 0;; n++) {
        failing_allocator failing;
        tsr_vec out;
        failing_start(&failing, n);
        const tsr_status status = write_metadata(&failing.allocator, &out, NULL);
        assert_int_equal(status, failing.failed ? TSR_E_NOMEM : TSR_OK);
        tsr_vec_free(&out);
        assert_int_equal(failing.live, 0);
        if (!failing.failed) break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_dcp_writer__entries_chunks_and_places_come_back),
        cmocka_unit_test(test_formats_dcp_writer__int_keys_become_strings_and_positions_stay),
        cmocka_unit_test(test_formats_dcp_writer__a_version_gets_what_it_reads),
        cmocka_unit_test(test_formats_dcp_writer__every_failed_allocation_ends_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
