/* The state of an output to an object store. It is shared by the code that opens and publishes it (object_output.c), and creates its files
 * and sends their parts (object_parts.c). */
#ifndef TSR_OBJECT_STORE_OBJECT_OUTPUT_H
#define TSR_OBJECT_STORE_OBJECT_OUTPUT_H

#include <pthread.h>

#include "object_store/upload.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/little_endian.h"
#include "tessera/sys/object_store.h"

enum {
    TSR_PART_BYTES = 8 << 20,
    TSR_LARGEST_PART = 32 << 20,
    TSR_PARTS_IN_MEMORY = 32 << 20, /* in bytes */
    /* An object of at most TSR_SMALL_OBJECT bytes is kept until it is published, and is then written with one request, if
     * all these objects together have at most TSR_SMALL_OBJECTS bytes. */
    TSR_SMALL_OBJECT = 1 << 20,
    TSR_SMALL_OBJECTS = 4 << 20,
    TSR_UPLOADERS = 4
};

typedef enum part_state { PART_EMPTY, PART_FILLING, PART_QUEUED, PART_SENT } part_state;

typedef struct object_part {
    uint8_t *data;     /* NULL: not in memory */
    uint64_t saved_at; /* 1 + offset in the temporary file; 0: it is not in that file */
    uint64_t used;     /* `clock` when it was last written to */
    size_t filled;     /* number of bytes that were written */
    unsigned writers;  /* number of threads that are writing to it */
    part_state state;
} object_part;

typedef enum upload_state { UPLOAD_NONE, UPLOAD_BEGINNING, UPLOAD_BEGUN } upload_state;

/* A file of the output. Fields that `lock` does not protect do not change after it is created. */
typedef struct written_object {
    tsr_upload upload;
    tsr_str name;
    size_t part_size;
    unsigned part_count;
    object_part *parts;
    tsr_part_tag *tags;
    tsr_upload_bytes *sums; /* size and checksum of each part */
    uint8_t *small;         /* the bytes of a small object; NULL: it is uploaded in parts */
    upload_state begun;
    bool is_made;          /* the object is visible */
    bool is_unsure;        /* a marker that may be visible although the request for it failed */
    bool is_there;         /* an earlier run has made the object; its bytes are compared instead of written */
    bool is_left;          /* another process uploads it */
    bool is_taken;         /* another process has uploaded all its parts */
    bool is_damaged;       /* the bytes that were read back differ from those that were written */
    tsr_object_list found; /* parts that the upload of an earlier run has; the upload has that run's id */
    tsr_map *found_at;     /* indices in `found` by name; NULL: there are none */
} written_object;

typedef struct queued_part {
    written_object *object;
    unsigned number; /* counted from 0 */
} queued_part;

typedef struct object_output {
    tsr_output base; /* must be first */
    const tsr_host *host;
    const tsr_allocator *allocator;
    tsr_service *service;
    tsr_object_output_options options;
    tsr_arena *arena;           /* used only by the thread that creates files */
    tsr_str root;               /* key of the destination */
    tsr_object_list before;     /* objects that existed when the output was opened */
    tsr_map *before_at;         /* indices in `before` by key */
    tsr_vec objects;            /* of written_object * */
    tsr_map *file_of;           /* file numbers by name */
    tsr_object_list unfinished; /* incomplete uploads of earlier runs */
    tsr_map *resumable;         /* the names in options.names; NULL: nothing is resumed */
    size_t small_bytes;
    uint32_t first_marker; /* number of the first marker, while files are published */
    bool has_replaced_marker;
    bool follows; /* another process makes the marker */
    bool has_all_data;
    bool has_record;        /* a note records what is being replaced */
    bool has_notes;         /* parts of this job have been handed over, so objects with its names may belong to it */
    pthread_rwlock_t steps; /* locked for reading while an object is made, and for writing to stop that */
    pthread_mutex_t lock;   /* protects the following fields, and the parts */
    pthread_cond_t changed;
    tsr_arena *ids; /* holds the ids of uploads */
    tsr_object_resumed resumed;
    tsr_vec held; /* of queued_part: parts in memory */
    size_t bytes_held;
    tsr_vec queue; /* of queued_part; those from `queue_at` are not sent yet */
    size_t queue_at, sending;
    pthread_t threads[TSR_UPLOADERS];
    unsigned thread_count, idle;
    int saved; /* descriptor of the temporary file; -1: none */
    uint64_t saved_bytes, clock;
    bool is_closing, is_stopped, is_published;
    tsr_status failure; /* the reason why it is stopped */
    tsr_error why;
} object_output;

static inline written_object *written_object_at(const object_output *output, uint32_t file)
{
    return ((written_object **)output->objects.items)[file];
}

/* The key of a name below the URL. NULL data: memory ran out. */
static inline tsr_str tsr_object_key(const object_output *output, tsr_str name, tsr_arena *arena, tsr_error *err)
{
    return tsr_arena_format(arena, err, "%.*s%s%.*s", TSR_STR_ARG(output->root), output->root.size && name.size ? "/" : "",
                            TSR_STR_ARG(name));
}

/* object_parts.c: sends one part, which must be in memory, immediately. */
tsr_status tsr_parts_send(object_output *output, queued_part of, tsr_error *err);
/* Sends the parts that are not full, with zeros where nothing was written, and waits until the server has all parts. */
tsr_status tsr_parts_finish(object_output *output, tsr_error *err);
/* Reads a part of a finished object back. TSR_E_CHANGED if its bytes are not those that were written. */
tsr_status tsr_parts_compare(object_output *output, queued_part of, tsr_error *err);
void tsr_parts_stop(object_output *output);  /* makes sure that nothing more is sent */
void tsr_parts_close(object_output *output); /* ends the threads */

/* object_parts.c: makes creating and writing files the functions of the output. Must precede the listing of existing objects. */
tsr_status tsr_objects_open(object_output *output, tsr_error *err);
/* Whether an earlier run of this job may have made an object. */
bool tsr_resume_knows(const object_output *output, tsr_str key);
/* Compares a part of such an object. TSR_E_EXISTS if its bytes differ. */
tsr_status tsr_resume_compare(object_output *output, queued_part of, const tsr_upload_bytes *bytes, tsr_error *err);

/* object_replacing.c: lists what is at the destination or below it, and appends it to `found`. TSR_E_EXISTS if there is anything, unless
 * it is to be overwritten. */
tsr_status tsr_destination_list(object_output *output, tsr_object_list *found, tsr_error *err);
/* Reads the text of a note into `arena`. TSR_E_FORMAT if it is damaged. */
tsr_status tsr_note_read(tsr_service *service, const tsr_object *note, tsr_arena *arena, tsr_str *text, tsr_error *err);
/* object_replacing.c: whether a key is that of a note of another job. *is_part: about a part, not about the whole job. */
bool tsr_is_foreign_note(const object_output *output, tsr_str key, bool *is_part);
/* object_handover.c: removes such notes, and the uploads that they name, if options.discard_parts is set. */
tsr_status tsr_handover_discard(object_output *output, tsr_error *err);
/* object_replacing.c: leaves a note about what is being replaced, before any change that readers can see. */
#define TSR_NOTE_REPLACING "replacing"
tsr_status tsr_replacing_begin(object_output *output, tsr_error *err);

/* ---- notes ---- */

/* The encoding of notes: numbers are little-endian, and texts are preceded by their size (u32). */

static inline tsr_status tsr_note_put_number(tsr_vec *out, uint64_t number, unsigned bytes, tsr_error *err)
{
    uint8_t stored[8];
    tsr_store_le(stored, number, bytes);
    return tsr_vec_append(out, stored, bytes, err);
}

static inline tsr_status tsr_note_put_text(tsr_vec *out, tsr_str text, tsr_error *err)
{
    const tsr_status status = tsr_note_put_number(out, text.size, 4, err);
    return status == TSR_OK ? tsr_vec_append(out, text.data, text.size, err) : status;
}

/* Takes a number of `bytes` bytes off the front of `in`; false if it is shorter. */
static inline bool tsr_note_take_number(tsr_str *in, unsigned bytes, uint64_t *number)
{
    *number = 0;
    if (in->size < bytes) return false;
    *number = tsr_load_le(in->data, bytes);
    *in = tsr_str_after(*in, bytes);
    return true;
}

static inline bool tsr_note_take_text(tsr_str *in, tsr_str *text)
{
    uint64_t size;
    if (!tsr_note_take_number(in, 4, &size) || size > in->size) return false;
    *text = (tsr_str){in->data, (size_t)size};
    *in = tsr_str_after(*in, (size_t)size);
    return true;
}

#endif
