/* What happens when a signal ends a command.
 *
 * A command without unfinished output has no handler: SIGINT, SIGTERM, SIGHUP and SIGPIPE end it as they end any program.
 * A command with unfinished output registers a function that removes it. A signal then wakes a separate thread, which
 * cleans up, says on stderr what became of the output, and ends the process by that signal. It does not wait for the other threads, which may be in the middle of a
 * tensor of gigabytes or waiting for a server. */
#ifndef TSR_CLI_PROGRAM_SIGNALS_H
#define TSR_CLI_PROGRAM_SIGNALS_H

#include <stdbool.h>

typedef struct cli_cleanup cli_cleanup;
struct cli_cleanup {
    /* Removes what is unfinished, and returns whether it left something for --resume. Runs in another thread, once, while the command's own threads continue until the process
     * ends. It may only read data that no longer changes, must not take a lock that they hold for long, and has to keep them
     * from creating files again (tsr_sys_stop_naming, tsr_folder_output_abandon). */
    bool (*remove)(void *ctx);
    void *ctx;
    cli_cleanup *next; /* set by cli_cleanup_add */
};

/* From now on, `cleanup` runs before a signal ends the process. The caller keeps it until cli_cleanup_drop. */
void cli_cleanup_add(cli_cleanup *cleanup);
/* Removes `cleanup` when nothing is left to clean up. Does not return if a signal has already arrived. Accepts one that
 * was not added. */
void cli_cleanup_drop(cli_cleanup *cleanup);

/* A signal waits between these two calls. They protect steps that must not be separated, such as creating a file and
 * recording its name, or the renames of a publication. */
void cli_signals_hold(void);
void cli_signals_release(void);

/* For a process of another program, which handles its signals itself: no handlers are installed. Must precede all other calls. */
void cli_signals_leave(void);

/* For a rank under an MPI launcher; must precede all other calls. SIGCONT sent to a process that was not stopped then ends
 * the program like SIGTERM. Open MPI announces in this way that it ends the job, a second before it sends SIGTERM; SIGKILL
 * follows SIGTERM after a few milliseconds, which is too short for cleaning up. */
void cli_signals_heed_launcher(void);

#endif
