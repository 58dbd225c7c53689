/* Data of the reader of Megatron checkpoints that its source files share: megatron.c (recognition, locating bytes),
 * megatron_fragments.c (tensors), megatron_objects.c (objects), megatron_common.c (common.pt). */
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
/* Restores the original shapes of the tensors in mcore_data, and fills chunks and pieces. */
tsr_status tsr_megatron_undo_fragments(tsr_checkpoint *checkpoint, tsr_megatron_state *state, tsr_error *err);
/* The piece for a chunk of the catalog, or NULL if the chunk has none. */
const tsr_megatron_piece *tsr_megatron_piece_of(const tsr_megatron_state *state, const tsr_chunk *chunk);
/* Derives the view of a chunk that has a piece. *view in: the view of the piece's whole chunk. New strides are put in
 * `scratch`. */
tsr_status tsr_megatron_piece_view(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk,
                                   tsr_arena *scratch, tsr_view *view, tsr_error *err);
/* Sets common_state, and takes its entry out of `entries`. Does nothing if there is a common.pt, which Megatron then reads, or
 * if the value is not known to be a dict. */
void tsr_megatron_take_common_state(tsr_checkpoint *checkpoint, tsr_megatron_state *state);
/* Fills the catalog with the DCP's entries, the entries of common.pt or common_state below "common.", and the table of parts. */
tsr_status tsr_megatron_add_common(tsr_checkpoint *checkpoint, tsr_megatron_state *state, tsr_error *err);

#endif
