/* When a request is repeated, and what all requests of a command may lose together; see transport.h. */
#include "io/transport.h"

#include "io/sys.h"
#include "tessera/sys/text.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum { MOST_TRIES = 10, MOST_CONNECTS = 4, DEFAULT_BUDGET = 40, MOST_BUDGET = 3600, MOST_STALL = 60 };
static const double first_wait = 0.1, longest_wait = 5, idle = 120; /* in seconds */

/* The seconds that were lost, which all requests of a command share: they are counted once if several requests lose them at the
 * same time. */
static struct {
    pthread_mutex_t lock;
    double lost, until; /* `until`: the time up to which they are counted */
} trouble = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool read_budget(double *seconds)
{
    const char *given = getenv("TESSERA_RETRY_SECONDS");
    char *end = NULL;
    *seconds = DEFAULT_BUDGET;
    if (!given || !*given) return true;
    const double asked = tsr_real_read(given, &end);
    if (*end || !(asked >= 1 && asked <= MOST_BUDGET)) return false;
    *seconds = asked;
    return true;
}

tsr_status tsr_retry_check_setting(tsr_error *err)
{
    double unused;
    if (read_budget(&unused)) return TSR_OK;
    return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "TESSERA_RETRY_SECONDS is '%s'; it must be a number from 1 to %d",
                     getenv("TESSERA_RETRY_SECONDS"), MOST_BUDGET);
}

void tsr_retry_forget(void)
{
    pthread_mutex_lock(&trouble.lock);
    trouble.lost = trouble.until = 0;
    pthread_mutex_unlock(&trouble.lock);
}

static void lose(double from, double to)
{
    pthread_mutex_lock(&trouble.lock);
    if (from - trouble.until > idle) trouble.lost = 0;
    if (from < trouble.until) from = trouble.until;
    if (to > from) {
        trouble.lost += to - from;
        trouble.until = to;
    }
    pthread_mutex_unlock(&trouble.lock);
}

/* How many seconds may still be lost before nothing is repeated any more; negative if more were lost. */
static double seconds_left(double *budget)
{
    read_budget(budget);
    pthread_mutex_lock(&trouble.lock);
    if (tsr_seconds() - trouble.until > idle) trouble.lost = 0;
    const double left = *budget - trouble.lost;
    pthread_mutex_unlock(&trouble.lock);
    return left;
}

bool tsr_retry_is_spent(void)
{
    double budget;
    return seconds_left(&budget) <= 0;
}

double tsr_retry_patience(void)
{
    double budget;
    const double left = seconds_left(&budget);
    /* For each request after that, such as those that clean up. Two of them may be in vain. */
    const double last = budget / 9;
    double patience = budget * 2 / 3 < MOST_STALL ? budget * 2 / 3 : MOST_STALL;
    if (left + 2 * last <= 0) return 0;
    if (left < patience) patience = left > last ? left : last;
    return patience;
}

static bool may_pass(const tsr_http_transfer *t)
{
    /* 501: the server does not support it, so a retry is useless. */
    if (t->result == TSR_TRANSFER_ANSWERED)
        return t->answer.status == 429 || (t->answer.status >= 500 && t->answer.status != 501);
    return t->result == TSR_TRANSFER_CUT || t->result == TSR_TRANSFER_NOT_CONNECTED;
}

bool tsr_retry_worthwhile(const tsr_http_transfer *transfer, unsigned attempt, double *seconds)
{
    const unsigned most = transfer->result == TSR_TRANSFER_NOT_CONNECTED ? MOST_CONNECTS : MOST_TRIES;
    double budget;
    if (!may_pass(transfer)) {
        if (attempt > 1 && transfer->result == TSR_TRANSFER_ANSWERED) tsr_retry_forget();
        return false;
    }
    /* What a slow server sent before the first failure was not lost time. */
    lose(attempt > 1 ? transfer->began : transfer->heard, transfer->ended);
    double wait = first_wait;
    for (unsigned i = 1; i < attempt && wait < longest_wait; i++) wait *= 2;
    if (wait > longest_wait) wait = longest_wait;
    if (transfer->answer.retry_after > wait) wait = transfer->answer.retry_after;
    *seconds = wait;
    return attempt < most && wait < seconds_left(&budget);
}

void tsr_retry_wait(double seconds)
{
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    const double began = tsr_seconds();
    while (nanosleep(&left, &left) != 0 && errno == EINTR) continue;
    lose(began, tsr_seconds());
}
