/* A nested value out of flat entries with paths: the inverse of flattening a state dict. */
#ifndef TSR_MODEL_NEST_H
#define TSR_MODEL_NEST_H

#include "tessera/catalog.h"
#include "tessera/host.h"

typedef struct tsr_leaf {
    const tsr_path_item *path;
    uint32_t path_length; /* 0: the leaf is the whole tree, which must be the only one */
    const tsr_value *value;
    tsr_str name; /* for messages */
    bool mapping; /* `value` is what the dict at that path is like: made if it is empty, else where leaves make one */
} tsr_leaf;

/* Dicts keep the order of first appearance, int keys stay ints; list positions that no leaf has become None. The tree lives
 * in `arena`. TSR_E_USAGE when one leaf's path leads through another leaf, or a container would be a list and a dict;
 * TSR_E_LIMIT when the missing positions of lists take more than limits.expansion bytes. */
tsr_status tsr_nest(const tsr_leaf *leaves, size_t count, const tsr_host *host, tsr_arena *arena, const tsr_value **out,
                    tsr_error *err);

/* The path of an entry under a new name: what the rename left of the old path's items stays, the rest is one key. A name
 * that did not change keeps its path; an entry without a path has its name as the one key. */
tsr_status tsr_renamed_path(const tsr_entry *entry, tsr_str name, tsr_arena *arena, const tsr_path_item **path,
                            uint32_t *path_length, tsr_error *err);

#endif
