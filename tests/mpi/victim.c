/* A program with several ranks, one of which dies, stops or is slow: `victim KIND RANK CALL LIMIT`. KIND is kill (before the
 * CALL-th collective), kill-after, stop (SIGSTOP) or busy (three times LIMIT seconds of work without a call). LIMIT is the
 * watchdog's. If all is well, rank 0 prints "done" at the end. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "comm/comm_call.h"
#include "tessera/comm_mpi.h"

enum { CALLS = 6, LARGE = 3 << 20 };

static tsr_status make_call(tsr_comm *comm, unsigned number, char *large, tsr_error *err)
{
    uint64_t value = comm->rank;
    char byte;
    const uint32_t next = (comm->rank + 1) % comm->size, last = (comm->rank + comm->size - 1) % comm->size;
    switch (number) {
    case 0: return comm->broadcast(comm, large, LARGE, 0, err);
    case 1:
        return comm->exchange(comm, &(tsr_message){next, large, LARGE / 2}, 1,
                              &(tsr_message){last, large + LARGE / 2, LARGE / 2}, 1, err);
    case 2: return comm->largest(comm, &value, err);
    case 3: return tsr_comm_agree(comm, TSR_OK, err);
    case 4: return comm->broadcast(comm, large, LARGE, comm->size - 1, err);
    default: return comm->exchange(comm, &(tsr_message){next, "x", 1}, 1, &(tsr_message){last, &byte, 1}, 1, err);
    }
}

static void misbehave(const char *kind, double limit)
{
    struct timespec nap = {(time_t)(3 * limit), 0};
    if (strcmp(kind, "stop") == 0) raise(SIGSTOP);
    if (strcmp(kind, "busy") == 0) nanosleep(&nap, NULL);
}

static tsr_status run(tsr_comm *comm, const char *kind, uint32_t rank, uint64_t call, double limit, tsr_error *err)
{
    const tsr_fault fault = {TSR_FAULT_KILL, rank, call, strcmp(kind, "kill-after") == 0};
    tsr_faults faults = {.list = &fault, .count = strncmp(kind, "kill", 4) == 0};
    tsr_comm *bad;
    char *large = calloc(LARGE, 1);
    tsr_status status = large ? tsr_comm_faulty(comm, &faults, &tsr_allocator_libc, &bad, err) : TSR_E_NOMEM;
    for (unsigned number = 0; number < CALLS && status == TSR_OK; number++) {
        if (number == call && bad->rank == rank) misbehave(kind, limit);
        status = make_call(bad, number, large, err);
    }
    free(large);
    return status;
}

int main(int argc, char **argv)
{
    tsr_error err = {0};
    tsr_comm *comm;
    if (argc != 5 || tsr_mpi_start(&argc, &argv, &err) != TSR_OK) return 2;
    const double limit = atof(argv[4]);
    const tsr_comm_mpi_options options = {.peer_limit = limit, .round_bytes = 1 << 20};
    if (tsr_comm_mpi_open(MPI_COMM_WORLD, &options, &tsr_allocator_libc, &comm, &err) != TSR_OK) return 2;
    tsr_status status = run(comm, argv[1], (uint32_t)atoi(argv[2]), (uint64_t)atoi(argv[3]), limit, &err);
    if (status != TSR_OK) fprintf(stderr, "%s\n", err.message);
    else if (comm->rank == 0) puts("done");
    comm->close(comm);
    tsr_mpi_end();
    return status != TSR_OK;
}
