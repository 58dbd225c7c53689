/* Asks Open MPI whether it accepts device memory. Only Open MPI has a function for this. */
#include <mpi.h>
#ifdef OPEN_MPI
#include <mpi-ext.h>
#endif

#include "tessera/comm_mpi.h"

bool tsr_mpi_takes_device_memory(void)
{
#ifdef MPIX_CUDA_AWARE_SUPPORT
    return MPIX_Query_cuda_support() == 1;
#else
    return false;
#endif
}
