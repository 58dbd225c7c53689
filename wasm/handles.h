/* Declarations shared by the files of the module: handles, stores and JSON documents. */
#ifndef TSR_WASM_HANDLES_H
#define TSR_WASM_HANDLES_H

#include "shim.h"
#include "tessera/sys/json.h"
#include "tessera/sys/store.h"

/* What the second file adds to the host when it is loaded (prepare.c): digests and zstd. */
extern tsr_host tessera_lent;
extern bool tessera_is_prepared;

typedef enum handle_kind {
    HANDLE_CHECKPOINT = 1,
    HANDLE_OUTLINE,
    HANDLE_TALLY,
    HANDLE_DIFF,
    HANDLE_TWINS,
    HANDLE_CONVERSION
} handle_kind;

/* The files that the host provides, as a store. */
typedef struct host_store {
    tsr_store store; /* must be first, because the store's functions cast back */
    uint32_t number; /* the number to pass to tsr_read */
    tsr_arena *names;
    tsr_guards *guards; /* NULL: guarded bytes are read when the checkpoint is opened */
} host_store;

/* Opens a store over files that JavaScript listed, sorted by name; the names are copied. tessera_host_store_close also
 * accepts a zeroed store, and one that could not be opened. */
tsr_status tessera_host_store_open(host_store *out, uint32_t number, const tessera_file *files, uint32_t count,
                                   uint32_t primary, tsr_error *err);
/* For files of which each read is a request: reads guarded bytes together with the first bytes after them. The second file
 * contains the code; without it nothing changes. */
tsr_status tessera_host_store_guard(host_store *store, tsr_error *err);
void tessera_host_store_close(host_store *store);
tsr_host tessera_host(void);

typedef struct made made;
typedef struct opened {
    host_store files;        /* from the host; not used if the checkpoint was made from another one */
    tsr_store *store;        /* `files`, or the store of what was made */
    tsr_open_options chosen; /* part, step, shards and salvage; allocated in the arena of `files` */
    made *made;              /* NULL, or freed by `release_made` */
    void (*release_made)(made *made);
    /* NULL, or what `checkpoint` is opened over. `release_below` frees it after the checkpoint is closed. */
    void *below;
    void (*release_below)(void *below);
    tsr_host host;
    tsr_checkpoint *checkpoint; /* NULL if the files are not one checkpoint; `why` is the reason */
    tsr_error why;
    bool validated;
} opened;

/* Adds a handle for `item`. `release` frees the item when the handle, or one of its owners (0: none), is closed. On failure
 * the item is released immediately, and 0 is returned. */
uint32_t tessera_add_handle(handle_kind kind, void *item, void (*release)(void *item), uint32_t owner, uint32_t other_owner,
                            tsr_error *err);
void *tessera_item_of(uint32_t handle, handle_kind kind, tsr_error *err);
/* Returns the item of a checkpoint that can be listed, or NULL with an error. */
opened *tessera_checkpoint_of(uint32_t handle, tsr_error *err);
/* Opens what was made from the checkpoint `source`; it is closed together with it. Returns a handle that owns `result`. On
 * failure returns 0, and the caller still owns `result`. */
uint32_t tessera_open_made(made *result, tsr_store *store, void (*release)(made *result), uint32_t source, tsr_error *err);
/* Whether `shards` was given and `source` has no ranks to join. */
bool tessera_ignores_shards(const tsr_open_options *chosen, const tsr_checkpoint *source);
/* Opens a checkpoint over another one. Takes ownership of `checkpoint` and `below`, even on failure, when it returns 0. */
typedef struct tessera_view {
    tsr_checkpoint *checkpoint;
    void *below;
    void (*release_below)(void *below);
} tessera_view;
uint32_t tessera_add_view(const tessera_view *view, uint32_t source, tsr_error *err);
/* Returns the options `wanted` (NULL: none) with the choice that was made when `item` was opened. */
tsr_open_options tessera_wanted_of(const opened *item, const tsr_open_options *wanted);
/* Reads `shards` of a tessera_choice. The function is in the second file, and NULL until that is loaded. Texts are allocated
 * in `arena`. It is volatile because the linker would otherwise replace calls through it by calls of the only function that
 * it can be, so the first file would need that function. */
extern tsr_status (*volatile tessera_read_shards)(tsr_str given, const tsr_host *host, tsr_arena *arena,
                                                  const struct tsr_shards **out, tsr_error *err);
/* Returns entry `index` of a checkpoint, or NULL with an error if there is none. */
const tsr_entry *tessera_entry_of(const opened *item, uint32_t index, tsr_error *err);

/* Adds the findings about the catalog to those of the checkpoint, when it is first called. */
tsr_status tessera_validate_once(opened *item, tsr_error *err);

/* A document. `write` writes it with the given emitter. */
typedef struct document document;
document *tessera_make_document(tsr_status (*write)(void *ctx, tsr_json *json, tsr_error *err), void *ctx, tsr_error *err);

tsr_status tessera_write_optimizers(const opened *item, tsr_json *json, tsr_error *err);

#endif
