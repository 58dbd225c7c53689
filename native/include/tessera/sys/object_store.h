/* Object stores, and writing into them. */
#ifndef TESSERA_SYS_OBJECT_STORE_H
#define TESSERA_SYS_OBJECT_STORE_H

#include "tessera/output.h"
#include "tessera/store.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/directory.h"

TSR_API_BEGIN

/* Checkpoints in object stores as stores: s3://BUCKET/KEY, gs://BUCKET/KEY, az://ACCOUNT/CONTAINER/KEY and
 * hf://[datasets/]ORG/REPO[@REVISION][/PATH].
 *
 * Example:
 *
 *     if (tsr_is_object_url("s3://bucket/step-1000"))
 *         status = tsr_object_store_open(host, "s3://bucket/step-1000", &store, &err); */

/* Whether a path begins with one of these four schemes. */
bool tsr_is_object_url(const char *path);

/* Opens an object or all objects below a URL, as tsr_directory_store_open opens a path. An object called
 * ".metadata" or "….json" is `primary` among the objects next to it. Opening lists; it reads no object. Credentials and endpoints
 * come from the environment and the files that each vendor's own tools use, never from the URL.
 *
 * Reads of up to 256 KiB are served from blocks of 64 KiB; larger ones are divided into requests of 4 MiB, of which
 * host->io_depth are in flight. Transient failures are
 * retried. An object that changes is TSR_E_CHANGED. The store keeps host->allocator and host->io_depth, not the host. Errors:
 * TSR_E_NOT_FOUND, TSR_E_IO, TSR_E_USAGE, TSR_E_LIMIT (more than 2^20 objects), TSR_E_UNSUPPORTED (no libcurl, a kind of
 * credentials), TSR_E_NOMEM; messages name the URL and no secret. */
tsr_status tsr_object_store_open(const tsr_host *host, const char *url, tsr_store **out, tsr_error *err);

/* The same for a directory, which may be empty: only the bucket or repository has to exist. */
tsr_status tsr_object_directory_open(const tsr_host *host, const char *url, tsr_store **out, tsr_error *err);

/* Identifies the version of an object: its ETag or generation, or the commit of a repository. Empty if the store is not an
 * object store. Borrowed until the store is closed. */
const char *tsr_object_store_version(const tsr_store *store, uint32_t file);
/* Whether something happened in this process that its user should be warned of, which is then forgotten: a server refused checksums.
 * Thread-safe. */
bool tsr_object_store_take_warning(char *out, size_t size);
/* As tsr_directory_store_hidden, of objects. */
tsr_hidden_names tsr_object_store_hidden(const tsr_store *store);

/* An output to an object store. Large files are uploaded in parts while they are produced, and are not visible before
 * `publish`, which completes the objects: last, one after the other, the marker and the files that were created after it.
 *
 * Example:
 *
 *     const tsr_object_output_options options = {.is_directory = true};
 *     status = tsr_object_output_open(host, "s3://bucket/step-1000", &options, &output, &err); */

typedef struct tsr_object_output_options {
    bool is_directory; /* several objects below the URL; otherwise one, created under the name "" */
    bool overwrite;    /* an existing destination may be replaced */
    bool verify;       /* read back everything that was written and compare its SHA-256, before the marker is written */
    uint32_t generation;
    /* When replacing: names below the URL that belong to the old checkpoint, its markers first. All are removed once the new
     * one is complete. The markers are removed before any new object becomes visible if `is_unlike` is set, or if a new
     * object has the name of an old one that is not a marker. Borrowed. */
    const tsr_str *obsolete;
    size_t obsolete_count, marker_count;
    bool is_unlike; /* the new marker has another name than the old one */
    /* Continue an interrupted run of this job, as far as its checksums agree with the bytes written now: parts of unfinished
     * uploads and, without `overwrite`, whole objects with these names, which then do not count as an existing destination.
     * If this run fails, its uploads are kept, but no marker. If it succeeds, uploads that were not continued are aborted:
     * all below the URL, or, with `overwrite` and in a bucket's root, those of objects that this run writes. Borrowed. */
    bool resume;
    const tsr_str *names;
    size_t name_count;
    /* For processes that share only the bucket: notes with this prefix below the URL are not objects of a checkpoint, and
     * are removed once the new one is complete. If there are such notes, objects of `names` may belong to this job.
     * `takes_over`: this process publishes. */
    tsr_str notes;
    bool takes_over;
    /* What is taken over belongs to this process: if publishing fails, it is removed and aborted as well. */
    bool owns_taken;
    /* For processes that only send: another process has checked that the destination is free, and publishes. Nothing is listed. */
    bool only_sends;
    /* If not empty: the one name whose object means that the destination exists. Other objects stay. Borrowed. */
    tsr_str only_marker;
    /* Notes of other jobs (unfinished parts of another plan) count as an existing destination. `discard_parts`: these notes
     * and their uploads are removed when the output is opened; TSR_E_FORMAT for a damaged note. */
    bool discard_parts;
} tsr_object_output_options;

/* The uploads that a run continued. */
typedef struct tsr_object_resumed {
    uint64_t objects;          /* complete objects that were found */
    uint64_t parts;            /* parts of unfinished uploads that were found */
    uint64_t bytes;            /* size of both */
    uint64_t differing;        /* parts that were found with another size or checksum, and sent again */
    uint64_t uploads_given_up; /* unfinished uploads of earlier runs that are not needed */
    uint64_t uploads_left;     /* unfinished uploads of other objects, which may belong to anybody */
} tsr_object_resumed;

/* Checks that the destination is free, and writes nothing yet. Files need their sizes when they are created, and each byte
 * is written once. Parts wait in memory until they are complete, at most 32 MiB, and beyond that in a temporary file without
 * a name. Every object whose name is new (without `overwrite`, every object) is created on the condition that it does not
 * exist. An object that could not be published is removed again, and its upload is aborted. Keeps `host`. Errors:
 * TSR_E_EXISTS, TSR_E_UNSUPPORTED (a read-only store; with `resume`, a server that does not list unfinished uploads),
 * TSR_E_IO, TSR_E_USAGE, TSR_E_LIMIT (an object of more than 312 GiB), TSR_E_NOMEM. */
tsr_status tsr_object_output_open(const tsr_host *host, const char *url, const tsr_object_output_options *options,
                                  tsr_output **out, tsr_error *err);

/* Creates a file whose size is not yet known, about `expected` bytes. It is uploaded while it is written: a part when it is full. So it is
 * written from front to back, but what is at its beginning may be written last. The caller must end it before anything else is done with the output. A file has at most 10,000 parts: from
 * 78 to 312 GiB, depending on `expected`. */
tsr_status tsr_object_output_create_stream(tsr_output *output, tsr_str name, uint64_t expected, uint32_t *file,
                                           tsr_error *err);
tsr_status tsr_object_output_end_stream(tsr_output *output, uint32_t file, uint64_t size, tsr_error *err);

/* Calls `each` for the names of all objects that were below the URL when the output was opened. */
typedef tsr_status tsr_object_name_fn(void *ctx, tsr_str name, tsr_error *err);
tsr_status tsr_object_output_before(const tsr_output *output, tsr_object_name_fn *each, void *ctx, tsr_error *err);
/* Aborts the unfinished uploads of objects directly below the URL for whose names `is_ours` returns true. TSR_E_UNSUPPORTED
 * if the server does not list uploads. Does nothing if uploads have no ids. */
typedef bool tsr_object_is_ours_fn(tsr_str name);
tsr_status tsr_object_output_give_up(tsr_output *output, tsr_object_is_ours_fn *is_ours, tsr_error *err);
/* Removes an object below the URL; succeeds if it does not exist. */
tsr_status tsr_object_output_remove(tsr_output *output, tsr_str name, tsr_error *err);
/* Reads the text of a note into `arena`. TSR_E_NOT_FOUND; TSR_E_FORMAT if it is damaged or not a note. */
tsr_status tsr_object_output_read_note(tsr_output *output, tsr_str name, tsr_arena *arena, tsr_str *text, tsr_error *err);

/* Several processes write one checkpoint, each with an output of its own for the same URL, and each uploads some of the
 * files. Before publishing each calls this: `kept` marks the files that it uploads, of the first `count`; no other process
 * may keep these. One process leads; only it may have created further files. */
tsr_status tsr_object_output_share(tsr_output *output, const bool *kept, uint32_t count, bool leads, tsr_error *err);
/* The steps of publishing. Each step begins when all processes have finished the one before. Only the process that leads
 * does TSR_OBJECT_CLEAR, and it does TSR_OBJECT_MARKER after all others. `marker` is its first marker, the same on all
 * processes. */
typedef enum tsr_object_step {
    TSR_OBJECT_SEND,
    TSR_OBJECT_CLEAR,
    TSR_OBJECT_DATA,
    TSR_OBJECT_MARKER,
    TSR_OBJECT_END
} tsr_object_step;
tsr_status tsr_object_output_step(tsr_output *output, tsr_object_step step, uint32_t marker, tsr_error *err);

/* The same for processes that share only the bucket, and may run days apart. Each sends all bytes of the files `kept`, of
 * the first `count`, and leaves their uploads open and invisible. Appends the caller's `records`, and the data that another
 * process needs to complete the uploads, to `note`, a vec of bytes. That process creates empty files. Call
 * tsr_object_output_keep_uploads afterwards, or closing the output aborts the uploads. */
tsr_status tsr_object_output_hand_over(tsr_output *output, const bool *kept, uint32_t count, tsr_str records, tsr_vec *note,
                                       tsr_error *err);
void tsr_object_output_keep_uploads(tsr_output *output);
/* For the process that publishes: takes over the uploads of a note, and sets *records to the records in it, before anything
 * is published. These files must not be written any more. If publishing fails, their uploads are kept. TSR_E_FORMAT for a
 * note that is damaged or about other files. */
tsr_status tsr_object_output_take_over(tsr_output *output, tsr_str note, tsr_str *records, tsr_error *err);
bool tsr_object_output_is_taken(const tsr_output *output, uint32_t file);
/* Writes a note, an object next to the files, whose name follows options.notes. Replaces a note with the same name. */
tsr_status tsr_object_output_put_note(tsr_output *output, tsr_str name, tsr_str text, tsr_error *err);
/* Calls `each` for all notes that existed when the output was opened; its arguments are valid until the output is closed. */
typedef tsr_status tsr_object_note_fn(void *ctx, tsr_str name, tsr_str text, tsr_error *err);
tsr_status tsr_object_output_notes(tsr_output *output, tsr_object_note_fn *each, void *ctx, tsr_error *err);

/* The checkpoint that an interrupted publication with these notes was replacing. The publication keeps a note of it from
 * before its first change until after its last. In the given arena. */
typedef struct tsr_object_replacing {
    bool is_found; /* otherwise there was none */
    uint32_t generation;
    bool is_unlike;          /* these as in tsr_object_output_options: */
    const tsr_str *obsolete; /* those that still exist unchanged */
    size_t obsolete_count, marker_count;
    const tsr_str *others; /* all other objects directly below the URL, except notes: of the new checkpoint, or of neither */
    size_t other_count;
} tsr_object_replacing;
tsr_status tsr_object_replacing_read(const tsr_host *host, const char *url, tsr_str notes, tsr_arena *arena,
                                     tsr_object_replacing *out, tsr_error *err);

/* How many notes of other jobs are kept at the destination, and the name of the first. */
size_t tsr_object_output_other_parts(const tsr_output *output, tsr_str *first);

/* Removes the notes. A note named TSR_NOTE_PUBLISHED exists in the meantime. Publishing calls this at its end. */
#define TSR_NOTE_PUBLISHED "published"
tsr_status tsr_object_output_remove_notes(tsr_output *output, tsr_error *err);

/* The uploads that an output with `resume` has continued. To be called after it is published. */
tsr_object_resumed tsr_object_output_resumed(const tsr_output *output);

/* For signals, from another thread than the one that writes: removes everything unpublished. Nothing is written
 * afterwards. Returns whether all of it is known to be gone. */
bool tsr_object_output_abandon(tsr_output *output);

TSR_API_END

#endif
