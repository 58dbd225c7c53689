/* Finds out which entries of a checkpoint with one or more files per rank are equal on all ranks.
 *
 * Plain tensors, which belong to no mesh, are replicas only if every rank has the same one. If they differ, nothing in the
 * files says how to join them, so the entry lists what each rank holds (tsr_entry.per_rank) and is never read.
 *
 * With a map of shards (tsr_open_options.shards), nothing is compared or marked here: every entry, including objects, gets
 * the table of what each rank holds, and formats/shards joins them.
 *
 * A tensor also differs if some rank does not have it. The exception is pipeline stages and experts in checkpoints with
 * sharded tensors: a plain tensor may be missing from some ranks if some sharded tensor is held by exactly the same
 * ranks. */
#ifndef TSR_FORMATS_COMMON_RANK_ENTRIES_H
#define TSR_FORMATS_COMMON_RANK_ENTRIES_H

#include "formats/common/reader.h"

typedef struct tsr_rank_entries {
    tsr_checkpoint *checkpoint;
    tsr_vec holders;      /* which rank holds which entry; zeroed at first */
    const tsr_str *names; /* the file of each rank, for messages */
    uint32_t ranks;
    bool sharded; /* some tensors are DTensors or ShardedTensors, so plain tensors are expected to be equal */
    /* Whether checksums show that two plain tensors are equal or different; NULL when there are no checksums. */
    bool (*decide)(const tsr_checkpoint *checkpoint, const tsr_entry *a, const tsr_entry *b, bool *same);
} tsr_rank_entries;

/* Records that `rank` holds `entry`, which will be number `number` in the catalog. `entry` must live as long as the
 * checkpoint. */
tsr_status tsr_rank_entries_add(tsr_rank_entries *ranks, uint32_t number, uint32_t rank, const tsr_entry *entry,
                                tsr_error *err);
/* Marks the entries of the filled catalog that are not equal on all ranks, and adds `torch/rank-differs` findings: one error
 * per entry if some tensors are sharded, otherwise one note for all entries. If nothing is sharded and entries differ, the
 * checkpoint's format becomes `shards`. Objects that differ are reported as `torch/rank-object`. Reads the tensors when no
 * checksum decides. */
tsr_status tsr_rank_entries_settle(tsr_rank_entries *ranks, tsr_error *err);
void tsr_rank_entries_close(tsr_rank_entries *ranks); /* accepts a zeroed one */

#endif
