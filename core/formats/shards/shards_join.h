/* The step after reading: what each rank holds becomes whole tensors. */
#ifndef TSR_FORMATS_SHARDS_SHARDS_JOIN_H
#define TSR_FORMATS_SHARDS_SHARDS_JOIN_H

#include "formats/common/reader.h"

/* Joins the entries of the catalog by the map of the open options. Every entry has a per_rank table with what each rank holds,
 * objects included (rank_entries.h); tensors that have no rule and differ between ranks stay as they are. Nothing to do without
 * a map, or where the reader found no ranks. Errors: TSR_E_FORMAT, TSR_E_UNSUPPORTED and TSR_E_NOT_FOUND that name the tensor or
 * the setting; those of reading. */
tsr_status tsr_shards_join(tsr_checkpoint *checkpoint, tsr_error *err);

#endif
