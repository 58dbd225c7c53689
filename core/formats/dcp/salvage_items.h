/* The archives that lie one behind the other in a data file, found without metadata. */
#ifndef TSR_FORMATS_DCP_SALVAGE_ITEMS_H
#define TSR_FORMATS_DCP_SALVAGE_ITEMS_H

#include "tessera/catalog.h"
#include "tessera/findings.h"
#include "tessera/store.h"
#include "tessera/sys/vec.h"

typedef struct tsr_salvaged_item {
    uint64_t byte_offset, byte_length;
    bool tensor;
    bool requires_grad;
    tsr_dtype dtype;
    uint32_t ndim;
    const uint64_t *sizes; /* in the arena */
} tsr_salvaged_item;

/* Appends the items of a file to a vec of tsr_salvaged_item; `step` (may be NULL) is told how far it is. Bytes that begin no
 * whole archive are a finding, and end the file: what stands behind them cannot be told apart. */
tsr_status tsr_salvage_file(tsr_store *store, const tsr_host *host, uint32_t file, tsr_arena *arena, tsr_findings *findings,
                            bool (*step)(void *ctx, uint64_t byte_at), void *ctx, tsr_vec *out, tsr_error *err);

#endif
