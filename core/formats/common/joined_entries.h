/* What readers do with one name that the files of several ranks hold. */
#ifndef TSR_FORMATS_COMMON_JOINED_ENTRIES_H
#define TSR_FORMATS_COMMON_JOINED_ENTRIES_H

#include "tessera/catalog.h"

/* Adds the chunks and replicas of `copy`, whose elements are equal, to the replicas of `entry`. */
tsr_status tsr_entry_add_replicas(tsr_entry *entry, const tsr_entry *copy, tsr_arena *arena, tsr_error *err);

/* Turns `entry` into an opaque one that lists what each of `count` ranks holds under its name. Its name and path stay; its
 * dtype is the one that all these tensors have, or NONE. `tensors` has an element per rank (NULL: the rank holds none),
 * belongs to the arena, and must not contain `entry` itself. */
tsr_status tsr_entry_list_per_rank(tsr_entry *entry, const tsr_entry **tensors, uint32_t count, tsr_arena *arena, tsr_error *err);

#endif
