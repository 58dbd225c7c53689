/* Finds the position of a checkpoint's entry in the optimizer's nested state. */
#ifndef TSR_OPTIM_LOAD_PATH_H
#define TSR_OPTIM_LOAD_PATH_H

#include "tessera/catalog.h"
#include "tessera/sys/map.h"

typedef struct tsr_optim_path {
    const tsr_path_item *items;
    uint32_t length;
} tsr_optim_path;

/* The path of `entry`, whose first item is `key`; its length is 0 if the entry is not below `key`. For flat names, which
 * have no path, `parameters` (FQN → anything) determine where a parameter's name ends. The path is allocated in `arena`, or
 * part of the entry. */
tsr_status tsr_optim_path_of(const tsr_entry *entry, tsr_str key, const tsr_map *parameters, tsr_arena *arena,
                             tsr_optim_path *out, tsr_error *err);

/* Fails with TSR_E_NOT_FOUND because nothing is below `key`. The message lists the first names that exist. */
tsr_status tsr_optim_raise_no_key(const tsr_catalog *catalog, tsr_str key, tsr_arena *arena, tsr_error *err);

#endif
