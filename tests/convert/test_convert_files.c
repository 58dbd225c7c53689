/* Conversions to safetensors: the written files are read back and compared value by value. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/failing_allocator.h"
#include "support/made.h"
#include "tessera/compare.h"
#include "tessera/convert.h"
#include "tessera/sys/check.h"
#include "tessera/sys/store.h"

typedef struct written {
    tsr_output *output;
    tsr_arena *arena;
    tsr_conversion conversion;
    tsr_error err;
    tsr_status status;
} written;

static written convert(tsr_made *made, const tsr_convert_options *options)
{
    written w = {.err = {0}};
    w.arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    tsr_output_to_memory(&tsr_allocator_libc, &w.output, NULL);
    w.status = tsr_convert(&made->checkpoint, w.output, options, w.arena, &w.conversion, &w.err);
    return w;
}

static void end(written *w)
{
    w->output->close(w->output);
    tsr_arena_free(w->arena);
}

/* Opens the written files as a checkpoint; `store` must be closed after it. */
static tsr_checkpoint *reopen_as(const written *w, const tsr_host *host, const char *single, tsr_store **store)
{
    tsr_memory_file files[16];
    const uint32_t count = tsr_output_memory_count(w->output);
    assert_true(count <= 16);
    for (uint32_t i = 0; i < count; i++) {
        const tsr_str name = tsr_output_memory_name(w->output, i);
        files[i] = (tsr_memory_file){name.size ? name : tsr_str_from(single), tsr_output_memory_file(w->output, name)};
    }
    tsr_checkpoint *checkpoint;
    tsr_error err = {0};
    assert_int_equal(tsr_store_from_memory(&tsr_allocator_libc, files, count, store, NULL), TSR_OK);
    if (tsr_checkpoint_open(*store, host, NULL, &checkpoint, &err)) fail_msg("%s", err.message);
    return checkpoint;
}

static tsr_checkpoint *reopen(const written *w, const tsr_host *host, tsr_store **store)
{
    return reopen_as(w, host, "out.safetensors", store);
}

static void expect_same_values(tsr_made *made, tsr_checkpoint *again)
{
    tsr_ring *ring;
    tsr_ring_new(&made->host, 0, &ring, NULL);
    assert_int_equal(tsr_checkpoint_catalog(again)->entry_count, made->count);
    assert_int_equal(tsr_findings_count(tsr_checkpoint_findings(again)), 0);
    for (uint64_t i = 0; i < made->count; i++) {
        const tsr_entry *entry = tsr_checkpoint_entry(again, made->entries[i].fqn);
        tsr_difference difference;
        tsr_error err = {0};
        assert_non_null(entry);
        const tsr_status status =
            tsr_compare_tensors((tsr_stored_tensor){&made->checkpoint, &made->entries[i]}, (tsr_stored_tensor){again, entry},
                                &(tsr_tolerance){.exact = true}, ring, &difference, &err);
        if (status != TSR_OK) fail_msg("%s", err.message);
        assert_int_equal(difference.differing, 0);
        if (tsr_dtype_size(entry->dtype)) assert_int_equal(entry->chunks[0].byte_offset % tsr_dtype_size(entry->dtype), 0);
    }
    tsr_ring_free(ring);
}

static const tsr_dtype dtypes[] = {TSR_INT8, TSR_FLOAT64,         TSR_BFLOAT16,        TSR_COMPLEX64,
                                   TSR_BOOL, TSR_FLOAT8_E4M3FNUZ, TSR_FLOAT4_E2M1FN_X2};
static const char *const names[] = {"a", "b\"c", "нейрон", "d.e.f", "0", " ", "\n"};

static void fill(tsr_made *made, uint64_t seed)
{
    tsr_made_start(made, seed, 7);
    for (unsigned i = 0; i < 7; i++) {
        uint64_t shape[8];
        uint32_t ndim = tsr_made_shape(made, shape, 30);
        if (i == 6 && ndim == 0) shape[ndim++] = 3;
        tsr_made_tensor(made, names[i], dtypes[i], ndim, shape, (unsigned)(seed % 9), (tsr_made_how)((seed + i) % 3));
    }
    tsr_made_open(made);
}

static void test_convert_files__one_file_holds_every_value(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        tsr_made made;
        fill(&made, seed);
        written w = convert(&made, &(tsr_convert_options){.to = TSR_TO_SAFETENSORS, .max_memory = 1});
        if (w.status != TSR_OK) fail_msg("%s", w.err.message);
        assert_int_equal(tsr_output_memory_count(w.output), 1);
        const tsr_str file = tsr_output_memory_file(w.output, TSR_STR(""));
        assert_int_equal(file.size, w.conversion.file_sizes[0]);
        static const char start[] = "\"__metadata__\":{\"format\":\"pt\",\"tessera.crc32\":\"";
        uint64_t header;
        memcpy(&header, file.data, 8);
        assert_int_equal((8 + header) % 64, 0);
        size_t last = 8 + (size_t)header;
        while (file.data[last - 1] != '}') last--;
        assert_memory_equal(file.data + last - 11 - (sizeof start - 1), start, sizeof start - 1);
        tsr_store *store;
        tsr_checkpoint *again = reopen(&w, &made.host, &store);
        expect_same_values(&made, again);
        tsr_checkpoint_close(again);
        store->close(store);
        end(&w);
        tsr_made_end(&made);
    }
}

static void start_three(tsr_made *made)
{
    const uint64_t shape[] = {100};
    tsr_made_start(made, 1, 3);
    tsr_made_tensor(made, "x.a", TSR_FLOAT32, 1, shape, 2, TSR_MADE_PLAIN);
    tsr_made_tensor(made, "x.b", TSR_FLOAT32, 1, shape, 2, TSR_MADE_STRIDED);
    tsr_made_tensor(made, "y", TSR_INT32, 1, shape, 2, TSR_MADE_PLAIN);
    tsr_made_open(made);
}

static void test_convert_files__shards_are_filled_and_named_as_huggingface_does(void **state)
{
    (void)state;
    static const struct {
        uint64_t most;
        uint32_t files;
        const char *first;
        uint32_t of_last;
    } rows[] = {
        {1200, 1, "model.safetensors", 0},
        {1199, 2, "model-00001-of-00002.safetensors", 1},
        {800, 2, "model-00001-of-00002.safetensors", 1},
        {799, 3, "model-00001-of-00003.safetensors", 2},
        {1, 3, "model-00001-of-00003.safetensors", 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tsr_made made;
        start_three(&made);
        written w = convert(&made, &(tsr_convert_options){.to = TSR_TO_SAFETENSORS, .max_shard_size = rows[i].most});
        if (w.status != TSR_OK) fail_msg("%s", w.err.message);
        assert_int_equal(w.conversion.file_count, rows[i].files);
        assert_int_equal(w.conversion.rows[2].file, rows[i].of_last);
        assert_int_equal(tsr_output_memory_count(w.output), rows[i].files + (rows[i].files > 1));
        assert_non_null(tsr_output_memory_file(w.output, tsr_str_from(rows[i].first)).data);
        const tsr_str marker = tsr_output_memory_name(w.output, w.conversion.marker);
        assert_true(tsr_str_equal(marker, rows[i].files > 1 ? TSR_STR("model.safetensors.index.json")
                                                            : TSR_STR("model.safetensors")));
        tsr_store *store;
        tsr_checkpoint *again = reopen(&w, &made.host, &store);
        expect_same_values(&made, again);
        tsr_checkpoint_close(again);
        store->close(store);
        end(&w);
        tsr_made_end(&made);
    }
}

static bool not_y(void *ctx, tsr_str fqn)
{
    (void)ctx;
    return !tsr_str_equal(fqn, TSR_STR("y"));
}

static tsr_status rename_to(void *ctx, tsr_str fqn, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    *out = tsr_arena_format(arena, err, "%s%.*s", (const char *)ctx, TSR_STR_ARG(fqn));
    return TSR_OK;
}

static tsr_status rename_all_alike(void *ctx, tsr_str fqn, tsr_arena *arena, tsr_str *out, tsr_error *err)
{
    (void)ctx, (void)fqn, (void)arena, (void)err;
    *out = TSR_STR("same");
    return TSR_OK;
}

static void test_convert_files__entries_are_chosen_renamed_and_cast(void **state)
{
    (void)state;
    tsr_made made;
    start_three(&made);
    written w = convert(
        &made, &(tsr_convert_options){.want = not_y, .rename = rename_to, .rename_ctx = "m.", .dtype = TSR_BFLOAT16});
    if (w.status != TSR_OK) fail_msg("%s", w.err.message);
    assert_string_equal(w.conversion.rows[2].left_out, "not selected");
    assert_true(w.conversion.rows[0].cast && w.conversion.rows[0].bytes == 200 && w.conversion.byte_total == 400);
    tsr_store *store;
    tsr_checkpoint *again = reopen(&w, &made.host, &store);
    assert_int_equal(tsr_checkpoint_catalog(again)->entry_count, 2);
    const tsr_entry *entry = tsr_checkpoint_entry(again, TSR_STR("m.x.b"));
    assert_non_null(entry);
    assert_int_equal(entry->dtype, TSR_BFLOAT16);
    uint16_t got[100];
    const uint64_t zero = 0, all = 100;
    assert_int_equal(tsr_read_box(again, entry, (tsr_box){entry->ndim, &zero, &all}, got, sizeof got, NULL), TSR_OK);
    for (unsigned i = 0; i < 100; i++) {
        uint32_t bits;
        memcpy(&bits, made.truth[1] + 4 * i, 4);
        if ((bits & 0x7f800000) == 0x7f800000) continue;
        const uint32_t below = bits & 0xffff0000, error = bits - below;
        assert_true(got[i] == below >> 16 ? error <= 0x8000 : got[i] == (below >> 16) + 1 && error >= 0x8000);
    }
    tsr_checkpoint_close(again);
    store->close(store);
    end(&w);
    tsr_made_end(&made);
}

static void test_convert_files__what_the_format_cannot_hold_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        tsr_dtype dtype;
        tsr_entry_kind kind;
        const char *name;
        tsr_convert_options options;
        tsr_status status;
        const char *part;
    } rows[] = {
        {TSR_COMPLEX128, TSR_ENTRY_TENSOR, "z", {.to = TSR_TO_SAFETENSORS}, TSR_E_UNSUPPORTED, "'z' is complex128"},
        {TSR_COMPLEX32, TSR_ENTRY_TENSOR, "z", {.to = TSR_TO_SAFETENSORS}, TSR_E_UNSUPPORTED, "'z' is complex32"},
        {TSR_BCOMPLEX32, TSR_ENTRY_TENSOR, "z", {.to = TSR_TO_SAFETENSORS}, TSR_E_UNSUPPORTED, "'z' is bcomplex32"},
        {TSR_QINT8, TSR_ENTRY_TENSOR, "q", {.to = TSR_TO_SAFETENSORS}, TSR_E_UNSUPPORTED, "'q' has a type"},
        {TSR_BITS8, TSR_ENTRY_TENSOR, "q", {.to = TSR_TO_SAFETENSORS}, TSR_E_UNSUPPORTED, "'q' has a type"},
        {TSR_INT8,
         TSR_ENTRY_OPAQUE,
         "o",
         {.to = TSR_TO_SAFETENSORS, .objects = TSR_OBJECTS_DROP},
         TSR_E_UNSUPPORTED,
         "'o' () is not a dense tensor"},
        {TSR_INT8, TSR_ENTRY_OBJECT, "o", {.to = TSR_TO_SAFETENSORS}, TSR_E_UNSUPPORTED, "'o' is an object"},
        {TSR_INT8, TSR_ENTRY_TENSOR, "", {.to = TSR_TO_SAFETENSORS}, TSR_E_UNSUPPORTED, "'' is an empty name"},
        {TSR_INT8,
         TSR_ENTRY_TENSOR,
         "__metadata__",
         {.to = TSR_TO_SAFETENSORS},
         TSR_E_UNSUPPORTED,
         "is the name of the metadata"},
        {TSR_INT8, TSR_ENTRY_TENSOR, "\xff", {.to = TSR_TO_SAFETENSORS}, TSR_E_UNSUPPORTED, "a name that is not UTF-8"},
        {TSR_INT8, TSR_ENTRY_TENSOR, "t", {.to = TSR_TO_SAFETENSORS, .dtype = TSR_INT32}, TSR_E_USAGE, "not to int32"},
        {TSR_INT8,
         TSR_ENTRY_TENSOR,
         "t",
         {.to = TSR_TO_SAFETENSORS, .rename = rename_all_alike},
         TSR_E_USAGE,
         "'t' and 'other' would both be named 'same'"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tsr_made made;
        const uint64_t shape[] = {5};
        tsr_made_start(&made, i, 2);
        tsr_made_tensor(&made, rows[i].name, rows[i].dtype, 1, shape, 0, TSR_MADE_PLAIN);
        tsr_made_tensor(&made, "other", TSR_INT8, 1, shape, 0, TSR_MADE_PLAIN);
        made.entries[0].kind = rows[i].kind;
        tsr_made_open(&made);
        written w = convert(&made, &rows[i].options);
        assert_int_equal(w.status, rows[i].status);
        if (!strstr(w.err.message, rows[i].part)) fail_msg("row %d: %s", (int)i, w.err.message);
        assert_int_equal(tsr_output_memory_count(w.output), 0);
        end(&w);
        tsr_made_end(&made);
    }
}

static void test_convert_files__a_dry_run_decides_and_writes_nothing(void **state)
{
    (void)state;
    tsr_made made;
    start_three(&made);
    written w = convert(&made, &(tsr_convert_options){.to = TSR_TO_SAFETENSORS, .dry_run = true});
    assert_int_equal(w.status, TSR_OK);
    assert_int_equal(w.conversion.byte_total, 1200);
    assert_int_equal(tsr_output_memory_count(w.output), 0);
    end(&w);
    tsr_made_end(&made);
}

static void test_convert_files__tied_tensors_become_listed_copies(void **state)
{
    (void)state;
    tsr_made made;
    start_three(&made);
    made.entries[0].storage_id = made.entries[2].storage_id = 7;
    made.entries[1].storage_id = 3;
    written w = convert(&made, &(tsr_convert_options){.to = TSR_TO_SAFETENSORS});
    assert_int_equal(w.status, TSR_OK);
    assert_true(w.conversion.rows[0].copied && !w.conversion.rows[1].copied && w.conversion.rows[2].copied);
    end(&w);
    tsr_made_end(&made);
}

/* Makes entry `number` a view of entry 0's bytes, and updates its true contents. */
static void make_view(tsr_made *made, uint64_t number, uint64_t element, uint64_t stride0, uint64_t stride1)
{
    tsr_entry *entry = &made->entries[number];
    tsr_chunk *chunk = (tsr_chunk *)entry->chunks;
    tsr_view *view = (tsr_view *)chunk->view;
    uint64_t *strides = tsr_arena_array(made->arena, 2, sizeof *strides, NULL);
    const uint64_t from = made->entries[0].chunks[0].byte_offset;
    strides[0] = stride0;
    strides[1] = stride1;
    *view = (tsr_view){.byte_offset = from + 4 * element, .strides = strides};
    chunk->byte_offset = view->byte_offset;
    entry->storage_id = made->entries[0].storage_id = 1;
    for (uint64_t i = 0; i < entry->shape[0]; i++) {
        for (uint64_t k = 0; k < entry->shape[1]; k++) {
            memcpy(made->truth[number] + 4 * (i * entry->shape[1] + k),
                   made->truth[0] + 4 * (element + i * stride0 + k * stride1), 4);
        }
    }
}

static void start_views(tsr_made *made)
{
    static const struct {
        const char *name;
        uint64_t shape[2], element, strides[2];
    } views[] = {{"base", {20, 5}, 0, {5, 1}}, {"same", {20, 5}, 0, {5, 1}}, {"turned", {5, 3}, 0, {1, 5}},
                 {"thin", {2, 2}, 6, {5, 2}},  {"wide", {3, 4}, 1, {0, 1}},  {"far", {1, 2}, 90, {5, 1}}};
    tsr_made_start(made, 1, 6);
    for (uint64_t i = 0; i < 6; i++) tsr_made_tensor(made, views[i].name, TSR_INT32, 2, views[i].shape, 0, TSR_MADE_PLAIN);
    for (uint64_t i = 1; i < 6; i++) make_view(made, i, views[i].element, views[i].strides[0], views[i].strides[1]);
    tsr_made_open(made);
}

static bool not_base(void *ctx, tsr_str fqn)
{
    (void)ctx;
    return !tsr_str_equal(fqn, TSR_STR("base")) && !tsr_str_equal(fqn, TSR_STR("same"));
}

static void test_convert_files__shared_storage_is_shared_again_in_torch_files(void **state)
{
    (void)state;
    for (unsigned cast = 0; cast < 2; cast++) {
        tsr_made made;
        start_views(&made);
        written w = convert(&made, &(tsr_convert_options){.to = TSR_TO_TORCH, .want = cast ? not_base : NULL});
        if (w.status != TSR_OK) fail_msg("%s", w.err.message);
        /* Without the base: elements 0 to 14, which are adjacent, and two far from them. */
        assert_int_equal(w.conversion.byte_total, cast ? 4 * 15 + 4 * 2 : 4 * 100);
        tsr_store *store;
        tsr_checkpoint *again = reopen_as(&w, &made.host, "out.pt", &store);
        tsr_ring *ring;
        tsr_ring_new(&made.host, 0, &ring, NULL);
        for (uint64_t i = cast ? 2 : 0; i < 6; i++) {
            const tsr_entry *entry = tsr_checkpoint_entry(again, made.entries[i].fqn);
            const uint64_t zeros[] = {0, 0};
            uint8_t got[400];
            const size_t size = 4 * (size_t)(entry->shape[0] * entry->shape[1]);
            assert_int_equal(tsr_read_box(again, entry, (tsr_box){entry->ndim, zeros, entry->shape}, got, size, NULL),
                             TSR_OK);
            assert_memory_equal(got, made.truth[i], size);
            const tsr_entry *thin = tsr_checkpoint_entry(again, TSR_STR("thin"));
            assert_int_equal(entry->storage_id == thin->storage_id, !(cast && i == 5));
        }
        tsr_ring_free(ring);
        tsr_checkpoint_close(again);
        store->close(store);
        end(&w);
        tsr_made_end(&made);
    }
}

static bool stop(void *ctx, uint64_t done, uint64_t total)
{
    (void)ctx;
    return done == total ? false : true;
}

static void test_convert_files__progress_can_cancel(void **state)
{
    (void)state;
    tsr_made made;
    start_three(&made);
    written w = convert(&made, &(tsr_convert_options){.to = TSR_TO_SAFETENSORS, .progress = &(tsr_progress){stop, NULL}});
    assert_int_equal(w.status, TSR_E_CANCELLED);
    end(&w);
    tsr_made_end(&made);
}

static void test_convert_files__every_failed_allocation_ends_cleanly(void **state)
{
    (void)state;
    for (size_t n = 0;; n++) {
        failing_allocator failing;
        tsr_made made;
        start_three(&made);
        failing_start(&failing, n);
        made.host.allocator = &failing.allocator;
        tsr_output *output = NULL;
        tsr_error err = {0};
        tsr_conversion conversion;
        tsr_arena *arena = tsr_arena_new(&failing.allocator, 0, &err);
        tsr_status status = arena ? tsr_output_to_memory(&failing.allocator, &output, &err) : TSR_E_NOMEM;
        const tsr_convert_options options = {.to = TSR_TO_SAFETENSORS, .max_shard_size = 500, .dtype = TSR_FLOAT64};
        if (status == TSR_OK) status = tsr_convert(&made.checkpoint, output, &options, arena, &conversion, &err);
        assert_int_equal(status, failing.failed ? TSR_E_NOMEM : TSR_OK);
        if (output) output->close(output);
        tsr_arena_free(arena);
        assert_int_equal(failing.live, 0);
        tsr_made_end(&made);
        if (!failing.failed) break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convert_files__one_file_holds_every_value),
        cmocka_unit_test(test_convert_files__shards_are_filled_and_named_as_huggingface_does),
        cmocka_unit_test(test_convert_files__entries_are_chosen_renamed_and_cast),
        cmocka_unit_test(test_convert_files__what_the_format_cannot_hold_is_refused_by_name),
        cmocka_unit_test(test_convert_files__a_dry_run_decides_and_writes_nothing),
        cmocka_unit_test(test_convert_files__tied_tensors_become_listed_copies),
        cmocka_unit_test(test_convert_files__shared_storage_is_shared_again_in_torch_files),
        cmocka_unit_test(test_convert_files__progress_can_cancel),
        cmocka_unit_test(test_convert_files__every_failed_allocation_ends_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
