/* System calls that end the process, or the machine, at a chosen one. The table takes the place of tsr_sys_posix in a program
 * that is linked with it. */
#ifndef TSR_TEST_CRASH_SYS_H
#define TSR_TEST_CRASH_SYS_H

#include <stdbool.h>

typedef enum crash_kind {
    CRASH_NEVER,
    CRASH_KILL,       /* SIGKILL: what was written stays */
    CRASH_POWER_ALL,  /* power loss: everything that was not synced is undone */
    CRASH_POWER_SOME  /* power loss: some of it is: any writes, and of each folder its last changes */
} crash_kind;

/* Before (or, with `after`, behind) the `at`-th call, from 1, that changes the file system. `stash` is a folder on the file
 * system of the test for what a power loss brings back. For this process alone. */
void crash_arm(crash_kind kind, unsigned long at, bool after, unsigned seed, const char *stash);
/* Such calls so far. */
unsigned long crash_calls(void);

#endif
