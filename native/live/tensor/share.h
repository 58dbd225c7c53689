/* Memory that several processes of one machine share: every rank creates one segment and maps those of the others. */
#ifndef TSR_STATEDICT_SHARE_H
#define TSR_STATEDICT_SHARE_H

#include "tessera/comm.h"

typedef struct tsr_shared tsr_shared;

/* Every rank creates a segment with `count` buffers of the given `sizes`. `count` must be the same on all ranks. Each buffer
 * begins at a multiple of 64 bytes. The names are removed before this returns, and the memory lives as long as a process has
 * mapped it. Collective: all ranks get the same status. Errors: TSR_E_IO that names the rank (also if it is on another
 * machine), TSR_E_NOMEM. */
tsr_status tsr_shared_new(tsr_comm *comm, const uint64_t *sizes, size_t count, const tsr_allocator *allocator,
                          tsr_shared **out, tsr_error *err);
void tsr_shared_free(tsr_shared *shared); /* accepts NULL */

uint32_t tsr_shared_ranks(const tsr_shared *shared);
/* Whether `data` is buffer `index` of this rank, and whether this rank is `rank` of `ranks`. */
bool tsr_shared_is_own(const tsr_shared *shared, uint32_t rank, uint32_t ranks, size_t index, const void *data);
/* A number that is the same on all ranks, and different for other segments. Never 0. */
uint64_t tsr_shared_digest(const tsr_shared *shared);
/* Buffer `index` of `rank`, with its size in *bytes; NULL if it has no such buffer. */
void *tsr_shared_buffer(const tsr_shared *shared, uint32_t rank, size_t index, uint64_t *bytes);

#endif
