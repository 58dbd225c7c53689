/* See view_clients.h. */
#include "cli/view_clients.h"

#include <stddef.h>
#include <sys/socket.h>

#include "cli/session.h"

enum { MANY_IDLE = CLI_MOST_CLIENTS / 4 };

void cli_clients_open(cli_clients *clients)
{
    pthread_mutex_init(&clients->lock, NULL);
    for (size_t i = 0; i < CLI_MOST_CLIENTS; i++) clients->places[i] = (cli_client){.fd = -1};
}

static bool is_idle(const cli_client *client)
{
    return client->fd >= 0 && !client->is_busy;
}

/* Under the lock. */
static void make_room(cli_clients *clients)
{
    cli_client *oldest = NULL;
    size_t idle = 0;
    for (size_t i = 0; i < CLI_MOST_CLIENTS; i++) {
        cli_client *client = &clients->places[i];
        if (!is_idle(client)) continue;
        idle++;
        if (!oldest || client->since < oldest->since) oldest = client;
    }
    if (idle < MANY_IDLE) return;
    shutdown(oldest->fd, SHUT_RDWR);
    oldest->since = cli_seconds(); /* it is closed soon; the next one must not choose it again */
}

cli_client *cli_clients_add(cli_clients *clients, int fd)
{
    cli_client *found = NULL;
    pthread_mutex_lock(&clients->lock);
    make_room(clients);
    for (size_t i = 0; i < CLI_MOST_CLIENTS && !found; i++) {
        if (clients->places[i].fd < 0) found = &clients->places[i];
    }
    if (found) *found = (cli_client){.fd = fd, .since = cli_seconds()};
    pthread_mutex_unlock(&clients->lock);
    return found;
}

void cli_clients_set_busy(cli_clients *clients, cli_client *client, bool is_busy)
{
    if (!client) return;
    pthread_mutex_lock(&clients->lock);
    client->is_busy = is_busy;
    client->since = cli_seconds();
    pthread_mutex_unlock(&clients->lock);
}

void cli_clients_remove(cli_clients *clients, cli_client *client)
{
    if (!client) return;
    pthread_mutex_lock(&clients->lock);
    client->fd = -1;
    pthread_mutex_unlock(&clients->lock);
}

void cli_clients_end_idle(cli_clients *clients, double seconds)
{
    const double limit = cli_seconds() - seconds;
    pthread_mutex_lock(&clients->lock);
    for (size_t i = 0; i < CLI_MOST_CLIENTS; i++) {
        const cli_client *client = &clients->places[i];
        if (is_idle(client) && client->since < limit) shutdown(client->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&clients->lock);
}
