/* Looks up names in an array whose items begin with a tsr_str. Needs 4 bytes per slot, so 8 MB for a million entries.
 * Borrows the array, which must not move or change while the index exists. */
#ifndef TSR_FORMATS_COMMON_NAME_INDEX_H
#define TSR_FORMATS_COMMON_NAME_INDEX_H

#include "tessera/memory.h"

typedef struct tsr_name_index tsr_name_index;

#define TSR_NO_NAME UINT64_MAX

/* An array of items, each of which begins with its name, a tsr_str. */
typedef struct tsr_named_items {
    const void *items;
    size_t stride; /* bytes */
    uint64_t count;
} tsr_named_items;
#define TSR_NAMED_ITEMS(array, size) ((tsr_named_items){(array), sizeof *(array), (size)})

/* Indexes the items. *duplicate (may be NULL) is the first item that has the same name as an earlier one, or TSR_NO_NAME;
 * the index finds the earlier of the two. Free with tsr_name_index_free. */
tsr_status tsr_name_index_new(const tsr_allocator *allocator, tsr_named_items named, tsr_name_index **out,
                              uint64_t *duplicate, tsr_error *err);
void tsr_name_index_free(tsr_name_index *index); /* accepts NULL */
/* The number of the item with this name, or TSR_NO_NAME. A NULL index has no items. Thread-safe. */
uint64_t tsr_name_index_find(const tsr_name_index *index, tsr_str name);

#endif
