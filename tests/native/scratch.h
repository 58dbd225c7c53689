/* A scratch folder for tests that need real files, and a table of system calls that fails on demand. */
#ifndef TSR_TEST_SCRATCH_H
#define TSR_TEST_SCRATCH_H

#include "io/sys.h"

/* A new empty folder under TMPDIR; the path lives until scratch_remove. */
const char *scratch_make(void);
void scratch_remove(void);
/* "<scratch>/<name>", in one of a few rotating buffers. */
const char *scratch_path(const char *name);
/* Writes a file, making its folder when `name` has one component before it. */
void scratch_write(const char *name, const void *data, size_t size);
/* Bytes of a file, or -1 when it is not there. `buffer` may be NULL. */
long scratch_read(const char *name, void *buffer, size_t capacity);
/* Names in a folder ("" is the scratch folder), sorted, joined by spaces; in a static buffer. */
const char *scratch_list(const char *folder);

/* Real calls, except: the `fail_at`-th call (from 1; 0: none) that counts fails with `error`; from then on, with
 * `stays`, every counting call fails. With `short_transfers` every read, write and copy moves at most `short_transfers`
 * bytes. `writes_only` counts only calls that change the file system. */
typedef struct faulty_sys {
    tsr_sys sys; /* first */
    unsigned long calls;
    unsigned long fail_at;
    int error;
    bool stays;
    bool writes_only;
    size_t short_transfers;
} faulty_sys;

faulty_sys faulty_sys_make(void);

#endif
