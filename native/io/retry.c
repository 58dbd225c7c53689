/* See retry.h. */
#include "io/retry.h"

#include <errno.h>
#include <time.h>

enum { MOST_TRIES = 10, MOST_CONNECTS = 4 };
static const double first_wait = 0.1, longest_wait = 5, longest_asked = 120; /* in seconds */

static bool may_pass(const tsr_transfer *t)
{
    /* 501: the server does not support it, so a retry is useless. */
    if (t->result == TSR_TRANSFER_ANSWERED)
        return t->answer.status == 429 || (t->answer.status >= 500 && t->answer.status != 501);
    return t->result == TSR_TRANSFER_CUT || t->result == TSR_TRANSFER_NOT_CONNECTED;
}

bool tsr_retry_worthwhile(const tsr_transfer *transfer, unsigned attempt, double *seconds)
{
    const unsigned most = transfer->result == TSR_TRANSFER_NOT_CONNECTED ? MOST_CONNECTS : MOST_TRIES;
    const double asked = transfer->answer.retry_after;
    if (!may_pass(transfer) || attempt >= most || asked > longest_asked) return false;
    double wait = first_wait;
    for (unsigned i = 1; i < attempt && wait < longest_wait; i++) wait *= 2;
    if (wait > longest_wait) wait = longest_wait;
    *seconds = asked > wait ? asked : wait;
    return true;
}

void tsr_retry_wait(double seconds)
{
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) continue;
}
