/* Where an entry of a checkpoint belongs in the optimizer's nested state. */
#ifndef TSR_OPTIM_LOAD_PATH_H
#define TSR_OPTIM_LOAD_PATH_H

#include "tessera/catalog.h"
#include "tessera/sys/map.h"

typedef struct tsr_optim_path {
    const tsr_path_item *items;
    uint32_t length;
} tsr_optim_path;

/* The path of `entry` below `key`, its first item; its length is 0 when it is not below it. Of flat names, which have no path of
 * their own, `parameters` (FQN → anything) tell where a parameter's name ends. Lives in `arena`, or in the entry. */
tsr_status tsr_optim_path_of(const tsr_entry *entry, tsr_str key, const tsr_map *parameters, tsr_arena *arena,
                             tsr_optim_path *out, tsr_error *err);

/* TSR_E_NOT_FOUND: nothing is below `key`; the message has the first names that are there instead. */
tsr_status tsr_optim_raise_no_key(const tsr_catalog *catalog, tsr_str key, tsr_arena *arena, tsr_error *err);

#endif
