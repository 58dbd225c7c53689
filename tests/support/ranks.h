/* For tests whose code runs on several ranks: the same bodies on one rank, on threads, and on MPI processes.
 *
 * CMake: tsr_ranks_test(NAME …) builds NAME, which ctest runs, and with MPI NAME_mpi, which tests/mpi/run starts by mpirun
 * with several numbers of processes. A body returns its failures (cmocka's asserts do not work off the main thread):
 * RANKS_NEED. What stands outside bodies runs once in NAME and once a process in NAME_mpi, so it must be the same
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

/* In a body with `comm` and `err`. */
#define RANKS_NEED(condition) \
    do { \
        if (!(condition)) \
            return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "rank %u of %u, line %d: %s", (unsigned)comm->rank, \
                             (unsigned)comm->size, __LINE__, #condition); \
    } while (0)

void ranks_begin(int *argc, char ***argv);
/* The exit status. */
int ranks_end(int failed_tests);

/* Runs the body in every world there is: self and 2, 3, 4, 7 and 16 threads, or the processes of mpirun. A failure of any
 * rank fails the test. */
void ranks_run(ranks_body *body, void *arg);
/* In one world: of `ranks` threads, or of the processes of mpirun (`ranks` does not count). Returns what the ranks agreed
 * on: the failure of the lowest rank that did not just miss another; "rank N: " may stand before its message. A body that
 * returns while others still communicate is a rank that left. */
tsr_status ranks_try(uint32_t ranks, ranks_body *body, void *arg, tsr_error *err);
/* How many ranks ranks_try will have for `ranks`. */
uint32_t ranks_count(uint32_t ranks);

/* A folder for files, the same on all ranks; removed by ranks_end. */
const char *ranks_scratch(void);

#endif
