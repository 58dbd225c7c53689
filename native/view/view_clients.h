/* The connections of the viewer's server, so that idle ones cannot keep a new client out. */
#ifndef TSR_VIEW_VIEW_CLIENTS_H
#define TSR_VIEW_VIEW_CLIENTS_H

#include <pthread.h>
#include <stdbool.h>

enum { VIEW_MOST_CLIENTS = 512 };

typedef struct view_client {
    int fd; /* -1: a free place */
    bool is_busy; /* a whole request has come and its answer is under way */
    double since; /* seconds; of this state */
} view_client;

/* Thread-safe. A connection counts as idle until its request is complete: a client that sends half of a header, or a byte now
 * and then, is idle. */
typedef struct view_clients {
    pthread_mutex_t lock;
    view_client places[VIEW_MOST_CLIENTS];
} view_clients;

void view_clients_open(view_clients *clients);
/* A new connection; NULL where all places are taken. Where many are idle already, the one that has been so for longest is
 * shut down. */
view_client *view_clients_add(view_clients *clients, int fd);
void view_clients_set_busy(view_clients *clients, view_client *client, bool is_busy);
/* Before the descriptor is closed. */
void view_clients_remove(view_clients *clients, view_client *client);
/* Shuts down connections that have been idle for so many seconds; whoever serves them closes them then. */
void view_clients_end_idle(view_clients *clients, double seconds);

#endif
