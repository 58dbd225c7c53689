/* Presents a directory of a store, or one file of it, as a store of its own. Files keep their numbers, so that what is read
 * through the view refers to the files of the original store. Files outside of the directory have no name and no bytes. */
#ifndef TSR_IO_STORE_VIEW_H
#define TSR_IO_STORE_VIEW_H

#include "tessera/store.h"

typedef struct tsr_store_view {
    tsr_store base; /* must be first */
    tsr_store *shown;
    uint32_t first; /* of `shown`: file 0 of the view */
} tsr_store_view;

/* The directory `name` below the root; "" is the root itself. Allocated in `arena`, borrows `shown`; closing it does
 * nothing. `*holds_files` is false if there is nothing below that name. TSR_E_NOMEM. */
tsr_status tsr_store_view_below(tsr_store *shown, tsr_str name, tsr_arena *arena, tsr_store_view **out, bool *holds_files,
                                tsr_error *err);
/* A directory as a store with files numbered from 0: by the `below` of `store`, which the caller closes, so *owned is true, or as a view
 * in `arena`. *holds_files is false if a view shows nothing. TSR_E_NOMEM; errors of `below`, such as TSR_E_NOT_FOUND. */
tsr_status tsr_store_open_below(tsr_store *store, tsr_str name, tsr_arena *arena, tsr_store **out, bool *owned,
                                bool *holds_files, tsr_error *err);
/* The same files as `shown`, with `file` as the one that the user named. TSR_E_NOMEM. */
tsr_status tsr_store_view_of_file(tsr_store *shown, uint32_t file, tsr_arena *arena, tsr_store_view **out, tsr_error *err);

#endif
