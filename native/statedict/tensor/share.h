/* Memory that several processes of one machine see: every rank makes one segment and maps those of the others. */
#ifndef TSR_STATEDICT_SHARE_H
#define TSR_STATEDICT_SHARE_H

#include "tessera/comm.h"

typedef struct tsr_shared tsr_shared;

/* Every rank's segment has room for buffers of `sizes`, `count` of them, the same number on all ranks; each begins at a
 * multiple of 64 bytes. Names are gone when this returns: the memory lives as long as somebody has it mapped. Collective:
 * all ranks get the same status. Errors: TSR_E_IO naming the rank (also when it is on another machine), TSR_E_NOMEM. */
tsr_status tsr_shared_new(tsr_comm *comm, const uint64_t *sizes, size_t count, const tsr_allocator *allocator,
                          tsr_shared **out, tsr_error *err);
void tsr_shared_free(tsr_shared *shared); /* takes NULL */

uint32_t tsr_shared_ranks(const tsr_shared *shared);
/* Whether `data` is buffer `index` of `rank` of `ranks`, the rank that this is here. */
bool tsr_shared_is_own(const tsr_shared *shared, uint32_t rank, uint32_t ranks, size_t index, const void *data);
/* Equal on all ranks, and of no other segments. Not 0. */
uint64_t tsr_shared_digest(const tsr_shared *shared);
/* Buffer `index` of `rank` and its bytes; NULL where it has none. */
void *tsr_shared_buffer(const tsr_shared *shared, uint32_t rank, size_t index, uint64_t *bytes);

#endif
