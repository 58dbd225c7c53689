/* What the source files of the Python package's library share. */
#ifndef TSR_PYTHON_SESSION_H
#define TSR_PYTHON_SESSION_H

#include "io/sys.h"
#include "tessera/checkpoint.h"
#include "tessera/native_host.h"
#include "tessera/shards.h"
#include "tessera/sys/commands.h"

#define EXPORT __attribute__((visibility("default")))

/* An opened checkpoint. */
typedef struct session {
    tsr_sys sys; /* must be first; reads fail when `stop` is set */
    const volatile int *stop;
    tsr_allocator allocator; /* allocations fail when `stop` is set */
    tsr_native_host native;
    tsr_arena *arena; /* holds the maps, if there are any */
    tsr_shards shards;
    tsr_command_options options; /* those of the layers */
    tsr_layers layers;           /* over the source */
    tsr_checkpoint *adapter;     /* that is folded in, or NULL */
    tsr_checkpoint *source;      /* that reads the files */
    tsr_checkpoint *checkpoint;  /* the topmost layer, or the source */
} session;

/* A session that has opened no checkpoint yet. NULL after an error. `stop` belongs to the caller until close. */
session *python_session_new(uint32_t threads, const int *stop, tsr_error *err);
EXPORT void tsr_python_close(session *s);

/* One step of an entry's path. Mirrored in _library.py. */
typedef struct path_item {
    tsr_str key;
    int64_t integer;
    uint32_t kind; /* 0 str key, 1 int key, 2 position in a list */
} path_item;

#endif
