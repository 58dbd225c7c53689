/* Weights that quantization libraries pack into integers or look up in tables: compressed-tensors' pack-quantized, GPTQ, AWQ, and
 * the 4 and 8 bits of bitsandbytes. All of them are
 *
 *   weight = (number - zero) · scale of its group        or        weight = table[number] · scale of its block
 *
 * and differ in how numbers, zeros and scales are stored. */
#ifndef TSR_MAPPING_MAPPING_PACKED_H
#define TSR_MAPPING_MAPPING_PACKED_H

#include "mapping/mapped.h"

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

/* Scales that are quantized themselves: table[code] · (scale of its block) + offset. */
typedef struct tsr_nested_scale {
    const tsr_entry *table, *scale; /* NULL: scales are stored as they are */
    uint64_t block;
    float offset;
} tsr_nested_scale;

typedef struct tsr_packed_weight {
    tsr_checkpoint *source;
    const char *form;                     /* for messages, such as "GPTQ" */
    tsr_codes numbers, zeros;             /* zeros have the layout of scales */
    const tsr_entry *scale, *group_index; /* group_index: the group of each column, or NULL */
    tsr_nested_scale nested;
    const float *table; /* what numbers mean, or NULL */
    float factor;       /* products are multiplied by it, too */
    /* Of the weight. `transposed` means that numbers, zeros and scales are stored with the columns as lines. */
    uint64_t matrices, rows, columns;
    bool transposed, flat;  /* flat: numbers and scales are one run, whatever the shapes of their tensors */
    uint64_t group, groups; /* columns per group; groups per row */
    bool one_scale;         /* for all rows */
    tsr_dtype rounded;      /* the dtype of the library's products, which are then cast to `dtype` */
    tsr_dtype dtype;
    const uint64_t *shape; /* of the weight */
    uint32_t ndim;
    tsr_str name;
    const tsr_entry *parts[8]; /* the numbers and all their companions, which the weight replaces */
    uint32_t part_count;
} tsr_packed_weight;

/* mapping_packed.c: finds out whether the entry holds packed numbers. *out is NULL if it does not. Errors: TSR_E_FORMAT and
 * TSR_E_UNSUPPORTED, naming the entry and the companion that does not fit; those of reading. */
tsr_status tsr_packed_find(tsr_mapped *m, const tsr_entry *entry, tsr_dtype dtype, const tsr_packed_weight **out,
                           tsr_error *err);

/* mapping_unpack.c: computes elements of the weight (tsr_computed.compute); `ctx` is a tsr_packed_weight. */
tsr_status tsr_packed_compute(const void *ctx, uint64_t first, size_t count, uint8_t *out, tsr_cast_losses *losses,
                              tsr_error *err);

#endif
