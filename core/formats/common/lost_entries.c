/* Reports entries whose bytes are lost. */
#include "formats/common/lost_entries.h"

#include "layout/shard.h"

bool tsr_entry_lacks_bytes(const tsr_entry *entry)
{
    for (uint64_t i = 0; i < entry->chunk_count; i++)
        if (entry->chunks[i].file == TSR_NO_FILE) return true;
    return false;
}

tsr_status tsr_entry_report_lost(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_error *err)
{
    const tsr_place place = {checkpoint->store->files[checkpoint->files[0]].name, TSR_NO_POSITION, entry->fqn};
    tsr_dims_buffer shape;
    if (entry->kind == TSR_ENTRY_TENSOR)
        return tsr_finding_add(checkpoint->findings, "repair/lost", place, err, "the bytes of '%.*s', %s %s, are lost",
                               TSR_STR_ARG(entry->fqn), tsr_dtype_describe(entry->dtype)->name,
                               tsr_dims_text(&shape, entry->shape, entry->ndim));
    return tsr_finding_add(checkpoint->findings, "repair/lost", place, err,
                           "'%.*s', a %.*s, holds tensors whose bytes are lost", TSR_STR_ARG(entry->fqn),
                           TSR_STR_ARG(entry->type));
}
