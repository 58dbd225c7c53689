/* What one kernel launch works on: a table of pieces, cut into units of about equal work.
 *
 *   pieces   [ 0 ··· | 1 · | 2 ········ ]        one descriptor each
 *   units    [0][1][2][3][4][5][6][7]           one block of threads each; first_unit says where a piece's begin
 *
 * Written by host code and read by kernels: plain C that compilers of both sides lay out alike. */
#ifndef TSR_CUDA_KERNEL_TABLE_H
#define TSR_CUDA_KERNEL_TABLE_H

#include <stdint.h>

#define TSR_KERNEL_AXES         9u /* of a tensor, and the vectors of an element */
#define TSR_KERNEL_THREADS      256u
#define TSR_KERNEL_RUN_UNIT     (32u << 10) /* bytes of a run that one block copies */
#define TSR_KERNEL_BOX_UNIT     2048u       /* vectors of a box that one block copies */
#define TSR_KERNEL_COUNT_MOST   0x7fffffffu /* vectors of one box, bytes of one run, units of one launch */
#define TSR_KERNEL_CRC_SEGMENT  2048u       /* bytes whose CRC one thread takes */
#define TSR_KERNEL_CRC_JOIN     64u         /* CRCs that one thread joins */
#define TSR_KERNEL_SCAN_THREADS 65536u      /* of all blocks of a scan together, at most */

/* Contiguous bytes to contiguous bytes. */
typedef struct tsr_kernel_run {
    uint64_t to, from; /* addresses */
    uint32_t bytes;
    uint32_t first_unit;
} tsr_kernel_run;

/* Division by `size` of numbers below 2^31 without dividing: ((n·magic >> 32) + n) >> shift. */
typedef struct tsr_kernel_axis {
    uint64_t to, from; /* bytes between steps */
    uint32_t size, magic;
} tsr_kernel_axis;

/* A block of elements with a stride an axis on each side; the innermost axis is the last. Kernels read `fill` by vectors, so
 * it lies at a multiple of 16 bytes in every element of a table. */
typedef struct tsr_kernel_box {
    uint64_t to, from; /* addresses; a fill's `from` counts from the beginning of `fill` */
    uint8_t fill[16];
    uint32_t count; /* vectors: the product of the axes' sizes */
    uint32_t first_unit;
    uint8_t axes;      /* at least 1 */
    uint8_t width;     /* bytes of a vector: 1, 2, 4, 8, 16; all addresses and strides are multiples of it */
    uint8_t from_type; /* tsr_dtype; different types: elements are cast, vectors are single elements */
    uint8_t to_type;
    uint8_t is_fill;
    uint8_t shift[TSR_KERNEL_AXES];
    uint8_t reserved[2];
    tsr_kernel_axis axis[TSR_KERNEL_AXES];
} tsr_kernel_box;

/* Sums of a scan: counts, and the least and greatest finite number as the ordinal of its double. */
typedef struct tsr_kernel_scan {
    uint64_t nan, inf, finite;
    uint64_t least, greatest;
} tsr_kernel_scan;

#endif
