#ifndef TESTS_CUDA_HOSTED_GRID_H
#define TESTS_CUDA_HOSTED_GRID_H

#include <functional>

/* Runs `thread` once for every thread of every block, in the order that was set. Only one grid runs at a time. */
void hosted_run_grid(unsigned blocks, unsigned threads, const std::function<void()> &thread);

#endif
