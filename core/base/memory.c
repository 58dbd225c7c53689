/* Allocates with the C library; and growable arrays. */
#include "tessera/memory.h"

#include "base/cursor.h"
#include "tessera/host.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/try.h"

#include <stdalign.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static void *libc_resize(void *ctx, void *pointer, size_t old_size, size_t new_size)
{
    (void)ctx;
    (void)old_size;
    if (new_size == 0) {
        free(pointer);
        return NULL;
    }
    return realloc(pointer, new_size);
}

const tsr_allocator tsr_allocator_libc = {libc_resize, NULL};

static bool byte_size(size_t count, size_t item_size, size_t *bytes)
{
    *bytes = count * item_size;
    return item_size == 0 || *bytes / item_size == count;
}

void *tsr_alloc(const tsr_allocator *allocator, size_t count, size_t item_size, tsr_error *err)
{
    size_t bytes;
    void *pointer = NULL;
    if (byte_size(count, item_size, &bytes)) pointer = allocator->resize(allocator->ctx, NULL, 0, bytes ? bytes : 1);
    if (!pointer) tsr_fail(err, TSR_E_NOMEM, "out of memory for %zu × %zu bytes", count, item_size);
    return pointer;
}

void tsr_free(const tsr_allocator *allocator, void *pointer, size_t count, size_t item_size)
{
    size_t bytes = count * item_size;
    if (pointer) allocator->resize(allocator->ctx, pointer, bytes ? bytes : 1, 0);
}

tsr_status tsr_vec_reserve(tsr_vec *vec, size_t extra, tsr_error *err)
{
    if (extra <= vec->capacity - vec->count) return TSR_OK;
    size_t wanted = vec->capacity + vec->capacity / 2 + 8, bytes;
    if (wanted < vec->count + extra) wanted = vec->count + extra;
    void *grown = NULL;
    if (vec->count + extra >= extra && byte_size(wanted, vec->item_size, &bytes)) {
        grown = vec->allocator->resize(vec->allocator->ctx, vec->items, vec->capacity * vec->item_size, bytes);
    }
    TSR_FAIL_IF(!grown, err, TSR_E_NOMEM, "out of memory for %zu items of %zu bytes", wanted, vec->item_size);
    vec->items = grown;
    vec->capacity = wanted;
    return TSR_OK;
}

void *tsr_vec_push(tsr_vec *vec, tsr_error *err)
{
    if (tsr_vec_reserve(vec, 1, err) != TSR_OK) return NULL;
    char *item = (char *)vec->items + vec->count * vec->item_size;
    memset(item, 0, vec->item_size);
    vec->count++;
    return item;
}

tsr_status tsr_vec_append(tsr_vec *vec, const void *items, size_t count, tsr_error *err)
{
    TSR_TRY(tsr_vec_reserve(vec, count, err));
    if (count) memcpy((char *)vec->items + vec->count * vec->item_size, items, count * vec->item_size);
    vec->count += count;
    return TSR_OK;
}

tsr_status tsr_vec_write(void *vec, const char *data, size_t size, tsr_error *err)
{
    return tsr_vec_append((tsr_vec *)vec, data, size, err);
}

void tsr_vec_cut(tsr_vec *vec, size_t count)
{
    if (count == 0) {
        tsr_vec_free(vec);
        return;
    }
    vec->count = count;
    void *rest =
        vec->allocator->resize(vec->allocator->ctx, vec->items, vec->capacity * vec->item_size, count * vec->item_size);
    if (!rest) return;
    vec->items = rest;
    vec->capacity = count;
}

void tsr_vec_free(tsr_vec *vec)
{
    tsr_free(vec->allocator, vec->items, vec->capacity, vec->item_size);
    vec->items = NULL;
    vec->count = vec->capacity = 0;
}

/* Arenas: many small allocations with the same lifetime.
 *
 *   arena → [ header | used ....... | free ] → [ header | used .. ] → …      newest first
 *
 * Blocks double from 1 KiB to 1 MiB, so that a small checkpoint needs little memory and a large one few calls. */

#define FIRST_BLOCK   1024u
#define LARGEST_BLOCK (1u << 20)
#define ALIGNMENT     alignof(max_align_t)

typedef struct block {
    struct block *next;
    size_t size; /* of the whole allocation */
    size_t used; /* including the header */
} block;

#define HEADER ((sizeof(block) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT)

struct tsr_arena {
    tsr_allocator allocator;
    block *newest;
    size_t next_block;
    size_t used;
    size_t max_bytes;
};

tsr_arena *tsr_arena_new(const tsr_allocator *allocator, size_t max_bytes, tsr_error *err)
{
    tsr_arena *arena = tsr_alloc(allocator, 1, sizeof *arena, err);
    if (arena) *arena = (tsr_arena){*allocator, NULL, FIRST_BLOCK, 0, max_bytes};
    return arena;
}

void tsr_arena_free(tsr_arena *arena)
{
    if (!arena) return;
    const tsr_allocator allocator = arena->allocator;
    for (block *b = arena->newest, *next; b; b = next) {
        next = b->next;
        tsr_free(&allocator, b, 1, b->size);
    }
    tsr_free(&allocator, arena, 1, sizeof *arena);
}

static block *add_block(tsr_arena *arena, size_t need, tsr_error *err)
{
    size_t size = HEADER + need;
#ifndef TSR_ARENA_DEBUG
    if (size < arena->next_block) size = arena->next_block;
    if (arena->next_block < LARGEST_BLOCK) arena->next_block *= 2;
#endif
    block *b = tsr_alloc(&arena->allocator, 1, size, err);
    if (!b) return NULL;
    *b = (block){arena->newest, size, HEADER};
    arena->newest = b;
    return b;
}

void *tsr_arena_room(tsr_arena *arena, size_t count, size_t item_size, tsr_error *err)
{
    uint64_t product;
    size_t bytes = count * item_size, rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    bool fits = tsr_mul_u64(count, item_size, &product) && product < SIZE_MAX - 2 * HEADER && rounded >= bytes;
    if (!fits || (arena->max_bytes && rounded > arena->max_bytes - arena->used)) {
        tsr_raise(err, TSR_E_NOMEM, TSR_NO_POSITION, "%zu × %zu bytes exceed the memory limit of %zu bytes", count,
                  item_size, arena->max_bytes);
        return NULL;
    }
    block *b = arena->newest;
    if (!b || rounded > b->size - b->used) b = add_block(arena, rounded, err);
    if (!b) return NULL;
    char *pointer = (char *)b + b->used;
    b->used += rounded;
    arena->used += rounded;
    return pointer;
}

void *tsr_arena_array(tsr_arena *arena, size_t count, size_t item_size, tsr_error *err)
{
    void *room = tsr_arena_room(arena, count, item_size, err);
    return room ? memset(room, 0, count * item_size) : NULL;
}

tsr_str tsr_arena_str(tsr_arena *arena, tsr_str s, tsr_error *err)
{
    char *copy = s.size < SIZE_MAX ? tsr_arena_array(arena, s.size + 1, 1, err) : NULL;
    if (!copy) return (tsr_str){NULL, 0};
    if (s.size) memcpy(copy, s.data, s.size);
    return (tsr_str){copy, s.size};
}

tsr_str tsr_arena_format(tsr_arena *arena, tsr_error *err, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = length < 0 ? NULL : tsr_arena_array(arena, (size_t)length + 1, 1, err);
    if (text) vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    return (tsr_str){text, text ? (size_t)length : 0};
}

const tsr_allocator *tsr_arena_allocator(const tsr_arena *arena)
{
    return &arena->allocator;
}

/* Defaults for a host that provides nothing except memory. */

tsr_limits tsr_limits_default(void)
{
    return (tsr_limits){
        .depth = 20000, /* picklers fail much earlier */
        .entries = 100000000,
        .metadata_bytes = sizeof(size_t) > 4 ? UINT64_C(16) << 30 : UINT64_C(1) << 30,
        .memory_bytes = sizeof(size_t) > 4 ? UINT64_C(32) << 30 : UINT64_C(3) << 30,
        .expansion = UINT64_C(64) << 20,
        .repetition = UINT64_C(1) << 30,
    };
}

tsr_status tsr_host_load(const tsr_host *host, tsr_error *err)
{
    return host->load ? host->load(err) : TSR_OK;
}

void tsr_parallel(const tsr_host *host, size_t count, void (*body)(void *arg, size_t index), void *arg)
{
    if (host && host->parallel_for && count > 1) {
        host->parallel_for(host->parallel_ctx, count, body, arg);
        return;
    }
    for (size_t i = 0; i < count; i++) body(arg, i);
}
