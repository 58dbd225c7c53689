/* A rank's local tensor as an entry of its own: its chunks are the source's, cut to the rank's boxes. */
#ifndef TSR_WRITE_LOCALIZE_H
#define TSR_WRITE_LOCALIZE_H

#include "stream/gather.h"
#include "tessera/mesh.h"

/* `out` gets the local shape, packed dtype and located chunks; name and flags are the caller's. Locates only chunks that
 * meet the shard. Everything lives in `arena`. Float6 tensors, which are bytes to a gather, are TSR_E_UNSUPPORTED. */
tsr_status tsr_localize(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_shard *shard, tsr_arena *arena,
                        tsr_entry *out, tsr_error *err);

#endif
