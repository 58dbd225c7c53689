/* Whether a copy onto a disk was already published: a run may be killed after the copy has its name, and before its journal is removed. */
#ifndef TSR_CLI_WRITING_COPY_PUBLISHED_H
#define TSR_CLI_WRITING_COPY_PUBLISHED_H

#include "cli/writing/copy_log.h"
#include "tessera/store.h"

typedef struct cli_published_copy {
    tsr_store *from;
    const uint32_t *files; /* of `from`, in the order of the copy */
    const tsr_str *names;  /* of these; "" for a single file */
    const uint64_t *sizes;
    uint32_t count;
    const cli_copy_log *log; /* of the interrupted run */
    const char *tag;         /* of its journal: the key of the digests */
    char *buffer;            /* of 2 × buffer_size bytes */
    size_t buffer_size;
} cli_published_copy;

/* Reads the copy at `to`: *is_whole where it has exactly these files, and every chunk has the digest that the interrupted run recorded or,
 * where none is recorded, the bytes of the source. Errors: those of reading. */
tsr_status cli_copy_is_published(const cli_published_copy *copy, const tsr_host *host, const char *to, bool *is_whole,
                                 tsr_error *err);

#endif
