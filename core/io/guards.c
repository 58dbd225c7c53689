/* See tessera/sys/store.h. */
#include "tessera/sys/store.h"

#include <assert.h>
#include <stdlib.h>

#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

typedef struct kept {
    tsr_store_guard guard;
    uint64_t number; /* counts the guards in the order in which they were added */
    bool is_checked;
} kept;

struct tsr_guards {
    const tsr_allocator *allocator;
    tsr_unguarded_read *read;
    void *ctx;
    tsr_guards_lock lock; /* all NULL if there is only one thread */
    tsr_vec kept;         /* sorted by file and offset if is_sorted; they do not overlap */
    uint64_t added;
    bool is_sorted;
};

typedef struct wanted {
    uint32_t file;
    uint64_t offset;
    char *bytes;
    size_t size;
} wanted;

static void take_lock(const tsr_guards *guards)
{
    if (guards->lock.take) guards->lock.take(guards->lock.ctx);
}

static void release_lock(const tsr_guards *guards)
{
    if (guards->lock.release) guards->lock.release(guards->lock.ctx);
}

tsr_status tsr_guards_new(const tsr_allocator *allocator, tsr_unguarded_read *read, void *ctx, const tsr_guards_lock *lock,
                          tsr_guards **out, tsr_error *err)
{
    tsr_guards *guards = tsr_alloc(allocator, 1, sizeof *guards, err);
    if (!guards) {
        if (lock) lock->free(lock->ctx);
        return TSR_E_NOMEM;
    }
    *guards = (tsr_guards){.allocator = allocator, .read = read, .ctx = ctx, .kept = tsr_vec_of(allocator, sizeof(kept))};
    if (lock) guards->lock = *lock;
    *out = guards;
    return TSR_OK;
}

void tsr_guards_forget(tsr_guards *guards)
{
    kept *all = guards->kept.items;
    for (size_t i = 0; i < guards->kept.count; i++)
        tsr_free(guards->allocator, (char *)all[i].guard.facts.data, all[i].guard.facts.size, 1);
    guards->kept.count = 0;
}

void tsr_guards_free(tsr_guards *guards)
{
    if (!guards) return;
    tsr_guards_forget(guards);
    tsr_vec_free(&guards->kept);
    if (guards->lock.free) guards->lock.free(guards->lock.ctx);
    tsr_free(guards->allocator, guards, 1, sizeof *guards);
}

tsr_status tsr_guards_add(tsr_guards *guards, const tsr_store_guard *guard, tsr_error *err)
{
    char *facts = tsr_alloc(guards->allocator, guard->facts.size, 1, err);
    if (!facts) return TSR_E_NOMEM;
    memcpy(facts, guard->facts.data, guard->facts.size);
    take_lock(guards);
    kept *added = tsr_vec_push(&guards->kept, err);
    if (added) *added = (kept){.guard = *guard, .number = guards->added++};
    if (added) added->guard.facts.data = facts;
    guards->is_sorted = false;
    release_lock(guards);
    if (!added) tsr_free(guards->allocator, facts, guard->facts.size, 1);
    return added ? TSR_OK : TSR_E_NOMEM;
}

static bool is_same_place(const kept *a, const kept *b)
{
    return a->guard.file == b->guard.file && a->guard.byte_offset == b->guard.byte_offset;
}

/* Guards of the same bytes are sorted from the newest to the oldest. */
static int by_place(const void *a, const void *b)
{
    const kept *x = a, *y = b;
    if (x->guard.file != y->guard.file) return x->guard.file < y->guard.file ? -1 : 1;
    if (!is_same_place(x, y)) return x->guard.byte_offset < y->guard.byte_offset ? -1 : 1;
    return (x->number < y->number) - (x->number > y->number);
}

/* Sorts the guards. A file that is opened again adds its guards again, so only the newest one of each position is kept. */
static void sort(tsr_guards *guards)
{
    kept *all = guards->kept.items;
    size_t count = 0;
    if (guards->kept.count) qsort(all, guards->kept.count, sizeof *all, by_place);
    for (size_t i = 0; i < guards->kept.count; i++) {
        if (count && is_same_place(&all[count - 1], &all[i]))
            tsr_free(guards->allocator, (char *)all[i].guard.facts.data, all[i].guard.facts.size, 1);
        else all[count++] = all[i];
    }
    guards->kept.count = count;
    guards->is_sorted = true;
}

/* The first guard of the file whose guarded bytes end after `offset`. The caller must hold the lock. */
static size_t first_behind(tsr_guards *guards, uint32_t file, uint64_t offset)
{
    assert(!guards->lock.is_taken || guards->lock.is_taken(guards->lock.ctx));
    if (!guards->is_sorted) sort(guards);
    const kept *all = guards->kept.items;
    size_t low = 0, high = guards->kept.count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const tsr_store_guard *guard = &all[middle].guard;
        if (guard->file < file || (guard->file == file && guard->guarded_offset + guard->guarded_length <= offset))
            low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Copies a guard with facts that belong to the caller, because another thread may add the guard again and thereby free the
 * facts that are stored. */
static tsr_status copy(tsr_guards *guards, const tsr_store_guard *guard, tsr_store_guard *out, tsr_error *err)
{
    char *facts = tsr_alloc(guards->allocator, guard->facts.size, 1, err);
    if (!facts) return TSR_E_NOMEM;
    memcpy(facts, guard->facts.data, guard->facts.size);
    *out = *guard;
    out->facts.data = facts;
    return TSR_OK;
}

static void free_copy(tsr_guards *guards, tsr_store_guard *guard)
{
    tsr_free(guards->allocator, (char *)guard->facts.data, guard->facts.size, 1);
    guard->facts = (tsr_str){NULL, 0};
}

/* Copies the first unchecked guard at or after `from` that guards some of the wanted bytes. Free with free_copy. *found is
 * false if there is none. */
static tsr_status next_unchecked(tsr_guards *guards, const wanted *w, uint64_t from, tsr_store_guard *out, bool *found,
                                 tsr_error *err)
{
    tsr_status status = TSR_OK;
    *found = false;
    take_lock(guards);
    const kept *all = guards->kept.items;
    for (size_t i = first_behind(guards, w->file, w->offset); i < guards->kept.count && !*found; i++) {
        const tsr_store_guard *guard = &all[i].guard;
        if (guard->file != w->file || guard->guarded_offset >= w->offset + w->size) break;
        *found = !all[i].is_checked && guard->guarded_length && guard->byte_offset >= from;
        if (*found) status = copy(guards, guard, out, err);
    }
    release_lock(guards);
    return status;
}

static tsr_status check(tsr_guards *guards, const tsr_store_guard *guard, const char *bytes, tsr_error *err)
{
    TSR_TRY(guard->check(guard, (const uint8_t *)bytes, err));
    take_lock(guards);
    kept *all = guards->kept.items;
    size_t i = first_behind(guards, guard->file, guard->guarded_offset);
    while (i < guards->kept.count && all[i].guard.byte_offset != guard->byte_offset) i++;
    if (i < guards->kept.count && tsr_str_equal(all[i].guard.facts, guard->facts)) all[i].is_checked = true;
    release_lock(guards);
    return TSR_OK;
}

/* Reads from the guard to the end of the wanted bytes, in a single read. */
static tsr_status read_with(tsr_guards *guards, const wanted *w, const tsr_store_guard *guard, tsr_error *err)
{
    const size_t ahead = (size_t)(w->offset - guard->byte_offset), size = ahead + w->size;
    char *bytes = tsr_alloc(guards->allocator, size, 1, err);
    if (!bytes) return TSR_E_NOMEM;
    tsr_status status = guards->read(guards->ctx, w->file, guard->byte_offset, bytes, size, err);
    if (status == TSR_OK) status = check(guards, guard, bytes, err);
    if (status == TSR_OK) memcpy(w->bytes, bytes + ahead, w->size);
    tsr_free(guards->allocator, bytes, size, 1);
    return status;
}

/* For bytes in the middle of the guarded bytes: reads the guard in a separate read. */
static tsr_status read_after(tsr_guards *guards, const wanted *w, const tsr_store_guard *guard, tsr_error *err)
{
    const size_t size = (size_t)(guard->guarded_offset - guard->byte_offset);
    char *bytes = tsr_alloc(guards->allocator, size, 1, err);
    if (!bytes) return TSR_E_NOMEM;
    tsr_status status = guards->read(guards->ctx, w->file, guard->byte_offset, bytes, size, err);
    if (status == TSR_OK) status = check(guards, guard, bytes, err);
    tsr_free(guards->allocator, bytes, size, 1);
    return status == TSR_OK ? guards->read(guards->ctx, w->file, w->offset, w->bytes, w->size, err) : status;
}

/* Reads the wanted bytes, after checking the guard of the first of them, if it has one. */
static tsr_status read_first(tsr_guards *guards, const wanted *w, tsr_error *err)
{
    tsr_store_guard guard;
    bool found;
    TSR_TRY(next_unchecked(guards, w, 0, &guard, &found, err));
    tsr_status status;
    if (!found || guard.byte_offset >= w->offset)
        status = guards->read(guards->ctx, w->file, w->offset, w->bytes, w->size, err);
    else if (w->offset <= guard.guarded_offset) status = read_with(guards, w, &guard, err);
    else status = read_after(guards, w, &guard, err);
    if (found) free_copy(guards, &guard);
    return status;
}

tsr_status tsr_guards_read(tsr_guards *guards, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    const wanted w = {file, offset, buffer, size};
    TSR_TRY(read_first(guards, &w, err));
    for (;;) {
        tsr_store_guard guard;
        bool found;
        TSR_TRY(next_unchecked(guards, &w, offset, &guard, &found, err));
        if (!found) return TSR_OK;
        const tsr_status status = check(guards, &guard, w.bytes + (guard.byte_offset - offset), err);
        free_copy(guards, &guard);
        if (status != TSR_OK) return status;
    }
}
