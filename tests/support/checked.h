/* A checkpoint with a host of its own, and a ring to check it with. */
#ifndef TESTS_SUPPORT_CHECKED_H
#define TESTS_SUPPORT_CHECKED_H

#include "tessera/checkpoint.h"
#include "tessera/read.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/host_calls.h"

typedef struct checked {
    tsr_host host;
    tsr_store *store;
    tsr_checkpoint *checkpoint;
    tsr_ring *ring;
} checked;

/* Must be closed even if this fails. */
static inline tsr_status checked_open(checked *o, const char *path, const tsr_open_options *options, tsr_error *err)
{
    *o = (checked){.host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()}};
    tsr_status status = tsr_directory_store_open(NULL, o->host.allocator, path, &o->store, err);
    if (status == TSR_OK) status = tsr_checkpoint_open(o->store, &o->host, options, &o->checkpoint, err);
    return status == TSR_OK ? tsr_ring_new(&o->host, 1, &o->ring, err) : status;
}

static inline void checked_close(checked *o)
{
    tsr_ring_free(o->ring);
    tsr_checkpoint_close(o->checkpoint);
    if (o->store) o->store->close(o->store);
}

#endif
