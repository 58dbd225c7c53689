/* cli/program/session.h where there is one thread: instead of native/cli/program/signals.c, whose thread waits for signals. The
 * main thread of Node receives them, and the thread of the program looks for them when it reads or writes (system.js). */
#include "cli/program/session.h"

#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

/* Tells the main thread whether a signal has to be cleaned up after. Does not return if one has already arrived. */
__attribute__((import_module("tessera"), import_name("unfinished"))) void host_unfinished(int is);

int tessera_signal(int number);

static cli_cleanup *first;
static bool waits; /* a signal waits */

void cli_signals_heed_launcher(void) {}

void cli_signals_leave(void) {}

void cli_cleanup_add(cli_cleanup *cleanup)
{
    host_unfinished(1);
    cleanup->next = first;
    first = cleanup;
}

void cli_cleanup_drop(cli_cleanup *cleanup)
{
    for (cli_cleanup **at = &first; *at; at = &(*at)->next) {
        if (*at != cleanup) continue;
        *at = cleanup->next;
        break;
    }
    if (!first) host_unfinished(0);
}

void cli_signals_hold(void)
{
    waits = true;
}

void cli_signals_release(void)
{
    waits = false;
}

/* Cleans up after a signal and ends the program. Returns 0 if the signal has to wait. */
int tessera_signal(int number)
{
    if (waits) return 0;
    const char *said = cli_cleanup_run(first);
    if (first && number != SIGPIPE) {
        fprintf(stderr, "%stessera: ended by %s; %s\n", isatty(STDERR_FILENO) ? "\n" : "",
                number == SIGINT    ? "SIGINT"
                : number == SIGTERM ? "SIGTERM"
                                    : "SIGHUP",
                said);
    }
    raise(number);
    return 1;
}
