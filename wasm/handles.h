/* What the files of the shim share: handles, and JSON documents. */
#ifndef TSR_WASM_HANDLES_H
#define TSR_WASM_HANDLES_H

#include "shim.h"
#include "tessera/json.h"

extern const tsr_digest_ops tessera_xxh3;

typedef enum handle_kind { HANDLE_CHECKPOINT = 1, HANDLE_OUTLINE, HANDLE_TALLY, HANDLE_DIFF, HANDLE_TWINS } handle_kind;

typedef struct opened {
    tsr_store store; /* first: the store's functions cast back */
    uint32_t store_number;
    tsr_host host;
    tsr_arena *names;
    tsr_checkpoint *checkpoint;
    bool validated;
} opened;

/* `item` is freed by `release` when the handle, or one of its owners (0: none), is closed. On failure `item` is released
 * at once and 0 returned. */
uint32_t tessera_add_handle(handle_kind kind, void *item, void (*release)(void *item), uint32_t owner, uint32_t other_owner,
                            tsr_error *err);
void *tessera_item_of(uint32_t handle, handle_kind kind, tsr_error *err);
/* Entry `index` of a checkpoint; NULL with an error when there is none. */
const tsr_entry *tessera_entry_of(const opened *item, uint32_t index, tsr_error *err);

/* A document under construction: `write` gets the emitter. */
typedef struct document document;
document *tessera_make_document(tsr_status (*write)(void *ctx, tsr_json *json, tsr_error *err), void *ctx, tsr_error *err);

void tessera_put_count(tsr_json *json, const char *key, uint64_t count);
void tessera_put_text(tsr_json *json, const char *key, const char *text);
tsr_status tessera_write_optimizers(const opened *item, tsr_json *json, tsr_error *err);

#endif
