/* Simulates readers of a parallel file system that read in the order of files, and in the order of servers.
 *     bench_storage layers|columns|rows FILES RANKS SERVERS STRIPES TENSORS
 * The checkpoint has TENSORS float32 tensors of shape [RANKS × 8, RANKS × 8] in FILES files. Every file is on STRIPES
 * servers, in stripes of 1 MiB; a server transfers 1 GB/s and takes 0.5 ms per request. layers: each tensor is in one file,
 * and ranks take its rows. columns: each file has rows of all tensors, and ranks take columns. rows: the same files, and
 * ranks take rows. Prints the seconds in both orders, the bound that no order can beat, and the time that planning took. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/storage_model.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/plan.h"

#define LATENCY   0.0005
#define BANDWIDTH 1e9
#define STRIPE    ((uint64_t)1 << 20)

typedef struct setting {
    bool layers, columns;
    uint32_t files, ranks, servers, stripes, tensors;
    uint64_t shape[2];
} setting;

static void *need(void *memory)
{
    if (!memory) abort();
    return memory;
}

static tsr_catalog make_catalog(const setting *s)
{
    tsr_entry *entries = need(calloc(s->tensors, sizeof *entries));
    uint64_t *ends = need(calloc(s->files, sizeof *ends));
    const uint32_t cuts = s->layers ? 1 : s->files;
    for (uint32_t t = 0; t < s->tensors; t++) {
        tsr_chunk *chunks = need(calloc(cuts, sizeof *chunks));
        uint64_t(*boxes)[4] = need(calloc(cuts, sizeof *boxes));
        char *name = need(malloc(32));
        for (uint32_t c = 0; c < cuts; c++) {
            const uint64_t begin = s->shape[0] * c / cuts, end = s->shape[0] * (c + 1) / cuts;
            const uint32_t file = s->layers ? (uint32_t)((uint64_t)t * s->files / s->tensors) : c;
            const uint64_t bytes = (end - begin) * s->shape[1] * 4;
            memcpy(boxes[c], (uint64_t[]){begin, 0, end - begin, s->shape[1]}, sizeof boxes[c]);
            chunks[c] = (tsr_chunk){
                .offsets = boxes[c], .sizes = boxes[c] + 2, .byte_offset = ends[file], .byte_length = bytes, .file = file};
            ends[file] += bytes;
        }
        entries[t] = (tsr_entry){.fqn = {name, (size_t)snprintf(name, 32, "layer.%u.weight", (unsigned)t)},
                                 .kind = TSR_ENTRY_TENSOR,
                                 .dtype = TSR_FLOAT32,
                                 .ndim = 2,
                                 .shape = s->shape,
                                 .chunks = chunks,
                                 .chunk_count = cuts};
    }
    free(ends);
    return (tsr_catalog){.format = TSR_FORMAT_SAFETENSORS, .entries = entries, .entry_count = s->tensors};
}

static tsr_storage make_storage(const setting *s)
{
    tsr_storage_server *servers = need(calloc(s->servers, sizeof *servers));
    tsr_striping *files = need(calloc(s->files, sizeof *files));
    for (uint32_t i = 0; i < s->servers; i++) servers[i] = (tsr_storage_server){{"", 0}, BANDWIDTH, LATENCY};
    for (uint32_t f = 0; f < s->files; f++)
        files[f] = (tsr_striping){.stripe_size = STRIPE, .stripe_count = s->stripes, .first = f * s->stripes % s->servers};
    return (tsr_storage){servers, s->servers, BANDWIDTH, files, s->files};
}

static model_reader read_rank(const tsr_plan *plan, uint64_t rank)
{
    tsr_arena *arena = need(tsr_arena_new(&tsr_allocator_libc, 0, NULL));
    const tsr_read_item *items;
    uint64_t count;
    if (tsr_plan_rank(plan, rank, arena, &items, &count, NULL) != TSR_OK) exit(2);
    model_reader reader = {.reads = need(calloc(count ? count : 1, sizeof *reader.reads)), .count = count};
    for (uint64_t i = 0; i < count; i++) reader.reads[i] = tsr_read_item_bytes(plan, &items[i]);
    tsr_arena_free(arena);
    return reader;
}

/* Returns the seconds until all ranks are done, in the order of servers if `ordered`. */
static double simulate(const setting *s, const tsr_catalog *catalog, const tsr_storage *storage, bool ordered, double *bound)
{
    const tsr_placement rows = {.kind = TSR_SHARD, .dim = s->columns};
    const tsr_str no_name = {"", 0};
    const uint64_t ranks = s->ranks;
    const tsr_target target = {.mesh = {1, &ranks, &no_name}, .default_placements = &rows};
    const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_plan_options options = TSR_OPTIONS(tsr_plan_options);
    tsr_plan *plan;
    options.storage = ordered ? storage : NULL;
    if (tsr_plan_new(catalog, &target, &options, &host, &plan, NULL) != TSR_OK) exit(2);
    model_reader *readers = need(calloc(s->ranks, sizeof *readers));
    for (uint32_t r = 0; r < s->ranks; r++) readers[r] = read_rank(plan, r);
    const double seconds = model_run(storage, readers, s->ranks);
    *bound = model_bound(storage, readers, s->ranks);
    for (uint32_t r = 0; r < s->ranks; r++) free(readers[r].reads);
    free(readers);
    tsr_plan_free(plan);
    return seconds;
}

int main(int argc, char **argv)
{
    if (argc != 7) return 2;
    setting s = {.layers = strcmp(argv[1], "layers") == 0, .columns = strcmp(argv[1], "columns") == 0};
    uint32_t *numbers[] = {&s.files, &s.ranks, &s.servers, &s.stripes, &s.tensors};
    for (int i = 0; i < 5; i++) {
        *numbers[i] = (uint32_t)strtoul(argv[i + 2], NULL, 10);
        if (!*numbers[i]) return 2;
    }
    s.shape[0] = s.shape[1] = (uint64_t)s.ranks * 8;
    const tsr_catalog catalog = make_catalog(&s);
    const tsr_storage storage = make_storage(&s);
    double bound, same;
    const double files = simulate(&s, &catalog, &storage, false, &bound);
    const double servers = simulate(&s, &catalog, &storage, true, &same);
    printf("{\"by_file\": %.6f, \"by_server\": %.6f, \"bound\": %.6f, \"gain\": %.2f, \"above_bound\": %.2f}\n", files,
           servers, bound, files / servers, servers / bound);
    return same == bound ? 0 : 2;
}
