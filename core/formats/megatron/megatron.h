/* Checkpoints that Megatron-Core's dist_checkpointing writes in its torch_dist format, which is a DCP with additions:
 *
 *   .metadata       tensors by key; versions up to 0.14 add mcore_data, later ones only all_local_plans
 *   __R_N.distcp    items; an object per rank or layer is `KEY/shard_I.J_N.M`, a list of one
 *   common.pt       everything that is not sharded; becomes the part "common"
 *   metadata.json   {"sharded_backend": "torch_dist", …}, written last
 *
 * The catalog has the tensors in their true shapes and one entry for all shards of an object. How the files store them is
 * kept as well, for reading the items and for writing the format again. */
#ifndef TSR_FORMATS_MEGATRON_MEGATRON_H
#define TSR_FORMATS_MEGATRON_MEGATRON_H

#include "formats/common/reader.h"

extern const tsr_reader tsr_reader_megatron;

/* Turns an opened DCP, whose checkpoint->reader is that of this format, into the Megatron checkpoint that its metadata
 * describes. Fails with TSR_E_FORMAT if mcore_data cannot describe these tensors, and if reading fails. */
tsr_status tsr_megatron_refine(tsr_checkpoint *checkpoint, tsr_error *err);

/* How the files store an entry of the DCP. */
typedef struct tsr_megatron_stored {
    const uint64_t *fragments;      /* for tensors stored as flat ranges of fragments: the number of fragments per
                                     * dimension; otherwise NULL */
    const tsr_entry *const *shards; /* for objects stored as shards: the shards, in row-major order of their grid;
                                     * otherwise NULL */
    uint64_t shard_count;
    bool in_mcore_data; /* for tensors: the metadata states how they are stored */
} tsr_megatron_stored;

/* How an entry of the checkpoint's catalog is stored. NULL if the checkpoint is in another format, or if the entry belongs
 * to the part "common". */
const tsr_megatron_stored *tsr_megatron_stored_of(const tsr_checkpoint *checkpoint, const tsr_entry *entry);

/* The components of a name "KEY/shard_I.J_N.M". */
typedef struct tsr_shard_name {
    tsr_str key;
    tsr_str suffix; /* "/shard_I.J_N.M" */
    uint64_t index; /* row-major index in the grid */
    uint64_t count; /* number of shards in the grid */
} tsr_shard_name;
/* Returns false if the name is not that of a shard. */
bool tsr_shard_name_of(tsr_str name, tsr_shard_name *out);

#endif
