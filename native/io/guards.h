/* The guards of a store whose reads are requests (tsr_store.guard): each is read with the first bytes that it guards. */
#ifndef TSR_IO_GUARDS_H
#define TSR_IO_GUARDS_H

#include "tessera/store.h"

typedef struct tsr_guards tsr_guards;

/* A read of the store, without a look at the guards. Thread-safe. */
typedef tsr_status tsr_unguarded_read(void *ctx, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err);

/* Borrows `ctx`. */
tsr_status tsr_guards_new(const tsr_allocator *allocator, tsr_unguarded_read *read, void *ctx, tsr_guards **out, tsr_error *err);
void tsr_guards_free(tsr_guards *guards); /* takes NULL */
/* Forgets all, because files got other numbers. Nobody may read meanwhile. */
void tsr_guards_forget(tsr_guards *guards);

/* Takes a copy. Thread-safe. */
tsr_status tsr_guards_add(tsr_guards *guards, const tsr_store_guard *guard, tsr_error *err);
/* What read_at of the store does. A guard that is right is read once, one that is wrong fails every read behind it. Thread-safe. */
tsr_status tsr_guards_read(tsr_guards *guards, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err);

#endif
