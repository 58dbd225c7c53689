/* Reports entries whose bytes are lost. */
#include "formats/common/lost_entries.h"

#include <inttypes.h>

bool tsr_entry_lacks_bytes(const tsr_entry *entry)
{
    for (uint64_t i = 0; i < entry->chunk_count; i++)
        if (entry->chunks[i].file == TSR_NO_FILE) return true;
    return false;
}

/* Its data is NULL if memory runs out. */
static tsr_str shape_text(const tsr_entry *entry, tsr_arena *arena, tsr_error *err)
{
    tsr_str text = TSR_STR("[");
    for (uint32_t d = 0; d < entry->ndim && text.data; d++)
        text = tsr_arena_format(arena, err, "%.*s%s%" PRIu64, TSR_STR_ARG(text), d ? ", " : "", entry->shape[d]);
    return text.data ? tsr_arena_format(arena, err, "%.*s]", TSR_STR_ARG(text)) : text;
}

tsr_status tsr_entry_report_lost(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_error *err)
{
    const tsr_place place = {checkpoint->store->files[checkpoint->files[0]].name, TSR_NO_POSITION, entry->fqn};
    const tsr_str shape = shape_text(entry, checkpoint->arena, err);
    if (!shape.data) return TSR_E_NOMEM;
    if (entry->kind == TSR_ENTRY_TENSOR)
        return tsr_finding_add(checkpoint->findings, "repair/lost", place, err, "the bytes of '%.*s', %s %.*s, are lost",
                               TSR_STR_ARG(entry->fqn), tsr_dtype_describe(entry->dtype)->name, TSR_STR_ARG(shape));
    return tsr_finding_add(checkpoint->findings, "repair/lost", place, err,
                           "'%.*s', a %.*s, holds tensors whose bytes are lost", TSR_STR_ARG(entry->fqn),
                           TSR_STR_ARG(entry->type));
}
