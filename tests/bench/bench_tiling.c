/* P3: checks the tiling of one [rows, columns] tensor under shard(0) over `ranks`, and prints the seconds of one check.
 *     bench_tiling RANKS ROWS COLUMNS */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tessera/sys/layout.h"
#include "tessera/validate.h"

static double seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int argc, char **argv)
{
    if (argc != 4) return 2;
    uint64_t ranks = strtoull(argv[1], NULL, 10), rows = strtoull(argv[2], NULL, 10), columns = strtoull(argv[3], NULL, 10);
    uint64_t shape[2] = {rows, columns}, step = rows / ranks;
    tsr_chunk *chunks = calloc(ranks, sizeof *chunks);
    uint64_t(*boxes)[4] = calloc(ranks, sizeof *boxes);
    if (!chunks || !boxes) return 2;
    for (uint64_t r = 0; r < ranks; r++) {
        boxes[r][0] = r * step;
        boxes[r][2] = step;
        boxes[r][3] = columns;
        chunks[r] = (tsr_chunk){.offsets = boxes[r], .sizes = boxes[r] + 2};
    }
    enum { TIMES = 200 };
    double wall = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < TIMES; i++) {
        tsr_tiling tiling;
        if (tsr_tiling_check(&tsr_allocator_libc, (tsr_shape){2, shape}, chunks, ranks, &tiling, NULL) != TSR_OK ||
            !tiling.exact)
            return 2;
    }
    printf("{\"wall\": %.9f, \"cpu\": %.9f}\n", (seconds(CLOCK_MONOTONIC) - wall) / TIMES,
           (seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu) / TIMES);
    free(boxes);
    free(chunks);
    return 0;
}
