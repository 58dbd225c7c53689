/* Joins the shards that ranks have saved into files of whole tensors, as PyTorch's HuggingFaceStorageWriter consolidates them. The caller
 * has the output, in a directory or an object store, and publishes it.
 *
 * Example:
 *
 *     const tsr_join join = {.shards = "d/sharded", .files = &file, .file_count = 1, .tensors = names, .file_of = files, .tensor_count = n};
 *     status = tsr_join_shards(&join, output, &err); */
#ifndef TSR_NATIVE_JOIN_H
#define TSR_NATIVE_JOIN_H

#include "tessera/output.h"
#include "tessera/read.h"

typedef struct tsr_joined_file {
    tsr_str name;   /* ends with a NUL */
    uint64_t bytes; /* of its tensors */
} tsr_joined_file;

typedef struct tsr_join {
    const char *shards; /* the directory of the shards, or its URL; it has nothing else */
    const tsr_joined_file *files;
    uint32_t file_count;
    const tsr_str *tensors;  /* all that the shards have */
    const uint32_t *file_of; /* the number of each one's file */
    size_t tensor_count;
    uint32_t threads;             /* 0: one per processor */
    bool unsummed;                /* the files state no checksum */
    const tsr_progress *progress; /* of each file; may stop the work with TSR_E_CANCELLED. May be NULL */
} tsr_join;

/* Writes the files to `output`, in which they are created in their order. TSR_E_FORMAT if the shards are not all of the tensors; errors of
 * reading and writing. */
tsr_status tsr_join_shards(const tsr_join *join, tsr_output *output, tsr_error *err);

#endif
