/* Finds out whether a copy to a disk was already published. A run may be killed after the copy got its final name, but
 * before its journal was removed. */
#ifndef TSR_CLI_WRITING_COPY_PUBLISHED_H
#define TSR_CLI_WRITING_COPY_PUBLISHED_H

#include "cli/writing/copy_log.h"

typedef struct cli_published_copy {
    const cli_copy_files *files;
    const cli_copy_log *log; /* of the interrupted run */
    const char *tag;         /* the tag of its journal, which is the key of the digests */
    char *buffer;            /* has 2 × buffer_size bytes */
    size_t buffer_size;
} cli_published_copy;

/* Reads the copy at `to`. *is_whole is true if it has exactly these files, and each chunk has the digest that the
 * interrupted run recorded or, if none was recorded, the bytes of the source. Errors: those of reading. */
tsr_status cli_copy_is_published(const cli_published_copy *copy, const tsr_host *host, const char *to, bool *is_whole,
                                 tsr_error *err);

#endif
