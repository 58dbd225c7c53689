/* A communicator whose ranks are late, fail or die as written down: the same every time, over any back end. For tests. */
#ifndef TSR_NATIVE_COMM_FAULTS_H
#define TSR_NATIVE_COMM_FAULTS_H

#include "tessera/comm.h"

typedef enum tsr_fault_kind {
    TSR_FAULT_FAIL = 1, /* the call fails with TSR_E_IO on this rank, which tells the others by poison */
    TSR_FAULT_LEAVE,    /* this rank's calls end with TSR_E_IO from here on, and nobody is told: as if it had died. The body
                         * that runs on simulated ranks must then return. */
    TSR_FAULT_KILL      /* SIGKILL: for ranks that are processes */
} tsr_fault_kind;

typedef struct tsr_fault {
    tsr_fault_kind kind;
    uint32_t rank;   /* of the first communicator */
    uint64_t call;   /* counts from 0, over the communicator and all that is split off it */
    bool afterwards; /* the call itself still runs */
} tsr_fault;

/* What happens on one rank; kept by the caller until the communicator is closed. */
typedef struct tsr_faults {
    const tsr_fault *list;
    size_t count;
    uint64_t delay_seed;         /* 0: nobody is late */
    uint32_t delay_microseconds; /* the most; how long before which call is drawn from seed, rank and call */
    /* kept by the communicator */
    uint64_t calls;
    bool gone;
} tsr_faults;

/* Takes `inner` over: closing `*out` closes it; not on failure. */
tsr_status tsr_comm_faulty(tsr_comm *inner, tsr_faults *faults, const tsr_allocator *allocator, tsr_comm **out,
                           tsr_error *err);

#endif
