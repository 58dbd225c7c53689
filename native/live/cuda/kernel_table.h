/* What one kernel launch works on: a table of pieces, divided into units of about equal work.
 *
 *   pieces   [ 0 ··· | 1 · | 2 ········ ]        one descriptor each
 *   units    [0][1][2][3][4][5][6][7]           one block of threads each; first_unit is the first one of a piece
 *
 * Host code writes the table and kernels read it, so it is plain C that the compilers of both sides lay out in the same
 * way. */
#ifndef TSR_CUDA_KERNEL_TABLE_H
#define TSR_CUDA_KERNEL_TABLE_H

#include <stdint.h>

#define TSR_KERNEL_AXES     9u /* axes of a tensor, and one for the vectors of an element */
#define TSR_KERNEL_THREADS  256u
#define TSR_KERNEL_RUN_UNIT (32u << 10) /* bytes of a run that one block copies */
#define TSR_KERNEL_BOX_UNIT 2048u       /* vectors of a box that one block copies */
/* Limit for the vectors of a box, the bytes of a run, and the units of a launch. */
#define TSR_KERNEL_COUNT_MOST 0x7fffffffu

/* A copy of contiguous bytes. */
typedef struct tsr_kernel_run {
    uint64_t to, from; /* addresses */
    uint32_t bytes;
    uint32_t first_unit;
} tsr_kernel_run;

/* Divides numbers below 2^31 by `size` without a division: ((n·magic >> 32) + n) >> shift. */
typedef struct tsr_kernel_axis {
    uint64_t to, from; /* bytes between steps */
    uint32_t size, magic;
} tsr_kernel_axis;

/* A block of elements with one stride per axis on each side. The last axis is the innermost. Kernels read `fill` with
 * vectors, so its offset is a multiple of 16 bytes in every element of a table. */
typedef struct tsr_kernel_box {
    uint64_t to, from; /* addresses; for a fill, `from` is an offset in `fill` */
    uint8_t fill[16];
    uint32_t count; /* number of vectors: the product of the sizes of the axes */
    uint32_t first_unit;
    uint8_t axes;      /* at least 1 */
    uint8_t width;     /* bytes of a vector: 1, 2, 4, 8 or 16; all addresses and strides are multiples of it */
    uint8_t from_type; /* a tsr_dtype; if the types differ, elements are cast, and a vector is a single element */
    uint8_t to_type;
    uint8_t is_fill;
    uint8_t shift[TSR_KERNEL_AXES];
    uint8_t reserved[2];
    tsr_kernel_axis axis[TSR_KERNEL_AXES];
} tsr_kernel_box;

#endif
