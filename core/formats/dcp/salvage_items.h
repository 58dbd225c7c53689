/* The archives that lie one behind the other in a data file, found without metadata. */
#ifndef TSR_FORMATS_DCP_SALVAGE_ITEMS_H
#define TSR_FORMATS_DCP_SALVAGE_ITEMS_H

#include "tessera/catalog.h"
#include "tessera/findings.h"
#include "tessera/host.h"
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

/* What the files are searched with. The arena keeps the shapes of the items. */
typedef struct tsr_salvage_job {
    tsr_store *store;
    const tsr_host *host;
    tsr_arena *arena;
    tsr_findings *findings;
    bool (*step)(void *ctx, uint64_t byte_at); /* is told how far a file is, and ends the search by false; or NULL */
    void *ctx;
} tsr_salvage_job;

/* Appends the items of a file to a vec of tsr_salvaged_item. Bytes that begin no whole archive are a finding, and end the
 * file: what stands behind them cannot be told apart. */
tsr_status tsr_salvage_file(const tsr_salvage_job *job, uint32_t file, tsr_vec *out, tsr_error *err);

#endif
