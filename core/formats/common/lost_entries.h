/* Entries of a damaged file whose bytes are lost (tsr_open_options.salvage). */
#ifndef TSR_FORMATS_COMMON_LOST_ENTRIES_H
#define TSR_FORMATS_COMMON_LOST_ENTRIES_H

#include "formats/common/reader.h"

/* Whether a chunk of the entry is in no file. */
bool tsr_entry_lacks_bytes(const tsr_entry *entry);
/* Adds the finding `repair/lost`, for an entry that a reader leaves out of the catalog. */
tsr_status tsr_entry_report_lost(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_error *err);

#endif
