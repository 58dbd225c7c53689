/* Open addressing with linear probing; the slots store item numbers, and at most half of them are used. */
#include "formats/common/name_index.h"

#include "tessera/sys/alloc.h"
#include "tessera/sys/map.h"
#include "tessera/sys/try.h"

struct tsr_name_index {
    const tsr_allocator *allocator;
    tsr_named_items named;
    uint64_t seed;
    uint64_t mask;    /* slots - 1 */
    uint32_t slots[]; /* item number + 1; 0 when free */
};

static tsr_str name_of(const tsr_name_index *index, uint32_t item)
{
    return *(const tsr_str *)(const void *)((const char *)index->named.items + item * index->named.stride);
}

/* The slot of the item with this name, or the free slot where it would be inserted. */
static uint32_t *find_slot(tsr_name_index *index, tsr_str name)
{
    uint64_t at = tsr_hash_bytes(name.data, name.size, index->seed) & index->mask;
    while (index->slots[at] && !tsr_str_equal(name_of(index, index->slots[at] - 1), name)) at = (at + 1) & index->mask;
    return &index->slots[at];
}

static size_t byte_size(uint64_t slots)
{
    return sizeof(tsr_name_index) + (size_t)slots * sizeof(uint32_t);
}

tsr_status tsr_name_index_new(const tsr_allocator *allocator, tsr_named_items named, tsr_name_index **out,
                              uint64_t *duplicate, tsr_error *err)
{
    uint64_t slots = 16;
    *out = NULL;
    if (duplicate) *duplicate = TSR_NO_NAME;
    TSR_FAIL_IF(named.count >= UINT32_MAX / 4, err, TSR_E_LIMIT, "%llu names are too many", (unsigned long long)named.count);
    while (slots < 2 * named.count) slots *= 2;
    tsr_name_index *index = tsr_alloc(allocator, 1, byte_size(slots), err);
    if (!index) return TSR_E_NOMEM;
    memset(index, 0, byte_size(slots));
    index->allocator = allocator;
    index->named = named;
    index->seed =
        (uintptr_t)index ^ (uintptr_t)named.items; /* addresses differ between runs, so collisions cannot be planned */
    index->mask = slots - 1;
    for (uint32_t i = 0; i < named.count; i++) {
        uint32_t *slot = find_slot(index, name_of(index, i));
        if (*slot == 0) *slot = i + 1;
        else if (duplicate && *duplicate == TSR_NO_NAME) *duplicate = i;
    }
    *out = index;
    return TSR_OK;
}

void tsr_name_index_free(tsr_name_index *index)
{
    if (index) tsr_free(index->allocator, index, 1, byte_size(index->mask + 1));
}

uint64_t tsr_name_index_find(const tsr_name_index *index, tsr_str name)
{
    if (!index) return TSR_NO_NAME;
    uint32_t slot = *find_slot((tsr_name_index *)index, name);
    return slot ? slot - 1 : TSR_NO_NAME;
}
