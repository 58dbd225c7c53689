/* The connections of the viewer's server, so that idle ones cannot keep a new client out. */
#ifndef TSR_CLI_VIEW_CLIENTS_H
#define TSR_CLI_VIEW_CLIENTS_H

#include <pthread.h>
#include <stdbool.h>

enum { CLI_MOST_CLIENTS = 512 };

typedef struct cli_client {
    int fd; /* -1: a free place */
    bool is_busy; /* a whole request has come and its answer is under way */
    double since; /* seconds; of this state */
} cli_client;

/* Thread-safe. A connection counts as idle until its request is complete: a client that sends half of a header, or a byte now
 * and then, is idle. */
typedef struct cli_clients {
    pthread_mutex_t lock;
    cli_client places[CLI_MOST_CLIENTS];
} cli_clients;

void cli_clients_open(cli_clients *clients);
/* A new connection; NULL where all places are taken. Where many are idle already, the one that has been so for longest is
 * shut down. */
cli_client *cli_clients_add(cli_clients *clients, int fd);
void cli_clients_set_busy(cli_clients *clients, cli_client *client, bool is_busy);
/* Before the descriptor is closed. */
void cli_clients_remove(cli_clients *clients, cli_client *client);
/* Shuts down connections that have been idle for so many seconds; whoever serves them closes them then. */
void cli_clients_end_idle(cli_clients *clients, double seconds);

#endif
