/* A scratch directory for tests that need real files, and a table of system calls that fail on request. */
#ifndef TSR_TEST_SCRATCH_H
#define TSR_TEST_SCRATCH_H

#include "io/sys.h"

/* Makes a new empty directory under TMPDIR. The returned path is valid until scratch_remove. */
const char *scratch_make(void);
void scratch_remove(void);
/* The same as fixtures of cmocka, and a test that has both. */
int scratch_setup(void **state);
int scratch_teardown(void **state);
#define SCRATCH_TEST(test) cmocka_unit_test_setup_teardown(test, scratch_setup, scratch_teardown)
/* Returns "<scratch>/<name>", in one of a few buffers that are used in turn. */
const char *scratch_path(const char *name);
/* Writes a file. If `name` has one directory before the file's name, that directory is made. */
void scratch_write(const char *name, const void *data, size_t size);
/* Returns the number of bytes in a file, or -1 when it does not exist. `buffer` may be NULL. */
long scratch_read(const char *name, void *buffer, size_t capacity);
/* Returns the names in a directory ("" is the scratch directory), sorted and joined by spaces, in a static buffer. */
const char *scratch_list(const char *directory);

/* Makes the real calls, with these exceptions. The `fail_at`-th counted call (from 1; 0: none) fails with `error`; with
 * `stays`, all later counted calls fail as well. With `short_transfers`, every read, write and copy moves at most that many
 * bytes. With `writes_only`, only calls that change the file system are counted. */
typedef struct faulty_sys {
    tsr_sys sys; /* must be first */
    unsigned long calls;
    unsigned long fail_at;
    int error;
    bool stays;
    bool writes_only;
    size_t short_transfers;
} faulty_sys;

faulty_sys faulty_sys_make(void);

#endif
