/* Data of the reader of Megatron checkpoints that its source files share: megatron.c (recognition, locating bytes),
 * megatron.c (tensors), megatron_objects.c (objects), megatron.c (common.pt). */
#ifndef TSR_FORMATS_MEGATRON_MEGATRON_STATE_H
#define TSR_FORMATS_MEGATRON_MEGATRON_STATE_H

#include "formats/common/name_index.h"
#include "formats/dcp/dcp_state.h"
#include "formats/megatron/megatron.h"
#include "formats/torch/torch_file.h"
#include "tessera/box.h"

/* Where a box of a tensor is inside the item that stores it. */
typedef struct tsr_megatron_piece {
    const tsr_entry *entry; /* the raw entry, as in the metadata: fragments and their flat elements */
    const tsr_chunk *chunk;
    uint64_t first; /* the stored element of `chunk` at which the box begins */
} tsr_megatron_piece;

#define TSR_MEGATRON_COMMON UINT64_MAX /* in entry_of: the raw entry is not an entry, but the content of the part "common" */

typedef struct tsr_megatron_state {
    const tsr_entry *raw; /* the entries as in the metadata */
    uint64_t raw_count;
    uint64_t *entry_of;          /* index of a raw entry → index of its entry */
    tsr_entry *entries;          /* the DCP's entries as the catalog has them */
    tsr_megatron_stored *stored; /* one per entry */
    uint64_t count;
    tsr_name_index *index;            /* of entries */
    const tsr_chunk *chunks;          /* the boxes of all tensors that were stored as fragments, in one array */
    const tsr_megatron_piece *pieces; /* one per chunk in `chunks` */
    uint64_t chunk_count;
    bool needs_common_file;        /* metadata.json says so, or is missing */
    const tsr_value *common_state; /* the object of this name, which newer versions write instead of common.pt; or NULL */
    const tsr_chunk *const *common_tensors; /* of the tensors in common_state */
    uint64_t common_tensor_count;
    uint32_t common_file;      /* TSR_NO_FILE if it does not exist */
    const tsr_torch_run *runs; /* of common.pt */
    size_t run_count;
} tsr_megatron_state;

static inline tsr_megatron_state *tsr_megatron_state_of(const tsr_checkpoint *checkpoint)
{
    return tsr_dcp_state_of(checkpoint)->form;
}

/* Fills entry_of, entries and stored. Tensors are taken as they are, and the shards of an object are joined. An incomplete
 * set of shards is not joined and gets a finding. */
tsr_status tsr_megatron_join_objects(tsr_checkpoint *checkpoint, tsr_megatron_state *state, tsr_error *err);

#endif
