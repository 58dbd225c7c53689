/* An output is a named set of files being written: a directory or one file, published as a whole or not at all. Nothing is
 * visible under its final name before `publish`; closing an output without it leaves an earlier checkpoint as it was.
 *
 * Example:
 *
 *     uint32_t number;
 *     status = output->create(output, TSR_STR("notes.txt"), 5, &number, &err);
 *     if (status == TSR_OK) status = output->write_at(output, number, 0, "hello", 5, &err);
 *     if (status == TSR_OK) status = output->publish(output, TSR_NO_FILE, &err);
 *     output->close(output); */
#ifndef TESSERA_OUTPUT_H
#define TESSERA_OUTPUT_H

#include "tessera/store.h"

TSR_API_BEGIN

/* Bytes of a file of a store. */
typedef struct tsr_copied_range {
    tsr_store *store;
    uint32_t file;
    uint64_t offset, size;
} tsr_copied_range;

typedef struct tsr_output tsr_output;
struct tsr_output {
    /* Creates a file; `name` "" is the destination itself when it is a single file. `size` is its exact final size
     * (preallocation), or 0 when not known yet. */
    tsr_status (*create)(tsr_output *output, tsr_str name, uint64_t size, uint32_t *file, tsr_error *err);
    /* Thread-safe for ranges that do not overlap. */
    tsr_status (*write_at)(tsr_output *output, uint32_t file, uint64_t offset, const void *data, size_t size,
                           tsr_error *err);
    /* Copies bytes of a store's file without passing them through this process; TSR_E_UNSUPPORTED when it cannot. NULL: it
     * never can. */
    tsr_status (*copy_range)(tsr_output *output, uint32_t file, uint64_t offset, const tsr_copied_range *source,
                             tsr_error *err);
    /* Makes everything durable and visible; `marker` (or TSR_NO_FILE) becomes visible last. Frees nothing. */
    tsr_status (*publish)(tsr_output *output, uint32_t marker, tsr_error *err);
    /* Removes what was not published and frees the output. Also the way to free it after publish. */
    void (*close)(tsr_output *output);
    /* Optional: makes all that was written durable, where it is. */
    tsr_status (*sync)(tsr_output *output, tsr_error *err);
    /* 0, or a number that distinguishes the names of new data files from those of the checkpoint that they replace in the same
     * directory ("__3_1.distcp" after "__3_0.distcp"): data files must take names that are free (publish refuses others), so
     * that the old checkpoint stays whole until the marker, which keeps its name, switches. */
    uint32_t generation;
};

TSR_API_END

#endif
