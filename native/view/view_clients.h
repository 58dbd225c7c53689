/* The connections of the viewer's server. Idle ones must not keep a new client from connecting. */
#ifndef TSR_VIEW_VIEW_CLIENTS_H
#define TSR_VIEW_VIEW_CLIENTS_H

#include <pthread.h>
#include <stdbool.h>

enum { VIEW_MOST_CLIENTS = 512 };

typedef struct view_client {
    int fd;       /* -1: unused */
    bool is_busy; /* a complete request has arrived and is being answered */
    double since; /* time of the last change of `is_busy`, as tsr_seconds */
} view_client;

/* Thread-safe. A connection counts as idle until its request is complete, so a client that sends half of a header, or a byte
 * now and then, is idle. */
typedef struct view_clients {
    pthread_mutex_t lock;
    view_client places[VIEW_MOST_CLIENTS];
} view_clients;

void view_clients_open(view_clients *clients);
/* Adds a connection; NULL if there are too many. If many are idle, shuts down the one that has been idle longest. */
view_client *view_clients_add(view_clients *clients, int fd);
void view_clients_set_busy(view_clients *clients, view_client *client, bool is_busy);
/* Must be called before the descriptor is closed. */
void view_clients_remove(view_clients *clients, view_client *client);
/* Shuts down connections that have been idle for `seconds`. The threads that serve them then close them. */
void view_clients_end_idle(view_clients *clients, double seconds);

#endif
