/* P14: opens and checks a safetensors file through the native store, and prints the seconds it took and the peak memory.
 *     bench_safetensors_open FILE */
#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>

#include "io/folder.h"
#include "io/host.h"
#include "tessera/checkpoint.h"

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
    if (tsr_folder_store_open(NULL, native.host.allocator, argv[1], &store, &err) != TSR_OK ||
        tsr_checkpoint_open(store, &native.host, NULL, &checkpoint, &err) != TSR_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 2;
    }
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"wall\": %.6f, \"cpu\": %.6f, \"entries\": %" PRIu64 ", \"peak_mib\": %.1f}\n",
           seconds(CLOCK_MONOTONIC) - wall, seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu,
           tsr_checkpoint_catalog(checkpoint)->entry_count, (double)usage.ru_maxrss / 1024);
    tsr_checkpoint_close(checkpoint);
    store->close(store);
    tsr_native_host_close(&native);
    return 0;
}
