/* Moves files, pageable memory and checkpoints to and from devices. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#ifdef TSR_TEST_HOSTED
#include <dlfcn.h>
#endif

#include "cuda/on_devices.h"
#include "live/cuda/backend.h"
#include "support/random.h"
#include "support/sample.h"
#include "tessera/box.h"
#include "tessera/native_host.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/gpu.h"
#include "tessera/sys/read.h"
#include "tessera/sys/store.h"

static tsr_native_host native;

static int open_native(void **state)
{
    (void)state;
    tsr_native_host_open(&native, 3);
    test_host = native.host; /* the threads of this host fill slots */
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

#define MOST ((size_t)3 << 20)

static const size_t sizes[] = {0, 1, 4095, 65536, 65537, 262144, 262145, 1000003, MOST};

static void test_cuda_pipe__pageable_memory_goes_and_comes_back(void **state)
{
    tsr_gpu *device = device_of(state);
    random_source random = {81};
    uint8_t *sent = malloc(MOST), *got = malloc(MOST);
    fill_random(&random, sent, MOST);
    tsr_gpu_pipe *pipe;
    OK(tsr_gpu_pipe_new(device, 1, &pipe, err));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        void *there;
        OK(tsr_gpu_alloc(device, sizes[i], &there, err));
        OK(tsr_gpu_put(pipe, there, sent, sizes[i], err));
        memset(got, 0, MOST);
        OK(tsr_gpu_get(pipe, got, there, sizes[i], err));
        assert_memory_equal(got, sent, sizes[i]);
        tsr_gpu_free(device, there);
    }
    tsr_gpu_pipe_free(pipe);
    free(sent);
    free(got);
}

static void test_cuda_pipe__files_go_to_the_device_and_back(void **state)
{
    tsr_gpu *device = device_of(state);
    random_source random = {82};
    uint8_t *bytes = malloc(MOST);
    fill_random(&random, bytes, MOST);
    const tsr_memory_file file = {TSR_STR("data"), {(const char *)bytes, MOST}};
    tsr_store *store;
    tsr_gpu_pipe *pipe;
    OK(tsr_store_from_memory(&tsr_allocator_libc, &file, 1, &store, err));
    OK(tsr_gpu_pipe_new(device, 300000, &pipe, err));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        tsr_output *output;
        void *there;
        uint32_t number;
        OK(tsr_output_to_memory(&tsr_allocator_libc, &output, err));
        OK(output->create(output, TSR_STR("copy"), sizes[i] + 17, &number, err));
        OK(tsr_gpu_alloc(device, sizes[i], &there, err));
        OK(tsr_gpu_read_file(pipe, (tsr_range){store, 0, MOST - sizes[i], sizes[i]}, there, err));
        OK(tsr_gpu_write_file(pipe, (tsr_output_range){output, number, 17, sizes[i]}, there, err));
        const tsr_str copy = tsr_output_memory_file(output, TSR_STR("copy"));
        assert_true(sizes[i] == 0 || copy.size >= sizes[i] + 17);
        assert_memory_equal(copy.data + (sizes[i] ? 17 : 0), bytes + MOST - sizes[i], sizes[i]);
        tsr_gpu_free(device, there);
        output->close(output);
    }
    tsr_error error = {0};
    assert_int_equal(tsr_gpu_read_file(pipe, (tsr_range){store, 0, MOST - 5, 6}, NULL, &error), TSR_E_IO);
    assert_int_equal(tsr_gpu_read_file(pipe, (tsr_range){store, 1, 0, 6}, NULL, NULL), TSR_E_IO);
    tsr_gpu_pipe_free(pipe);
    store->close(store);
    free(bytes);
}

/* A store whose reads fail from some position on, and an output whose writes do. */
typedef struct failing {
    tsr_store store;
    tsr_output output;
    uint64_t from;
} failing;

static tsr_status read_or_fail(tsr_store *store, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    const failing *f = (const failing *)(const void *)((const char *)store - offsetof(failing, store));
    (void)file;
    if (offset + size > f->from) return tsr_raise(err, TSR_E_IO, offset, "the disk is gone");
    memset(buffer, 1, size);
    return TSR_OK;
}

static tsr_status write_or_fail(tsr_output *output, uint32_t file, uint64_t offset, const void *data, size_t size,
                                tsr_error *err)
{
    const failing *f = (const failing *)(const void *)((const char *)output - offsetof(failing, output));
    (void)file, (void)data;
    return offset + size > f->from ? tsr_raise(err, TSR_E_IO, offset, "the disk is full") : TSR_OK;
}

static void test_cuda_pipe__a_failing_file_ends_the_transfer_with_its_error(void **state)
{
    tsr_gpu *device = device_of(state);
    const tsr_store_file file = {TSR_STR("data"), MOST};
    failing f = {.store = {.file_count = 1, .files = &file, .read_at = read_or_fail}, .output = {.write_at = write_or_fail}};
    tsr_gpu_pipe *pipe;
    void *there;
    OK(tsr_gpu_pipe_new(device, 300000, &pipe, err));
    OK(tsr_gpu_alloc(device, MOST, &there, err));
    uint8_t *bytes = calloc(1, MOST);
    OK(tsr_gpu_put(pipe, there, bytes, MOST, err)); /* compute-sanitizer reports reads of memory that was never written */
    free(bytes);
    for (f.from = 0; f.from < MOST; f.from += 500000) {
        tsr_error in = {0}, out = {0};
        assert_int_equal(tsr_gpu_read_file(pipe, (tsr_range){&f.store, 0, 0, MOST}, there, &in), TSR_E_IO);
        assert_string_equal(in.message, "the disk is gone");
        assert_int_equal(tsr_gpu_write_file(pipe, (tsr_output_range){&f.output, 0, 0, MOST}, there, &out), TSR_E_IO);
        assert_string_equal(out.message, "the disk is full");
    }
    tsr_gpu_free(device, there);
    tsr_gpu_pipe_free(pipe);
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
    OK(tsr_folder_store_open(NULL, &tsr_allocator_libc, path, &o.store, err));
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
        OK(tsr_gpu_get(pipe, back, loads[i].to, bytes, err));
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

/* Replaces cuFile: reads through host memory, and declines every second file. */
typedef struct direct_double {
    tsr_gpu_stream *stream;
    unsigned asked, done;
} direct_double;

static tsr_status read_double(void *ctx, int fd, uint64_t offset, void *to, size_t size, tsr_error *err)
{
    direct_double *d = ctx;
    if (++d->asked % 2 == 0) return TSR_E_UNSUPPORTED;
    uint8_t *bytes = malloc(size + 1);
    tsr_status status = pread(fd, bytes, size, (off_t)offset) == (ssize_t)size ? TSR_OK : TSR_E_IO;
    if (status == TSR_OK) status = tsr_gpu_copy(d->stream, to, bytes, size, err);
    if (status == TSR_OK) status = tsr_gpu_stream_wait(d->stream, err);
    d->done += status == TSR_OK;
    free(bytes);
    return status;
}

static void test_cuda_pipe__plain_tensors_are_read_past_the_host_where_that_is_possible(void **state)
{
    tsr_gpu *device = device_of(state);
    direct_double d = {0};
    tsr_gpu_pipe *pipe;
    OK(tsr_gpu_stream_new(device, &d.stream, err));
    OK(tsr_gpu_pipe_new(device, 0, &pipe, err));
    pipe->direct = (direct_reader){&d, read_double, NULL};
    for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++) assert_true(load_sample(device, pipe, samples[i]) > 0);
    assert_true(d.done > 50 && d.asked > d.done); /* tensors that are in pieces, strided or compressed were not asked for
                                                   * either */
    pipe->direct = (direct_reader){0};
    tsr_error error = {0};
    if (is_simulated(device)) {
        assert_int_equal(tsr_gpu_pipe_use_direct(pipe, &error), TSR_E_UNSUPPORTED);
        assert_non_null(strstr(error.message, "cufile: "));
    } else if (tsr_gpu_pipe_use_direct(pipe, &error) == TSR_OK) {
        for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++)
            assert_true(load_sample(device, pipe, samples[i]) > 0);
    } else {
        print_message("skipped: GPUDirect Storage: %s\n", error.message);
    }
    tsr_gpu_pipe_free(pipe);
    tsr_gpu_stream_free(d.stream);
}

#ifdef TSR_TEST_HOSTED
/* ---- cuFile's calls, answered by hosted/libcufile_hosted.cpp ---- */

static void test_cuda_pipe__what_cufile_refuses_is_told_or_goes_through_the_ring(void **state)
{
    tsr_gpu *device = device_of(state);
    void *library = dlopen("libcufile.so.0", RTLD_NOW);
    if (!library) fail_msg("%s", dlerror());
    void (*refuse)(int on_open, int on_register, long read);
    unsigned long (*handles)(void);
    long (*reads)(void);
    *(void **)(void *)&refuse = dlsym(library, "hosted_cufile_fail");
    *(void **)(void *)&handles = dlsym(library, "hosted_cufile_handles");
    *(void **)(void *)&reads = dlsym(library, "hosted_cufile_reads");
    tsr_gpu_pipe *pipe;
    tsr_error error = {0};
    OK(tsr_gpu_pipe_new(device, 0, &pipe, err));
    refuse(5, 0, -1);
    assert_int_equal(tsr_gpu_pipe_use_direct(pipe, &error), TSR_E_UNSUPPORTED);
    assert_string_equal(error.message, "cufile: the driver cannot be opened (5)");
    refuse(0, 5030, -1); /* files that cannot be registered */
    OK(tsr_gpu_pipe_use_direct(pipe, err));
    assert_true(load_sample(device, pipe, "safetensors_model") > 0);
    assert_int_equal(reads(), 0);
    refuse(0, 0, -1);
    assert_true(load_sample(device, pipe, "safetensors_model") > 0);
    assert_true(reads() > 0);
    const long all = reads();
    const opened o = open_sample("safetensors_model");
    for (long n = 0; n < all; n++) {
        tsr_status status = TSR_OK;
        error = (tsr_error){0};
        refuse(0, 0, n);
        for (uint64_t i = 0; i < o.catalog->entry_count && status == TSR_OK; i++) {
            uint64_t bytes;
            tsr_gpu_load load = {.entry = &o.catalog->entries[i]};
            if (!is_loadable(load.entry, &bytes)) continue;
            OK(tsr_gpu_alloc(device, bytes, &load.to, err));
            status = tsr_gpu_load_tensors(pipe, o.checkpoint, &load, 1, NULL, &error);
            tsr_gpu_free(device, load.to);
        }
        assert_int_equal(status, TSR_E_IO);
        assert_non_null(strstr(error.message, "cufile: reading "));
        assert_int_equal(handles(), 0);
    }
    close_sample(o);
    refuse(0, 0, -1);
    tsr_gpu_pipe_free(pipe);
    dlclose(library);
}
#endif

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
        OK(tsr_gpu_get(pipe, back, load.to, out, err));
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
    OK(tsr_gpu_get(pipe, back, load.to, 4 * COUNT, err));
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
        ON_DEVICES(test_cuda_pipe__pageable_memory_goes_and_comes_back),
        ON_DEVICES(test_cuda_pipe__files_go_to_the_device_and_back),
        ON_DEVICES(test_cuda_pipe__a_failing_file_ends_the_transfer_with_its_error),
        ON_DEVICES(test_cuda_pipe__every_form_loads_to_the_device_as_pytorch_has_it),
        ON_DEVICES(test_cuda_pipe__plain_tensors_are_read_past_the_host_where_that_is_possible),
#ifdef TSR_TEST_HOSTED
        ON_DEVICES(test_cuda_pipe__what_cufile_refuses_is_told_or_goes_through_the_ring),
#endif
        ON_DEVICES(test_cuda_pipe__boxes_load_and_cast_on_the_way),
        ON_DEVICES(test_cuda_pipe__large_tensors_pass_through_a_small_ring),
    };
    filter_tests();
    return cmocka_run_group_tests(tests, open_native, close_native);
}
