/* The few functions of NCCL that are used: from its own header if the build found it, otherwise the same declarations. This
 * part of its C interface has not changed since version 2.7. The library is opened at run time. */
#ifndef TSR_CUDA_NCCL_API_H
#define TSR_CUDA_NCCL_API_H

#ifdef TSR_HAVE_NCCL_H
#include <nccl.h>
#else
#include <cuda_runtime_api.h>

typedef struct ncclComm *ncclComm_t;
typedef struct ncclUniqueId {
    char internal[128];
} ncclUniqueId;
typedef enum ncclResult_t { ncclSuccess = 0 } ncclResult_t;
typedef enum ncclDataType_t { ncclUint8 = 1 } ncclDataType_t;

ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
const char *ncclGetErrorString(ncclResult_t result);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream);
#endif

#endif
