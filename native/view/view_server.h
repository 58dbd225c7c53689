/* Serves the viewer and the bytes of one checkpoint, or of two to compare, on the loopback address, for `tessera view`. */
#ifndef TSR_VIEW_VIEW_SERVER_H
#define TSR_VIEW_VIEW_SERVER_H

#include "tessera/store.h"

typedef struct view_server view_server;

typedef struct view_side {
    const char *title;
    tsr_store *store;   /* borrowed until stop */
    const bool *served; /* for each file of the store, whether it belongs to the checkpoint */
    const char *part;   /* the only part to show; NULL: show everything */
    tsr_str shards;     /* the map that joins the ranks: its name, or the text of the map; data NULL: none */
    bool salvage;       /* open what is whole of a damaged file */
} view_side;

typedef struct view_settings {
    const char *pages; /* the directory of the built viewer */
    view_side sides[2];
    size_t side_count;
    uint16_t port; /* 0: any free port */
} view_settings;

/* Starts a server. It answers GET and HEAD below an address that contains a random token:
 *
 *   /TOKEN/                  index.html, and the other files of the viewer
 *   /TOKEN/checkpoint.json   {"title": …, "files": [{"name": …, "size": …}], "primary": …, "part": the only one to show,
 *                            "shards": the map that joins the ranks, "salvage": true, "other": the same of the second checkpoint};
 *                            all but the first two may be absent
 *   /TOKEN/checkpoint/NAME   a file of the checkpoint, with ranges
 *   /TOKEN/other/NAME        a file of the second one
 *
 * Everything else is not found. A Host that is not the loopback address is refused, because a page of another site may
 * reach this address under its own name. The server has its own threads. Errors: TSR_E_IO if the port is in use,
 * TSR_E_NOMEM. */
tsr_status view_start(const view_settings *view, const tsr_host *host, view_server **out, tsr_error *err);
/* "http://127.0.0.1:PORT/TOKEN/"; borrowed until stop. */
const char *view_address(const view_server *server);
void view_stop(view_server *server); /* accepts NULL */

#endif
