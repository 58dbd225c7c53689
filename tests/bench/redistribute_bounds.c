/* Counts messages and bytes between ranks that are threads, where they are passed to the communicator. The bound: each rank
 * must receive what it wants and does not have, from at least as many ranks as there are different shards in it. Between
 * nodes: each node must receive once what its ranks want and none of them has, from at least one rank of another node. */
#include "redistribute_bounds.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tessera/comm_threads.h"
#include "tessera/redistribute.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/statedict.h"

#define SIDE \
    128u /* number of rows and of columns: small enough that everything goes by messages, and nothing through
                   * shared memory */

enum { INNER = 4 }; /* size of the second mesh dim */

typedef struct layout_case {
    const char *name;
    uint32_t dims; /* number of dimensions of the mesh */
    tsr_placement placements[2];
} layout_case;

#define ROWS \
    { \
        TSR_SHARD, 0, 0 \
    }
#define COLUMNS \
    { \
        TSR_SHARD, 1, 0 \
    }
#define WHOLE \
    { \
        TSR_REPLICATE, 0, 0 \
    }

#define STRIDED_ROWS \
    { \
        TSR_STRIDED_SHARD, 0, INNER \
    }

static const layout_case cases[] = {
    {"shard(0)", 1, {ROWS}},
    {"shard(1)", 1, {COLUMNS}},
    {"replicate", 1, {WHOLE}},
    {"shard(0),shard(1)", 2, {ROWS, COLUMNS}},
    {"shard(1),shard(0)", 2, {COLUMNS, ROWS}},
    {"shard(0),replicate", 2, {ROWS, WHOLE}},
    {"replicate,shard(0)", 2, {WHOLE, ROWS}},
    {"shard(0),shard(0)", 2, {ROWS, ROWS}},
    {"strided_shard(0),shard(0)", 2, {STRIDED_ROWS, ROWS}},
};
#define CASES (sizeof cases / sizeof *cases)

/* Rows and columns [begin, end) of a rank. */
typedef struct patch {
    uint64_t begin[2], end[2];
} patch;

typedef struct pair_run {
    const layout_case *from, *to;
    tsr_mesh mesh; /* the mesh of both */
    uint64_t mesh_shape[2];
    uint32_t ranks, nodes; /* rank r is on node r × nodes / ranks */
    atomic_ullong messages, bytes, most_messages;
    atomic_ullong crossing_messages, crossing_bytes; /* messages and bytes between nodes */
} pair_run;

static uint32_t node_of(const pair_run *run, uint32_t rank)
{
    return (uint32_t)((uint64_t)rank * run->nodes / run->ranks);
}

static patch patch_of(const pair_run *run, const layout_case *l, uint64_t rank)
{
    patch p = {{0, 0}, {SIDE, SIDE}};
    const bool strided = l->placements[0].kind == TSR_STRIDED_SHARD; /* cut after the second mesh dim */
    for (uint32_t i = 0; i < run->mesh.dim_count; i++) {
        const uint32_t d = strided ? 1 - i : i;
        const uint64_t below = d + 1 < run->mesh.dim_count ? run->mesh_shape[1] : 1;
        if (l->placements[d].kind == TSR_REPLICATE) continue;
        const int64_t dim = l->placements[d].dim;
        const uint64_t size = (p.end[dim] - p.begin[dim]) / run->mesh_shape[d];
        p.begin[dim] += rank / below % run->mesh_shape[d] * size;
        p.end[dim] = p.begin[dim] + size;
    }
    return p;
}

static uint64_t common(patch a, patch b)
{
    uint64_t volume = 1;
    for (int d = 0; d < 2; d++) {
        const uint64_t begin = a.begin[d] > b.begin[d] ? a.begin[d] : b.begin[d],
                       end = a.end[d] < b.end[d] ? a.end[d] : b.end[d];
        volume *= end > begin ? end - begin : 0;
    }
    return volume;
}

/* Two shards of one distribution are either equal or disjoint. */
static void count_bound(const pair_run *run, uint64_t ranks, uint64_t *messages, uint64_t *bytes)
{
    *messages = *bytes = 0;
    for (uint64_t r = 0; r < ranks; r++) {
        const patch wanted = patch_of(run, run->to, r), own = patch_of(run, run->from, r);
        *bytes += (common(wanted, wanted) - common(wanted, own)) * 4;
        for (uint64_t s = 0; s < ranks; s++) {
            const patch shard = patch_of(run, run->from, s);
            bool first = common(shard, wanted) && memcmp(&shard, &own, sizeof own) != 0;
            for (uint64_t before = 0; before < s && first; before++) {
                const patch other = patch_of(run, run->from, before);
                first = memcmp(&other, &shard, sizeof other) != 0;
            }
            *messages += first;
        }
    }
}

static void mark(const patch *p, bool *marks, bool value)
{
    for (uint64_t r = p->begin[0]; r < p->end[0]; r++)
        for (uint64_t c = p->begin[1]; c < p->end[1]; c++) marks[r * SIDE + c] = value;
}

/* Counts the bytes that nodes must receive from other nodes. */
static uint64_t count_crossing(const pair_run *run)
{
    static bool wanted[SIDE * SIDE];
    uint64_t bytes = 0;
    for (uint32_t node = 0; node < run->nodes; node++) {
        memset(wanted, 0, sizeof wanted);
        for (int has = 0; has < 2; has++) {
            for (uint32_t r = 0; r < run->ranks; r++) {
                const patch p = patch_of(run, has ? run->from : run->to, r);
                if (node_of(run, r) == node) mark(&p, wanted, !has);
            }
        }
        for (size_t i = 0; i < SIDE * SIDE; i++) bytes += wanted[i] ? 4 : 0;
    }
    return bytes;
}

/* ---- counting ---- */

static _Thread_local struct {
    const pair_run *run;
    tsr_status (*exchange)(tsr_comm *comm, const tsr_message *sends, size_t send_count, const tsr_message *receives,
                           size_t receive_count, tsr_error *err);
    uint64_t messages, bytes, crossing_messages, crossing_bytes;
} counted;

static tsr_status count_exchange(tsr_comm *comm, const tsr_message *sends, size_t send_count, const tsr_message *receives,
                                 size_t receive_count, tsr_error *err)
{
    for (size_t i = 0; i < send_count; i++) {
        counted.messages += sends[i].peer != comm->rank && sends[i].size;
        counted.bytes += sends[i].peer != comm->rank ? sends[i].size : 0;
        const bool crosses = node_of(counted.run, sends[i].peer) != node_of(counted.run, comm->rank);
        counted.crossing_messages += crosses && sends[i].size;
        counted.crossing_bytes += crosses ? sends[i].size : 0;
    }
    return counted.exchange(comm, sends, send_count, receives, receive_count, err);
}

static uint32_t *fill(const patch *p, bool with_elements)
{
    uint32_t *data = malloc(common(*p, *p) * 4), *at = data;
    if (!data) abort();
    for (uint64_t r = p->begin[0]; r < p->end[0]; r++)
        for (uint64_t c = p->begin[1]; c < p->end[1]; c++) *at++ = with_elements ? (uint32_t)(r * SIDE + c) : UINT32_MAX;
    return data;
}

static tsr_status move_on_rank(void *arg, tsr_comm *comm, tsr_error *err)
{
    pair_run *run = arg;
    const uint64_t shape[] = {SIDE, SIDE};
    const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    const patch has = patch_of(run, run->from, comm->rank), wants = patch_of(run, run->to, comm->rank);
    uint32_t *there = fill(&has, true), *here = fill(&wants, false), *expected = fill(&wants, true);
    const tsr_tensor from =
        tsr_tensor_over_mesh(tsr_tensor_whole(TSR_FLOAT32, 2, shape, there), &run->mesh, run->from->placements, comm->rank);
    const tsr_tensor to =
        tsr_tensor_over_mesh(tsr_tensor_whole(TSR_FLOAT32, 2, shape, here), &run->mesh, run->to->placements, comm->rank);
    const tsr_move move = {&from, &to};
    counted.messages = counted.bytes = counted.crossing_messages = counted.crossing_bytes = 0;
    counted.run = run;
    counted.exchange = comm->exchange;
    comm->exchange = count_exchange;
    tsr_status status = tsr_redistribute(comm, &move, 1, 0, &host, err);
    comm->exchange = counted.exchange;
    if (status == TSR_OK && memcmp(here, expected, common(wants, wants) * 4) != 0)
        status = tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "an element is wrong");
    atomic_fetch_add(&run->messages, counted.messages);
    atomic_fetch_add(&run->bytes, counted.bytes);
    atomic_fetch_add(&run->crossing_messages, counted.crossing_messages);
    atomic_fetch_add(&run->crossing_bytes, counted.crossing_bytes);
    unsigned long long most = atomic_load(&run->most_messages);
    while (counted.messages > most && !atomic_compare_exchange_weak(&run->most_messages, &most, counted.messages)) {
    }
    free(there), free(here), free(expected);
    return status;
}

static int run_pair(const layout_case *from, const layout_case *to, uint32_t ranks, uint32_t nodes)
{
    const tsr_str no_names[2] = {{"", 0}, {"", 0}};
    pair_run run = {.from = from, .to = to, .mesh_shape = {ranks, 1}, .ranks = ranks, .nodes = nodes};
    uint64_t messages, bytes;
    tsr_error err = {0};
    if (from->dims == 2) run.mesh_shape[0] = ranks / INNER, run.mesh_shape[1] = INNER;
    run.mesh = (tsr_mesh){from->dims, run.mesh_shape, no_names};
    if (tsr_comm_threads_run(&tsr_allocator_libc, ranks, move_on_rank, &run, &err) != TSR_OK) {
        fprintf(stderr, "bench_redistribute: %s to %s on %u ranks: %s\n", from->name, to->name, (unsigned)ranks,
                err.message);
        return 1;
    }
    count_bound(&run, ranks, &messages, &bytes);
    printf("{\"ranks\": %u, \"from\": \"%s\", \"to\": \"%s\", \"messages\": %llu, \"least_messages\": %llu, "
           "\"most_of_a_rank\": %llu, "
           "\"bytes\": %llu, \"least_bytes\": %llu, \"nodes\": %u, \"crossing_messages\": %llu, \"crossing_bytes\": %llu, "
           "\"least_crossing_bytes\": %llu}\n",
           (unsigned)ranks, from->name, to->name, atomic_load(&run.messages), (unsigned long long)messages,
           atomic_load(&run.most_messages), atomic_load(&run.bytes), (unsigned long long)bytes, (unsigned)nodes,
           atomic_load(&run.crossing_messages), atomic_load(&run.crossing_bytes), (unsigned long long)count_crossing(&run));
    /* With several nodes, a rank can pass several shards on in one message. */
    return atomic_load(&run.bytes) < bytes || (nodes == 1 && atomic_load(&run.messages) < messages);
}

/* Sets which node each rank is on, for tsr_redistribute. */
static void simulate_nodes(const pair_run *run)
{
    char list[64 * 4 + 1] = "";
    size_t used = 0;
    for (uint32_t r = 0; r < run->ranks; r++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%u,", (unsigned)node_of(run, r));
    setenv("TESSERA_NODES", list, 1);
}

static int run_pairs(uint32_t ranks, uint32_t nodes)
{
    int status = 0;
    simulate_nodes(&(pair_run){.ranks = ranks, .nodes = nodes});
    for (size_t a = 0; a < CASES; a++) {
        for (size_t b = 0; b < CASES && !status; b++)
            if (a != b && cases[a].dims == cases[b].dims) status = run_pair(&cases[a], &cases[b], ranks, nodes);
    }
    return status;
}

/* Each argument is "RANKS" or "RANKS/NODES". */
int redistribute_bounds(int count, char **ranks)
{
    int status = count < 1 ? 2 : 0;
    for (int i = 0; i < count && !status; i++) {
        char *rest;
        const unsigned long n = strtoul(ranks[i], &rest, 10), nodes = *rest == '/' ? strtoul(rest + 1, NULL, 10) : 1;
        if (n < 4 || n > 64 || n & (n - 1)) return fprintf(stderr, "RANKS must be a power of two from 4 to 64\n"), 2;
        if (nodes < 1 || nodes > n) return fprintf(stderr, "NODES must be from 1 to RANKS\n"), 2;
        status = run_pairs((uint32_t)n, (uint32_t)nodes);
    }
    return status;
}
