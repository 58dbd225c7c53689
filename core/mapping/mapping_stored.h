/* What is stored of packed weights: see mapping_stored.c. */
#ifndef TSR_MAPPING_MAPPING_STORED_H
#define TSR_MAPPING_MAPPING_STORED_H

#include "mapping/mapping_packed.h"

enum {
    TSR_PACKED_NUMBERS = 256,
    TSR_PAIR_NUMBERS = 16, /* products of a group, if numbers have 4 bits */
    TSR_WORDS_SLACK = 16   /* bytes of a line of words beyond its numbers */
};

/* The memory for one area of a weight, all in one block. */
typedef struct tsr_packed_room {
    size_t size;
    float *numbers;        /* what each code means */
    float *values;         /* products */
    float *scales, *zeros; /* zeros NULL: there are none */
    int32_t *groups;       /* with an index, of each column, counted from first_group */
    uint16_t *places;      /* where its group's products are among those of pairs: of even columns, then of odd ones */
    uint8_t *rounded, *codes, *words;
    uint8_t *table, *row;               /* products in the dtype of the weight: by group and code; of a part of a row */
    uint8_t *spread;                    /* codes of a part of a row of pairs */
    uint8_t tables[TSR_PACKED_NUMBERS]; /* 0, 1, 2, …: groups have the tables of their numbers */
    uint64_t first_group;
    size_t group_count;
    size_t apart, beside; /* how far the scales of the next row, and those of the next group, are from each other */
} tsr_packed_room;

/* The number that a code means. */
float tsr_codes_number(const tsr_codes *codes, uint8_t code);
/* Reads the scales of the groups of an area, and their zeros. */
tsr_status tsr_packed_read_scales(const tsr_packed_weight *p, const tsr_area *a, tsr_packed_room *r, tsr_error *err);
/* Reads the words of a part of a matrix of stored numbers into `words`, which is enough for them. */
tsr_status tsr_packed_read_words(const tsr_packed_weight *p, const tsr_codes *codes, const tsr_area *a, uint8_t *words,
                                 tsr_stored_words *out, tsr_error *err);

/* Rows of a weight that is stored column by column, and their scales. Numbers of 4 bits are turned while what is stored of a few columns is
 * in the caches; others when they are needed. A read of few rows takes few bytes from each column, so the rows around them are read with
 * them, for all threads, which share the work: part 0 is the scales, and each other part is TURNED columns. Each use is counted, and so is
 * the place among the mapped checkpoint's bands, which a thread empties while it looks at the band. */
typedef struct tsr_band {
    atomic_uint uses;
    const tsr_packed_weight *weight;
    uint64_t row, rows;
    _Atomic int64_t unread; /* rows of which nothing has been computed yet; fewer than 0 if some are computed again */
    size_t size;            /* of this block */
    float *scales, *zeros;  /* row by row */
    uint8_t *numbers;       /* pairs, row by row, or what is stored */
    bool pairs;
    tsr_stored_words stored;
    unsigned parts;
    atomic_uint next, filled; /* the part that is filled next, and how many have been filled */
    atomic_bool has[];        /* by part */
} tsr_band;

/* Whether the area is of whole rows, enough of them to be worth a band. */
bool tsr_packed_has_bands(const tsr_packed_weight *p, const tsr_area *a);
/* Begins a use of a band that has the first rows of the area. */
tsr_status tsr_band_take(const tsr_packed_weight *p, const tsr_area *a, tsr_band **out, tsr_error *err);
/* Ends a use in which these rows were computed. The band may be NULL. */
void tsr_band_leave(const tsr_packed_weight *p, tsr_band *band, uint64_t rows);

#endif
