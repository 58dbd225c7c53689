/* The step after reading the files: joins what the ranks hold into whole tensors. */
#ifndef TSR_FORMATS_SHARDS_SHARDS_JOIN_H
#define TSR_FORMATS_SHARDS_SHARDS_JOIN_H

#include "formats/common/reader.h"

/* Joins the entries of the catalog according to the map in the open options. Every entry, including objects, has a per_rank
 * table with what each rank holds (rank_entries.h). Tensors without a rule that differ between ranks stay listed per rank.
 * Does nothing without a map, or if the reader found no ranks. Fails with TSR_E_FORMAT, TSR_E_UNSUPPORTED or
 * TSR_E_NOT_FOUND, naming the tensor or the setting, and if reading fails. */
tsr_status tsr_shards_join(tsr_checkpoint *checkpoint, tsr_error *err);

#endif
