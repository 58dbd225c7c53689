/* P4, P5 and P18: planning without files. The catalog has TENSORS float32 tensors of shape [ROWS, COLUMNS], each in FROM row
 * chunks; the target is shard(0) over TO ranks.
 *     bench_plan full FROM TO TENSORS ROWS COLUMNS     seconds per tensor for the plan and the items of all ranks
 *     bench_plan rank FROM TO TENSORS ROWS COLUMNS     seconds for one rank's items once the plan is made
 *     bench_plan totals FROM TO TENSORS ROWS COLUMNS   seconds for making the plan and counting its totals for all ranks
 *     bench_plan servers FROM TO TENSORS ROWS COLUMNS  the same, then the loads of 1,000 servers and one rank's items in
 *                                                      the order of the servers */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tessera/plan.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/plan.h"

static double seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

typedef struct stopwatch {
    double wall, cpu;
} stopwatch;

static stopwatch start(void)
{
    return (stopwatch){seconds(CLOCK_MONOTONIC), seconds(CLOCK_PROCESS_CPUTIME_ID)};
}

static stopwatch since(stopwatch then)
{
    return (stopwatch){seconds(CLOCK_MONOTONIC) - then.wall, seconds(CLOCK_PROCESS_CPUTIME_ID) - then.cpu};
}

/* The boxes of all tensors hold the same numbers in separate memory, as after reading a checkpoint. */
static tsr_catalog make_catalog(uint64_t from, uint64_t tensors, const uint64_t *shape)
{
    uint64_t step = (shape[0] + from - 1) / from;
    tsr_entry *entries = calloc(tensors, sizeof *entries);
    for (uint64_t t = 0; t < tensors; t++) {
        tsr_chunk *chunks = calloc(from, sizeof *chunks);
        uint64_t(*boxes)[4] = calloc(from, sizeof *boxes);
        char *name = malloc(32);
        for (uint64_t r = 0; r < from; r++) {
            uint64_t begin = r * step < shape[0] ? r * step : shape[0];
            boxes[r][0] = begin;
            boxes[r][2] = shape[0] - begin < step ? shape[0] - begin : step;
            boxes[r][3] = shape[1];
            chunks[r] = (tsr_chunk){boxes[r], boxes[r] + 2, t * 1000, 1000, NULL, (uint32_t)r};
        }
        int size = snprintf(name, 32, "layer.%llu.weight", (unsigned long long)t);
        entries[t] = (tsr_entry){.fqn = {name, (size_t)size},
                                 .kind = TSR_ENTRY_TENSOR,
                                 .dtype = TSR_FLOAT32,
                                 .ndim = 2,
                                 .shape = shape,
                                 .chunks = chunks,
                                 .chunk_count = from};
    }
    return (tsr_catalog){.format = TSR_FORMAT_DCP, .entries = entries, .entry_count = tensors};
}

static uint64_t count_rank(const tsr_plan *plan, uint64_t rank)
{
    const tsr_read_item *items;
    uint64_t count;
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    if (!arena || tsr_plan_rank(plan, rank, arena, &items, &count, NULL) != TSR_OK) exit(2);
    tsr_arena_free(arena);
    return count;
}

/* Describes files with four stripes of 1 MiB each. */
static tsr_storage make_storage(uint64_t files)
{
    enum { SERVERS = 1000 };
    tsr_storage_server *servers = calloc(SERVERS, sizeof *servers);
    tsr_striping *striping = calloc(files, sizeof *striping);
    if (!servers || !striping) exit(2);
    for (uint32_t s = 0; s < SERVERS; s++) servers[s] = (tsr_storage_server){{"", 0}, 1e9, 0.0005};
    for (uint32_t f = 0; f < files; f++)
        striping[f] = (tsr_striping){.stripe_size = 1 << 20, .stripe_count = 4, .first = f * 4 % SERVERS};
    return (tsr_storage){servers, SERVERS, 1e9, striping, (uint32_t)files};
}

static void print(stopwatch taken, double times, uint64_t items)
{
    printf("{\"wall\": %.9f, \"cpu\": %.9f, \"items\": %llu}\n", taken.wall / times, taken.cpu / times,
           (unsigned long long)items);
}

int main(int argc, char **argv)
{
    if (argc != 7) return 2;
    uint64_t n[5], shape[2], items = 0;
    for (int i = 0; i < 5; i++) n[i] = strtoull(argv[i + 2], NULL, 10);
    shape[0] = n[3];
    shape[1] = n[4];
    tsr_catalog catalog = make_catalog(n[0], n[2], shape);
    const tsr_placement rows = {TSR_SHARD, 0, 0};
    const tsr_str no_name = {"", 0};
    tsr_target target = {.mesh = {1, &n[1], &no_name}, .default_placements = &rows};
    tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_plan *plan;
    const bool by_server = strcmp(argv[1], "servers") == 0;
    const tsr_storage storage = make_storage(n[0]);
    tsr_plan_options options = TSR_OPTIONS(tsr_plan_options);
    options.storage = by_server ? &storage : NULL;
    stopwatch clock = start();
    if (tsr_plan_new(&catalog, &target, &options, &host, &plan, NULL) != TSR_OK) return 2;
    if (strcmp(argv[1], "full") == 0) {
        for (uint64_t r = 0; r < n[1]; r++) items += count_rank(plan, r);
        print(since(clock), (double)n[2], items);
    } else if (strcmp(argv[1], "rank") == 0) {
        enum { TIMES = 100 };
        clock = start();
        for (int i = 0; i < TIMES; i++) items = count_rank(plan, n[1] / 2);
        print(since(clock), TIMES, items);
    } else {
        tsr_plan_totals totals;
        tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
        const tsr_server_load *loads;
        if (!arena || tsr_plan_count_totals(plan, arena, &totals, NULL) != TSR_OK) return 2;
        if (by_server && tsr_plan_count_servers(plan, &storage, arena, &loads, NULL) != TSR_OK) return 2;
        if (by_server) count_rank(plan, n[1] / 2);
        print(since(clock), 1, totals.reads);
        tsr_arena_free(arena);
    }
    tsr_plan_free(plan);
    return 0;
}
