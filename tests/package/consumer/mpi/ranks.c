/* Rank 0 prints how many ranks sent their number. */
#include <stdio.h>

#include <tessera/comm_mpi.h>

int main(int argc, char **argv)
{
    tsr_error err = {0};
    tsr_comm *comm = NULL;
    tsr_status status = tsr_mpi_start(&argc, &argv, &err);
    if (status == TSR_OK) status = tsr_comm_mpi_open(MPI_COMM_WORLD, NULL, &tsr_allocator_libc, &comm, &err);
    uint32_t told[64] = {0}, mine = comm ? comm->rank + 1 : 0, count = 0;
    size_t sizes[64];
    for (uint32_t rank = 0; rank < 64; rank++) sizes[rank] = sizeof mine;
    if (status == TSR_OK && comm->size <= 64) status = comm->all_gather(comm, &mine, sizes, told, &err);
    for (uint32_t rank = 0; rank < 64; rank++) count += told[rank] == rank + 1;
    if (status != TSR_OK) fprintf(stderr, "%s\n", err.message);
    else if (comm->rank == 0) printf("%u\n", (unsigned)count);
    if (comm) comm->close(comm);
    tsr_mpi_end();
    return status != TSR_OK;
}
