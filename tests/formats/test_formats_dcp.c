/* The DCP reader, with checkpoints that PyTorch wrote (samples/checkpoints) and broken copies of them. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>

#include "codec/json.h"
#include "support/failing_allocator.h"
#include "support/sample.h"
#include "tessera/checkpoint.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"

typedef struct opened {
    sample files;
    tsr_host host;
    tsr_checkpoint *checkpoint;
    tsr_error err;
    tsr_status status;
} opened;

static void add_directory(sample *s, const char *directory)
{
    char path[512];
    snprintf(path, sizeof path, "%s/samples/checkpoints/%s", TSR_TEST_DATA, directory);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *item; (item = readdir(dir));) {
        if (strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0) sample_add_file(s, directory, item->d_name);
    }
    closedir(dir);
}

static void open_sample(opened *o, const char *directory, const tsr_open_options *options)
{
    *o = (opened){.host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()}};
    add_directory(&o->files, directory);
    assert_int_equal(sample_open(&o->files, o->host.allocator), TSR_OK);
    o->status = tsr_checkpoint_open(o->files.store, &o->host, options, &o->checkpoint, &o->err);
}

static void drop(opened *o)
{
    tsr_checkpoint_close(o->checkpoint);
    sample_close(&o->files);
}

/* ---- what PyTorch wrote ---- */

static const char *const samples[] = {"dcp_small",        "dcp_ddp",
                                      "dcp_dtypes",       "dcp_file_per_item",
                                      "dcp_fsdp1_local",  "dcp_fsdp1_sharded",
                                      "dcp_fsdp2",        "dcp_fsdp2_flat_optim",
                                      "dcp_hsdp",         "dcp_objects",
                                      "dcp_rank_local",   "dcp_safetensors_items",
                                      "dcp_tensors",      "dcp_threads",
                                      "dcp_tp",           "dcp_tp_fsdp2",
                                      "dcp_crc_off",      "dcp_v2_15_layouts",
                                      "dcp_v2_15_fsdp2",  "dcp_v2_15_fsdp1_sharded",
                                      "dcp_v2_3_layouts", "dcp_v2_3_fsdp1_sharded"};

static bool same_numbers(const cJSON *list, const uint64_t *numbers, uint32_t count)
{
    if ((uint32_t)cJSON_GetArraySize(list) != count) return false;
    for (uint32_t i = 0; i < count; i++) {
        if (cJSON_GetArrayItem(list, (int)i)->valuedouble != (double)numbers[i]) return false;
    }
    return true;
}

static bool has_chunk(const tsr_entry *entry, const cJSON *chunk)
{
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        if (same_numbers(cJSON_GetObjectItemCaseSensitive(chunk, "offsets"), entry->chunks[i].offsets, entry->ndim) &&
            same_numbers(cJSON_GetObjectItemCaseSensitive(chunk, "sizes"), entry->chunks[i].sizes, entry->ndim)) {
            return true;
        }
    }
    return false;
}

static void check_tensor(const opened *o, const cJSON *want)
{
    const tsr_entry *entry = tsr_checkpoint_entry(o->checkpoint, tsr_str_from(want->string));
    if (!entry || entry->kind != TSR_ENTRY_TENSOR) fail_msg("%s is not a tensor", want->string);
    const cJSON *chunks = cJSON_GetObjectItemCaseSensitive(want, "chunks"), *chunk;
    assert_int_equal(entry->dtype,
                     tsr_dtype_from_name(tsr_str_from(cJSON_GetObjectItemCaseSensitive(want, "dtype")->valuestring)));
    if (!same_numbers(cJSON_GetObjectItemCaseSensitive(want, "shape"), entry->shape, entry->ndim))
        fail_msg("%s has a different shape", want->string);
    assert_int_equal(entry->chunk_count, cJSON_GetArraySize(chunks));
    cJSON_ArrayForEach(chunk, chunks) if (!has_chunk(entry, chunk)) fail_msg("%s lacks a chunk", want->string);
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        tsr_view view;
        tsr_error err = {0};
        tsr_arena *scratch = tsr_arena_new(o->host.allocator, 0, NULL);
        if (tsr_checkpoint_locate(o->checkpoint, entry, &entry->chunks[i], scratch, &view, &err) != TSR_OK)
            fail_msg("%s", err.message);
        assert_int_equal(view.file, entry->chunks[i].file);
        tsr_arena_free(scratch);
    }
}

static void check_object(const opened *o, const cJSON *want, bool opaque)
{
    const tsr_entry *entry = tsr_checkpoint_entry(o->checkpoint, tsr_str_from(want->string));
    bool plain =
        !cJSON_IsObject(want) && !cJSON_IsArray(want); /* the golden tags values that JSON cannot represent: numpy arrays,
                                                        * … */
    bool fits = entry && (opaque  ? entry->kind == TSR_ENTRY_OPAQUE
                          : plain ? entry->kind == TSR_ENTRY_OBJECT
                                  : entry->kind != TSR_ENTRY_TENSOR);
    if (!fits) fail_msg("%s is no %s", want->string, opaque ? "opaque entry" : "object");
    assert_non_null(entry->value);
    assert_true(entry->type.size > 0);
    if (cJSON_IsString(want) && !opaque) {
        assert_int_equal(entry->value->kind, TSR_VALUE_STR);
        assert_true(tsr_str_starts(entry->value->text, tsr_str_from(want->valuestring)));
    }
    if (cJSON_IsNull(want)) assert_int_equal(entry->value->kind, TSR_VALUE_NONE);
    if (cJSON_IsBool(want)) assert_int_equal(entry->value->as.boolean, cJSON_IsTrue(want));
}

static void check_path(const opened *o, const cJSON *want)
{
    const tsr_entry *entry = tsr_checkpoint_entry(o->checkpoint, tsr_str_from(want->string));
    assert_non_null(entry);
    assert_int_equal(entry->path_length, cJSON_GetArraySize(want));
    for (uint32_t i = 0; i < entry->path_length; i++) {
        const cJSON *item = cJSON_GetArrayItem(want, (int)i);
        if (cJSON_IsString(item))
            assert_true(entry->path[i].kind == TSR_PATH_KEY &&
                        tsr_str_equal(entry->path[i].key, tsr_str_from(item->valuestring)));
        else assert_true(entry->path[i].kind == TSR_PATH_INDEX && (double)entry->path[i].integer == item->valuedouble);
    }
}

static void test_formats_dcp__lists_what_pytorch_wrote(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        char golden[256];
        opened o;
        cJSON *expect;
        const cJSON *item;
        open_sample(&o, samples[i], NULL);
        if (o.status != TSR_OK) fail_msg("%s: %s", samples[i], o.err.message);
        snprintf(golden, sizeof golden, "%s.expect.json", samples[i]);
        tsr_str text = sample_read(golden);
        expect = cJSON_ParseWithLength(text.data, text.size); /* would end strings at NUL, which one value contains */
        assert_non_null(expect);
        const cJSON *entries = cJSON_GetObjectItemCaseSensitive(expect, "entries"),
                    *objects = cJSON_GetObjectItemCaseSensitive(expect, "objects");
        const cJSON *opaque = cJSON_GetObjectItemCaseSensitive(expect, "opaque");
        assert_int_equal(tsr_checkpoint_catalog(o.checkpoint)->format, TSR_FORMAT_DCP);
        assert_int_equal(tsr_checkpoint_catalog(o.checkpoint)->entry_count,
                         cJSON_GetArraySize(entries) + cJSON_GetArraySize(objects) + cJSON_GetArraySize(opaque));
        cJSON_ArrayForEach(item, entries) check_tensor(&o, item);
        cJSON_ArrayForEach(item, objects) check_object(&o, item, false);
        cJSON_ArrayForEach(item, opaque) check_object(&o, item, true);
        cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(expect, "paths")) check_path(&o, item);
        cJSON_Delete(expect);
        free((char *)text.data);
        drop(&o);
    }
}

static void test_formats_dcp__rank_local_files_make_one_checkpoint(void **state)
{
    opened o;
    (void)state;
    open_sample(&o, "dcp_rank_local", NULL);
    const tsr_entry *replicated = tsr_checkpoint_entry(o.checkpoint, TSR_STR("model.steps_seen"));
    assert_int_equal(replicated->chunk_count, 1);
    assert_int_equal(replicated->replica_count, 1);
    assert_true(replicated->chunks[0].file != replicated->replicas[0].file);
    assert_int_equal(tsr_checkpoint_entry(o.checkpoint, TSR_STR("model.emb.weight"))->chunk_count, 2);
    drop(&o);
}

static void test_formats_dcp__skips_object_values_on_request(void **state)
{
    const tsr_open_options options = {.skip_objects = true};
    opened o;
    (void)state;
    open_sample(&o, "dcp_small", &options);
    const tsr_entry *step = tsr_checkpoint_entry(o.checkpoint, TSR_STR("step"));
    assert_int_equal(step->kind, TSR_ENTRY_OBJECT);
    assert_null(step->value);
    drop(&o);
}

/* ---- in file order ---- */

typedef struct order {
    tsr_store *store;
    const tsr_host *host;
    uint32_t file;
    uint64_t end;
    size_t extents, tensors;
} order;

static tsr_status check_order(void *ctx, const tsr_extent *extent, tsr_error *err)
{
    order *o = ctx;
    if (extent->skips) return TSR_OK; /* a question, between items */
    assert_true(extent->file > o->file || (extent->file == o->file && extent->byte_offset >= o->end));
    o->file = extent->file;
    o->end = extent->byte_offset + extent->byte_length;
    o->extents++;
    o->tensors += extent->entry != NULL;
    if (!extent->has_crc) return TSR_OK;
    char *bytes = malloc(extent->byte_length + 1);
    assert_int_equal(tsr_store_read(o->store, extent->file, extent->byte_offset, bytes, (size_t)extent->byte_length, err),
                     TSR_OK);
    assert_int_equal(tsr_crc32(o->host, 0, bytes, (size_t)extent->byte_length), extent->crc32);
    free(bytes);
    return TSR_OK;
}

static void test_formats_dcp__gives_every_item_in_file_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        opened o;
        open_sample(&o, samples[i], NULL);
        order seen = {.store = o.files.store, .host = &o.host};
        size_t chunks = 0, before = tsr_findings_count(tsr_checkpoint_findings(o.checkpoint));
        const tsr_catalog *catalog = tsr_checkpoint_catalog(o.checkpoint);
        for (uint64_t k = 0; k < catalog->entry_count; k++) {
            if (catalog->entries[k].kind == TSR_ENTRY_TENSOR)
                chunks += catalog->entries[k].chunk_count + catalog->entries[k].replica_count;
        }
        assert_int_equal(tsr_checkpoint_extents(o.checkpoint, check_order, &seen, &o.err), TSR_OK);
        if (seen.tensors != chunks) fail_msg("%s: %zu of %zu chunks", samples[i], seen.tensors, chunks);
        if (strcmp(samples[i], "dcp_crc_off") != 0)
            assert_int_equal(tsr_findings_count(tsr_checkpoint_findings(o.checkpoint)), before);
        drop(&o);
    }
}

static tsr_status stop_after(void *ctx, const tsr_extent *extent, tsr_error *err)
{
    size_t *left = ctx;
    (void)extent;
    return (*left)-- ? TSR_OK : tsr_raise(err, TSR_E_CANCELLED, TSR_NO_POSITION, "stopped");
}

static void test_formats_dcp__a_callback_can_stop_the_extents(void **state)
{
    static const char *const directories[] = {"dcp_small", "dcp_safetensors_items", "dcp_rank_local"};
    (void)state;
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++) {
        opened o;
        open_sample(&o, directories[i], NULL);
        tsr_status status = TSR_E_CANCELLED;
        for (size_t n = 0; status == TSR_E_CANCELLED; n++) {
            size_t left = n;
            tsr_error err = {0};
            status = tsr_checkpoint_extents(o.checkpoint, stop_after, &left, &err);
            assert_int_equal(err.status, status);
        }
        assert_int_equal(status, TSR_OK);
        drop(&o);
    }
}

/* Objects that were not read when the checkpoint was opened are examined by a full check. */
static void test_formats_dcp__objects_left_unread_are_in_the_extents(void **state)
{
    (void)state;
    size_t counts[2];
    for (size_t i = 0; i < 2; i++) {
        const tsr_open_options options = {.skip_objects = i == 0};
        opened o;
        open_sample(&o, "dcp_objects", &options);
        order seen = {.store = o.files.store, .host = &o.host};
        assert_int_equal(tsr_checkpoint_extents(o.checkpoint, check_order, &seen, &o.err), TSR_OK);
        counts[i] = seen.extents;
        drop(&o);
    }
    assert_int_equal(counts[0], counts[1]);
    assert_true(counts[0] > 0);
}

/* ---- broken copies ---- */

static const struct {
    const char *directory, *rule, *fqn, *file, *part;
} broken[] = {
    {"broken_dcp_absolute_path", "dcp/path-outside", "weight", ".metadata", "/nowhere/__0_0.distcp"},
    {"broken_dcp_path_traversal", "dcp/path-outside", "weight", ".metadata", "../dcp_small/__0_0.distcp"},
    {"broken_dcp_beyond_end", "dcp/beyond-end", "weight", "__0_0.distcp",
     "at byte 0 with 100000 bytes, but '__0_0.distcp' has only 3154"},
    {"broken_dcp_huge_offset", "dcp/beyond-end", "weight", "__0_0.distcp", "at byte 9223372036854775800"},
    {"broken_dcp_negative_offset", "dcp/beyond-end", "weight", "__0_0.distcp", "at byte -1"},
    {"broken_dcp_truncated", "dcp/beyond-end", "bias", "__1_0.distcp", "at offsets [3]"},
    {"broken_dcp_missing_file", "dcp/missing-file", "step", "__1_0.distcp", "is missing"},
    {"broken_dcp_storage_missing", "dcp/no-record", "weight", ".metadata",
     "chunk 1 of 'weight' at offsets [3, 0] has no item"},
    {"broken_dcp_stray_file", "dcp/unreferenced-file", "", "__9_0.distcp", "no item of the metadata"},
    {"broken_dcp_metadata_call", "pickle/unlisted-call", "", ".metadata", "os.system"},
    {"broken_dcp_blob_shape", "dcp/item", "weight", "__0_0.distcp",
     "contains a tensor [4, 3] float32, but the metadata states [3, 4] float32"},
    /* this is from PyTorch: its metadata for an uneven strided shard disagrees with what the rank held and wrote */
    {"dcp_uneven_strided", "dcp/item", "model.0.weight", "__4_0.distcp",
     "contains a tensor [0, 4] float32, but the metadata states [1, 4] float32"},
    {"broken_dcp_dtype", "dcp/item", "weight", "__0_0.distcp",
     "contains a tensor [3, 4] float32, but the metadata states [3, 4] float64"},
};

static tsr_status pass(void *ctx, const tsr_extent *extent, tsr_error *err)
{
    (void)ctx;
    (void)extent;
    (void)err;
    return TSR_OK;
}

static const tsr_finding *find_rule(tsr_checkpoint *checkpoint, const char *rule)
{
    const tsr_findings *findings = tsr_checkpoint_findings(checkpoint);
    for (size_t i = 0; i < tsr_findings_count(findings); i++) {
        if (strcmp(tsr_findings_at(findings, i)->rule->id, rule) == 0) return tsr_findings_at(findings, i);
    }
    return NULL;
}

static void test_formats_dcp__damage_is_found_and_placed(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        opened o;
        open_sample(&o, broken[i].directory, NULL);
        if (o.status != TSR_OK) fail_msg("%s: %s", broken[i].directory, o.err.message);
        assert_int_equal(tsr_checkpoint_extents(o.checkpoint, pass, NULL, &o.err), TSR_OK);
        const tsr_finding *found = find_rule(o.checkpoint, broken[i].rule);
        if (!found) fail_msg("%s: no finding %s", broken[i].directory, broken[i].rule);
        if (!strstr(found->message.data, broken[i].part)) fail_msg("%s: %s", broken[i].directory, found->message.data);
        assert_true(tsr_str_equal(found->fqn, tsr_str_from(broken[i].fqn)));
        assert_true(tsr_str_equal(found->file, tsr_str_from(broken[i].file)));
        drop(&o);
    }
}

static void test_formats_dcp__bytes_that_are_not_there_cannot_be_located(void **state)
{
    static const char *const directories[] = {"broken_dcp_path_traversal", "broken_dcp_beyond_end",
                                              "broken_dcp_storage_missing", "broken_dcp_dtype"};
    (void)state;
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++) {
        opened o;
        open_sample(&o, directories[i], NULL);
        const tsr_entry *weight = tsr_checkpoint_entry(o.checkpoint, TSR_STR("weight"));
        tsr_arena *scratch = tsr_arena_new(o.host.allocator, 0, NULL);
        tsr_view view;
        size_t failed = 0;
        for (uint64_t c = 0; c < weight->chunk_count; c++) {
            tsr_error err = {0};
            failed += tsr_checkpoint_locate(o.checkpoint, weight, &weight->chunks[c], scratch, &view, &err) != TSR_OK &&
                      strstr(err.message, "'weight'");
        }
        assert_int_equal(failed, i == 3 ? 2 : 1);
        tsr_arena_free(scratch);
        drop(&o);
    }
}

static void test_formats_dcp__unreadable_metadata_is_an_error(void **state)
{
    opened o;
    (void)state;
    open_sample(&o, "broken_dcp_metadata_truncated", NULL);
    assert_int_equal(o.status, TSR_E_FORMAT);
    assert_non_null(strstr(o.err.message, "FRAME announces 1344 bytes, but only 1144 remain, in .metadata"));
    drop(&o);
}

static void test_formats_dcp__zstd_without_a_decompressor_is_an_error_where_objects_are_read(void **state)
{
    opened o;
    (void)state;
    open_sample(&o, "dcp_zstd", NULL);
    assert_int_equal(o.status, TSR_E_NOT_BUILT);
    assert_non_null(strstr(o.err.message, "libzstd-dev"));
    drop(&o);
    open_sample(&o, "dcp_zstd", &(tsr_open_options){.skip_objects = true});
    assert_int_equal(o.status, TSR_OK);
    assert_int_equal(tsr_findings_count(tsr_checkpoint_findings(o.checkpoint)), 0);
    drop(&o);
}

/* ---- memory ---- */

static void use_all(tsr_checkpoint *checkpoint, const tsr_allocator *allocator)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        tsr_view view;
        tsr_arena *scratch = tsr_arena_new(allocator, 0, NULL);
        if (scratch && catalog->entries[i].kind == TSR_ENTRY_TENSOR) {
            tsr_checkpoint_locate(checkpoint, &catalog->entries[i], &catalog->entries[i].chunks[0], scratch, &view, NULL);
        }
        tsr_arena_free(scratch);
    }
    tsr_checkpoint_extents(checkpoint, pass, NULL, NULL);
}

static void test_formats_dcp__survives_every_allocation_failure(void **state)
{
    static const char *const directories[] = {"dcp_small", "broken_dcp_path_traversal", "dcp_rank_local",
                                              "dcp_safetensors_items"};
    (void)state;
    for (size_t f = 0; f < sizeof directories / sizeof *directories; f++) {
        sample files = {.count = 0};
        add_directory(&files, directories[f]);
        assert_int_equal(sample_open(&files, &tsr_allocator_libc), TSR_OK);
        for (size_t n = 0;; n++) {
            failing_allocator failing;
            failing_start(&failing, n);
            tsr_host host = {.allocator = &failing.allocator, .limits = tsr_limits_default()};
            tsr_checkpoint *checkpoint;
            tsr_error err = {0};
            tsr_status status = tsr_checkpoint_open(files.store, &host, NULL, &checkpoint, &err);
            if (status == TSR_OK) use_all(checkpoint, &failing.allocator);
            else if (status != TSR_E_NOMEM) fail_msg("%s at %zu: %s", directories[f], n, err.message);
            tsr_checkpoint_close(checkpoint);
            assert_int_equal(failing.live, 0);
            if (!failing.failed) break;
        }
        sample_close(&files);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_dcp__lists_what_pytorch_wrote),
        cmocka_unit_test(test_formats_dcp__rank_local_files_make_one_checkpoint),
        cmocka_unit_test(test_formats_dcp__skips_object_values_on_request),
        cmocka_unit_test(test_formats_dcp__gives_every_item_in_file_order),
        cmocka_unit_test(test_formats_dcp__a_callback_can_stop_the_extents),
        cmocka_unit_test(test_formats_dcp__objects_left_unread_are_in_the_extents),
        cmocka_unit_test(test_formats_dcp__damage_is_found_and_placed),
        cmocka_unit_test(test_formats_dcp__bytes_that_are_not_there_cannot_be_located),
        cmocka_unit_test(test_formats_dcp__unreadable_metadata_is_an_error),
        cmocka_unit_test(test_formats_dcp__zstd_without_a_decompressor_is_an_error_where_objects_are_read),
        cmocka_unit_test(test_formats_dcp__survives_every_allocation_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
