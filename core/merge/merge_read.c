/* See merge_read.h. */
#include "merge/merge_read.h"

#include "tessera/sys/try.h"

tsr_status tsr_merge_read(tsr_stored_tensor tensor, const tsr_run *run, tsr_dtype dtype, uint8_t *bytes, void *out,
                          tsr_cast_losses *losses, tsr_error *err)
{
    const tsr_dtype own = tensor.entry->dtype;
    const size_t count = (size_t)run->count, size = count * tsr_dtype_size(own);
    if (own == dtype) return tsr_read_run(tensor.checkpoint, tensor.entry, run, out, size, err);
    TSR_TRY(tsr_read_run(tensor.checkpoint, tensor.entry, run, bytes, size, err));
    tsr_cast_counted(own, dtype, bytes, count, out, losses);
    return TSR_OK;
}
