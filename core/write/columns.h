/* Blits that are adjacent columns of one tensor: a band of rows is read once for all of them, because reading each one alone
 * would also read the bytes of its neighbors.
 *
 *   band of rows   [ a a b b c c ][ a a b b c c ][ … ]      one read
 *   columns        [ a a a a … ]  [ b b b b … ]  [ c c c c … ]   a contiguous run in each file */
#ifndef TSR_WRITE_COLUMNS_H
#define TSR_WRITE_COLUMNS_H

#include "stream/tiles.h"
#include "write/blit.h"

/* The part of a band that belongs to one of the blits. */
typedef struct tsr_column {
    uint8_t *out; /* the part, contiguous */
    uint64_t at;  /* relative to the blit's first byte */
    size_t bytes;
    uint32_t crc;
} tsr_column;

/* A set of blits, and the box that they form together. Offsets and sizes have TSR_MAX_NDIM elements. */
typedef struct tsr_column_set {
    size_t count; /* 1 if there is no set */
    uint32_t dim; /* in which they are adjacent */
    uint32_t itemsize;
    uint64_t row;   /* elements of the box from `dim` on */
    uint64_t inner; /* elements of the dims after `dim` */
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM];
} tsr_column_set;

/* Finds how many blits at the beginning are such columns, written without a cast. A row of the set must have more than one
 * blit and at most `most` elements. */
void tsr_columns_find(const tsr_blit *blits, size_t count, const tsr_gather *gather, uint64_t most, tsr_column_set *out);

/* The memory for the columns of a band of `bytes` bytes, and that for their elements. */
size_t tsr_columns_size(const tsr_column_set *set);
size_t tsr_columns_memory(const tsr_column_set *set, size_t bytes);
/* The columns of the band `at`, in `memory` of tsr_columns_size bytes (aligned for a tsr_column). */
tsr_column *tsr_columns_start(const tsr_column_set *set, const tsr_blit *blits, const tsr_tiles *at, uint8_t *memory);
/* Places their elements in `memory` of tsr_columns_memory bytes. */
void tsr_columns_place(const tsr_column_set *set, const tsr_blit *blits, uint8_t *memory, tsr_column *columns);
/* Splits a band, contiguous in row-major order, into its columns. */
void tsr_columns_cut(const tsr_column_set *set, const tsr_blit *blits, const uint8_t *band, size_t bytes,
                     const tsr_column *columns);

#endif
