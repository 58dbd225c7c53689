/* What the reader of Megatron checkpoints keeps, shared by its parts: megatron.c (recognition, where bytes are),
 * megatron_fragments.c (tensors), megatron_objects.c (objects), megatron_common.c (common.pt). */
#ifndef TSR_FORMATS_MEGATRON_MEGATRON_STATE_H
#define TSR_FORMATS_MEGATRON_MEGATRON_STATE_H

#include "formats/common/name_index.h"
#include "formats/dcp/dcp_state.h"
#include "formats/megatron/megatron.h"
#include "formats/torch/torch_file.h"
#include "tessera/box.h"

/* What a box of a tensor is of the item that holds it. */
typedef struct tsr_megatron_piece {
    const tsr_entry *entry; /* as the metadata has it: fragments and their flat elements */
    const tsr_chunk *chunk;
    uint64_t first;         /* element of the chunk, as it is stored, at which the box begins */
} tsr_megatron_piece;

typedef struct tsr_megatron_state {
    const tsr_entry *raw; /* as the metadata has them */
    uint64_t raw_count;
    uint64_t *entry_of;   /* raw entry → entry */
    tsr_entry *entries;   /* those of the DCP as the catalog has them */
    tsr_megatron_stored *stored; /* one per entry */
    uint64_t count;
    tsr_name_index *index; /* of entries */
    const tsr_chunk *chunks; /* of all tensors that were fragments, one array */
    const tsr_megatron_piece *pieces; /* one per chunk of it */
    uint64_t chunk_count;
    uint32_t common_file; /* TSR_NO_FILE: there is none */
    const tsr_torch_run *runs; /* of common.pt */
    size_t run_count;
} tsr_megatron_state;

static inline tsr_megatron_state *tsr_megatron_state_of(const tsr_checkpoint *checkpoint)
{
    return tsr_dcp_state_of(checkpoint)->form;
}

/* Fills entry_of, entries and stored: tensors as they are, shards of an object together. Sets of shards that are not whole
 * stay as they are, with a finding. */
tsr_status tsr_megatron_join_objects(tsr_checkpoint *checkpoint, tsr_megatron_state *state, tsr_error *err);
/* Gives the tensors of mcore_data the shapes that they had, and fills chunks and pieces. */
tsr_status tsr_megatron_undo_fragments(tsr_checkpoint *checkpoint, tsr_megatron_state *state, tsr_error *err);
/* The piece of a chunk of the catalog, or NULL. */
const tsr_megatron_piece *tsr_megatron_piece_of(const tsr_megatron_state *state, const tsr_chunk *chunk);
/* The view of a chunk that has a piece. *view in: that of the piece's whole chunk. New strides are in `scratch`. */
tsr_status tsr_megatron_piece_view(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk,
                                   tsr_arena *scratch, tsr_view *view, tsr_error *err);
/* Fills the catalog: the DCP's entries and those of common.pt, below "common.", and the table of parts. */
tsr_status tsr_megatron_add_common(tsr_checkpoint *checkpoint, tsr_megatron_state *state, tsr_error *err);

#endif
