/* How much work a run of the core takes, as a count that is the same on every machine. It counts basic blocks entered (this
 * directory's programs compile the modules with -fsanitize-coverage=trace-pc), bytes passed to memcpy and similar functions,
 * bytes requested from the allocator, and reads of the store. No clock is involved. */
#ifndef TESTS_ROBUST_WORK_H
#define TESTS_ROBUST_WORK_H

#include "tessera/checkpoint.h"
#include "tessera/sys/store.h"

typedef struct work {
    uint64_t steps;      /* basic blocks + bytes moved or compared / 16 */
    uint64_t byte_asked; /* everything that was ever allocated; of a block that grew, its growth */
    uint64_t byte_peak;  /* the most that was allocated at one time */
    uint64_t reads, byte_read;
    tsr_status status;
    uint64_t errors; /* number of findings of level error */
    char message[200];
} work;

/* Opens the files as a checkpoint, validates the catalog, walks its extents, and closes everything again. */
work work_of_open(const tsr_memory_file *files, uint32_t count);

#endif
