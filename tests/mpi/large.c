/* Sends more bytes than an int can count through every collective: `large BYTES`. The buffers map the same 16 MiB of memory
 * repeatedly, so that the count is real although there is little memory; what is written to them repeats with that period.
 * At the end, rank 0 prints "done". */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tessera/comm_mpi.h"

#define PERIOD ((size_t)16 << 20)

static uint8_t *map_again_and_again(size_t size, int fd)
{
    uint8_t *all = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (size_t at = 0; all != MAP_FAILED && at < size; at += PERIOD) {
        if (mmap(all + at, PERIOD, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) return NULL;
    }
    return all == MAP_FAILED ? NULL : all;
}

static uint8_t *buffer(size_t size)
{
    int fd = memfd_create("large", 0);
    if (fd < 0 || ftruncate(fd, (off_t)PERIOD) != 0) return NULL;
    uint8_t *memory = map_again_and_again(size, fd);
    close(fd);
    return memory;
}

static void fill(uint8_t *memory, uint32_t seed)
{
    for (size_t i = 0; i < PERIOD; i++) memory[i] = (uint8_t)((i * 2654435761u >> 7) + seed);
}

static bool is(const uint8_t *memory, uint32_t seed)
{
    for (size_t i = 0; i < PERIOD; i++) {
        if (memory[i] != (uint8_t)((i * 2654435761u >> 7) + seed)) return false;
    }
    return true;
}

static tsr_status check(const tsr_comm *comm, bool right, const char *what, tsr_error *err)
{
    if (right) return TSR_OK;
    return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "%s: wrong bytes at rank %" PRIu32, what, comm->rank);
}

static tsr_status run(tsr_comm *comm, size_t size, tsr_error *err)
{
    uint8_t *out = buffer(size), *in = buffer(size);
    const uint32_t next = (comm->rank + 1) % comm->size, last = (comm->rank + comm->size - 1) % comm->size;
    const tsr_message send = {next, out, size}, receive = {last, in, size};
    size_t sizes[64] = {0};
    if (!out || !in || comm->size > 64) return tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "no memory to map");
    fill(out, comm->rank == 0 ? 7 : 1);
    tsr_status status = comm->broadcast(comm, out, size, 0, err);
    if (status == TSR_OK) status = check(comm, is(out, 7), "broadcast", err);
    fill(out, 100 + comm->rank);
    if (status == TSR_OK) status = comm->exchange(comm, &send, 1, &receive, 1, err);
    if (status == TSR_OK) status = check(comm, is(in, 100 + last), "exchange", err);
    sizes[comm->size - 1] = size; /* only from the last rank, because the ranks would overwrite each other's period */
    if (status == TSR_OK) status = comm->all_gather(comm, out, sizes, in, err);
    return status == TSR_OK ? check(comm, is(in, 100 + comm->size - 1), "all_gather", err) : status;
}

int main(int argc, char **argv)
{
    tsr_error err = {0};
    tsr_comm *comm;
    if (argc != 2 || tsr_mpi_start(&argc, &argv, &err) != TSR_OK) return 2;
    if (tsr_comm_mpi_open(MPI_COMM_WORLD, NULL, &tsr_allocator_libc, &comm, &err) != TSR_OK) return 2;
    tsr_status status = run(comm, (size_t)strtoull(argv[1], NULL, 10) / PERIOD * PERIOD, &err);
    status = tsr_comm_agree(comm, status, &err);
    if (status != TSR_OK && comm->rank == 0) fprintf(stderr, "%s\n", err.message);
    if (status == TSR_OK && comm->rank == 0) puts("done");
    comm->close(comm);
    tsr_mpi_end();
    return status != TSR_OK;
}
