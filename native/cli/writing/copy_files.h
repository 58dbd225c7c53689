/* Lists the files of a copy in the order in which they are created: markers, whose presence makes a checkpoint complete, are
 * the last. */
#ifndef TSR_CLI_WRITING_COPY_FILES_H
#define TSR_CLI_WRITING_COPY_FILES_H

#include "tessera/memory.h"
#include "tessera/sys/path_store.h"

typedef struct cli_copy_files {
    tsr_store *from;
    uint32_t *numbers;      /* of the files in `from` */
    tsr_str *names;         /* "" for a single file */
    uint64_t *sizes;        /* in bytes */
    uint32_t count, marker; /* number of files; index of the first marker (a single file is one), or `count` */
    uint64_t byte_total;
    tsr_hidden_names hidden;  /* files that `from` does not list because of their names */
    tsr_hidden_names special; /* what is neither a file nor a directory that is listed */
} cli_copy_files;

/* Makes a directory list the files of its subdirectories, too. TSR_E_LIMIT for too many files or levels. */
tsr_status cli_copy_list_all_levels(tsr_store *from, tsr_error *err);
/* Lists the files in all levels. The arrays are in `arena`, and `from` is borrowed. Errors: those of the function above;
 * TSR_E_IO for names that cannot be read; TSR_E_NOT_FOUND if there are no files; TSR_E_UNSUPPORTED for a key in an object store that cannot be a file name. */
tsr_status cli_copy_list(tsr_store *from, tsr_arena *arena, cli_copy_files *out, tsr_error *err);
/* The name of the last file among the markers that lists the files of a checkpoint, which decides what a replacement may keep;
 * NULL if there is none. */
const char *cli_copy_last_list(const cli_copy_files *files);

#endif
