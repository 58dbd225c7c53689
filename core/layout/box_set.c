/* Two lists of boxes are the same set if they are equal after sorting. Most are equal without sorting. */
#include "layout/box_set.h"

#include <stdlib.h>

#include "tessera/box.h"
#include "tessera/sys/box.h"
#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"

typedef struct item {
    uint32_t ndim;
    const tsr_chunk *chunk;
} item;

static int compare_numbers(const uint64_t *a, const uint64_t *b, uint32_t count)
{
    for (uint32_t d = 0; d < count; d++) {
        if (a[d] != b[d]) return a[d] < b[d] ? -1 : 1;
    }
    return 0;
}

static int compare_items(const void *left, const void *right)
{
    const item *a = left, *b = right;
    int order = compare_numbers(a->chunk->offsets, b->chunk->offsets, a->ndim);
    return order ? order : compare_numbers(a->chunk->sizes, b->chunk->sizes, a->ndim);
}

static bool equal_in_order(const item *a, const item *b, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (compare_items(&a[i], &b[i]) != 0) return false;
    }
    return true;
}

static tsr_status list_boxes(const tsr_entry *entry, tsr_vec *list, tsr_error *err)
{
    TSR_TRY(tsr_vec_reserve(list, entry->chunk_count, err));
    for (uint64_t i = 0; i < entry->chunk_count; i++) {
        const tsr_chunk *chunk = &entry->chunks[i];
        if (tsr_box_is_empty((tsr_box){entry->ndim, chunk->offsets, chunk->sizes})) continue;
        ((item *)list->items)[list->count++] = (item){entry->ndim, chunk};
    }
    return TSR_OK;
}

tsr_status tsr_box_sets_equal(const tsr_allocator *allocator, const tsr_entry *a, const tsr_entry *b, bool *equal,
                              tsr_error *err)
{
    tsr_vec list_a = tsr_vec_of(allocator, sizeof(item)), list_b = list_a;
    tsr_status status = list_boxes(a, &list_a, err);
    if (status == TSR_OK) status = list_boxes(b, &list_b, err);
    *equal = status == TSR_OK && list_a.count == list_b.count;
    if (*equal && !equal_in_order(list_a.items, list_b.items, list_a.count)) {
        qsort(list_a.items, list_a.count, sizeof(item), compare_items);
        qsort(list_b.items, list_b.count, sizeof(item), compare_items);
        *equal = equal_in_order(list_a.items, list_b.items, list_a.count);
    }
    tsr_vec_free(&list_a);
    tsr_vec_free(&list_b);
    return status;
}
