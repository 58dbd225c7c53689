/* Threads do not survive a fork. What owns threads notes the process that they belong to, and starts over in a child:
 *
 *     tsr_process_enter(&pool->process, begin_in_child, pool); */
#ifndef TSR_IO_FORKED_H
#define TSR_IO_FORKED_H

#include <stdatomic.h>

typedef struct tsr_process {
    atomic_int id;
} tsr_process;

/* Notes the process that calls this. */
void tsr_process_init(tsr_process *process);

/* In another process than the noted one, calls `begin` with `ctx` and notes that process; otherwise does nothing. Several threads may
 * call this at the same time: all return after `begin`. */
void tsr_process_enter(tsr_process *process, void (*begin)(void *ctx), void *ctx);

#endif
