/* Chooses which copy of a box is read if several are stored. */
#ifndef TSR_PLAN_SOURCES_H
#define TSR_PLAN_SOURCES_H

#include "tessera/catalog.h"
#include "tessera/sys/vec.h"

/* The bytes to be read from each file, so far. */
typedef struct tsr_source_loads {
    tsr_vec bytes; /* of uint64_t, by file number */
} tsr_source_loads;

/* Chooses a copy for each of the entry's chunks: the chunk itself, or the one of entry->replicas whose file has the fewest
 * bytes to read so far. In a tie, prefers the chunk, then the first copy. A missing file is only chosen if there is no other
 * copy. *out is NULL for an entry without replicas. Updates the loads. */
tsr_status tsr_sources_choose(tsr_source_loads *loads, const tsr_entry *entry, tsr_arena *arena,
                              const tsr_chunk *const **out, tsr_error *err);

#endif
