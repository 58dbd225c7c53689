/* System calls that end the process, or simulate a power loss, at a chosen call. In a program that is linked with this file,
 * its table replaces tsr_sys_posix. */
#ifndef TSR_TEST_CRASH_SYS_H
#define TSR_TEST_CRASH_SYS_H

#include <stdbool.h>

typedef enum crash_kind {
    CRASH_NEVER,
    CRASH_KILL,      /* SIGKILL: everything written stays */
    CRASH_POWER_ALL, /* power loss: everything that was not synced is undone */
    CRASH_POWER_SOME /* power loss: some of it is undone: any of the writes, and the last changes in each directory */
} crash_kind;

/* Ends this process before (or, with `after`, after) the `at`-th call that changes the file system, counted from 1. `stash`
 * is a directory on the same file system as the test's files; it keeps what a power loss restores. */
void crash_arm(crash_kind kind, unsigned long at, bool after, unsigned seed, const char *stash);
/* Returns how many such calls there were so far. */
unsigned long crash_calls(void);

#endif
