/* Look-up by name in an array whose items begin with a tsr_str: 4 bytes a slot, so that a million entries cost 8 MB.
 * Borrows the array, which must not move or change while the index lives. */
#ifndef TSR_FORMATS_COMMON_NAME_INDEX_H
#define TSR_FORMATS_COMMON_NAME_INDEX_H

#include "tessera/memory.h"

typedef struct tsr_name_index tsr_name_index;

#define TSR_NO_NAME UINT64_MAX

/* Items that begin with a tsr_str, their name. */
typedef struct tsr_named_items {
    const void *items;
    size_t stride; /* bytes */
    uint64_t count;
} tsr_named_items;
#define TSR_NAMED_ITEMS(array, size) ((tsr_named_items){(array), sizeof *(array), (size)})

/* Indexes the items. *duplicate (may be NULL) is the first item whose name an earlier item has, or TSR_NO_NAME; the index then
 * finds the earlier one. Free with tsr_name_index_free. */
tsr_status tsr_name_index_new(const tsr_allocator *allocator, tsr_named_items named, tsr_name_index **out,
                              uint64_t *duplicate, tsr_error *err);
void tsr_name_index_free(tsr_name_index *index); /* takes NULL */
/* Number of the item, or TSR_NO_NAME (also for a NULL index). Thread-safe. */
uint64_t tsr_name_index_find(const tsr_name_index *index, tsr_str name);

#endif
