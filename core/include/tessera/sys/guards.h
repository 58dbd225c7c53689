/* The guards of a store whose reads are requests (tsr_store.guard): each is read with the first bytes that it guards.
 *
 * Example:
 *
 *     tsr_guards *guards;
 *     char head[64];
 *     status = tsr_guards_new(host->allocator, read_unguarded, store, NULL, &guards, &err);
 *     if (status == TSR_OK) status = tsr_guards_read(guards, 0, 128, head, sizeof head, &err); // what read_at of the store does
 *     tsr_guards_free(guards); */
#ifndef TESSERA_SYS_GUARDS_H
#define TESSERA_SYS_GUARDS_H

#include "tessera/store.h"

TSR_API_BEGIN

typedef struct tsr_guards tsr_guards;

/* Reads the store without checking the guards. Thread-safe if the store is. */
typedef tsr_status tsr_unguarded_read(void *ctx, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err);

/* A lock for stores that several threads read: core has none of its own. */
typedef struct tsr_guards_lock {
    void *ctx;
    void (*take)(void *ctx);
    void (*release)(void *ctx);
    bool (*is_taken)(void *ctx); /* for assertions */
    void (*free)(void *ctx);
} tsr_guards_lock;

/* Borrows `ctx`. `lock`: copied, and freed with the guards, or here on failure; NULL where one thread reads. */
tsr_status tsr_guards_new(const tsr_allocator *allocator, tsr_unguarded_read *read, void *ctx, const tsr_guards_lock *lock,
                          tsr_guards **out, tsr_error *err);
void tsr_guards_free(tsr_guards *guards); /* takes NULL */
/* Removes all guards, because the numbers of files have changed. No thread may read meanwhile. */
void tsr_guards_forget(tsr_guards *guards);

/* Takes a copy. Thread-safe with a lock. TSR_E_NOMEM. */
tsr_status tsr_guards_add(tsr_guards *guards, const tsr_store_guard *guard, tsr_error *err);
/* Implements read_at of the store. A guard that holds is read only once; a guard that fails makes every read that it guards
 * fail. Thread-safe with a lock. */
tsr_status tsr_guards_read(tsr_guards *guards, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err);

TSR_API_END

#endif
