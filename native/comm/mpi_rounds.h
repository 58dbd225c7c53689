/* Moving bytes of any amount by MPI calls whose counts are ints: pieces of at most `round_bytes`. These return MPI's codes.
 */
#ifndef TSR_NATIVE_MPI_ROUNDS_H
#define TSR_NATIVE_MPI_ROUNDS_H

#include <mpi.h>

#include "tessera/comm.h"

int tsr_mpi_broadcast(MPI_Comm ranks, void *data, size_t size, uint32_t root, size_t round_bytes);
/* `scratch`: two ints a rank. */
int tsr_mpi_all_gather(MPI_Comm ranks, const void *mine, const size_t *sizes, void *all, size_t round_bytes, int *scratch);

/* The messages of one rank. */
typedef struct tsr_exchange {
    const tsr_message *sends, *receives;
    size_t send_count, receive_count;
    /* made by prepare: positions in the lists, by how far behind (sends) or ahead (receives) the peer is */
    size_t *send_order, *receive_order;
    uint32_t rank, ranks;
} tsr_exchange;

/* Peers are in range. Errors: TSR_E_NOMEM. */
tsr_status tsr_exchange_prepare(tsr_exchange *exchange, uint32_t rank, uint32_t ranks, const tsr_allocator *allocator,
                                tsr_error *err);
int tsr_exchange_run(const tsr_exchange *exchange, MPI_Comm ranks, size_t round_bytes);
void tsr_exchange_free(tsr_exchange *exchange, const tsr_allocator *allocator);

#endif
