/* Memory: a caller's allocator, and arenas over it. (tessera/sys/containers.h has growable arrays.)
 *
 *   arena:  [ block: header | used ........ | free ]→[ block ]→…   everything is freed together
 *
 * In builds with TSR_ARENA_DEBUG every arena allocation is its own block, so that sanitizers see overruns.
 *
 * Example:
 *
 *     tsr_arena *scratch = tsr_arena_new(&tsr_allocator_libc, 0, &err);
 *     uint64_t *sizes = scratch ? tsr_arena_array(scratch, 4, sizeof *sizes, &err) : NULL;
 *     if (sizes) sizes[0] = 16;
 *     tsr_arena_free(scratch); */
#ifndef TESSERA_MEMORY_H
#define TESSERA_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "tessera/status.h"

TSR_API_BEGIN

/* `resize(ctx, NULL, 0, n)` allocates, `resize(ctx, p, old, n)` grows or shrinks, `resize(ctx, p, old, 0)` frees and
 * returns NULL. Alignment as malloc's. Must be thread-safe when the host's parallel_for is. */
typedef struct tsr_allocator {
    void *(*resize)(void *ctx, void *pointer, size_t old_size, size_t new_size);
    void *ctx;
} tsr_allocator;

/* The C library's realloc and free. */
extern const tsr_allocator tsr_allocator_libc;

typedef struct tsr_arena tsr_arena;

/* `max_bytes` bounds all allocations together (0: no bound). NULL and TSR_E_NOMEM on failure. */
tsr_arena *tsr_arena_new(const tsr_allocator *allocator, size_t max_bytes, tsr_error *err);
void tsr_arena_free(tsr_arena *arena); /* accepts NULL */

/* `count` items of `item_size` bytes, aligned for any type, zeroed; never NULL on success, even for 0 bytes.
 * NULL and TSR_E_NOMEM in `err` when memory or the arena's bound is exhausted. Freed with the arena. */
void *tsr_arena_array(tsr_arena *arena, size_t count, size_t item_size, tsr_error *err);
#define TSR_ARENA_NEW(arena, type, err) ((type *)tsr_arena_array((arena), 1, sizeof(type), (err)))

/* Copies text into the arena and adds a NUL after it. `copy.data` is NULL on failure. */
tsr_str tsr_arena_str(tsr_arena *arena, tsr_str s, tsr_error *err);
/* Formats text into the arena, like printf. */
tsr_str tsr_arena_format(tsr_arena *arena, tsr_error *err, const char *format, ...) TSR_PRINTF_LIKE(3, 4);

TSR_API_END

#endif
