/* See view_clients.h. */
#include "view/view_clients.h"
#include "io/locked.h"

#include <assert.h>
#include <stddef.h>
#include <sys/socket.h>

#include "io/clock.h"

enum { MANY_IDLE = VIEW_MOST_CLIENTS / 4 };

void view_clients_open(view_clients *clients)
{
    pthread_mutex_init(&clients->lock, NULL);
    for (size_t i = 0; i < VIEW_MOST_CLIENTS; i++) clients->places[i] = (view_client){.fd = -1};
}

static bool is_idle(const view_client *client)
{
    return client->fd >= 0 && !client->is_busy;
}

/* Shuts down the connection that has been idle longest, if many are idle. The caller must hold the lock. */
static void make_room(view_clients *clients)
{
    view_client *oldest = NULL;
    size_t idle = 0;
    assert(tsr_is_locked(&clients->lock));
    for (size_t i = 0; i < VIEW_MOST_CLIENTS; i++) {
        view_client *client = &clients->places[i];
        if (!is_idle(client)) continue;
        idle++;
        if (!oldest || client->since < oldest->since) oldest = client;
    }
    if (idle < MANY_IDLE) return;
    shutdown(oldest->fd, SHUT_RDWR);
    oldest->since = tsr_seconds(); /* it will be closed soon; the next call must not choose it again */
}

view_client *view_clients_add(view_clients *clients, int fd)
{
    view_client *found = NULL;
    pthread_mutex_lock(&clients->lock);
    make_room(clients);
    for (size_t i = 0; i < VIEW_MOST_CLIENTS && !found; i++) {
        if (clients->places[i].fd < 0) found = &clients->places[i];
    }
    if (found) *found = (view_client){.fd = fd, .since = tsr_seconds()};
    pthread_mutex_unlock(&clients->lock);
    return found;
}

void view_clients_set_busy(view_clients *clients, view_client *client, bool is_busy)
{
    if (!client) return;
    pthread_mutex_lock(&clients->lock);
    client->is_busy = is_busy;
    client->since = tsr_seconds();
    pthread_mutex_unlock(&clients->lock);
}

void view_clients_remove(view_clients *clients, view_client *client)
{
    if (!client) return;
    pthread_mutex_lock(&clients->lock);
    client->fd = -1;
    pthread_mutex_unlock(&clients->lock);
}

void view_clients_end_idle(view_clients *clients, double seconds)
{
    const double limit = tsr_seconds() - seconds;
    pthread_mutex_lock(&clients->lock);
    for (size_t i = 0; i < VIEW_MOST_CLIENTS; i++) {
        const view_client *client = &clients->places[i];
        if (is_idle(client) && client->since < limit) shutdown(client->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&clients->lock);
}
