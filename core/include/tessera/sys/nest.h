/* Builds a nested value from flat entries with paths: the inverse of flattening a state dict.
 *
 * Example:
 *
 *     const tsr_path_item path[] = {{.kind = TSR_PATH_KEY, .key = TSR_STR("model")}, {.kind = TSR_PATH_KEY, .key = TSR_STR("step")}};
 *     const tsr_leaf leaf = {.path = path, .path_length = 2, .value = state, .name = TSR_STR("model.step")};
 *     const tsr_value *tree;
 *     status = tsr_nest(&leaf, 1, host, arena, &tree, &err); */
#ifndef TESSERA_SYS_NEST_H
#define TESSERA_SYS_NEST_H

#include "tessera/catalog.h"
#include "tessera/host.h"

TSR_API_BEGIN

typedef struct tsr_leaf {
    const tsr_path_item *path;
    uint32_t path_length; /* 0: the leaf is the whole tree, and must be the only leaf */
    const tsr_value *value;
    tsr_str name; /* for messages */
    bool mapping; /* `value` describes the dict at this path, which is created if `value` is empty; otherwise only its
                   * leaves create it */
} tsr_leaf;

/* Dicts keep the order in which their keys first appear, and int keys stay ints. List positions without a leaf become
 * None. The tree is allocated in `arena`. Fails with TSR_E_USAGE if one leaf's path leads through another leaf, or if a
 * container would be both a list and a dict; with TSR_E_LIMIT if the missing positions of lists take more than
 * limits.expansion bytes. */
tsr_status tsr_nest(const tsr_leaf *leaves, size_t count, const tsr_host *host, tsr_arena *arena, const tsr_value **out,
                    tsr_error *err);

/* The path of an entry under a new name: those items of the old path that the new name still has are kept, and the rest
 * becomes a single key. If the name did not change, the path is unchanged; an entry without a path gets the name as its only
 * key. */
tsr_status tsr_renamed_path(const tsr_entry *entry, tsr_str name, tsr_arena *arena, const tsr_path_item **path,
                            uint32_t *path_length, tsr_error *err);

TSR_API_END

#endif
