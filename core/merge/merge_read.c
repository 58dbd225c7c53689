/* Runs of an input's elements, in the type that sums are made in. */
#include "base/try.h"
#include "merge/merge_parts.h"
#include "tessera/sys/cast.h"

tsr_status tsr_merge_read(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_run *run, uint8_t *bytes, bool wide, void *out,
                          tsr_error *err)
{
    const tsr_dtype dtype = wide ? TSR_FLOAT64 : TSR_FLOAT32;
    const size_t count = (size_t)run->count, size = count * tsr_dtype_size(entry->dtype);
    if (entry->dtype == dtype) return tsr_read_run(checkpoint, entry, run, out, size, err);
    TSR_TRY(tsr_read_run(checkpoint, entry, run, bytes, size, err));
    tsr_cast(entry->dtype, dtype, bytes, count, out);
    return TSR_OK;
}
