/* Guards for a store that several threads read. */
#ifndef TSR_IO_THREAD_GUARDS_H
#define TSR_IO_THREAD_GUARDS_H

#include "tessera/sys/guards.h"

/* tsr_guards_new with a mutex. Borrows `ctx`. */
tsr_status tsr_thread_guards_new(const tsr_allocator *allocator, tsr_unguarded_read *read, void *ctx, tsr_guards **out,
                                 tsr_error *err);

#endif
