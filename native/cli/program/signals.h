/* What happens when a signal ends a command.
 *
 * A command that leaves nothing behind has no handler: SIGINT, SIGTERM, SIGHUP and SIGPIPE end it as they end any program,
 * wherever it is. A command with unfinished output registers how to remove it. The signal then wakes a thread of its own,
 * which cleans up and lets the process die of that signal, whatever the other threads are doing: they may be inside a
 * tensor of gigabytes or waiting for a server, and are not asked. */
#ifndef TSR_CLI_PROGRAM_SIGNALS_H
#define TSR_CLI_PROGRAM_SIGNALS_H

#include <stdbool.h>

typedef struct cli_cleanup cli_cleanup;
struct cli_cleanup {
    /* Removes what is unfinished. Runs in another thread, once, while the command's own threads go on until the process
     * ends: it may only read what does not change any more, must take no lock that they hold for long, and has to keep
     * them from creating files again (tsr_sys_stop_naming, tsr_folder_output_abandon). */
    void (*remove)(void *ctx);
    void *ctx;
    cli_cleanup *next; /* set by cli_cleanup_add */
};

/* From here on `cleanup` (the caller's until cli_cleanup_drop) runs before a signal ends the process. */
void cli_cleanup_add(cli_cleanup *cleanup);
/* Nothing is left that would have to be removed. Does not return when a signal came before. Takes one that was not added. */
void cli_cleanup_drop(cli_cleanup *cleanup);

/* Between the two a signal waits: for steps that must not be separated, such as creating a file and noting its name, or
 * the renames of a publication. */
void cli_signals_hold(void);
void cli_signals_release(void);

/* For a rank under an MPI launcher, before any other call: SIGCONT from the parent process, which was not stopped, ends the
 * program like SIGTERM. Open MPI announces so that it ends the job, a second before SIGTERM; that is followed by SIGKILL after
 * a few milliseconds, which are too few to clean up in. */
void cli_signals_heed_launcher(void);

#endif
