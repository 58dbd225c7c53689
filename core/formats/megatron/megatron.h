/* Checkpoints of Megatron-Core's dist_checkpointing in its torch_dist format: a DCP with more around it.
 *
 *   .metadata       tensors by key; versions up to 0.14 add mcore_data, others only all_local_plans
 *   __R_N.distcp    items; an object per rank or layer is `KEY/shard_I.J_N.M`, a list of one
 *   common.pt       everything that is not sharded: part "common"
 *   metadata.json   {"sharded_backend": "torch_dist", …}, written last
 *
 * The catalog has tensors with their true shapes and one entry for all shards of an object. What the files have is kept for
 * those who read the items, and for those who write the form again. */
#ifndef TSR_FORMATS_MEGATRON_MEGATRON_H
#define TSR_FORMATS_MEGATRON_MEGATRON_H

#include "formats/common/reader.h"

/* Makes an opened DCP, checkpoint->reader being this form's, the Megatron checkpoint that its metadata says it is. Errors:
 * TSR_E_FORMAT for mcore_data that cannot be of these tensors, and those of reading. */
tsr_status tsr_megatron_refine(tsr_checkpoint *checkpoint, tsr_error *err);

/* How the files have an entry of the DCP. */
typedef struct tsr_megatron_stored {
    const uint64_t *fragments;      /* tensors stored as flat ranges of fragments: how many on each dim; otherwise NULL */
    const tsr_entry *const *shards; /* objects stored by shards, in row-major order of their grid; otherwise NULL */
    uint64_t shard_count;
    bool in_mcore_data; /* tensors: the metadata says how they are stored */
} tsr_megatron_stored;

/* Of an entry of the checkpoint's catalog; NULL: the checkpoint is another form, or the entry is of the common part. */
const tsr_megatron_stored *tsr_megatron_stored_of(const tsr_checkpoint *checkpoint, const tsr_entry *entry);

/* The parts of "KEY/shard_I.J_N.M". */
typedef struct tsr_shard_name {
    tsr_str key;
    tsr_str suffix; /* "/shard_I.J_N.M" */
    uint64_t index; /* row-major in the grid */
    uint64_t count; /* of shards in the grid */
} tsr_shard_name;
/* False: the name is not one of a shard. */
bool tsr_shard_name_of(tsr_str name, tsr_shard_name *out);

#endif
