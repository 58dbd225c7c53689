/* Moves any number of bytes by MPI calls, whose counts are ints, in pieces of at most `round_bytes`. The functions that
 * return int return MPI's error codes. */
#ifndef TSR_NATIVE_MPI_ROUNDS_H
#define TSR_NATIVE_MPI_ROUNDS_H

#include <mpi.h>

#include "tessera/comm.h"

int tsr_mpi_broadcast(MPI_Comm ranks, void *data, size_t size, uint32_t root, size_t round_bytes);
/* `scratch` has two ints per rank. */
int tsr_mpi_all_gather(MPI_Comm ranks, const void *mine, const size_t *sizes, void *all, size_t round_bytes, int *scratch);

/* The messages of one rank in an exchange. */
typedef struct tsr_mpi_exchange {
    const tsr_message *sends, *receives;
    size_t send_count, receive_count;
    /* Set by tsr_mpi_exchange_prepare: indices into the lists, ordered by the distance to the peer, ahead of this rank (sends)
     * or behind it (receives). */
    size_t *send_order, *receive_order;
    uint32_t rank, ranks;
} tsr_mpi_exchange;

/* The peers of all messages must be valid ranks. Errors: TSR_E_NOMEM. */
tsr_status tsr_mpi_exchange_prepare(tsr_mpi_exchange *exchange, uint32_t rank, uint32_t ranks,
                                    const tsr_allocator *allocator, tsr_error *err);
int tsr_mpi_exchange_run(const tsr_mpi_exchange *exchange, MPI_Comm ranks, size_t round_bytes);
void tsr_mpi_exchange_free(tsr_mpi_exchange *exchange, const tsr_allocator *allocator);

#endif
