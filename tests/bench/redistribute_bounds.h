/* `bench_redistribute bounds RANKS…`: what redistribution sends between simulated ranks, next to the least possible. */
#ifndef TSR_TESTS_BENCH_REDISTRIBUTE_BOUNDS_H
#define TSR_TESTS_BENCH_REDISTRIBUTE_BOUNDS_H

/* Prints one line of JSON per pair of placements and number of ranks. Returns the exit status: 2 for bad arguments; 1 when
 * elements arrive wrong, or when fewer bytes are counted than the bound allows. */
int redistribute_bounds(int count, char **ranks);

#endif
