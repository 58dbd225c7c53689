/* For readers that find one name in the files of several ranks. */
#ifndef TSR_FORMATS_COMMON_JOINED_ENTRIES_H
#define TSR_FORMATS_COMMON_JOINED_ENTRIES_H

#include "tessera/catalog.h"

/* Adds the chunks and replicas of `copy`, a tensor with the same elements, to the replicas of `entry`. */
tsr_status tsr_entry_add_replicas(tsr_entry *entry, const tsr_entry *copy, tsr_arena *arena, tsr_error *err);

/* Turns `entry` into an opaque entry that lists what each of `count` ranks stores under its name. Its name and path stay.
 * Its dtype is the one that all the tensors share, or NONE. `tensors` has one element per rank (NULL when that rank has no
 * such tensor), belongs to the arena, and must not contain `entry` itself. */
tsr_status tsr_entry_list_per_rank(tsr_entry *entry, const tsr_entry **tensors, uint32_t count, tsr_arena *arena,
                                   tsr_error *err);

#endif
