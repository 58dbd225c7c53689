/* A hash map from names to 32-bit numbers. Keys are borrowed: they must outlive the map. The hash is seeded per map, so
 * that input cannot choose its collisions cheaply.
 *
 * Example:
 *
 *     tsr_map *map = tsr_map_new(host->allocator, 0, &err);
 *     status = map ? tsr_map_put(map, TSR_STR("fc.weight"), 7, NULL, NULL, &err) : TSR_E_NOMEM;
 *     if (status == TSR_OK) printf("%u\n", (unsigned)tsr_map_get(map, TSR_STR("fc.weight"), UINT32_MAX));
 *     tsr_map_free(map); */
#ifndef TESSERA_SYS_MAP_H
#define TESSERA_SYS_MAP_H

#include "tessera/memory.h"

TSR_API_BEGIN

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
