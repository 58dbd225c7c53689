/* Which copy of a box is read where several are stored. */
#ifndef TSR_PLAN_SOURCES_H
#define TSR_PLAN_SOURCES_H

#include "tessera/catalog.h"
#include "tessera/sys/vec.h"

/* Bytes to be read of each file so far. */
typedef struct tsr_source_loads {
    tsr_vec bytes; /* of uint64_t, by file number */
} tsr_source_loads;

/* One chunk for each of the entry's chunks: itself, or the copy among entry->replicas whose file has the least bytes to
 * read so far (ties: the chunk, then the first copy). *out is NULL for an entry without replicas. A missing file is taken
 * only where no copy is left. Updates the loads. */
tsr_status tsr_sources_choose(tsr_source_loads *loads, const tsr_entry *entry, tsr_arena *arena,
                              const tsr_chunk *const **out, tsr_error *err);

#endif
