/* NCCL, if its library is found at run time. */
#ifndef TSR_CUDA_NCCL_H
#define TSR_CUDA_NCCL_H

#include "tessera/sys/gpu_comm.h"

typedef struct nccl_ranks nccl_ranks;

/* Collective over `below`, with which rank 0 distributes the id. */
tsr_status tsr_nccl_open(tsr_comm *below, tsr_gpu *gpu, nccl_ranks **out, tsr_error *err);
void tsr_nccl_close(nccl_ranks *ranks); /* accepts NULL */

/* As in tsr_comm, but only for device memory. The operations are done on return. */
tsr_status tsr_nccl_all_gather(nccl_ranks *ranks, const void *mine, const size_t *sizes, void *all, tsr_error *err);
tsr_status tsr_nccl_broadcast(nccl_ranks *ranks, void *data, size_t size, uint32_t root, tsr_error *err);
tsr_status tsr_nccl_exchange(nccl_ranks *ranks, const tsr_message *sends, size_t send_count, const tsr_message *receives,
                             size_t receive_count, tsr_error *err);

#endif
