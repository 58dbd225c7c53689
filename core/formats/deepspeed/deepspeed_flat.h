/* ZeRO's flat buffers: the parameters of a group one behind the other, row-major, cut into the ranks' tensors.
 *
 *   ZeRO 1, 2   | embed.weight .... | norm.weight .. | norm.bias |padding|        one buffer for all ranks:
 *               |<--- rank 0 --->|<--- rank 1 --->|<--- rank 2 ---->|             every rank has one slice of it
 *
 *   ZeRO 3      rank 0 | embed[0:34] | norm[0:3] |    rank 1 | embed[34:68] | norm[3:6] |    one buffer for each rank:
 *               every parameter is cut into equal pieces, the last ones padded
 *
 * Either way a run of a parameter's elements is a run of a buffer, and a buffer is a list of tensors. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_FLAT_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_FLAT_H

#include "formats/common/reader.h"
#include "tessera/box.h"

/* A tensor of a buffer. */
typedef struct tsr_ds_piece {
    const tsr_entry *tensor; /* 1-d; NULL: its file is missing */
    uint64_t first;          /* element of the buffer that it begins with */
    uint64_t count;          /* elements */
} tsr_ds_piece;

typedef struct tsr_ds_buffer {
    tsr_ds_piece *pieces; /* in order, without gaps */
    uint32_t count;
    uint64_t elements;
    tsr_dtype dtype; /* NONE: all of its files are missing */
} tsr_ds_buffer;

/* Room for `capacity` pieces. */
tsr_status tsr_ds_buffer_new(tsr_arena *arena, uint32_t capacity, tsr_ds_buffer *out, tsr_error *err);
/* Appends a tensor: `count` elements of it (they must be there, contiguous, of the buffer's dtype), or of one that is missing.
 * TSR_E_FORMAT otherwise, without a place. */
tsr_status tsr_ds_buffer_add(tsr_ds_buffer *buffer, const tsr_entry *tensor, uint64_t count, tsr_error *err);

/* The chunks of a tensor that is being put together. */
typedef struct tsr_ds_chunks {
    tsr_checkpoint *checkpoint;
    const uint64_t *shape;
    uint32_t ndim;
    tsr_vec chunks; /* tsr_chunk; begins empty, freed by the caller */
} tsr_ds_chunks;

/* Adds the elements [to, to + count) of the tensor, which are the elements [from, from + count) of the buffer. Both ranges must
 * be within. */
tsr_status tsr_ds_chunks_add(tsr_ds_chunks *chunks, const tsr_ds_buffer *buffer, uint64_t from, uint64_t count, uint64_t to,
                             tsr_error *err);
/* The tensor, as a value. Takes the chunks out, so that the next tensor can begin. */
tsr_status tsr_ds_chunks_take(tsr_ds_chunks *chunks, tsr_dtype dtype, const tsr_value **out, tsr_error *err);

#endif
