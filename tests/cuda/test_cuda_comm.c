/* Collectives whose buffers are partly in device memory and partly in host memory must give what they give in host
 * memory. */
#include <string.h>

#include "cuda/on_devices.h"
#include "support/random.h"
#include "support/ranks.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/gpu.h"
#ifdef TSR_RANKS_MPI
#include "tessera/comm_mpi.h"
#endif
#ifdef TSR_TEST_HOSTED
#include <dlfcn.h>
#endif

static tsr_gpu *gpu;     /* the device of all ranks in this process */
static bool host_only;   /* no buffer is on the device */
static bool device_only; /* all buffers are on the device */

static uint8_t byte_of(uint64_t seed, uint64_t rank, uint64_t number, uint64_t at)
{
    random_source source = {seed * 1000003 + rank * 7919 + number * 104729 + at / 4096};
    return (uint8_t)(random_next(&source) + at * 31);
}

/* Memory on the device or on the host, filled or not. The shadow is a copy on the host, for comparing. */
typedef struct buffer {
    uint8_t *data, *shadow;
    size_t size;
    bool there;
} buffer;

static tsr_status buffer_new(buffer *b, size_t size, bool there, tsr_error *err)
{
    *b = (buffer){.size = size, .there = there && !host_only, .shadow = malloc(size + 1)};
    if (!b->there) b->data = malloc(size + 1);
    return b->there ? tsr_gpu_alloc(gpu, size, (void **)&b->data, err) : TSR_OK;
}

static tsr_status buffer_move(buffer *b, bool fetch, tsr_error *err)
{
    tsr_gpu_stream *stream;
    tsr_status status = tsr_gpu_stream_new(gpu, &stream, err);
    if (status != TSR_OK) return status;
    status = tsr_gpu_copy(stream, fetch ? b->shadow : b->data, fetch ? b->data : b->shadow, b->size, err);
    if (status == TSR_OK) status = tsr_gpu_stream_wait(stream, err);
    tsr_gpu_stream_free(stream);
    return status;
}

static void buffer_free(buffer *b)
{
    if (b->there) tsr_gpu_free(gpu, b->data);
    else free(b->data);
    free(b->shadow);
}

static tsr_status buffer_fill(buffer *b, uint64_t seed, uint64_t rank, uint64_t number, tsr_error *err)
{
    for (size_t i = 0; i < b->size; i++) b->shadow[i] = byte_of(seed, rank, number, i);
    return buffer_move(b, false, err);
}

static bool buffer_holds(const uint8_t *bytes, size_t size, uint64_t seed, uint64_t rank, uint64_t number)
{
    for (size_t i = 0; i < size; i++) {
        if (bytes[i] != byte_of(seed, rank, number, i)) return false;
    }
    return true;
}

#define NEED_OK(call) RANKS_NEED((call) == TSR_OK)

/* ---- the calls, over random sizes: the seed gives all ranks the same sizes, but different places of memory ---- */

static size_t random_size(random_source *common)
{
    static const size_t most[] = {0, 1, 100, 5000, 70000, 300000};
    return random_in(common, 0, most[random_in(common, 0, 5)]);
}

static bool on_device(random_source *own)
{
    return random_in(own, 0, 2) > 0 || device_only;
}

static tsr_status try_broadcast(tsr_comm *comm, uint64_t seed, random_source *common, random_source *own, tsr_error *err)
{
    const uint32_t root = (uint32_t)random_in(common, 0, comm->size - 1);
    buffer b;
    NEED_OK(buffer_new(&b, random_size(common), on_device(own), err));
    if (comm->rank == root) NEED_OK(buffer_fill(&b, seed, root, 0, err));
    NEED_OK(comm->broadcast(comm, b.data, b.size, root, err));
    NEED_OK(buffer_move(&b, true, err));
    RANKS_NEED(buffer_holds(b.shadow, b.size, seed, root, 0));
    buffer_free(&b);
    return TSR_OK;
}

static tsr_status try_all_gather(tsr_comm *comm, uint64_t seed, random_source *common, random_source *own, tsr_error *err)
{
    size_t sizes[64], total = 0;
    for (uint32_t r = 0; r < comm->size; r++) total += sizes[r] = random_size(common);
    buffer mine, all;
    NEED_OK(buffer_new(&mine, sizes[comm->rank], on_device(own), err));
    NEED_OK(buffer_new(&all, total, on_device(own), err));
    NEED_OK(buffer_fill(&mine, seed, comm->rank, 0, err));
    NEED_OK(comm->all_gather(comm, mine.data, sizes, all.data, err));
    NEED_OK(buffer_move(&all, true, err));
    const uint8_t *at = all.shadow;
    for (uint32_t r = 0; r < comm->size; at += sizes[r++]) RANKS_NEED(buffer_holds(at, sizes[r], seed, r, 0));
    buffer_free(&mine);
    buffer_free(&all);
    return TSR_OK;
}

/* Returns the size of the n-th message from one rank to another. */
static size_t message_size(uint64_t seed, uint32_t from, uint32_t to, uint32_t n)
{
    random_source source = {seed * 31 + from * 1009 + to * 9176 + n * 77};
    return random_size(&source);
}

static uint32_t message_count(uint64_t seed, uint32_t from, uint32_t to)
{
    random_source source = {seed * 17 + from * 1013 + to * 9173};
    return (uint32_t)random_in(&source, 0, 2);
}

static tsr_status try_exchange(tsr_comm *comm, uint64_t seed, random_source *own, tsr_error *err)
{
    buffer buffers[2][64 * 2];
    tsr_message messages[2][64 * 2];
    size_t counts[2] = {0, 0};
    for (unsigned side = 0; side < 2; side++) { /* 0: sends, 1: receives */
        for (uint32_t n = 0; n < 2; n++) {
            for (uint32_t p = 0; p < comm->size; p++) {
                const uint32_t from = side ? p : comm->rank, to = side ? comm->rank : p;
                if (n >= message_count(seed, from, to)) continue;
                buffer *b = &buffers[side][counts[side]];
                NEED_OK(buffer_new(b, message_size(seed, from, to, n), on_device(own), err));
                if (side == 0) NEED_OK(buffer_fill(b, seed, from * 100 + to, n, err));
                messages[side][counts[side]++] = (tsr_message){p, b->data, b->size};
            }
        }
    }
    NEED_OK(comm->exchange(comm, messages[0], counts[0], messages[1], counts[1], err));
    size_t i = 0;
    for (uint32_t n = 0; n < 2; n++) {
        for (uint32_t p = 0; p < comm->size; p++) {
            if (n >= message_count(seed, p, comm->rank)) continue;
            NEED_OK(buffer_move(&buffers[1][i], true, err));
            RANKS_NEED(buffer_holds(buffers[1][i].shadow, buffers[1][i].size, seed, p * 100 + comm->rank, n));
            i++;
        }
    }
    for (unsigned side = 0; side < 2; side++) {
        for (size_t k = 0; k < counts[side]; k++) buffer_free(&buffers[side][k]);
    }
    return TSR_OK;
}

static tsr_status try_calls(tsr_comm *comm, uint64_t first_seed, tsr_error *err)
{
    for (uint64_t seed = first_seed; seed < first_seed + 3; seed++) {
        random_source common = {seed}, own = {seed * 77 + comm->rank};
        NEED_OK(try_broadcast(comm, seed, &common, &own, err));
        NEED_OK(try_all_gather(comm, seed, &common, &own, err));
        NEED_OK(try_exchange(comm, seed, &own, err));
    }
    return TSR_OK;
}

static tsr_status all_calls(void *arg, tsr_comm *below, tsr_error *err)
{
    const tsr_gpu_comm_options *options = arg;
    tsr_comm *comm, *half;
    const tsr_status status = tsr_gpu_comm_new(below, gpu, options, &comm, err);
    if (status != TSR_OK) return status; /* NEED_OK asks `comm` for its rank */
    NEED_OK(try_calls(comm, 100, err));
    NEED_OK(comm->split(comm, comm->rank % 2, 0, &half, err));
    NEED_OK(try_calls(half, 200, err));
    half->close(half);
    uint64_t value = comm->rank;
    NEED_OK(comm->largest(comm, &value, err));
    RANKS_NEED(value == comm->size - 1);
    comm->close(comm);
    return TSR_OK;
}

static void test_cuda_comm__device_and_host_memory_mix_in_all_calls(void **state)
{
    gpu = device_of(state);
    tsr_gpu_comm_options small = {.stage_bytes = 1}, usual = {.stage_bytes = 1 << 20};
    ranks_run(all_calls, &small);
    ranks_run(all_calls, &usual);
}

/* Ranks that are threads accept only host memory, so without MPI only that is used. */
static void test_cuda_comm__addresses_go_straight_to_ranks_that_take_them(void **state)
{
    gpu = device_of(state);
    tsr_gpu_comm_options direct = {.way = TSR_GPU_COMM_DIRECT};
#ifdef TSR_RANKS_MPI
    print_message("this MPI %s device memory\n", tsr_mpi_takes_device_memory() ? "takes" : "does not take");
    host_only = !tsr_mpi_takes_device_memory() || is_simulated(gpu);
#else
    host_only = true;
#endif
    ranks_run(all_calls, &direct);
    host_only = false;
}

/* A rank whose device rejects an address ends the call on all ranks with its message. */
static tsr_status one_fails(void *arg, tsr_comm *below, tsr_error *err)
{
    const unsigned call = *(const unsigned *)arg;
    tsr_comm *comm;
    NEED_OK(tsr_gpu_comm_new(below, gpu, NULL, &comm, err));
    uint8_t *memory;
    NEED_OK(tsr_gpu_alloc(gpu, 4096, (void **)&memory, err));
    /* The last rank's address is on the device, but its bytes reach beyond the allocation. */
    uint8_t *data = comm->rank == comm->size - 1 ? memory + 4000 : memory;
    size_t sizes[64];
    for (uint32_t r = 0; r < comm->size; r++) sizes[r] = 1000;
    const tsr_message send = {(comm->rank + 1) % comm->size, data, 1000},
                      receive = {(comm->rank + comm->size - 1) % comm->size, memory + 2000, 1000};
    tsr_status status = call == 0   ? comm->broadcast(comm, data, 1000, comm->size - 1, err)
                        : call == 1 ? comm->all_gather(comm, data, sizes, memory, err)
                                    : comm->exchange(comm, &send, 1, &receive, 1, err);
    comm->close(comm);
    tsr_gpu_free(gpu, memory);
    return status;
}

static void test_cuda_comm__a_failing_device_fails_all_ranks(void **state)
{
    gpu = device_of(state);
    for (unsigned call = 0; call < 3; call++) {
        tsr_error error = {0};
        assert_int_equal(ranks_try(3, one_fails, &call, &error), TSR_E_USAGE);
        if (!strstr(error.message, "are not inside one allocation")) fail_msg("%s", error.message);
    }
}

static tsr_status nccl_on_none(void *arg, tsr_comm *below, tsr_error *err)
{
    const tsr_gpu_comm_options options = {.way = TSR_GPU_COMM_NCCL};
    tsr_comm *comm = NULL;
    tsr_error error = {0};
    (void)arg;
    const tsr_status status = tsr_gpu_comm_new(below, gpu, &options, &comm, &error);
    RANKS_NEED(status == TSR_E_UNSUPPORTED && !comm && strstr(error.message, "nccl"));
    return tsr_comm_barrier(below, err); /* the communicator still works */
}

static void test_cuda_comm__nccl_that_is_not_there_is_refused_on_all_ranks(void **state)
{
    gpu = device_of(state);
    char reason[200];
    const uint32_t version = tsr_gpu_nccl_version(reason, sizeof reason);
    assert_int_equal(version == 0, *reason != 0);
    ranks_run(nccl_on_none, NULL);
}

/* ---- the NCCL that is installed ---- */

static void test_cuda_comm__nccl_serves_one_rank_on_the_device(void **state)
{
    gpu = device_of(state);
    char reason[200];
    tsr_gpu_comm_options options = {.way = TSR_GPU_COMM_NCCL, .stage_bytes = 1};
    tsr_error error = {0};
    if (is_simulated(gpu)) {
        print_message("skipped: NCCL serves no simulated devices\n");
        skip();
    }
    if (tsr_gpu_nccl_version(reason, sizeof reason) == 0) {
        print_message("skipped: NCCL: %s\n", reason);
        skip();
    }
    setenv("TSR_HOSTED_ONE_DEVICE", "1", 1); /* a hosted runtime tells all ranks the same device, as a real one does */
    if (ranks_count(2) >= 2) {
        assert_int_equal(ranks_try(2, all_calls, &options, &error), TSR_E_USAGE);
        if (!strstr(error.message, "nccl: ranks 0 and 1 use the same device")) fail_msg("%s", error.message);
    }
    if (ranks_count(1) == 1) {
        OK(ranks_try(1, all_calls, &options, err));
        device_only = true;
        OK(ranks_try(1, all_calls, &options, err));
        device_only = false;
    }
    unsetenv("TSR_HOSTED_ONE_DEVICE");
}

#ifdef TSR_TEST_HOSTED
/* ---- NCCL's calls, answered by hosted/libnccl_hosted.cpp between threads ---- */

typedef struct hosted_nccl {
    void *handle;
    void (*refuse)(const char *function, int result);
    unsigned long (*count)(const char *function);
} hosted_nccl;

static hosted_nccl open_nccl(void)
{
    hosted_nccl n = {.handle = dlopen("libnccl.so.2", RTLD_NOW)};
    if (!n.handle) fail_msg("%s", dlerror());
    *(void **)(void *)&n.refuse = dlsym(n.handle, "hosted_nccl_fail");
    *(void **)(void *)&n.count = dlsym(n.handle, "hosted_nccl_count");
    assert_true(n.refuse && n.count);
    return n;
}

static void test_cuda_comm__calls_go_to_nccl_where_all_memory_is_the_device_s(void **state)
{
    gpu = device_of(state);
    char reason[200];
    const hosted_nccl n = open_nccl();
    assert_int_equal(tsr_gpu_nccl_version(reason, sizeof reason), 22100);
    assert_string_equal(reason, "");
    tsr_gpu_comm_options options = {.way = TSR_GPU_COMM_NCCL, .stage_bytes = 1};
    ranks_run(all_calls, &options); /* when memory is mixed, the call uses the stage */
    const unsigned long some = n.count("ncclGroupEnd");
    device_only = true;
    ranks_run(all_calls, &options);
    device_only = false;
    assert_true(n.count("ncclSend") > 100 && n.count("ncclSend") == n.count("ncclRecv"));
    assert_true(n.count("ncclBroadcast") > 100 && n.count("ncclGroupEnd") > 2 * some);
    assert_int_equal(n.count("ncclGroupStart"), n.count("ncclGroupEnd"));
    assert_int_equal(n.count("ncclCommInitRank"), n.count("ncclCommDestroy"));
    assert_int_equal(n.count("ncclCommAbort"), 0);
    dlclose(n.handle);
}

/* Makes one call of each kind over equal sizes, one to a neighbour, and one over unequal sizes. */
static tsr_status call_all(void *arg, tsr_comm *below, tsr_error *err)
{
    const tsr_gpu_comm_options options = {.way = TSR_GPU_COMM_NCCL};
    tsr_comm *comm;
    size_t sizes[16], unequal[16];
    uint8_t *memory;
    (void)arg;
    for (uint32_t r = 0; r < below->size; r++) sizes[r] = 1000, unequal[r] = 100 * r + 1;
    tsr_status status = tsr_gpu_comm_new(below, gpu, &options, &comm, err);
    if (status != TSR_OK) return status;
    NEED_OK(tsr_gpu_alloc(gpu, 32000, (void **)&memory, err));
    const tsr_message send = {(comm->rank + 1) % comm->size, memory, 1000},
                      receive = {(comm->rank + comm->size - 1) % comm->size, memory + 2000, 1000};
    status = comm->all_gather(comm, memory, sizes, memory + 8000, err);
    if (status == TSR_OK) status = comm->all_gather(comm, memory, unequal, memory + 8000, err);
    if (status == TSR_OK) status = comm->exchange(comm, &send, 1, &receive, 1, err);
    comm->close(comm);
    tsr_gpu_free(gpu, memory);
    return status;
}

static void test_cuda_comm__what_nccl_refuses_is_told_by_all_ranks(void **state)
{
    static const struct {
        const char *function, *part;
        bool is_aborted;
    } table[] = {{"ncclGetUniqueId", "nccl: rank 0: creating an id: invalid usage", false},
                 {"ncclCommInitRank", "joining: invalid usage", false},
                 {"ncclGroupStart", "starting a group: invalid usage", true},
                 {"ncclAllGather", "gathering: invalid usage", true},
                 {"ncclBroadcast", "gathering: invalid usage", true},
                 {"ncclSend", "sending: invalid usage", true},
                 {"ncclRecv", "receiving: invalid usage", true},
                 {"ncclGroupEnd", "ending a group: invalid usage", true}};
    const hosted_nccl n = open_nccl();
    gpu = device_of(state);
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        tsr_error error = {0};
        const unsigned long aborted = n.count("ncclCommAbort");
        n.refuse(table[i].function, 5);
        const tsr_status status = ranks_try(3, call_all, NULL, &error);
        n.refuse(NULL, 0);
        if (status != TSR_E_IO || !strstr(error.message, table[i].part))
            fail_msg("%s: status %d: %s", table[i].function, status, error.message);
        assert_int_equal(n.count("ncclCommAbort") - aborted, table[i].is_aborted ? 3 : 0);
    }
    OK(ranks_try(3, call_all, NULL, err));
    setenv("TSR_HOSTED_ONE_DEVICE", "1", 1);
    tsr_error error = {0};
    assert_int_equal(ranks_try(3, call_all, NULL, &error), TSR_E_USAGE);
    if (!strstr(error.message, "nccl: ranks 0 and 1 use the same device")) fail_msg("%s", error.message);
    OK(ranks_try(1, call_all, NULL, err));
    unsetenv("TSR_HOSTED_ONE_DEVICE");
    n.refuse("ncclGetVersion", 2);
    char reason[200];
    assert_int_equal(tsr_gpu_nccl_version(reason, sizeof reason), 0);
    assert_string_equal(reason, "libnccl.so.2 does not report its version");
    n.refuse(NULL, 0);
    dlclose(n.handle);
}
#endif

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ON_DEVICES(test_cuda_comm__device_and_host_memory_mix_in_all_calls),
        ON_DEVICES(test_cuda_comm__addresses_go_straight_to_ranks_that_take_them),
        ON_DEVICES(test_cuda_comm__nccl_serves_one_rank_on_the_device),
        ON_SIMULATED(test_cuda_comm__a_failing_device_fails_all_ranks), /* real devices allocate more than was asked for */
        ON_SIMULATED(test_cuda_comm__nccl_that_is_not_there_is_refused_on_all_ranks),
#ifdef TSR_TEST_HOSTED
        ON_DEVICES(test_cuda_comm__calls_go_to_nccl_where_all_memory_is_the_device_s),
        ON_DEVICES(test_cuda_comm__what_nccl_refuses_is_told_by_all_ranks),
#endif
    };
    filter_tests();
    ranks_begin(&argc, &argv);
    return ranks_end(cmocka_run_group_tests(tests, NULL, NULL));
}
