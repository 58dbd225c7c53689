/* P1, P14: opens and checks a checkpoint of any format through the native store, and prints the seconds that took, what the
 * checkpoint holds, and the peak memory.
 *     bench_open PATH */
#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>

#include "tessera/checkpoint.h"
#include "tessera/native_host.h"
#include "tessera/sys/directory.h"

static double seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int argc, char **argv)
{
    tsr_error err = {0};
    tsr_native_host native;
    tsr_store *store;
    tsr_checkpoint *checkpoint;
    struct rusage usage;
    if (argc != 2) return 2;
    double wall = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    tsr_native_host_open(&native, 1);
    if (tsr_directory_store_open(NULL, native.host.allocator, argv[1], &store, &err) != TSR_OK ||
        tsr_checkpoint_open(store, &native.host, NULL, &checkpoint, &err) != TSR_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 2;
    }
    wall = seconds(CLOCK_MONOTONIC) - wall;
    cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    getrusage(RUSAGE_SELF, &usage);
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    uint64_t chunks = 0;
    for (uint64_t i = 0; i < catalog->entry_count; i++) chunks += catalog->entries[i].chunk_count;
    printf("{\"wall\": %.6f, \"cpu\": %.6f, \"entries\": %" PRIu64 ", \"chunks\": %" PRIu64 ", \"peak_mib\": %.1f}\n", wall,
           cpu, catalog->entry_count, chunks, (double)usage.ru_maxrss / 1024);
    tsr_checkpoint_close(checkpoint);
    store->close(store);
    tsr_native_host_close(&native);
    return 0;
}
