/* Compares torch.save files with what PyTorch reads from them: the goldens of samples/checkpoints (names, paths, dtypes,
 * shapes, strides, boxes, which entries are opaque), and every element if the values count up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "support/checkpoint_opening.h"
#include "support/sample.h"
#include "tessera/checkpoint.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"

typedef struct opened {
    sample sample;
    tsr_host host;
    tsr_checkpoint *checkpoint;
    const tsr_catalog *catalog;
    tsr_error err;
    tsr_status status;
} opened;

static void open_sample(opened *o, const char *directory, const char *const *files)
{
    *o = (opened){.host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()}};
    for (; *files; files++) sample_add_file(&o->sample, directory, *files);
    assert_int_equal(sample_open(&o->sample, &tsr_allocator_libc), TSR_OK);
    o->status = tsr_checkpoint_open(o->sample.store, &o->host, NULL, &o->checkpoint, &o->err);
    if (o->status == TSR_OK) o->catalog = tsr_checkpoint_catalog(o->checkpoint);
}

static void open_file(opened *o, const char *directory, const char *file)
{
    open_sample(o, directory, (const char *const[]){file, NULL});
    if (o->status != TSR_OK) fail_msg("%s/%s: %s", directory, file, o->err.message);
}

static void drop(opened *o)
{
    tsr_checkpoint_close(o->checkpoint);
    sample_close(&o->sample);
}

/* ---- goldens ---- */

typedef struct golden {
    const char *directory;
    const char *files[8];
    tsr_format format;
} golden;

static const golden goldens[] = {
    {"torch_alignment", {"model.pt"}, TSR_FORMAT_TORCH_ZIP},
    {"torch_big_endian", {"model.pt"}, TSR_FORMAT_TORCH_ZIP},
    {"torch_classes", {"classes.pt"}, TSR_FORMAT_TORCH_ZIP},
    {"torch_crc_off", {"model.pt"}, TSR_FORMAT_TORCH_ZIP},
    {"torch_dtypes", {"dtypes.pt"}, TSR_FORMAT_TORCH_ZIP},
    {"torch_legacy", {"train.pt"}, TSR_FORMAT_TORCH_LEGACY},
    {"torch_legacy_dtypes", {"dtypes.pt"}, TSR_FORMAT_TORCH_LEGACY},
    {"torch_legacy_views", {"views.pt"}, TSR_FORMAT_TORCH_LEGACY},
    {"torch_module", {"module.pt"}, TSR_FORMAT_TORCH_ZIP},
    {"torch_nested", {"nested.pt"}, TSR_FORMAT_TORCH_ZIP},
    {"torch_no_byteorder", {"model.pt"}, TSR_FORMAT_TORCH_ZIP},
    {"torch_objects", {"objects.pt"}, TSR_FORMAT_TORCH_ZIP},
    {"torch_plain", {"model.pt"}, TSR_FORMAT_TORCH_ZIP},
    {"torch_protocol4", {"train.pt"}, TSR_FORMAT_TORCH_ZIP},
    {"torch_quantized", {"quantized.pt"}, TSR_FORMAT_TORCH_ZIP},
    {"torch_root_tensor", {"tensor.pt"}, TSR_FORMAT_TORCH_ZIP},
    {"torch_sizes", {"sizes.pt"}, TSR_FORMAT_TORCH_ZIP},
    {"torch_sparse", {"sparse.pt"}, TSR_FORMAT_TORCH_ZIP},
    {"torch_storages", {"storages.pt"}, TSR_FORMAT_TORCH_ZIP},
    {"torch_subclasses", {"subclasses.pt"}, TSR_FORMAT_TORCH_ZIP},
    {"torch_train_state", {"train.pt"}, TSR_FORMAT_TORCH_ZIP},
    {"torch_views", {"views.pt"}, TSR_FORMAT_TORCH_ZIP},
    {"torch_bin_index",
     {"pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin", "pytorch_model.bin.index.json"},
     TSR_FORMAT_TORCH_INDEX},
    {"torch_ranks_fsdp1_local", {"rank0.pt", "rank1.pt", "rank2.pt", "rank3.pt"}, TSR_FORMAT_TORCH_RANKS},
    {"torch_ranks_fsdp1_sharded", {"rank0.pt", "rank1.pt", "rank2.pt"}, TSR_FORMAT_TORCH_RANKS},
    {"torch_ranks_fsdp2", {"rank0.pt", "rank1.pt", "rank2.pt"}, TSR_FORMAT_TORCH_RANKS},
    {"torch_ranks_replicated", {"rank0.pt", "rank1.pt"}, TSR_FORMAT_TORCH_RANKS},
    {"torch_ranks_tp_fsdp2", {"rank0.pt", "rank1.pt", "rank2.pt", "rank3.pt"}, TSR_FORMAT_TORCH_RANKS},
    {"torch_v2_15_train_state", {"train.pt"}, TSR_FORMAT_TORCH_ZIP},
    {"torch_v2_3_train_state", {"train.pt"}, TSR_FORMAT_TORCH_ZIP},
    {"torch_ranks_v2_15_fsdp1_sharded", {"rank0.pt", "rank1.pt"}, TSR_FORMAT_TORCH_RANKS},
    {"torch_ranks_v2_15_fsdp2", {"rank0.pt", "rank1.pt"}, TSR_FORMAT_TORCH_RANKS},
    {"torch_ranks_uneven_strided",
     {"rank0.pt", "rank1.pt", "rank2.pt", "rank3.pt", "rank4.pt", "rank5.pt"},
     TSR_FORMAT_TORCH_RANKS},
};

static cJSON *golden_of(const char *directory)
{
    char path[256];
    snprintf(path, sizeof path, "%s.expect.json", directory);
    tsr_str text = sample_read(path);
    cJSON *root = cJSON_ParseWithLength(text.data, text.size); /* goldens may contain \u0000, which our own parser rejects */
    if (!root) fail_msg("%s cannot be read", path);
    free((char *)text.data);
    return root;
}

static bool same_numbers(const cJSON *list, const uint64_t *numbers, uint32_t count)
{
    if (cJSON_GetArraySize(list) != (int)count) return false;
    for (uint32_t i = 0; i < count; i++, numbers++)
        if (cJSON_GetArrayItem(list, (int)i)->valuedouble != (double)*numbers) return false;
    return true;
}

/* Whether the strides of the only chunk are PyTorch's. Strides of dimensions with at most one element, and of contiguous
 * ones, do not matter. */
static bool same_strides(const cJSON *list, const tsr_entry *entry)
{
    const tsr_view *view = entry->chunks[0].view;
    uint64_t expected = 1, elements;
    tsr_entry_elements(entry, &elements);
    if (!list || elements == 0) return true;
    for (uint32_t i = entry->ndim; i-- > 0; expected *= entry->shape[i]) {
        uint64_t ours = view && view->strides ? view->strides[i] : expected;
        if (entry->shape[i] > 1 && (double)ours != cJSON_GetArrayItem(list, (int)i)->valuedouble) return false;
    }
    return true;
}

static bool has_chunk(const tsr_entry *entry, const cJSON *box)
{
    for (uint64_t i = 0; i < entry->chunk_count; i++)
        if (same_numbers(cJSON_GetObjectItem(box, "offsets"), entry->chunks[i].offsets, entry->ndim) &&
            same_numbers(cJSON_GetObjectItem(box, "sizes"), entry->chunks[i].sizes, entry->ndim))
            return true;
    return false;
}

static void check_tensor(const char *directory, const tsr_entry *entry, const cJSON *want)
{
    tsr_str dtype = tsr_str_from(cJSON_GetObjectItem(want, "dtype")->valuestring);
    const cJSON *chunks = cJSON_GetObjectItem(want, "chunks"), *box;
    bool same = entry->kind == TSR_ENTRY_TENSOR && entry->dtype == tsr_dtype_from_name(dtype) &&
                same_numbers(cJSON_GetObjectItem(want, "shape"), entry->shape, entry->ndim) &&
                same_strides(cJSON_GetObjectItem(want, "stride"), entry);
    if (!chunks) same = same && entry->chunk_count == 1;
    else same = same && cJSON_GetArraySize(chunks) == (int)entry->chunk_count;
    cJSON_ArrayForEach(box, chunks) same = same && has_chunk(entry, box);
    if (!same) fail_msg("%s: '%.*s' is not what PyTorch reads", directory, TSR_STR_ARG(entry->fqn));
}

static void check_path(const char *directory, const tsr_entry *entry, const cJSON *want)
{
    bool same = cJSON_GetArraySize(want) == (int)entry->path_length;
    for (uint32_t i = 0; same && i < entry->path_length; i++) {
        const cJSON *item = cJSON_GetArrayItem(want, (int)i);
        const tsr_path_item *ours = &entry->path[i];
        char digits[24];
        snprintf(digits, sizeof digits, "%lld", (long long)ours->integer);
        if (cJSON_IsNumber(item)) same = ours->kind == TSR_PATH_INDEX && item->valuedouble == (double)ours->integer;
        else if (ours->kind == TSR_PATH_INT_KEY) same = strcmp(digits, item->valuestring) == 0; /* PyTorch stores str(key) */
        else same = ours->kind == TSR_PATH_KEY && tsr_str_equal(ours->key, tsr_str_from(item->valuestring));
    }
    if (!same) fail_msg("%s: the path of '%.*s' is not PyTorch's", directory, TSR_STR_ARG(entry->fqn));
}

static void check_golden(const golden *g)
{
    opened o;
    open_sample(&o, g->directory, g->files);
    if (o.status != TSR_OK) fail_msg("%s: %s", g->directory, o.err.message);
    assert_int_equal(o.catalog->format, g->format);
    cJSON *root = golden_of(g->directory), *member;
    const cJSON *groups[] = {cJSON_GetObjectItem(root, "entries"), cJSON_GetObjectItem(root, "objects"),
                             cJSON_GetObjectItem(root, "opaque")};
    const cJSON *paths = cJSON_GetObjectItem(root, "paths");
    int count = cJSON_GetArraySize(groups[0]) + cJSON_GetArraySize(groups[1]) + cJSON_GetArraySize(groups[2]);
    assert_int_equal(o.catalog->entry_count, count);
    for (int k = 0; k < 3; k++) cJSON_ArrayForEach(member, groups[k])
        {
            const tsr_entry *entry = tsr_checkpoint_entry(o.checkpoint, tsr_str_from(member->string));
            if (!entry) fail_msg("%s: '%s' is missing", g->directory, member->string);
            if (k == 0) check_tensor(g->directory, entry, member);
            else if (entry->kind == TSR_ENTRY_TENSOR || !entry->value)
                fail_msg("%s: '%s' is not an object", g->directory, member->string);
            if (k == 2) assert_int_equal(entry->kind, TSR_ENTRY_OPAQUE);
        }
    uint64_t at = 0;
    cJSON_ArrayForEach(member, paths)
    {
        assert_true(tsr_str_equal(o.catalog->entries[at].fqn, tsr_str_from(member->string)));
        check_path(g->directory, &o.catalog->entries[at++], member);
    }
    cJSON_Delete(root);
    drop(&o);
}

static void test_formats_torch__catalogs_are_what_pytorch_reads(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof goldens / sizeof goldens[0]; i++) check_golden(&goldens[i]);
}

/* ---- elements ---- */

/* Reads the first `size` bytes of element `at` (row-major) of an entry with one chunk, using its view. */
static void element(const opened *o, const tsr_entry *entry, uint64_t at, void *out, size_t size)
{
    tsr_view view;
    tsr_arena *scratch = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    assert_int_equal(tsr_checkpoint_locate(o->checkpoint, entry, entry->chunks, scratch, &view, NULL), TSR_OK);
    uint64_t offset = 0, expected = 1;
    for (uint32_t i = entry->ndim; i-- > 0; expected *= entry->shape[i]) {
        offset += at % entry->shape[i] * (view.strides ? view.strides[i] : expected);
        at /= entry->shape[i];
    }
    offset = view.byte_offset + offset * tsr_dtype_size(entry->dtype);
    assert_int_equal(tsr_store_read(o->sample.store, view.file, offset, out, size, NULL), TSR_OK);
    tsr_arena_free(scratch);
}

static void check_floats(const opened *o, const char *fqn, const float *expected, size_t count)
{
    const tsr_entry *entry = tsr_checkpoint_entry(o->checkpoint, tsr_str_from(fqn));
    uint64_t elements;
    assert_non_null(entry);
    assert_true(tsr_entry_elements(entry, &elements));
    assert_int_equal(elements, count);
    for (size_t i = 0; i < count; i++) {
        float value;
        element(o, entry, i, &value, sizeof value);
        if (value != expected[i]) fail_msg("%s[%zu] is %g, PyTorch has %g", fqn, i, (double)value, (double)expected[i]);
    }
}

/* base = arange(60).reshape(5, 12); see views() in samples/maker/values.py. */
static void check_views(const opened *o)
{
    float base[60], transposed[60], rows[36], strided[12], as_strided[12];
    for (int i = 0; i < 60; i++) base[i] = (float)i;
    for (int i = 0; i < 60; i++) transposed[i] = (float)(i % 5 * 12 + i / 5);
    for (int i = 0; i < 36; i++) rows[i] = (float)(i + 12);
    for (int i = 0; i < 12; i++) strided[i] = (float)(i / 4 * 24 + 1 + i % 4 * 3);
    for (int i = 0; i < 12; i++) as_strided[i] = (float)(5 + i / 3 + i % 3 * 2);
    check_floats(o, "base", base, 60);
    check_floats(o, "transposed", transposed, 60);
    check_floats(o, "rows", rows, 36);
    check_floats(o, "strided", strided, 12);
    check_floats(o, "as_strided", as_strided, 12);
    check_floats(o, "last_element", (const float[]){59}, 1);
    check_floats(o, "expanded", (const float[]){1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}, 12);
    check_floats(o, "expanded_scalar", (const float[]){7, 7, 7, 7, 7, 7, 7, 7, 7, 7}, 10);
    const tsr_entry *conj = tsr_checkpoint_entry(o->checkpoint, TSR_STR("conj")),
                    *neg = tsr_checkpoint_entry(o->checkpoint, TSR_STR("neg"));
    assert_true(conj->chunks[0].view->conj && !conj->chunks[0].view->neg);
    assert_true(neg->chunks[0].view->neg && !neg->chunks[0].view->conj);
    const tsr_entry *a = tsr_checkpoint_entry(o->checkpoint, TSR_STR("base")),
                    *b = tsr_checkpoint_entry(o->checkpoint, TSR_STR("rows"));
    assert_true(a->storage_id != 0 && a->storage_id == b->storage_id);
    assert_int_equal(tsr_checkpoint_entry(o->checkpoint, TSR_STR("expanded_scalar"))->storage_id, 0);
}

static void test_formats_torch__views_give_pytorchs_elements(void **state)
{
    (void)state;
    opened o;
    open_file(&o, "torch_views", "views.pt");
    check_views(&o);
    drop(&o);
    open_file(&o, "torch_legacy_views", "views.pt");
    check_views(&o);
    drop(&o);
}

static void test_formats_torch__big_endian_files_are_marked_for_swapping(void **state)
{
    (void)state;
    opened o;
    open_file(&o, "torch_big_endian", "model.pt");
    for (uint64_t i = 0; i < o.catalog->entry_count; i++) {
        const tsr_entry *entry = &o.catalog->entries[i];
        const tsr_view *view = entry->chunks[0].view;
        assert_int_equal(view && view->swap, tsr_dtype_describe(entry->dtype)->swap_bytes > 1);
    }
    drop(&o);
}

static void test_formats_torch__parameters_and_gradients_are_known(void **state)
{
    (void)state;
    static const struct {
        const char *fqn;
        bool is_parameter, requires_grad;
    } rows[] = {{"parameter", true, false},
                {"buffer", false, false},
                {"parameter_with_attribute", true, true},
                {"needs_grad", false, true}};
    opened o;
    open_file(&o, "torch_subclasses", "subclasses.pt");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const tsr_entry *entry = tsr_checkpoint_entry(o.checkpoint, tsr_str_from(rows[i].fqn));
        assert_int_equal(entry->is_parameter, rows[i].is_parameter);
        assert_int_equal(entry->requires_grad, rows[i].requires_grad);
    }
    drop(&o);
}

/* ---- objects ---- */

static const tsr_value *value_of(const opened *o, const char *fqn)
{
    const tsr_entry *entry = tsr_checkpoint_entry(o->checkpoint, tsr_str_from(fqn));
    if (!entry) fail_msg("'%s' is missing", fqn);
    return entry->value;
}

static void test_formats_torch__objects_keep_their_values(void **state)
{
    (void)state;
    opened o;
    open_file(&o, "torch_objects", "objects.pt");
    assert_int_equal(value_of(&o, "none")->kind, TSR_VALUE_NONE);
    assert_int_equal(value_of(&o, "big")->as.integer, 9007199254740993);
    assert_int_equal(value_of(&o, "huge")->kind, TSR_VALUE_BIGINT);
    assert_true(value_of(&o, "float")->as.real == 0.1);
    assert_true(value_of(&o, "complex")->as.complex.re == 1.5 && value_of(&o, "complex")->as.complex.im == -2.0);
    assert_true(tsr_str_equal(value_of(&o, "bytes")->text, (tsr_str){"\x00\xff\x80", 3}));
    assert_int_equal(value_of(&o, "bytes")->kind, TSR_VALUE_BYTES);
    assert_int_equal(value_of(&o, "empty_bytes")->kind, TSR_VALUE_BYTES);
    assert_int_equal(value_of(&o, "tuple")->kind, TSR_VALUE_TUPLE);
    assert_int_equal(value_of(&o, "size")->kind, TSR_VALUE_SIZE);
    assert_int_equal(value_of(&o, "size")->items[1]->as.integer, 3);
    assert_int_equal(value_of(&o, "dtype")->as.dtype, TSR_BFLOAT16);
    assert_true(tsr_str_equal(value_of(&o, "device")->text, TSR_STR("cpu")));
    const tsr_value *inner = value_of(&o, "nested.tuple_with_tensor")->items[0];
    assert_int_equal(inner->kind, TSR_VALUE_TENSOR);
    assert_true(tsr_str_equal(inner->as.tensor->fqn, TSR_STR("0")));
    assert_true(tsr_str_equal(tsr_checkpoint_entry(o.checkpoint, TSR_STR("list"))->type, TSR_STR("list")));
    drop(&o);
}

static void test_formats_torch__odd_tensors_name_their_parts(void **state)
{
    (void)state;
    static const struct {
        const char *directory, *file, *fqn, *part;
        tsr_dtype dtype;
        uint32_t ndim;
    } rows[] = {
        {"torch_quantized", "quantized.pt", "by_channel", "zero_points", TSR_QINT8, 2},
        {"torch_quantized", "quantized.pt", "by_tensor", "data", TSR_QUINT8, 2},
        {"torch_sparse", "sparse.pt", "coo", "indices", TSR_FLOAT32, 2},
        {"torch_sparse", "sparse.pt", "bsr", "compressed_indices", TSR_FLOAT32, 2},
        {"torch_nested", "nested.pt", "strided", "sizes", TSR_FLOAT32, 0},
        {"torch_nested", "nested.pt", "jagged", "offsets", TSR_FLOAT32, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        opened o;
        open_file(&o, rows[i].directory, rows[i].file);
        const tsr_entry *entry = tsr_checkpoint_entry(o.checkpoint, tsr_str_from(rows[i].fqn));
        assert_int_equal(entry->kind, TSR_ENTRY_OPAQUE);
        assert_int_equal(entry->dtype, rows[i].dtype);
        assert_int_equal(entry->ndim, rows[i].ndim);
        const tsr_value *part = tsr_value_get(entry->value->items[0], tsr_str_from(rows[i].part));
        assert_int_equal(part->kind, TSR_VALUE_TENSOR);
        assert_true(tsr_str_equal(part->as.tensor->fqn, tsr_str_from(rows[i].part)));
        drop(&o);
    }
}

/* ---- extents ---- */

typedef struct seen {
    uint32_t count, with_entry, with_crc;
    uint64_t end;
    uint32_t file;
} seen;

static tsr_status see(void *ctx, const tsr_extent *extent, tsr_error *err)
{
    seen *s = ctx;
    (void)err;
    assert_true(s->count == 0 || extent->file > s->file || (extent->file == s->file && extent->byte_offset >= s->end));
    if (extent->entry) {
        assert_int_equal(extent->chunk->byte_offset, extent->byte_offset);
        assert_int_equal(extent->chunk->byte_length, extent->byte_length);
    }
    s->count++;
    s->with_entry += extent->entry != NULL;
    s->with_crc += extent->has_crc;
    s->file = extent->file;
    s->end = extent->byte_offset + extent->byte_length;
    return TSR_OK;
}

static void test_formats_torch__extents_cover_members_and_storages(void **state)
{
    (void)state;
    static const struct {
        const char *directory, *file;
        uint32_t count, with_entry, with_crc;
    } rows[] = {{"torch_plain", "model.pt", 25, 6, 25}, /* with what is around the 12 members */
                {"torch_crc_off", "model.pt", 25, 6, 13},
                {"torch_legacy_dtypes", "dtypes.pt", 12, 12, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        opened o;
        seen s = {0};
        open_file(&o, rows[i].directory, rows[i].file);
        assert_int_equal(tsr_checkpoint_extents(o.checkpoint, see, &s, NULL), TSR_OK);
        if (s.count != rows[i].count || s.with_entry != rows[i].with_entry || s.with_crc != rows[i].with_crc)
            fail_msg("%s: %u extents, %u with an entry, %u with a CRC", rows[i].directory, s.count, s.with_entry,
                     s.with_crc);
        drop(&o);
    }
}

static tsr_status stop(void *ctx, const tsr_extent *extent, tsr_error *err)
{
    (void)ctx;
    (void)extent;
    return tsr_raise(err, TSR_E_CANCELLED, TSR_NO_POSITION, "enough");
}

static void test_formats_torch__a_callback_can_stop_the_extents(void **state)
{
    (void)state;
    opened o;
    open_file(&o, "torch_plain", "model.pt");
    assert_int_equal(tsr_checkpoint_extents(o.checkpoint, stop, NULL, &o.err), TSR_E_CANCELLED);
    drop(&o);
}

/* ---- failures ---- */

static void bear_failures(const char *directory, const char *const *files)
{
    sample s = {.count = 0};
    const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    for (; *files; files++) sample_add_file(&s, directory, *files);
    assert_int_equal(sample_open(&s, &tsr_allocator_libc), TSR_OK);
    assert_int_equal(must_bear_failures(open_and_walk, NULL, s.store, &host), TSR_OK);
    sample_close(&s);
}

static void test_formats_torch__failing_allocations_and_reads_end_cleanly(void **state)
{
    (void)state;
    static const char *const files[][2] = {{"torch_plain", "model.pt"},           {"torch_module", "module.pt"},
                                           {"torch_legacy_dtypes", "dtypes.pt"},  {"torch_classes", "classes.pt"},
                                           {"torch_quantized", "quantized.pt"},   {"torch_sparse", "sparse.pt"},
                                           {"torch_nested", "nested.pt"},         {"torch_storages", "storages.pt"},
                                           {"torch_subclasses", "subclasses.pt"}, {"torch_big_endian", "model.pt"}};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        bear_failures(files[i][0], (const char *const[]){files[i][1], NULL});
    bear_failures("torch_ranks_uneven_strided", (const char *const[]){"rank0.pt", "rank1.pt", NULL});
    bear_failures("torch_ranks_fsdp1_sharded", (const char *const[]){"rank0.pt", "rank1.pt", NULL});
    bear_failures("torch_bin_index", goldens[22].files);
}

static void test_formats_torch__every_truncation_ends_in_an_error(void **state)
{
    (void)state;
    static const char *const files[][2] = {{"torch_root_tensor", "tensor.pt"}, {"torch_legacy_dtypes", "dtypes.pt"}};
    for (size_t i = 0; i < 2; i++) {
        sample s = {.count = 0};
        sample_add_file(&s, files[i][0], files[i][1]);
        size_t whole = s.files[0].content.size;
        tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
        for (size_t size = 0; size < whole; size++) {
            tsr_checkpoint *checkpoint;
            s.files[0].content.size = size;
            assert_int_equal(sample_open(&s, &tsr_allocator_libc), TSR_OK);
            assert_int_not_equal(tsr_checkpoint_open(s.store, &host, NULL, &checkpoint, NULL), TSR_OK);
            s.store->close(s.store);
        }
        s.store = NULL;
        sample_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats_torch__catalogs_are_what_pytorch_reads),
        cmocka_unit_test(test_formats_torch__views_give_pytorchs_elements),
        cmocka_unit_test(test_formats_torch__big_endian_files_are_marked_for_swapping),
        cmocka_unit_test(test_formats_torch__parameters_and_gradients_are_known),
        cmocka_unit_test(test_formats_torch__objects_keep_their_values),
        cmocka_unit_test(test_formats_torch__odd_tensors_name_their_parts),
        cmocka_unit_test(test_formats_torch__extents_cover_members_and_storages),
        cmocka_unit_test(test_formats_torch__a_callback_can_stop_the_extents),
        cmocka_unit_test(test_formats_torch__failing_allocations_and_reads_end_cleanly),
        cmocka_unit_test(test_formats_torch__every_truncation_ends_in_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
