#include "support/ranks.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#include "tessera/comm_threads.h"
#include "tessera/sys/collectives.h"
#ifdef TSR_RANKS_MPI
#include "tessera/comm_mpi.h"
#endif

static tsr_comm *processes; /* NULL when the ranks are threads */
static char scratch[256];

static void give_up(const char *what, const tsr_error *err)
{
    fprintf(stderr, "ranks: %s: %s\n", what, err->message);
    exit(1);
}

static void make_scratch(void)
{
    const char *directory = getenv("TMPDIR");
    snprintf(scratch, sizeof scratch, "%s/tessera-ranks-XXXXXX", directory ? directory : "/tmp");
    if (!mkdtemp(scratch)) give_up("mkdtemp", &(tsr_error){.message = "no directory for files"});
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

void ranks_begin(int *argc, char ***argv)
{
    tsr_error err = {0};
    (void)argc;
    (void)argv;
#ifdef TSR_RANKS_MPI
    if (tsr_mpi_start(argc, argv, &err) != TSR_OK) give_up("MPI", &err);
    /* Small rounds, so that every test needs several to send its data. */
    const tsr_comm_mpi_options options = {.round_bytes = 1000};
    if (tsr_comm_mpi_open(MPI_COMM_WORLD, &options, &tsr_allocator_libc, &processes, &err) != TSR_OK) give_up("MPI", &err);
    if (processes->rank != 0 && !freopen("/dev/null", "w", stdout)) give_up("MPI", &err);
#endif
    if (!processes || processes->rank == 0) make_scratch();
    if (processes && processes->broadcast(processes, scratch, sizeof scratch, 0, &err) != TSR_OK) give_up("MPI", &err);
}

int ranks_end(int failed_tests)
{
    tsr_error err = {0};
    if (processes && tsr_comm_barrier(processes, &err) != TSR_OK) give_up("MPI", &err);
    if (!processes || processes->rank == 0) nftw(scratch, remove_one, 16, FTW_DEPTH | FTW_PHYS);
#ifdef TSR_RANKS_MPI
    processes->close(processes);
    tsr_mpi_end();
#endif
    return failed_tests != 0;
}

const char *ranks_scratch(void)
{
    return scratch;
}

uint32_t ranks_count(uint32_t ranks)
{
    return processes ? processes->size : ranks;
}

/* A rank's own failures take precedence over those that follow from another rank's. */
static tsr_status settle(tsr_status status, const tsr_error *mine, tsr_error *err)
{
    const bool consequence = status == TSR_E_IO && strstr(mine->message, "has left");
    tsr_error first = *mine;
    tsr_status agreed = tsr_comm_agree(processes, consequence ? TSR_OK : status, &first);
    if (agreed == TSR_OK) {
        first = *mine;
        agreed = tsr_comm_agree(processes, status, &first);
    }
    if (agreed != TSR_OK) *err = first;
    return agreed;
}

static tsr_status run_process(ranks_body *body, void *arg, tsr_error *err)
{
    tsr_comm *comm;
    tsr_error mine = {0};
    tsr_status status = processes->split(processes, 0, processes->rank, &comm, err);
    if (status != TSR_OK) return status;
    status = body(arg, comm, &mine);
    comm->close(comm);
    return settle(status, &mine, err);
}

tsr_status ranks_try(uint32_t ranks, ranks_body *body, void *arg, tsr_error *err)
{
    return processes ? run_process(body, arg, err) : tsr_comm_threads_run(&tsr_allocator_libc, ranks, body, arg, err);
}

void ranks_run(ranks_body *body, void *arg)
{
    static const uint32_t worlds[] = {2, 3, 4, 7, 16};
    const size_t count = processes ? 1 : sizeof worlds / sizeof *worlds;
    for (size_t i = 0; i < count; i++) {
        tsr_error err = {0};
        if (ranks_try(worlds[i], body, arg, &err) != TSR_OK) fail_msg("%u ranks: %s", ranks_count(worlds[i]), err.message);
    }
    if (processes) return;
    tsr_comm *self;
    tsr_error err = {0};
    assert_int_equal(tsr_comm_self(&tsr_allocator_libc, &self, &err), TSR_OK);
    if (body(arg, self, &err) != TSR_OK) fail_msg("self: %s", err.message);
    self->close(self);
}
