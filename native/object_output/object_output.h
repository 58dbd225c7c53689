/* The state of an output into an object store, shared by its parts (object_parts.c), its publication (object_publish.c) and its opening
 * (object_output.c). */
#ifndef TSR_OBJECT_STORE_OBJECT_OUTPUT_H
#define TSR_OBJECT_STORE_OBJECT_OUTPUT_H

#include <pthread.h>

#include "object_store/upload.h"
#include "tessera/sys/map.h"
#include "tessera/sys/object_output.h"

enum {
    TSR_PART_BYTES = 8 << 20,
    TSR_LARGEST_PART = 32 << 20,
    TSR_PARTS_IN_MEMORY = 32 << 20, /* bytes */
    TSR_SMALL_OBJECT = 1 << 20,  /* up to here an object is kept until it is published, and then written with one request, */
    TSR_SMALL_OBJECTS = 4 << 20, /* as long as all of these together have no more bytes than this */
    TSR_UPLOADERS = 4
};

typedef enum part_state { PART_EMPTY, PART_FILLING, PART_QUEUED, PART_SENT } part_state;

typedef struct object_part {
    uint8_t *data;     /* NULL: not in memory */
    uint64_t saved_at; /* where it is in the temporary file, from 1; 0: it is not there */
    uint64_t used;     /* when it was last written to */
    size_t filled;     /* bytes that were written */
    unsigned writers;  /* at work on it */
    part_state state;
} object_part;

typedef enum upload_state { UPLOAD_NONE, UPLOAD_BEGINNING, UPLOAD_BEGUN } upload_state;

/* A file of the output. What is not in `lock`'s care is fixed when it is created. */
typedef struct written_object {
    tsr_upload upload;
    tsr_str name;
    size_t part_size;
    unsigned part_count;
    object_part *parts;
    tsr_part_tag *tags;
    tsr_upload_bytes *sums; /* of each part: size and sum */
    uint8_t *small;         /* the bytes of a small one; NULL: it is uploaded in parts */
    upload_state begun;
    bool is_made;          /* visible */
    bool is_unsure;        /* a marker whose making failed, and that may be visible nevertheless */
    bool is_there;         /* an earlier run has made it: it is compared instead of written */
    bool is_left;          /* to another process, which uploads it */
    bool is_taken;         /* another process has uploaded all its parts */
    bool is_damaged;       /* what was read back is not what was written */
    tsr_object_list found; /* parts of an earlier run's upload, with its id */
    tsr_map *found_at;     /* of their names: the indexes; NULL: there are none */
} written_object;

typedef struct queued_part {
    written_object *object;
    unsigned number; /* from 0 */
} queued_part;

typedef struct object_output {
    tsr_output base; /* first */
    const tsr_host *host;
    const tsr_allocator *allocator;
    tsr_service *service;
    tsr_object_output_options options;
    tsr_arena *arena;           /* of the thread that creates */
    tsr_str root;               /* the key of the destination */
    tsr_object_list before;     /* what was there */
    tsr_map *before_at;         /* of their keys: the indexes */
    tsr_vec objects;            /* of written_object * */
    tsr_map *file_of;           /* of their names: the numbers */
    tsr_object_list unfinished; /* uploads of earlier runs */
    tsr_map *resumable;         /* names of options.names; NULL: nothing is resumed */
    size_t small_bytes;
    uint32_t first_marker; /* of the files, while they are published */
    bool has_replaced_marker;
    bool follows; /* another process makes the marker */
    bool has_all_data;
    bool has_record;        /* of what is replaced, as a note */
    bool has_notes;         /* parts of this job have been handed over: what has its names may be its own */
    pthread_rwlock_t steps; /* held for reading while an object is made, for writing by whoever stops that */
    pthread_mutex_t lock;   /* over what follows, and the parts */
    pthread_cond_t changed;
    tsr_arena *ids; /* of uploads */
    tsr_object_resumed resumed;
    tsr_vec held; /* of queued_part: those in memory */
    size_t bytes_held;
    tsr_vec queue; /* of queued_part, from `queue_at` */
    size_t queue_at, sending;
    pthread_t threads[TSR_UPLOADERS];
    unsigned thread_count, idle;
    int saved; /* the temporary file; -1: none */
    uint64_t saved_bytes, clock;
    bool is_closing, is_stopped, is_published;
    tsr_status failure; /* why it is stopped */
    tsr_error why;
} object_output;

static inline written_object *written_object_at(const object_output *output, uint32_t file)
{
    return ((written_object **)output->objects.items)[file];
}

/* The key of a name below the URL. NULL data: out of memory. */
static inline tsr_str tsr_object_key(const object_output *output, tsr_str name, tsr_arena *arena, tsr_error *err)
{
    return tsr_arena_format(arena, err, "%.*s%s%.*s", TSR_STR_ARG(output->root), output->root.size && name.size ? "/" : "",
                            TSR_STR_ARG(name));
}

/* object_parts.c. Bytes of one part. */
typedef struct part_bytes {
    written_object *object;
    unsigned number; /* from 0 */
    size_t at, size;
} part_bytes;
tsr_status tsr_parts_write(object_output *output, part_bytes where, const void *data, tsr_error *err);
/* Sends one part, which is in memory, now. */
tsr_status tsr_parts_send(object_output *output, queued_part of, tsr_error *err);
/* Sends what is not whole, zeros where nothing was written, and waits until the server has all parts. */
tsr_status tsr_parts_finish(object_output *output, tsr_error *err);
/* Waits until so many bytes may be taken into memory. */
void tsr_parts_take_room(object_output *output, size_t size);
void tsr_parts_give_room(object_output *output, size_t size);
/* The size of a file that was created with another one, once nothing more is written. */
void tsr_parts_resize(object_output *output, written_object *object, uint64_t size);
void tsr_parts_stop(object_output *output);  /* nothing more is sent */
void tsr_parts_close(object_output *output); /* ends the threads */

/* object_resume.c. Does nothing without options.resume; `open` and `look` before and after what is there is listed. */
tsr_status tsr_resume_open(object_output *output, tsr_error *err);
tsr_status tsr_resume_look(object_output *output, tsr_error *err);
/* Whether an object may be there because an earlier run of this job has made it. */
bool tsr_resume_knows(const object_output *output, tsr_str key);
/* Takes over an object that is there, if it may be one of this job's; TSR_E_EXISTS where it has another size. */
tsr_status tsr_resume_take_object(object_output *output, written_object *object, const tsr_object *before, tsr_error *err);
/* A part of such an object: TSR_E_EXISTS where it has other bytes. */
tsr_status tsr_resume_compare(object_output *output, queued_part of, const tsr_upload_bytes *bytes, tsr_error *err);
/* Finds an upload of an earlier run: sets its id, if there are ids, and what it has. */
tsr_status tsr_resume_find_upload(object_output *output, written_object *object, tsr_error *err);
/* Whether it has these bytes of a part; then sets its tag. */
bool tsr_resume_has_part(object_output *output, queued_part of, const tsr_upload_bytes *bytes);
/* Gives up uploads that were not continued, once all is published. */
tsr_status tsr_resume_finish(object_output *output, tsr_error *err);

/* object_output.c. Creates a file that is sent in parts of `part_size` bytes, whatever its size; 0: as its size wants. */
typedef struct new_object {
    tsr_str name;
    uint64_t size;
    size_t part_size;
} new_object;
tsr_status tsr_object_create(object_output *output, new_object as, uint32_t *file, tsr_error *err);

/* object_publish.c */
tsr_status tsr_object_publish(tsr_output *output, uint32_t marker, tsr_error *err);
/* From here on nothing is removed or aborted. */
void tsr_object_set_published(object_output *output);
/* Aborts uploads, and removes what was made without being published. */
void tsr_object_discard(object_output *output);
/* object_notes.c. Whether a key is that of a note (options.notes); then *name is what follows in it. */
bool tsr_object_is_note(const object_output *output, tsr_str key, tsr_str *name);
bool tsr_object_has_notes(const object_output *output, const tsr_object_list *found);
/* Whether it is the name of a note about the whole job, not about one part. */
bool tsr_note_is_of_job(tsr_str name);
/* The note of this name that was there when the output was opened; NULL: there is none. */
const tsr_object *tsr_object_find_note(const object_output *output, tsr_str name);
/* The text of a note, in `arena`. TSR_E_FORMAT where it is damaged. */
tsr_status tsr_note_read(tsr_service *service, const tsr_object *note, tsr_arena *arena, tsr_str *text, tsr_error *err);
/* object_foreign.c. Whether a key is that of a note of another job; of a part, or of the whole job. */
bool tsr_is_foreign_note(const object_output *output, tsr_str key, bool *is_part);
/* TSR_E_EXISTS where there are such notes in `found`, unless they are allowed. */
tsr_status tsr_foreign_refuse(const object_output *output, const tsr_object_list *found, tsr_error *err);
/* object_handover.c. Removes these, and the uploads that they name, where options.discard_parts is set. */
tsr_status tsr_handover_discard(object_output *output, tsr_error *err);
/* object_replacing.c. Leaves the note of what is replaced, before anything changes that readers see. */
#define TSR_NOTE_REPLACING "replacing"
tsr_status tsr_replacing_begin(object_output *output, tsr_error *err);

/* TSR_E_EXISTS where there is anything at the destination or below it; appends it to `found`. */
tsr_status tsr_object_look(object_output *output, tsr_object_list *found, tsr_error *err);

#endif
