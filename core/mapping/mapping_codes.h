/* Matrices of packed numbers, and how they are unpacked: see mapping_codes.c. */
#ifndef TSR_MAPPING_MAPPING_CODES_H
#define TSR_MAPPING_MAPPING_CODES_H

#include "tessera/catalog.h"

/* 0: numbers are unpacked and multiplied one by one. The WebAssembly module does without what is faster, since its size is limited. */
#if defined(__wasm__)
#define TSR_PRODUCTS_BUILT 0
#else
#define TSR_PRODUCTS_BUILT 1
#endif

/* A matrix of unsigned numbers of `bits` bits, packed along one of its axes: number i of a line begins at bit i · bits of the
 * line's words, counted from the lowest bit of the first. */
typedef struct tsr_codes {
    const tsr_entry *entry; /* NULL: there are none */
    uint32_t bits;          /* 1 to 8 */
    bool down;              /* the words of a line are below each other */
    const uint8_t *order;   /* the places of `period` numbers among each other; NULL: their own */
    uint32_t period;
    uint8_t add, flip; /* the number is ((code + add) modulo 2^bits, exclusive or flip) - bias */
    int32_t bias;
} tsr_codes;

/* A part of one matrix: of the weight, or of what is stored. */
typedef struct tsr_area {
    uint64_t matrix, row, column;
    size_t rows, columns;
} tsr_area;

/* What is stored of a part of a matrix of numbers. */
typedef struct tsr_stored_words {
    const uint8_t *words;
    size_t width;   /* bytes per line */
    uint64_t first; /* the number of the first bit in its line of the matrix */
} tsr_stored_words;

enum {
    TSR_TURNED_ROWS = 64
}; /* the most rows that are turned at a time, not counting those of the same words ahead of them */

/* The bytes from one turned row to the next one, which are not at the same place of a cache. */
static inline size_t tsr_turned_line(size_t columns)
{
    return columns + 64;
}

static inline size_t tsr_pairs_line(size_t columns)
{
    return (columns + 7) / 8 * 4 + 64;
}

/* Codes of rows that are stored row by row, without gaps: of words that are below each other, and next to each other. */
void tsr_codes_down(const tsr_codes *codes, const tsr_area *area, const uint8_t *words, uint8_t *out);
void tsr_codes_across(const tsr_codes *codes, const tsr_area *area, const tsr_stored_words *stored, uint8_t *out);

/* Codes of rows that are stored column by column. `area->row` counts from the first stored one if the words are below each other. */
void tsr_codes_turned(const tsr_codes *codes, const tsr_area *area, const tsr_stored_words *stored, uint8_t *out);
/* Pairs of rows that are stored column by column, from the first stored number on: those of GPTQ, and those of AWQ, 8 rows of which are in a
 * word. There are at most TSR_TURNED_COLUMNS, and rows are `line` bytes apart. */
enum { TSR_TURNED_COLUMNS = 128 };
void tsr_pairs_turn(const tsr_codes *codes, const tsr_stored_words *stored, size_t rows, size_t columns, size_t line,
                    uint8_t *out);

/* Looks up `count` pairs, of which each number has a place of its own in the tables: `low` has products in one half of a word and 0 in
 * the other, `high` the other way round. */
void tsr_look_up_ordered_pairs(const uint32_t *low, const uint32_t *high, const uint16_t *even, const uint16_t *odd,
                               const uint8_t *pairs, size_t count, uint8_t *out);

#endif
