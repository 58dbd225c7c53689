/* Copies of runs at equal distances: the rows of a box. */
#ifndef TSR_STATEDICT_ROWS_H
#define TSR_STATEDICT_ROWS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct tsr_rows {
    uint8_t *to;
    const uint8_t *from;
    uint64_t to_stride, from_stride; /* bytes from the beginning of one run to that of the next */
    uint64_t run;                    /* bytes of each run */
    uint64_t count;                  /* runs to copy */
    uint64_t reach;                  /* runs at `from_stride` that will be read, now or soon: those to copy, and more */
    bool past_caches;                /* nobody on this core reads soon what is written */
} tsr_rows;

void tsr_rows_copy(const tsr_rows *rows);

#endif
