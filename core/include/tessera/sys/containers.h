/* Memory from an allocator, arenas, growing arrays and hash tables. */
#ifndef TESSERA_SYS_CONTAINERS_H
#define TESSERA_SYS_CONTAINERS_H

#include "tessera/memory.h"
#include "tessera/str.h"

#include <string.h>

TSR_API_BEGIN

/* Raw memory of an allocator, and what only our own modules need of arenas.
 *
 * Example:
 *
 *     uint64_t *sizes = tsr_alloc(host->allocator, 4, sizeof *sizes, &err);
 *     if (sizes) sizes[0] = 16;
 *     tsr_free(host->allocator, sizes, 4, sizeof *sizes); */

/* Raw helpers over an allocator: NULL and TSR_E_NOMEM in `err` on failure or when count × item_size overflows.
 * `tsr_free` takes NULL. The caller owns the result. */
void *tsr_alloc(const tsr_allocator *allocator, size_t count, size_t item_size, tsr_error *err);
void tsr_free(const tsr_allocator *allocator, void *pointer, size_t count, size_t item_size);

/* Like tsr_arena_array, but does not zero the items: for large arrays whose items are all written anyway, because zeroing
 * would touch every page too early. */
void *tsr_arena_room(tsr_arena *arena, size_t count, size_t item_size, tsr_error *err);

/* The allocator that the arena takes its blocks from, for temporary memory next to it. */
const tsr_allocator *tsr_arena_allocator(const tsr_arena *arena);

/* Growable arrays of items of one size.
 *
 * Example:
 *
 *     tsr_vec names = tsr_vec_of(host->allocator, sizeof(tsr_str));
 *     tsr_str *name = tsr_vec_push(&names, &err);
 *     if (name) *name = TSR_STR("fc.weight");
 *     tsr_vec_free(&names); */

/* A growable array of items of one size. `{0}` plus allocator and item_size is a valid empty one. */
typedef struct tsr_vec {
    void *items;
    size_t count;
    size_t capacity;
    size_t item_size;
    const tsr_allocator *allocator;
} tsr_vec;

/* An empty vector of items of so many bytes; allocates nothing, borrows `allocator`. */
TSR_INLINE tsr_vec tsr_vec_of(const tsr_allocator *allocator, size_t item_size)
{
    return TSR_LITERAL(tsr_vec){NULL, 0, 0, item_size, allocator};
}
/* Room for `extra` more items; grows by half. */
tsr_status tsr_vec_reserve(tsr_vec *vec, size_t extra, tsr_error *err);
/* Appends one zeroed item and returns it (NULL: TSR_E_NOMEM in err). Valid until the next append. */
void *tsr_vec_push(tsr_vec *vec, tsr_error *err);
/* Appends copies of `count` items; `items` may be NULL where there are none. TSR_E_NOMEM. */
tsr_status tsr_vec_append(tsr_vec *vec, const void *items, size_t count, tsr_error *err);
/* The same as a tsr_write_fn (tessera/sys/json.h): `vec` is a tsr_vec of bytes. */
tsr_status tsr_vec_write(void *vec, const char *data, size_t size, tsr_error *err);
/* Forgets the items from `count` on and gives back the memory behind them, as far as the allocator can. Items may move. */
void tsr_vec_cut(tsr_vec *vec, size_t count);
void tsr_vec_free(tsr_vec *vec); /* accepts a zeroed one */

/* Takes the next piece off bytes that processes of one program exchange: [uint64_t size][bytes]…. False if none is left, or if it is
 * not complete. */
TSR_INLINE bool tsr_take_sized(tsr_str *rest, tsr_str *piece)
{
    uint64_t size;
    if (rest->size < sizeof size) return false;
    memcpy(&size, rest->data, sizeof size);
    if (size > rest->size - sizeof size) return false;
    *piece = TSR_LITERAL(tsr_str){rest->data + sizeof size, (size_t)size};
    *rest = TSR_LITERAL(tsr_str){piece->data + piece->size, rest->size - sizeof size - piece->size};
    return true;
}

/* A hash map from names to 32-bit numbers. Keys are borrowed: they must outlive the map. The hash is seeded per map, so
 * that input cannot choose its collisions cheaply.
 *
 * Example:
 *
 *     tsr_map *map = tsr_map_new(host->allocator, 0, &err);
 *     status = map ? tsr_map_put(map, TSR_STR("fc.weight"), 7, NULL, NULL, &err) : TSR_E_NOMEM;
 *     if (status == TSR_OK) printf("%u\n", (unsigned)tsr_map_get(map, TSR_STR("fc.weight"), UINT32_MAX));
 *     tsr_map_free(map); */

typedef struct tsr_map tsr_map;

/* `expected` keys (0: unknown). */
tsr_map *tsr_map_new(const tsr_allocator *allocator, size_t expected, tsr_error *err);
void tsr_map_free(tsr_map *map); /* accepts NULL */
size_t tsr_map_count(const tsr_map *map);
/* Adds key → value unless the key is there. `*existing` (may be NULL) points to the stored value either way and
 * `*inserted` (may be NULL) says which; the pointer is valid until the next put. */
tsr_status tsr_map_put(tsr_map *map, tsr_str key, uint32_t value, uint32_t **existing, bool *inserted, tsr_error *err);
/* The value, or `absent`. */
uint32_t tsr_map_get(const tsr_map *map, tsr_str key, uint32_t absent);

/* 64-bit hash of bytes (not for storage: differs between versions). */
uint64_t tsr_hash_bytes(const void *data, size_t size, uint64_t seed);

TSR_API_END

#endif
