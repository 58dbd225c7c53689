/* Raw memory of an allocator, and what only our own modules need of arenas.
 *
 * Example:
 *
 *     uint64_t *sizes = tsr_alloc(host->allocator, 4, sizeof *sizes, &err);
 *     if (sizes) sizes[0] = 16;
 *     tsr_free(host->allocator, sizes, 4, sizeof *sizes); */
#ifndef TESSERA_SYS_ALLOC_H
#define TESSERA_SYS_ALLOC_H

#include "tessera/memory.h"

TSR_API_BEGIN

/* Raw helpers over an allocator: NULL and TSR_E_NOMEM in `err` on failure or when count × item_size overflows.
 * `tsr_free` takes NULL. The caller owns the result. */
void *tsr_alloc(const tsr_allocator *allocator, size_t count, size_t item_size, tsr_error *err);
void tsr_free(const tsr_allocator *allocator, void *pointer, size_t count, size_t item_size);

/* Like tsr_arena_array, but does not zero the items: for large arrays whose items are all written anyway, because zeroing
 * would touch every page too early. */
void *tsr_arena_room(tsr_arena *arena, size_t count, size_t item_size, tsr_error *err);

/* The allocator that the arena takes its blocks from, for temporary memory next to it. */
const tsr_allocator *tsr_arena_allocator(const tsr_arena *arena);

TSR_API_END

#endif
