/* A communicator for tests whose ranks are late, fail or die as a list states. The faults are the same in every run and over
 * any implementation. */
#ifndef TSR_NATIVE_COMM_FAULTS_H
#define TSR_NATIVE_COMM_FAULTS_H

#include "tessera/comm.h"

typedef enum tsr_fault_kind {
    TSR_FAULT_FAIL = 1, /* the call fails with TSR_E_IO on this rank, which then poisons the others */
    TSR_FAULT_LEAVE,    /* this and all later calls of the rank fail with TSR_E_IO, and no other rank is told, as if it had
                         * died. The body that runs on simulated ranks must then return. */
    TSR_FAULT_KILL      /* SIGKILL; only for ranks that are processes */
} tsr_fault_kind;

typedef struct tsr_fault {
    tsr_fault_kind kind;
    uint32_t rank;   /* in the first communicator */
    uint64_t call;   /* counts from 0, over the communicator and all that are split off it */
    bool afterwards; /* the fault comes after the call instead of replacing it */
} tsr_fault;

/* The faults of one rank. The caller must keep it until the communicator is closed. */
typedef struct tsr_faults {
    const tsr_fault *list;
    size_t count;
    uint64_t delay_seed;         /* 0: no call is late */
    uint32_t delay_microseconds; /* the upper limit; each delay depends on the seed, the rank and the call */
    /* the communicator's own state */
    uint64_t calls;
    bool gone;
} tsr_faults;

/* Wraps `inner`. Closing *out also closes `inner`; on failure the caller still owns it. Errors: TSR_E_NOMEM. */
tsr_status tsr_comm_faulty(tsr_comm *inner, tsr_faults *faults, const tsr_allocator *allocator, tsr_comm **out,
                           tsr_error *err);

#endif
