/* Which entries of a checkpoint with one file (or several) per rank are equal on all ranks.
 *
 * Plain tensors, which belong to no mesh, are replicas only where every rank has the same one. Where they differ nothing in
 * the files says how to join them: such an entry is listed with what each rank holds (tsr_entry.per_rank), and never read.
 *
 * With a map of shards (tsr_open_options.shards) nothing is compared or marked here: every entry gets the table of what each
 * rank holds, objects included, and formats/shards joins them.
 *
 * A rank that has no tensor of a name differs, too. The exception are pipeline stages and experts in checkpoints with sharded
 * tensors: a plain tensor that exactly the ranks of some sharded tensor hold is theirs alone. */
#ifndef TSR_FORMATS_COMMON_RANK_ENTRIES_H
#define TSR_FORMATS_COMMON_RANK_ENTRIES_H

#include "formats/common/reader.h"

typedef struct tsr_rank_entries {
    tsr_checkpoint *checkpoint;
    tsr_vec holders;      /* who holds what; begins zeroed */
    const tsr_str *names; /* the file of each rank, for messages */
    uint32_t ranks;
    bool sharded; /* some tensors are DTensors or ShardedTensors: plain tensors are expected to be equal */
    /* Whether a checksum decides that two plain tensors are equal or different; NULL: there are none. */
    bool (*decide)(const tsr_checkpoint *checkpoint, const tsr_entry *a, const tsr_entry *b, bool *same);
} tsr_rank_entries;

/* Notes that `rank` holds `entry`, which is number `number` of the catalog to be. `entry` must live as long as the checkpoint. */
tsr_status tsr_rank_entries_add(tsr_rank_entries *ranks, uint32_t number, uint32_t rank, const tsr_entry *entry, tsr_error *err);
/* Marks the entries of the filled catalog that are not equal on all ranks, and adds `torch/rank-differs`: an error per entry
 * next to sharded tensors, otherwise one note for all. Where nothing is sharded and entries differ, the checkpoint's format
 * becomes `shards`. Objects that differ are `torch/rank-object`. Reads values where no checksum decides. */
tsr_status tsr_rank_entries_settle(tsr_rank_entries *ranks, tsr_error *err);
void tsr_rank_entries_close(tsr_rank_entries *ranks); /* takes a zeroed one */

#endif
