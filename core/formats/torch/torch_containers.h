/* What a walk over a state dict goes into, and in which order: mappings whose keys have names, lists that hold tensors or
 * mappings at any depth of lists, and pickled modules, which count as the mapping that their state_dict() would give. The walk
 * that names entries (torch_flatten.c) and the one that counts them beforehand (torch_flatten.c) share this. */
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

/* Identifies a container with items for a map: values that share their items are one. */
static inline tsr_str tsr_torch_container_key(const tsr_value *container)
{
    return (tsr_str){(const char *)&container->items, sizeof container->items};
}

#endif
