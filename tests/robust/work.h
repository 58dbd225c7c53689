/* How much work a run of the core took, as a count that is the same on every machine: basic blocks entered (the modules of
 * this folder's programs are compiled with -fsanitize-coverage=trace-pc), bytes given to memcpy and its kin, bytes asked of
 * the allocator, and reads of the store. A clock decides nothing here. */
#ifndef TESTS_ROBUST_WORK_H
#define TESTS_ROBUST_WORK_H

#include "tessera/checkpoint.h"

typedef struct work {
    uint64_t steps;       /* basic blocks + bytes moved or compared / 16 */
    uint64_t byte_asked;  /* all that was ever allocated, growth counted once */
    uint64_t byte_peak;   /* most that was alive at once */
    uint64_t reads, byte_read;
    tsr_status status;
    uint64_t errors;      /* error findings */
    char message[200];
} work;

/* Opens the files as a checkpoint, validates the catalog and walks its extents; everything is closed again. */
work work_of_open(const tsr_memory_file *files, uint32_t count);

#endif
