/* Blits that are neighbouring columns of one tensor: a band of rows is read once for all of them, where each alone would read
 * its neighbours' bytes, too.
 *
 *   band of rows   [ a a b b c c ][ a a b b c c ][ … ]      one read
 *   columns        [ a a a a … ]  [ b b b b … ]  [ c c c c … ]   a run of each file */
#ifndef TSR_WRITE_COLUMNS_H
#define TSR_WRITE_COLUMNS_H

#include "stream/tiles.h"
#include "write/blit.h"

/* One of the blits, in a band. */
typedef struct tsr_column {
    uint8_t *out; /* its part of the band, contiguous */
    uint64_t at;  /* from the blit's first byte */
    size_t bytes;
    uint32_t crc;
} tsr_column;

/* A set of blits, and the box that they make up together. Offsets and sizes are TSR_MAX_NDIM each. */
typedef struct tsr_column_set {
    size_t count; /* 1: no set */
    uint32_t dim; /* along which they are neighbours */
    uint32_t itemsize;
    uint64_t row;   /* elements of the box from `dim` on */
    uint64_t inner; /* elements behind `dim` */
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM];
} tsr_column_set;

/* How many of the blits at the beginning are such columns. They are written as they are stored, into rows of more than one
 * blit; at most `most` elements must hold a row of all. */
void tsr_columns_find(const tsr_blit *blits, size_t count, const tsr_gather *gather, uint64_t most, tsr_column_set *out);

/* Memory that the columns of a band of `bytes` bytes need. */
size_t tsr_columns_memory(const tsr_column_set *set, size_t bytes);
/* Places the columns of the band `at` in `memory` (aligned as for a tsr_column, of tsr_columns_memory bytes). */
tsr_column *tsr_columns_place(const tsr_column_set *set, const tsr_blit *blits, const tsr_tiles *at, uint8_t *memory);
/* Cuts a band, contiguous row-major, into its columns. */
void tsr_columns_cut(const tsr_column_set *set, const tsr_blit *blits, const uint8_t *band, size_t bytes,
                     const tsr_column *columns);

#endif
