/* Several files' entries as one catalog: boxes of one tensor come together, copies of a box become replicas. */
#ifndef TSR_FORMATS_TORCH_TORCH_UNION_H
#define TSR_FORMATS_TORCH_TORCH_UNION_H

#include "formats/common/reader.h"
#include "tessera/sys/containers.h"

typedef enum tsr_joined {
    TSR_JOINED_NEW,     /* the name was not there */
    TSR_JOINED_CHUNKS,  /* a tensor of the same dtype and shape: its chunks were added */
    TSR_JOINED_NOTHING, /* an object or opaque entry: the first one stays */
    TSR_JOINED_MISMATCH /* another kind, dtype or shape: nothing was added */
} tsr_joined;

typedef struct tsr_torch_union {
    tsr_checkpoint *checkpoint;
    tsr_map *names;  /* FQN → entry */
    tsr_map *boxes;  /* entry and box → 0 */
    tsr_vec entries; /* tsr_entry, chunks not set yet */
    tsr_vec chunks;
} tsr_torch_union;

tsr_status tsr_torch_union_open(tsr_torch_union *u, tsr_checkpoint *checkpoint, tsr_error *err);
void tsr_torch_union_close(tsr_torch_union *u);
/* Adds an entry of a file whose storage ids are shifted by `storage_base`. *number is its place (may be NULL). */
tsr_status tsr_torch_union_add(tsr_torch_union *u, const tsr_entry *entry, uint32_t storage_base, uint32_t *number,
                               tsr_joined *joined, tsr_error *err);
/* Fills the checkpoint's catalog; `storages` is the highest storage id there is. */
tsr_status tsr_torch_union_keep(tsr_torch_union *u, uint32_t storages, tsr_error *err);
/* Clears the storage ids (at most `storages`) that only one entry has. */
tsr_status tsr_torch_keep_shared(const tsr_host *host, tsr_entry *entries, uint64_t count, uint32_t storages,
                                 tsr_error *err);

#endif
