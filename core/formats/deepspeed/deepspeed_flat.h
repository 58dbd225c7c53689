/* ZeRO's flat buffers: the parameters of a group are concatenated in row-major order and split into the ranks' tensors.
 *
 *   ZeRO 1, 2   | embed.weight .... | norm.weight .. | norm.bias |padding|        one buffer for all ranks:
 *               |<--- rank 0 --->|<--- rank 1 --->|<--- rank 2 ---->|             every rank has one slice of it
 *
 *   ZeRO 3      rank 0 | embed[0:34] | norm[0:3] |    rank 1 | embed[34:68] | norm[3:6] |    one buffer per rank:
 *               every parameter is split into equal pieces, the last ones padded
 *
 * In both cases, a run of a parameter's elements is a run of a buffer, and a buffer is a list of tensors. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_FLAT_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_FLAT_H

#include "formats/common/reader.h"
#include "tessera/box.h"

/* A tensor that is part of a buffer. */
typedef struct tsr_ds_piece {
    const tsr_entry *tensor; /* 1-d; NULL if its file is missing */
    uint64_t first;          /* index in the buffer of its first element */
    uint64_t count;          /* elements */
} tsr_ds_piece;

typedef struct tsr_ds_buffer {
    tsr_ds_piece *pieces; /* in order, without gaps */
    uint32_t count;
    uint64_t elements;
    tsr_dtype dtype; /* NONE if all of its files are missing */
} tsr_ds_buffer;

/* Makes a buffer with room for `capacity` pieces. */
tsr_status tsr_ds_buffer_new(tsr_arena *arena, uint32_t capacity, tsr_ds_buffer *out, tsr_error *err);
/* Appends `count` elements of a tensor, which must exist, be contiguous, and have the buffer's dtype; otherwise fails with
 * TSR_E_FORMAT, without a position. If `tensor` is NULL, appends `count` missing elements. */
tsr_status tsr_ds_buffer_add(tsr_ds_buffer *buffer, const tsr_entry *tensor, uint64_t count, tsr_error *err);

/* The chunks of a tensor while they are collected. */
typedef struct tsr_ds_chunks {
    tsr_checkpoint *checkpoint;
    const uint64_t *shape;
    uint32_t ndim;
    tsr_vec chunks; /* tsr_chunk; empty at first; freed by the caller */
} tsr_ds_chunks;

/* Adds the elements [to, to + count) of the tensor, which are the elements [from, from + count) of the buffer. Both ranges
 * must be in bounds. */
tsr_status tsr_ds_chunks_add(tsr_ds_chunks *chunks, const tsr_ds_buffer *buffer, uint64_t from, uint64_t count, uint64_t to,
                             tsr_error *err);
/* Returns the tensor as a value, and empties the list of chunks for the next tensor. */
tsr_status tsr_ds_chunks_take(tsr_ds_chunks *chunks, tsr_dtype dtype, const tsr_value **out, tsr_error *err);

#endif
