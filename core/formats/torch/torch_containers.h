/* What a walk over a state dict goes into, and in which order: mappings whose keys have names, lists that hold tensors or
 * mappings at any depth of lists, and pickled modules, which count as the mapping that their state_dict() would give. The walk
 * that names entries (torch_flatten.c) and the one that counts them beforehand (torch_survey.c) share this. */
#ifndef TSR_FORMATS_TORCH_TORCH_CONTAINERS_H
#define TSR_FORMATS_TORCH_TORCH_CONTAINERS_H

#include "tessera/catalog.h"
#include "tessera/host.h"
#include "tessera/sys/map.h"

/* The mappings of a module's state: the walk takes them one after the other. */
enum { TSR_MODULE_PARTS = 3 };

/* A container that a walk is inside of. */
typedef struct tsr_torch_level {
    const tsr_value *container;
    size_t next;
    const tsr_value *parts[TSR_MODULE_PARTS]; /* of a module, else NULL */
    tsr_map *hidden;                          /* names of buffers that are not persistent, or NULL */
} tsr_torch_level;

/* Starts at the first child of a container that is walked into. */
tsr_status tsr_torch_level_open(const tsr_host *host, const tsr_value *container, tsr_torch_level *out, tsr_error *err);
void tsr_torch_level_close(tsr_torch_level *level);
/* The next child and the step to it, or NULL. */
const tsr_value *tsr_torch_level_next(tsr_torch_level *level, tsr_path_item *item);

/* Identifies a container with items for a map: values that share their items are one. */
static inline tsr_str tsr_torch_container_key(const tsr_value *container)
{
    return (tsr_str){(const char *)&container->items, sizeof container->items};
}

/* Whether a walk goes into the value; otherwise it is a leaf. `lists` remembers lists that were looked through. Reads all
 * keys of a mapping, and all items of a list that is new. */
tsr_status tsr_torch_walks_into(const tsr_host *host, tsr_map *lists, const tsr_value *value, bool *yes, tsr_error *err);
/* Quantized, sparse, nested tensors and the like, which torch_value.c shows as named parts. */
bool tsr_torch_is_odd_tensor(const tsr_value *value);
bool tsr_torch_is_module(const tsr_value *value);
/* Whether the catalog keeps a mapping itself, because the entries below it do not tell all of it. */
bool tsr_torch_is_kept(const tsr_value *value);

#endif
