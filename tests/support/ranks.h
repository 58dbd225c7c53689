/* For tests that run on several ranks: the same bodies run on one rank, on threads, and on MPI processes.
 *
 * In CMake, tsr_ranks_test(NAME …) builds NAME, which ctest runs, and with MPI also NAME_mpi, which tests/mpi/run starts
 * with mpirun and different numbers of processes. A body returns its failures with RANKS_NEED (cmocka's asserts only work in
 * the main thread). Code outside of bodies runs once in NAME, and once per process in NAME_mpi, so it must do the same
 * everywhere.
 *
 *   int main(int argc, char **argv)
 *   {
 *       const struct CMUnitTest tests[] = {…};
 *       ranks_begin(&argc, &argv);
 *       return ranks_end(cmocka_run_group_tests(tests, NULL, NULL));
 *   } */
#ifndef TSR_TESTS_SUPPORT_RANKS_H
#define TSR_TESTS_SUPPORT_RANKS_H

#include "tessera/comm.h"

typedef tsr_status ranks_body(void *arg, tsr_comm *comm, tsr_error *err);

/* For bodies whose parameters are named `comm` and `err`. */
#define RANKS_NEED(condition) \
    do { \
        if (!(condition)) \
            return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "rank %u of %u, line %d: %s", (unsigned)comm->rank, \
                             (unsigned)comm->size, __LINE__, #condition); \
    } while (0)

void ranks_begin(int *argc, char ***argv);
/* Returns the exit status. */
int ranks_end(int failed_tests);

/* Runs the body with every kind of communicator: a single rank and 2, 3, 4, 7 and 16 threads, or the processes of mpirun. A
 * failure of any rank fails the test. */
void ranks_run(ranks_body *body, void *arg);
/* Runs the body once: with `ranks` threads, or with the processes of mpirun (`ranks` is then ignored). Returns what the
 * ranks agreed on: the failure of the lowest rank that failed for a reason of its own, not because another rank was
 * missing. Its message may begin with "rank N: ". If a body returns while others still communicate, its rank counts as
 * one that left. */
tsr_status ranks_try(uint32_t ranks, ranks_body *body, void *arg, tsr_error *err);
/* The number of ranks that ranks_try uses for `ranks`. */
uint32_t ranks_count(uint32_t ranks);

/* A directory for files, the same on all ranks. ranks_end removes it. */
const char *ranks_scratch(void);

#endif
