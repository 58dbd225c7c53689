/* The viewer and one checkpoint's bytes on the loopback address, for `tessera view`. */
#ifndef TSR_CLI_VIEW_SERVER_H
#define TSR_CLI_VIEW_SERVER_H

#include "tessera/store.h"

typedef struct cli_view_server cli_view_server;

typedef struct cli_viewing {
    const char *pages; /* the folder of the built viewer */
    const char *title; /* of the checkpoint */
    tsr_store *store;  /* borrowed until stop */
    uint16_t port;     /* 0: a free one */
} cli_viewing;

/* Serves, by GET and HEAD, to requests whose Host is the loopback address only:
 *
 *   /                  index.html, and the other files of the viewer
 *   /checkpoint.json   {"title": …, "files": [{"name": …, "size": …}], "primary": … or absent}
 *   /checkpoint/NAME   a file of the store, with ranges
 *
 * on threads of its own. *port: the one taken. Errors: TSR_E_UNSUPPORTED without libmicrohttpd, TSR_E_IO when the port is
 * taken, TSR_E_NOMEM. */
tsr_status cli_view_start(const cli_viewing *view, const tsr_host *host, cli_view_server **out, uint16_t *port, tsr_error *err);
void cli_view_stop(cli_view_server *server); /* takes NULL */

#endif
