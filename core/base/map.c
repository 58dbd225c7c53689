/* Open addressing with linear probing. Slots store 32 bits of the hash, so that most mismatches are found without comparing
 * keys. */
#include "tessera/sys/containers.h"

#include "base/cursor.h"
#include "tessera/sys/try.h"

typedef struct slot {
    tsr_str key; /* its data is NULL in a free slot */
    uint32_t value;
    uint32_t hash;
} slot;

struct tsr_map {
    const tsr_allocator *allocator;
    slot *slots;
    size_t capacity; /* a power of two */
    size_t count;
    uint64_t seed;
};

static const char empty_key[1] = "";

static uint64_t mix(uint64_t h)
{
    h ^= h >> 32;
    h *= 0xe9846af9b1a615dull;
    h ^= h >> 32;
    h *= 0xe9846af9b1a615dull;
    return h ^ (h >> 28);
}

uint64_t tsr_hash_bytes(const void *data, size_t size, uint64_t seed)
{
    const uint8_t *p = data;
    uint64_t h = seed ^ (size * 0x9e3779b97f4a7c15ull);
    for (; size >= 8; p += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        h = (h ^ mix(word ^ seed)) * 0xff51afd7ed558ccdull;
    }
    return size ? mix(h ^ mix(tsr_load_le(p, (unsigned)size) + seed + 1)) : mix(h);
}

static slot *find_slot(const tsr_map *map, tsr_str key, uint32_t hash)
{
    size_t mask = map->capacity - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
        slot *s = &map->slots[i];
        if (!s->key.data || (s->hash == hash && tsr_str_equal(s->key, key))) return s;
    }
}

static tsr_status resize(tsr_map *map, size_t capacity, tsr_error *err)
{
    slot *old = map->slots;
    size_t old_capacity = map->capacity;
    slot *slots = tsr_alloc(map->allocator, capacity, sizeof *slots, err);
    if (!slots) return TSR_E_NOMEM;
    memset(slots, 0, capacity * sizeof *slots);
    map->slots = slots;
    map->capacity = capacity;
    for (size_t i = 0; i < old_capacity; i++) {
        if (old[i].key.data) *find_slot(map, old[i].key, old[i].hash) = old[i];
    }
    tsr_free(map->allocator, old, old_capacity, sizeof *old);
    return TSR_OK;
}

tsr_map *tsr_map_new(const tsr_allocator *allocator, size_t expected, tsr_error *err)
{
    size_t capacity = 16;
    while (capacity / 4 * 3 < expected && capacity < SIZE_MAX / 64) capacity *= 2;
    tsr_map *map = tsr_alloc(allocator, 1, sizeof *map, err);
    if (!map) return NULL;
    *map = (tsr_map){allocator, NULL, 0, 0, 0};
    map->seed = mix((uint64_t)(uintptr_t)map); /* differs between runs if addresses do */
    if (resize(map, capacity, err) == TSR_OK) return map;
    tsr_free(allocator, map, 1, sizeof *map);
    return NULL;
}

void tsr_map_free(tsr_map *map)
{
    if (!map) return;
    tsr_free(map->allocator, map->slots, map->capacity, sizeof *map->slots);
    tsr_free(map->allocator, map, 1, sizeof *map);
}

size_t tsr_map_count(const tsr_map *map)
{
    return map->count;
}

tsr_status tsr_map_put(tsr_map *map, tsr_str key, uint32_t value, uint32_t **existing, bool *inserted, tsr_error *err)
{
    if (map->count >= map->capacity / 4 * 3) TSR_TRY(resize(map, map->capacity * 2, err));
    if (!key.data) key.data = empty_key;
    uint32_t hash = (uint32_t)tsr_hash_bytes(key.data, key.size, map->seed);
    slot *s = find_slot(map, key, hash);
    bool fresh = !s->key.data;
    if (fresh) {
        *s = (slot){key, value, hash};
        map->count++;
    }
    if (existing) *existing = &s->value;
    if (inserted) *inserted = fresh;
    return TSR_OK;
}

uint32_t tsr_map_get(const tsr_map *map, tsr_str key, uint32_t absent)
{
    if (!key.data) key.data = empty_key;
    const slot *s = find_slot(map, key, (uint32_t)tsr_hash_bytes(key.data, key.size, map->seed));
    return s->key.data ? s->value : absent;
}
