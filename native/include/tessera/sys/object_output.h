/* An output into an object store. Large files are uploaded in parts while they are made, and nothing of them is visible before
 * `publish`, which makes the objects, and last, one after the other, the marker and those that were created behind it.
 *
 * Example:
 *
 *     const tsr_object_output_options options = {.is_folder = true};
 *     status = tsr_object_output_open(host, "s3://bucket/step-1000", &options, &output, &err); */
#ifndef TESSERA_SYS_OBJECT_OUTPUT_H
#define TESSERA_SYS_OBJECT_OUTPUT_H

#include "tessera/output.h"

TSR_API_BEGIN

typedef struct tsr_object_output_options {
    bool is_folder; /* several objects below the URL; otherwise one, created under the name "" */
    bool overwrite; /* what is there may be replaced */
    bool verify;    /* what was written is read back and compared by SHA-256, all of it before the marker */
    uint32_t generation;
    /* When replacing: names below the URL that belong to the old checkpoint, its markers first. All are removed once the new one
     * is complete. Its markers are removed before any new object becomes visible where `is_unlike` is set, or where an old
     * object that is not a marker has the name of a new one. Borrowed. */
    const tsr_str *obsolete;
    size_t obsolete_count, marker_count;
    bool is_unlike; /* the new marker's name does not take the place of the old one's */
} tsr_object_output_options;

/* Looks whether the destination is free, and writes nothing yet. Files need their sizes when they are created, and each byte is
 * written once. Parts wait in memory until they are whole, 32 MiB at most, beyond that in a temporary file without a name. Without
 * `overwrite` every object, and with it every object under a new name, is made on the condition that there is none. An
 * object that could not be published is removed again, and its upload is aborted. Keeps `host`. Errors: TSR_E_EXISTS,
 * TSR_E_UNSUPPORTED (a store that is read only), TSR_E_IO, TSR_E_USAGE, TSR_E_LIMIT (an object of more than 312 GiB), TSR_E_NOMEM. */
tsr_status tsr_object_output_open(const tsr_host *host, const char *url, const tsr_object_output_options *options, tsr_output **out,
                                  tsr_error *err);

/* At a signal, from another thread than the one that writes: removes what is not published; nothing is written from here on. */
void tsr_object_output_abandon(tsr_output *output);

TSR_API_END

#endif
