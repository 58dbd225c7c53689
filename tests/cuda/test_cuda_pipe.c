/* Loads checkpoints into device memory. */
#include <stdio.h>
#include <string.h>

#include "cuda/on_devices.h"
#include "support/random.h"
#include "support/sample.h"
#include "tessera/box.h"
#include "tessera/native_host.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/gpu.h"
#include "tessera/sys/read.h"
#include "tessera/sys/store.h"

static tsr_native_host native;

static int open_native(void **state)
{
    (void)state;
    tsr_native_host_open(&native, 3);
    test_host = native.host; /* the threads of this host fill the ring */
    return 0;
}

static int close_native(void **state)
{
    (void)state;
    tsr_native_host_close(&native);
    return 0;
}

static void fill_random(random_source *random, uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)random_next(random);
}

/* ---- checkpoints ---- */

static const char *const samples[] = {
    "dcp_fsdp2",         "dcp_tp_fsdp2",          "dcp_dtypes",        "dcp_hsdp",
    "dcp_zstd",          "dcp_safetensors_items", "dcp_hf_sharded",    "dcp_fsdp1_sharded",
    "safetensors_model", "safetensors_dtypes",    "safetensors_index", "torch_plain",
    "torch_views",       "torch_big_endian",      "torch_legacy",      "torch_storages",
    "torch_dtypes",      "torch_bin_index",       "torch_ranks_fsdp2", "torch_train_state"};

typedef struct opened {
    tsr_store *store;
    tsr_checkpoint *checkpoint;
    const tsr_catalog *catalog;
} opened;

static opened open_sample(const char *name)
{
    char path[512];
    opened o;
    snprintf(path, sizeof path, "%s/samples/checkpoints/%s", sample_root(), name);
    OK(tsr_directory_store_open(NULL, &tsr_allocator_libc, path, &o.store, err));
    OK(tsr_checkpoint_open(o.store, &native.host, NULL, &o.checkpoint, err));
    o.catalog = tsr_checkpoint_catalog(o.checkpoint);
    return o;
}

static void close_sample(opened o)
{
    tsr_checkpoint_close(o.checkpoint);
    o.store->close(o.store);
}

/* Returns the hash of the values that PyTorch read, from the sample's document, or NULL when the document does not list the
 * tensor with this name. */
static const char *expected_hash(const char *document, tsr_str fqn)
{
    char key[512];
    snprintf(key, sizeof key, "\n  \"%.*s\": {", TSR_STR_ARG(fqn));
    const char *line = strstr(document, key), *end = line ? strchr(line + 1, '\n') : NULL;
    const char *hash = line ? strstr(line, "\"sha256\": \"") : NULL;
    return hash && hash < end ? hash + strlen("\"sha256\": \"") : NULL;
}

static bool has_hash(const void *bytes, size_t size, const char *hash)
{
    uint8_t digest[32];
    void *state = native.host.sha256->start();
    native.host.sha256->update(state, bytes, size);
    native.host.sha256->finish(state, digest);
    for (size_t i = 0; i < 32; i++) {
        char two[3];
        snprintf(two, sizeof two, "%02x", digest[i]);
        if (memcmp(two, hash + 2 * i, 2) != 0) return false;
    }
    return true;
}

static bool is_loadable(const tsr_entry *entry, uint64_t *bytes)
{
    return entry->kind == TSR_ENTRY_TENSOR && tsr_tensor_bytes(entry, bytes, NULL) == TSR_OK;
}

static void fetch(tsr_gpu *device, void *to, const void *from, size_t size)
{
    tsr_gpu_stream *stream;
    OK(tsr_gpu_stream_new(device, &stream, err));
    download(stream, to, from, size);
    tsr_gpu_stream_free(stream);
}

/* Loads all tensors of a sample in one call. Returns the number of those whose hash PyTorch has given. */
static size_t load_sample(tsr_gpu *device, tsr_gpu_pipe *pipe, const char *name)
{
    char document_name[256];
    snprintf(document_name, sizeof document_name, "%s.expect.json", name);
    const tsr_str document = sample_read(document_name);
    const opened o = open_sample(name);
    tsr_gpu_load *loads = calloc(o.catalog->entry_count, sizeof *loads);
    size_t count = 0, told = 0;
    uint64_t bytes;
    for (uint64_t i = 0; i < o.catalog->entry_count; i++) {
        if (!is_loadable(&o.catalog->entries[i], &bytes)) continue;
        loads[count] = (tsr_gpu_load){.entry = &o.catalog->entries[i]};
        OK(tsr_gpu_alloc(device, bytes, &loads[count++].to, err));
    }
    OK(tsr_gpu_load_tensors(pipe, o.checkpoint, loads, count, NULL, err));
    for (size_t i = 0; i < count; i++) {
        OK(tsr_tensor_bytes(loads[i].entry, &bytes, err));
        uint8_t *back = malloc(bytes + 1);
        fetch(device, back, loads[i].to, bytes);
        const char *hash = expected_hash(document.data, loads[i].entry->fqn);
        if (hash && !has_hash(back, bytes, hash)) fail_msg("%s: '%.*s'", name, TSR_STR_ARG(loads[i].entry->fqn));
        told += hash != NULL;
        tsr_gpu_free(device, loads[i].to);
        free(back);
    }
    free(loads);
    free((char *)document.data);
    close_sample(o);
    return told;
}

static void test_cuda_pipe__every_form_loads_to_the_device_as_pytorch_has_it(void **state)
{
    tsr_gpu *device = device_of(state);
    tsr_gpu_pipe *pipe;
    OK(tsr_gpu_pipe_new(device, 0, &pipe, err));
    for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++) {
        if (load_sample(device, pipe, samples[i]) == 0) fail_msg("%s: no tensor was compared", samples[i]);
    }
    tsr_gpu_pipe_free(pipe);
}

/* Loads a random box of every tensor of a sample, cast to bfloat16 where that is possible. */
static void load_boxes(tsr_gpu *device, tsr_gpu_pipe *pipe, random_source *random, const opened *o)
{
    for (uint64_t i = 0; i < o->catalog->entry_count; i++) {
        const tsr_entry *entry = &o->catalog->entries[i];
        uint64_t bytes, offsets[TSR_MAX_NDIM], sizes_of_box[TSR_MAX_NDIM], elements = 1;
        if (!is_loadable(entry, &bytes) || tsr_dtype_size(entry->dtype) == 0) continue;
        for (uint32_t d = 0; d < entry->ndim; d++) {
            offsets[d] = entry->shape[d] ? random_in(random, 0, entry->shape[d] - 1) : 0;
            sizes_of_box[d] = entry->shape[d] ? random_in(random, 1, entry->shape[d] - offsets[d]) : 0;
            elements *= sizes_of_box[d];
        }
        const bool casts = entry->dtype != TSR_BFLOAT16 && tsr_cast_possible(entry->dtype, TSR_BFLOAT16);
        const size_t itemsize = tsr_dtype_size(entry->dtype), out = elements * (casts ? 2 : itemsize);
        uint8_t *expected = malloc(elements * itemsize + 1), *cast = malloc(elements * 2 + 1), *back = malloc(out + 1);
        tsr_gpu_load load = {
            .entry = entry, .offsets = offsets, .sizes = sizes_of_box, .dtype = casts ? TSR_BFLOAT16 : entry->dtype};
        OK(tsr_read_box(o->checkpoint, entry, (tsr_box){entry->ndim, offsets, sizes_of_box}, expected, elements * itemsize,
                        err));
        if (casts) tsr_cast(entry->dtype, TSR_BFLOAT16, expected, elements, cast);
        OK(tsr_gpu_alloc(device, out, &load.to, err));
        OK(tsr_gpu_load_tensors(pipe, o->checkpoint, &load, 1, NULL, err));
        fetch(device, back, load.to, out);
        assert_memory_equal(back, casts ? cast : expected, out);
        tsr_gpu_free(device, load.to);
        free(expected);
        free(cast);
        free(back);
    }
}

static void test_cuda_pipe__boxes_load_and_cast_on_the_way(void **state)
{
    tsr_gpu *device = device_of(state);
    random_source random = {83};
    tsr_gpu_pipe *pipe;
    OK(tsr_gpu_pipe_new(device, 0, &pipe, err));
    for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++) {
        const opened o = open_sample(samples[i]);
        load_boxes(device, pipe, &random, &o);
        close_sample(o);
    }
    tsr_gpu_pipe_free(pipe);
}

/* ---- large enough for several rounds of the ring ---- */

static bool stop_in_the_middle(void *ctx, uint64_t byte_done, uint64_t byte_total)
{
    uint64_t *last = ctx;
    assert_true(byte_done > *last && byte_done <= byte_total);
    *last = byte_done;
    return byte_done < byte_total / 2;
}

/* Returns a safetensors file in memory with one float32 tensor of `count` elements. */
static tsr_str make_safetensors(size_t count, const uint8_t *data)
{
    char *bytes = malloc(8 + 128 + 4 * count);
    memset(bytes, ' ', 8 + 128);
    const uint64_t header = 128;
    memcpy(bytes, &header, 8);
    const int used =
        snprintf(bytes + 8, 128, "{\"w\":{\"dtype\":\"F32\",\"shape\":[%zu],\"data_offsets\":[0,%zu]}}", count, 4 * count);
    bytes[8 + used] = ' ';
    memcpy(bytes + 8 + 128, data, 4 * count);
    return (tsr_str){bytes, 8 + 128 + 4 * count};
}

static void test_cuda_pipe__large_tensors_pass_through_a_small_ring(void **state)
{
    tsr_gpu *device = device_of(state);
    enum { COUNT = 2500003 };
    random_source random = {84};
    uint8_t *data = malloc(4 * COUNT), *back = malloc(4 * COUNT);
    fill_random(&random, data, 4 * COUNT);
    const tsr_memory_file file = {TSR_STR("w.safetensors"), make_safetensors(COUNT, data)};
    tsr_store *store;
    tsr_checkpoint *checkpoint;
    tsr_gpu_pipe *pipe;
    OK(tsr_store_from_memory(&tsr_allocator_libc, &file, 1, &store, err));
    OK(tsr_checkpoint_open(store, &native.host, NULL, &checkpoint, err));
    OK(tsr_gpu_pipe_new(device, 1 << 20, &pipe, err));
    tsr_gpu_load load = {.entry = tsr_checkpoint_catalog(checkpoint)->entries};
    OK(tsr_gpu_alloc(device, 4 * COUNT, &load.to, err));
    OK(tsr_gpu_load_tensors(pipe, checkpoint, &load, 1, NULL, err));
    fetch(device, back, load.to, 4 * COUNT);
    assert_memory_equal(back, data, 4 * COUNT);
    uint64_t last = 0;
    const tsr_progress progress = {stop_in_the_middle, &last};
    assert_int_equal(tsr_gpu_load_tensors(pipe, checkpoint, &load, 1, &progress, NULL), TSR_E_CANCELLED);
    load.dtype = TSR_INT64;
    tsr_error error = {0};
    assert_int_equal(tsr_gpu_load_tensors(pipe, checkpoint, &load, 1, NULL, &error), TSR_E_UNSUPPORTED);
    assert_non_null(strstr(error.message, "'w': float32 cannot be cast to int64"));
    tsr_gpu_free(device, load.to);
    tsr_gpu_pipe_free(pipe);
    tsr_checkpoint_close(checkpoint);
    store->close(store);
    free((char *)file.content.data);
    free(data);
    free(back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_DEVICES(test_cuda_pipe__every_form_loads_to_the_device_as_pytorch_has_it),
        ON_DEVICES(test_cuda_pipe__boxes_load_and_cast_on_the_way),
        ON_DEVICES(test_cuda_pipe__large_tensors_pass_through_a_small_ring),
    };
    filter_tests();
    return cmocka_run_group_tests(tests, open_native, close_native);
}
