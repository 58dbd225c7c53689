/* Commands, for Python: the functions of the command line, with their documents and messages as results. */
#include "cli/program/cli.h"
#include "session.h"

/* What a call of a command needs besides its request. Mirrored in _library.py. */
typedef struct call {
    tsr_write_fn *write; /* receives the document, or the report */
    void (*say)(void *ctx, cli_saying saying, const char *text, const tsr_error *err);
    void (*progress)(void *ctx, uint64_t byte_done, uint64_t byte_total); /* may be NULL */
    const int *stop;                                                      /* not 0: the call is to end soon */
    uint8_t writes; /* it makes files, and needs memory to clean up after it was stopped */
} call;

/* Returns whether the command ran. If not, the reason has been said as an error. */
EXPORT int tsr_python_call(const cli_request *request, const call *with);

int tsr_python_call(const cli_request *request, const call *with)
{
    tsr_error err = {0};
    session *s = python_session_new(0, with->stop, &err);
    if (!s) {
        with->say(NULL, CLI_SAYS_ERROR, err.message, &err);
        return 0;
    }
    const cli_caller caller = {.write = with->write,
                               .say = with->say,
                               .progress = with->progress,
                               .sys = &s->sys,
                               .allocator = with->writes ? &tsr_allocator_libc : &s->allocator,
                               .stop = with->stop};
    const int status = cli_call(request, &caller, 0);
    tsr_python_close(s);
    return status != CLI_TROUBLE;
}
