/* What the files of the Python package's library share. */
#ifndef TSR_PYTHON_SESSION_H
#define TSR_PYTHON_SESSION_H

#include "tessera/checkpoint.h"

#define EXPORT __attribute__((visibility("default")))

typedef struct session session;
tsr_checkpoint *tsr_python_checkpoint(session *s);

/* One step of an entry's path. Mirrored in _library.py. */
typedef struct path_item {
    tsr_str key;
    int64_t integer;
    uint32_t kind; /* 0 str key, 1 int key, 2 position in a list */
} path_item;

#endif
