/* What the files of the shim share: handles, and JSON documents. */
#ifndef TSR_WASM_HANDLES_H
#define TSR_WASM_HANDLES_H

#include "shim.h"
#include "tessera/sys/guards.h"
#include "tessera/sys/json.h"

/* What the second file lends the host when it is loaded (prepare.c): digests and zstd. */
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

/* Files of the host as a store. */
typedef struct host_store {
    tsr_store store; /* first: the store's functions cast back */
    uint32_t number; /* that tsr_read is given back */
    tsr_arena *names;
    tsr_guards *guards; /* NULL: what is guarded is read when the checkpoint is opened */
} host_store;

/* Files that JavaScript laid down, sorted by name; names are copied. tessera_host_store_close takes a zeroed store, and one
 * that could not be opened. */
tsr_status tessera_host_store_open(host_store *out, uint32_t number, const tessera_file *files, uint32_t count,
                                   uint32_t primary, tsr_error *err);
/* For files of which each read is a request: reads what is guarded with the first bytes behind it. The second file does it; without
 * that nothing changes. */
tsr_status tessera_host_store_guard(host_store *store, tsr_error *err);
void tessera_host_store_close(host_store *store);
tsr_host tessera_host(void);

typedef struct made made;
typedef struct opened {
    host_store files;  /* of the host; unused where it was made from another checkpoint */
    tsr_store *store;  /* these files, or what was made */
    tsr_open_options chosen; /* part, step and shards, in the arena of `files` */
    made *made;        /* NULL, or what `release_made` frees */
    void (*release_made)(made *made);
    void *below; /* NULL, or what `checkpoint` is opened over, which `release_below` frees after it */
    void (*release_below)(void *below);
    tsr_host host;
    tsr_checkpoint *checkpoint; /* NULL: the files are not one checkpoint, as `why` says */
    tsr_error why;
    bool validated;
} opened;

/* `item` is freed by `release` when the handle, or one of its owners (0: none), is closed. On failure `item` is released
 * at once and 0 returned. */
uint32_t tessera_add_handle(handle_kind kind, void *item, void (*release)(void *item), uint32_t owner, uint32_t other_owner,
                            tsr_error *err);
void *tessera_item_of(uint32_t handle, handle_kind kind, tsr_error *err);
/* The item of a checkpoint that can be listed; NULL with an error otherwise. */
opened *tessera_checkpoint_of(uint32_t handle, tsr_error *err);
/* Opens what was made from the checkpoint `source`, which it is closed with. Takes `result`, but not on failure, which is 0. */
uint32_t tessera_open_made(made *result, tsr_store *store, void (*release)(made *result), uint32_t source, tsr_error *err);
/* Opens a checkpoint over another one. It takes `checkpoint` and `below`, also on failure, which is 0. */
typedef struct tessera_view {
    tsr_checkpoint *checkpoint;
    void *below;
    void (*release_below)(void *below);
} tessera_view;
uint32_t tessera_add_view(const tessera_view *view, uint32_t source, tsr_error *err);
/* `wanted` (NULL: nothing more) for the checkpoint that was chosen when `item` was opened. */
tsr_open_options tessera_wanted_of(const opened *item, const tsr_open_options *wanted);
/* Reads what `shards` of a tessera_choice says; the second file's, NULL until that is loaded. Texts live in `arena`. Volatile,
 * or the linker would call the only function that it can be, from the first file. */
extern tsr_status (*volatile tessera_read_shards)(tsr_str given, const tsr_host *host, tsr_arena *arena, const struct tsr_shards **out,
                                         tsr_error *err);
/* Entry `index` of a checkpoint; NULL with an error when there is none. */
const tsr_entry *tessera_entry_of(const opened *item, uint32_t index, tsr_error *err);

/* A document under construction: `write` gets the emitter. */
typedef struct document document;
document *tessera_make_document(tsr_status (*write)(void *ctx, tsr_json *json, tsr_error *err), void *ctx, tsr_error *err);

void tessera_put_count(tsr_json *json, const char *key, uint64_t count);
void tessera_put_text(tsr_json *json, const char *key, const char *text);
tsr_status tessera_write_optimizers(const opened *item, tsr_json *json, tsr_error *err);

#endif
