/* Finds the archives that follow each other in a data file, without metadata. */
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

/* The input of a search. The shapes of the items are allocated in the arena. */
typedef struct tsr_salvage_job {
    tsr_store *store;
    const tsr_host *host;
    tsr_arena *arena;
    tsr_findings *findings;
    bool (*step)(void *ctx, uint64_t byte_at); /* called with the current position in a file; cancels the search by
                                                * returning false; may be NULL */
    void *ctx;
} tsr_salvage_job;

/* Appends the items of a file to a vec of tsr_salvaged_item. Bytes that do not begin a complete archive become a finding and
 * end the search of the file, because the items after them cannot be located. */
tsr_status tsr_salvage_file(const tsr_salvage_job *job, uint32_t file, tsr_vec *out, tsr_error *err);

#endif
