/* Makes a rank's local tensor an entry of its own, whose chunks are the source's, restricted to the rank's boxes. */
#ifndef TSR_WRITE_LOCALIZE_H
#define TSR_WRITE_LOCALIZE_H

#include "stream/gather.h"
#include "tessera/mesh.h"

/* `out` gets the local shape, the packed dtype and located chunks; the caller sets name and flags. Locates only chunks that
 * intersect the shard. Allocates in `arena`. Fails with TSR_E_UNSUPPORTED for float6 tensors, which a gather treats as
 * bytes. */
tsr_status tsr_localize(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_shard *shard, tsr_arena *arena,
                        tsr_entry *out, tsr_error *err);

#endif
