/* State dicts in device memory, with simulated ranks in one process over one device. Operations must give there what they
 * give in host memory, which tests/statedict compares with PyTorch. */
#include <stdio.h>
#include <string.h>

#include "cuda/on_devices.h"
#include "support/random.h"
#include "support/ranks.h"
#include "tessera/redistribute.h"
#include "tessera/save_load.h"
#include "tessera/statedict.h"
#include "tessera/sys/gpu.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/statedict.h"

static tsr_gpu *gpu; /* the device of all ranks in this process */

#define NEED_OK(call) \
    do { \
        tsr_status need_ = (call); \
        if (need_ != TSR_OK) return need_; \
    } while (0)

/* ---- the device's table of functions ---- */

/* Makes copies of all sizes and directions one after another, and compares them with the same copies in host memory. */
static void check_copies(uint64_t seed)
{
    enum { SIZE = 1 << 20, COPIES = 300 };
    random_source random = {seed};
    uint8_t *host = malloc(SIZE), *host_shadow = malloc(SIZE), *there_shadow = malloc(SIZE), *there;
    tsr_device *device;
    OK(tsr_gpu_device_new(gpu, 0, &device, err));
    OK(device->alloc(device, SIZE, (void **)&there, err));
    for (size_t i = 0; i < SIZE; i++) host_shadow[i] = host[i] = (uint8_t)random_next(&random);
    OK(device->from_host(device, there, host, SIZE, err));
    OK(device->synchronize(device, err));
    memcpy(there_shadow, host, SIZE);
    for (size_t i = 0; i < COPIES; i++) {
        const uint64_t kind = random_in(&random, 0, 2);
        const size_t bytes = random_in(&random, 1, random_in(&random, 0, 9) ? 3000 : 200000);
        /* Sources and destinations are kept apart: one half is only read, and the other only written. */
        size_t from = random_in(&random, 0, SIZE / 2 - bytes), to = SIZE / 2 + random_in(&random, 0, SIZE / 2 - bytes);
        if (kind == 0) {
            OK(device->to_host(device, host + to, there + from, bytes, err));
            memcpy(host_shadow + to, there_shadow + from, bytes);
        } else if (kind == 1) {
            OK(device->from_host(device, there + to, host + from, bytes, err));
            memcpy(there_shadow + to, host_shadow + from, bytes);
        } else {
            if (random_in(&random, 0, 1)) /* These bytes may have been written by an earlier copy. */
                from = to - SIZE / 2 >= bytes ? to - bytes : SIZE / 2 - bytes;
            OK(device->within(device, there + to, there + from, bytes, err));
            memcpy(there_shadow + to, there_shadow + from, bytes);
        }
    }
    OK(device->synchronize(device, err));
    assert_memory_equal(host, host_shadow, SIZE);
    OK(device->to_host(device, host, there, SIZE, err));
    OK(device->synchronize(device, err));
    assert_memory_equal(host, there_shadow, SIZE);
    device->free(device, there, SIZE);
    tsr_gpu_device_free(device);
    free(host);
    free(host_shadow);
    free(there_shadow);
}

static void test_cuda_statedict__copies_keep_their_order(void **state)
{
    gpu = device_of(state);
    for (uint64_t seed = 1; seed < 40; seed++) check_copies(seed);
}

static void test_cuda_statedict__tensors_larger_than_the_stage_come_back_in_small_copies(void **state)
{
    gpu = device_of(state);
    enum { ROWS = 5000, ROW = 2048 };
    uint8_t *sent = malloc(ROWS * ROW), *got = malloc(ROWS * ROW);
    for (size_t i = 0; i < ROWS * ROW; i++) sent[i] = (uint8_t)(i * 7 + i / ROW);
    tsr_device *device;
    uint8_t *there;
    OK(tsr_gpu_device_new(gpu, 3, &device, err));
    assert_int_equal(device->index, 3);
    OK(device->alloc(device, 2 * ROWS * ROW, (void **)&there, err));
    for (size_t i = 0; i < ROWS; i++) OK(device->from_host(device, there + 2 * i * ROW, sent + i * ROW, ROW, err));
    for (size_t i = 0; i < ROWS; i++) OK(device->to_host(device, got + i * ROW, there + 2 * i * ROW, ROW, err));
    OK(device->synchronize(device, err));
    assert_memory_equal(got, sent, ROWS * ROW);
    device->free(device, there, 2 * ROWS * ROW);
    tsr_gpu_device_free(device);
    free(sent);
    free(got);
}

/* ---- operations ---- */

static tsr_host host = {.allocator = &tsr_allocator_libc};

/* A dict of tensors of one rank, on its device or in host memory. */
typedef struct side {
    tsr_state_dict *dict;
    const tsr_value *root;
} side;

typedef struct mine {
    tsr_comm *comm;
    tsr_device *device;
    side there, here;
} mine;

#define TENSORS 6u

typedef struct tensor_case {
    const char *name;
    tsr_dtype dtype;
    uint32_t ndim;
    uint64_t shape[3];
    int kind; /* 0: whole, 1: rows, 2: columns (shard of dim 1), 3: replicated, 4: boxes */
} tensor_case;

static const tensor_case cases[TENSORS] = {
    {"rows", TSR_FLOAT32, 2, {37, 19, 0}, 1},   {"columns", TSR_BFLOAT16, 3, {5, 41, 6}, 2},
    {"replicated", TSR_INT64, 2, {6, 7, 0}, 3}, {"boxes", TSR_FLOAT64, 2, {50, 8, 0}, 4},
    {"whole", TSR_UINT8, 1, {1000, 0, 0}, 0},   {"step", TSR_FLOAT32, 0, {0}, 0},
};

/* Returns the tensor's distribution over the ranks, with arrays in `arena`. */
static tsr_tensor describe(const tensor_case *c, int kind, const tsr_comm *comm, tsr_arena *arena)
{
    uint64_t *mesh_shape = tsr_arena_array(arena, 1, sizeof *mesh_shape, NULL);
    tsr_mesh *mesh = TSR_ARENA_NEW(arena, tsr_mesh, NULL);
    tsr_placement *placement = TSR_ARENA_NEW(arena, tsr_placement, NULL);
    if (kind == 0) return tsr_tensor_whole(c->dtype, c->ndim, c->shape, NULL);
    if (kind == 4) {
        const uint64_t each = (c->shape[0] + comm->size - 1) / comm->size, begin = each * comm->rank;
        uint64_t *numbers = tsr_arena_array(arena, 4, sizeof *numbers, NULL);
        tsr_tensor_part *part = TSR_ARENA_NEW(arena, tsr_tensor_part, NULL);
        numbers[0] = begin;
        numbers[2] = begin >= c->shape[0] ? 0 : c->shape[0] - begin < each ? c->shape[0] - begin : each;
        numbers[3] = c->shape[1];
        *part = (tsr_tensor_part){numbers, numbers + 2, NULL};
        return tsr_tensor_in_boxes(c->dtype, c->ndim, c->shape, part, numbers[2] ? 1 : 0);
    }
    *mesh_shape = comm->size;
    *mesh = (tsr_mesh){.dim_count = 1, .shape = mesh_shape};
    *placement = (tsr_placement){.kind = kind == 3 ? TSR_REPLICATE : TSR_SHARD, .dim = kind == 2};
    return tsr_tensor_over_mesh(tsr_tensor_whole(c->dtype, c->ndim, c->shape, NULL), mesh, placement, comm->rank);
}

/* Fills the tensor with bytes that depend only on their place in the whole tensor. */
static tsr_status fill_tensor(const tsr_tensor *tensor, uint64_t salt, tsr_arena *arena, tsr_error *err)
{
    const tsr_piece *pieces;
    uint64_t count, elements;
    const uint32_t ndim = tensor->entry.ndim;
    const size_t size = tsr_dtype_size(tensor->entry.dtype);
    NEED_OK(tsr_tensor_pieces(tensor, arena, &pieces, &count, err));
    for (uint64_t p = 0; p < count; p++) {
        if (!tsr_box_volume((tsr_box){ndim, NULL, pieces[p].sizes}, &elements)) return TSR_E_LIMIT;
        for (uint64_t i = 0; i < elements; i++) {
            uint64_t rest = i, number = salt, row = 1, local = 0, local_row = 1;
            for (uint32_t d = ndim; d-- > 0; rest /= pieces[p].sizes[d]) {
                const uint64_t index = rest % pieces[p].sizes[d];
                number += (pieces[p].offsets[d] + index) * row;
                row *= tensor->entry.shape[d];
                local += (pieces[p].local_offsets[d] + index) * local_row;
                local_row *= pieces[p].buffer_sizes[d];
            }
            number *= UINT64_C(0x9e3779b97f4a7c15);
            memcpy((uint8_t *)pieces[p].data + local * size, &number, size);
        }
    }
    return TSR_OK;
}

/* Copies all bytes of this rank's part of a tensor, wherever they are. */
static tsr_status bytes_of(const tsr_tensor *tensor, tsr_arena *arena, uint8_t **out, uint64_t *size, tsr_error *err)
{
    uint8_t *at;
    NEED_OK(tsr_tensor_held(tensor, arena, size, err));
    *out = at = tsr_arena_array(arena, (size_t)*size + 1, 1, err);
    if (!at) return TSR_E_NOMEM;
    const uint32_t parts = tensor->spread == TSR_IN_BOXES ? tensor->part_count : 1;
    for (uint32_t i = 0; i < parts; i++) {
        uint64_t bytes = *size;
        const void *data = tensor->data;
        if (tensor->spread == TSR_IN_BOXES) {
            tsr_box_volume((tsr_box){tensor->entry.ndim, NULL, tensor->parts[i].sizes}, &bytes);
            bytes *= tsr_dtype_size(tensor->entry.dtype);
            data = tensor->parts[i].data;
        }
        if (bytes && tensor->device) NEED_OK(tensor->device->to_host(tensor->device, at, data, bytes, err));
        else if (bytes) memcpy(at, data, (size_t)bytes);
        at += bytes;
    }
    return tensor->device ? tensor->device->synchronize(tensor->device, err) : TSR_OK;
}

/* Copies the bytes of a tensor in host memory to the device's tensor with the same distribution. */
static tsr_status send(const tsr_tensor *from, const tsr_tensor *to, tsr_arena *arena, tsr_error *err)
{
    const uint32_t parts = to->spread == TSR_IN_BOXES ? to->part_count : 1;
    uint64_t size;
    NEED_OK(tsr_tensor_held(to, arena, &size, err));
    for (uint32_t i = 0; i < parts; i++) {
        const bool boxes = to->spread == TSR_IN_BOXES;
        void *data = boxes ? to->parts[i].data : to->data;
        if (size) NEED_OK(to->device->from_host(to->device, data, boxes ? from->parts[i].data : from->data, size, err));
    }
    return to->device->synchronize(to->device, err);
}

/* With `kind` NULL, each tensor is distributed as its case says; otherwise all tensors are distributed as `kind` says. */
static tsr_status build(side *s, tsr_comm *comm, tsr_device *device, const int *kind, uint64_t salt, tsr_error *err)
{
    NEED_OK(tsr_state_dict_new(&host, &s->dict, err));
    tsr_arena *arena = tsr_state_dict_arena(s->dict);
    for (uint32_t i = 0; i < TENSORS; i++) {
        const tsr_value *here, *there;
        const int own = cases[i].ndim == 0 ? 0 : kind ? *kind : cases[i].kind;
        tsr_tensor tensor = describe(&cases[i], own == 2 && cases[i].ndim < 2 ? 1 : own, comm, arena);
        NEED_OK(tsr_state_dict_allocate(s->dict, &tensor, &here, err));
        NEED_OK(fill_tensor(tsr_tensor_of(here), salt, arena, err));
        tensor.device = device;
        if (device) {
            NEED_OK(tsr_state_dict_allocate(s->dict, &tensor, &there, err));
            NEED_OK(send(tsr_tensor_of(here), tsr_tensor_of(there), arena, err));
        }
        NEED_OK(tsr_state_dict_put(s->dict, tsr_str_from(cases[i].name), device ? there : here, err));
    }
    s->root = tsr_state_dict_root(s->dict);
    return TSR_OK;
}

/* Expects the same names and the same bytes of every tensor. The memory of `there` must be on the device `on`. */
static tsr_status compare(const tsr_state_dict *there, const tsr_state_dict *here, const tsr_device *on, tsr_comm *comm,
                          tsr_error *err)
{
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, err);
    uint32_t found = 0;
    for (uint32_t i = 0; i < TENSORS; i++) {
        const tsr_value *a = tsr_state_dict_get(there, tsr_str_from(cases[i].name));
        const tsr_value *b = tsr_state_dict_get(here, tsr_str_from(cases[i].name));
        RANKS_NEED(!a == !b);
        if (!a) continue;
        uint8_t *bytes[2];
        uint64_t sizes[2];
        NEED_OK(bytes_of(tsr_tensor_of(a), arena, &bytes[0], &sizes[0], err));
        NEED_OK(bytes_of(tsr_tensor_of(b), arena, &bytes[1], &sizes[1], err));
        RANKS_NEED(sizes[0] == sizes[1] && memcmp(bytes[0], bytes[1], sizes[0]) == 0);
        RANKS_NEED(sizes[0] == 0 || tsr_tensor_of(a)->device == on); /* tensors without memory may stay where they were */
        found++;
    }
    RANKS_NEED(found == TENSORS);
    tsr_arena_free(arena);
    return TSR_OK;
}

/* Opens the test data on a device of its own, or on `device`. */
static tsr_status open_mine(mine *m, tsr_comm *comm, const int *kind, tsr_device *device, tsr_error *err)
{
    *m = (mine){.comm = comm, .device = device};
    if (!device) NEED_OK(tsr_gpu_device_new(gpu, comm->rank, &m->device, err));
    NEED_OK(build(&m->there, comm, m->device, kind, 1, err));
    return build(&m->here, comm, NULL, kind, 1, err);
}

static void close_mine(mine *m)
{
    tsr_state_dict_free(m->there.dict);
    tsr_state_dict_free(m->here.dict);
}

static tsr_status gather_and_offload(void *arg, tsr_comm *comm, tsr_error *err)
{
    mine m;
    tsr_state_dict *full[2], *offloaded;
    (void)arg;
    NEED_OK(open_mine(&m, comm, NULL, NULL, err));
    NEED_OK(compare(m.there.dict, m.here.dict, m.device, comm, err));
    for (int offload = 0; offload < 2; offload++) {
        const tsr_gather_options options = {.offload = offload, .round_bytes = 3000};
        NEED_OK(tsr_state_dict_new(&host, &full[0], err));
        NEED_OK(tsr_state_dict_new(&host, &full[1], err));
        NEED_OK(tsr_state_dict_gather(m.there.root, comm, &options, full[0], err));
        NEED_OK(tsr_state_dict_gather(m.here.root, comm, &options, full[1], err));
        NEED_OK(compare(full[0], full[1], offload ? NULL : m.device, comm, err));
        tsr_state_dict_free(full[0]);
        tsr_state_dict_free(full[1]);
    }
    NEED_OK(tsr_state_dict_new(&host, &offloaded, err));
    NEED_OK(tsr_state_dict_offload(m.there.root, comm, NULL, offloaded, err));
    NEED_OK(compare(offloaded, m.here.dict, NULL, comm, err));
    tsr_state_dict_free(offloaded);
    close_mine(&m);
    tsr_gpu_device_free(m.device);
    return TSR_OK;
}

static tsr_status broadcast_and_distribute(void *arg, tsr_comm *comm, tsr_error *err)
{
    mine m;
    side full[2], local[2]; /* on the device, and in host memory */
    const int whole = 0;
    (void)arg;
    NEED_OK(open_mine(&m, comm, &whole, NULL, err));
    full[0] = m.there;
    full[1] = m.here;
    for (int way = 0; way < 2; way++) {
        for (int i = 0; i < 2; i++) {
            tsr_state_dict *out;
            NEED_OK(build(&local[i], comm, i ? NULL : m.device, NULL, 77, err));
            NEED_OK(tsr_state_dict_new(&host, &out, err));
            if (way == 0) NEED_OK(tsr_state_dict_broadcast(full[i].root, local[i].root, comm, NULL, out, err));
            else NEED_OK(tsr_state_dict_distribute(full[i].root, local[i].root, out, err));
            tsr_state_dict_free(out);
        }
        NEED_OK(compare(local[0].dict, local[1].dict, m.device, comm, err));
        tsr_state_dict_free(local[0].dict);
        tsr_state_dict_free(local[1].dict);
    }
    close_mine(&m);
    tsr_gpu_device_free(m.device);
    return TSR_OK;
}

static tsr_status refuse_copy(tsr_device *device, void *to, const void *from, uint64_t bytes, tsr_error *err)
{
    (void)device, (void)to, (void)from;
    return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "%u bytes went through host memory", (unsigned)bytes);
}

static tsr_status redistribute_and_copy(void *arg, tsr_comm *comm, tsr_error *err)
{
    mine m, columns;
    const int kind = 2;
    (void)arg;
    NEED_OK(open_mine(&m, comm, NULL, NULL, err));
    NEED_OK(open_mine(&columns, comm, &kind, m.device, err));
    for (size_t round_bytes = 700; round_bytes < 100000; round_bytes *= 11) {
        const tsr_device kept = *m.device;
        if (comm->takes_devices) m.device->to_host = m.device->from_host = refuse_copy;
        tsr_status status = tsr_state_dict_redistribute(m.there.root, columns.there.root, comm, round_bytes, &host, err);
        m.device->to_host = kept.to_host;
        m.device->from_host = kept.from_host;
        NEED_OK(status);
        NEED_OK(tsr_state_dict_redistribute(m.here.root, columns.here.root, comm, round_bytes, &host, err));
        NEED_OK(compare(columns.there.dict, columns.here.dict, columns.device, comm, err));
    }
    tsr_state_dict *created, *copied;
    const tsr_create_options options = {.pin = m.device};
    NEED_OK(tsr_state_dict_new(&host, &created, err));
    NEED_OK(tsr_state_dict_new(&host, &copied, err));
    NEED_OK(tsr_state_dict_create(m.there.root, &options, created, err));
    const tsr_tensor *pinned = tsr_tensor_of(tsr_state_dict_get(created, TSR_STR("whole")));
    RANKS_NEED(tsr_gpu_place_of(gpu, pinned->data) == TSR_PLACE_PINNED);
    NEED_OK(tsr_state_dict_copy(m.there.root, tsr_state_dict_root(created), false, copied, err));
    NEED_OK(compare(created, m.here.dict, NULL, comm, err));
    tsr_state_dict_free(copied);
    tsr_state_dict_free(created);
    close_mine(&columns);
    close_mine(&m);
    tsr_gpu_device_free(m.device);
    return TSR_OK;
}

/* Saves to a directory from the device, and loads from it to the device and to host memory. */
static tsr_status save_and_load(void *arg, tsr_comm *comm, tsr_error *err)
{
    mine m;
    side loaded[2];
    char path[512];
    const int kind = 2;
    const tsr_save_options options = {.overwrite = true, .buffer_bytes = 3000};
    (void)arg;
    snprintf(path, sizeof path, "%s/of_%u", ranks_scratch(), (unsigned)comm->size);
    NEED_OK(open_mine(&m, comm, &kind, NULL, err));
    NEED_OK(tsr_state_dict_save(m.there.root, comm, path, &options, &host, err));
    for (int i = 0; i < 2; i++) {
        tsr_state_dict *out;
        NEED_OK(build(&loaded[i], comm, i ? NULL : m.device, NULL, 55, err));
        NEED_OK(tsr_state_dict_new(&host, &out, err));
        NEED_OK(tsr_state_dict_load(path, loaded[i].root, comm, NULL, out, err));
        tsr_state_dict_free(out);
    }
    NEED_OK(compare(loaded[0].dict, loaded[1].dict, m.device, comm, err));
    tsr_state_dict_free(loaded[0].dict);
    NEED_OK(build(&loaded[0], comm, NULL, NULL, 1, err));
    NEED_OK(compare(loaded[1].dict, loaded[0].dict, NULL, comm, err)); /* what was there before, cut otherwise */
    tsr_state_dict_free(loaded[0].dict);
    tsr_state_dict_free(loaded[1].dict);
    close_mine(&m);
    tsr_gpu_device_free(m.device);
    return TSR_OK;
}

static void test_cuda_statedict__saves_from_the_device_and_loads_to_it(void **state)
{
    gpu = device_of(state);
    ranks_run(save_and_load, NULL);
}

/* Runs the same tests with a communicator that accepts device memory, so that nothing is packed in host memory. */
static tsr_status over_gpu_comm(void *arg, tsr_comm *below, tsr_error *err)
{
    static ranks_body *const bodies[] = {gather_and_offload, broadcast_and_distribute, redistribute_and_copy, save_and_load};
    const tsr_gpu_comm_options options = {.stage_bytes = 1};
    tsr_comm *comm;
    NEED_OK(tsr_gpu_comm_new(below, gpu, &options, &comm, err));
    RANKS_NEED(comm->takes_devices && !below->takes_devices);
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0] && status == TSR_OK; i++) status = bodies[i](arg, comm, err);
    comm->close(comm);
    return status;
}

static void test_cuda_statedict__operations_run_over_ranks_that_take_device_memory(void **state)
{
    gpu = device_of(state);
    ranks_run(over_gpu_comm, NULL);
}

static void test_cuda_statedict__gathers_and_offloads_as_host_memory_does(void **state)
{
    gpu = device_of(state);
    ranks_run(gather_and_offload, NULL);
}

static void test_cuda_statedict__broadcasts_and_distributes_as_host_memory_does(void **state)
{
    gpu = device_of(state);
    ranks_run(broadcast_and_distribute, NULL);
}

static void test_cuda_statedict__redistributes_creates_and_copies_as_host_memory_does(void **state)
{
    gpu = device_of(state);
    ranks_run(redistribute_and_copy, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ON_DEVICES(test_cuda_statedict__copies_keep_their_order),
        ON_DEVICES(test_cuda_statedict__tensors_larger_than_the_stage_come_back_in_small_copies),
        ON_DEVICES(test_cuda_statedict__gathers_and_offloads_as_host_memory_does),
        ON_DEVICES(test_cuda_statedict__broadcasts_and_distributes_as_host_memory_does),
        ON_DEVICES(test_cuda_statedict__redistributes_creates_and_copies_as_host_memory_does),
        ON_DEVICES(test_cuda_statedict__saves_from_the_device_and_loads_to_it),
        ON_DEVICES(test_cuda_statedict__operations_run_over_ranks_that_take_device_memory),
    };
    host.limits = tsr_limits_default();
    filter_tests();
    ranks_begin(&argc, &argv);
    return ranks_end(cmocka_run_group_tests(tests, NULL, NULL));
}
