/* See tessera/sys/store.h. */
#include "tessera/sys/store.h"

#include <assert.h>
#include <string.h>

#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

/* A node of a treap: sorted by file and offset from left to right, and by priority from the root down, so that its depth is logarithmic in
 * whatever order guards are added. */
typedef struct kept {
    tsr_store_guard guard;
    uint64_t priority;
    struct kept *left, *right;
    bool is_checked;
} kept;

struct tsr_guards {
    const tsr_allocator *allocator;
    tsr_unguarded_read *read;
    void *ctx;
    tsr_guards_lock lock; /* all NULL if there is only one thread */
    kept *root;           /* they do not overlap */
    uint64_t added;
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
    *guards = (tsr_guards){.allocator = allocator, .read = read, .ctx = ctx};
    if (lock) guards->lock = *lock;
    *out = guards;
    return TSR_OK;
}

static void free_kept(const tsr_guards *guards, kept *k)
{
    tsr_free(guards->allocator, (char *)k->guard.facts.data, k->guard.facts.size, 1);
    tsr_free(guards->allocator, k, 1, sizeof *k);
}

void tsr_guards_forget(tsr_guards *guards)
{
    while (guards->root) {
        kept *k = guards->root, *left = k->left;
        if (!left) {
            guards->root = k->right;
            free_kept(guards, k);
            continue;
        }
        k->left = left->right; /* the root moves to the right, until nothing is left of it */
        left->right = k;
        guards->root = left;
    }
}

void tsr_guards_free(tsr_guards *guards)
{
    if (!guards) return;
    tsr_guards_forget(guards);
    if (guards->lock.free) guards->lock.free(guards->lock.ctx);
    tsr_free(guards->allocator, guards, 1, sizeof *guards);
}

static int by_place(const tsr_store_guard *a, const tsr_store_guard *b)
{
    if (a->file != b->file) return a->file < b->file ? -1 : 1;
    return (a->byte_offset > b->byte_offset) - (a->byte_offset < b->byte_offset);
}

/* The guard at this place, or NULL. The caller must hold the lock. */
static kept *find(const tsr_guards *guards, const tsr_store_guard *guard)
{
    assert(!guards->lock.is_taken || guards->lock.is_taken(guards->lock.ctx));
    kept *k = guards->root;
    for (int order; k && (order = by_place(guard, &k->guard)) != 0;) k = order < 0 ? k->left : k->right;
    return k;
}

/* Adds a guard at a place that has none: above the first node of a lower priority, whose tree it divides. */
static void insert(tsr_guards *guards, kept *added)
{
    kept **at = &guards->root, **left = &added->left, **right = &added->right;
    while (*at && (*at)->priority >= added->priority)
        at = by_place(&added->guard, &(*at)->guard) < 0 ? &(*at)->left : &(*at)->right;
    kept *rest = *at;
    *at = added;
    while (rest) {
        if (by_place(&rest->guard, &added->guard) < 0) {
            *left = rest;
            left = &rest->right;
            rest = *left;
        } else {
            *right = rest;
            right = &rest->left;
            rest = *right;
        }
    }
    *left = *right = NULL;
}

/* A file that is opened again adds its guards again: the newest one of each place counts. */
tsr_status tsr_guards_add(tsr_guards *guards, const tsr_store_guard *guard, tsr_error *err)
{
    kept *added = tsr_alloc(guards->allocator, 1, sizeof *added, err);
    char *facts = added ? tsr_alloc(guards->allocator, guard->facts.size, 1, err) : NULL;
    if (!facts) {
        tsr_free(guards->allocator, added, 1, sizeof *added);
        return TSR_E_NOMEM;
    }
    memcpy(facts, guard->facts.data, guard->facts.size);
    *added = (kept){.guard = *guard};
    added->guard.facts.data = facts;
    take_lock(guards);
    kept *same = find(guards, guard);
    added->priority = tsr_hash_bytes(&guards->added, sizeof guards->added, (uintptr_t)guards);
    guards->added++;
    if (!same) insert(guards, added);
    else {
        const tsr_store_guard old = same->guard;
        same->guard = added->guard;
        same->is_checked = false;
        added->guard = old;
    }
    release_lock(guards);
    if (same) free_kept(guards, added);
    return TSR_OK;
}

/* The first guard of the file whose guarded bytes end after `offset`, or NULL. The caller must hold the lock. */
static kept *first_behind(const tsr_guards *guards, uint32_t file, uint64_t offset)
{
    assert(!guards->lock.is_taken || guards->lock.is_taken(guards->lock.ctx));
    kept *first = NULL;
    for (kept *k = guards->root; k;) {
        const tsr_store_guard *guard = &k->guard;
        const bool is_before =
            guard->file < file || (guard->file == file && guard->guarded_offset + guard->guarded_length <= offset);
        if (!is_before) first = k;
        k = is_before ? k->right : k->left;
    }
    return first && first->guard.file == file ? first : NULL;
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
    for (uint64_t at = w->offset; !*found;) {
        const kept *k = first_behind(guards, w->file, at);
        if (!k || k->guard.guarded_offset >= w->offset + w->size) break;
        at = k->guard.guarded_offset + k->guard.guarded_length;
        *found = !k->is_checked && k->guard.guarded_length && k->guard.byte_offset >= from;
        if (*found) status = copy(guards, &k->guard, out, err);
    }
    release_lock(guards);
    return status;
}

static tsr_status check(tsr_guards *guards, const tsr_store_guard *guard, const char *bytes, tsr_error *err)
{
    TSR_TRY(guard->check(guard, (const uint8_t *)bytes, err));
    take_lock(guards);
    kept *k = find(guards, guard);
    if (k && tsr_str_equal(k->guard.facts, guard->facts)) k->is_checked = true;
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
