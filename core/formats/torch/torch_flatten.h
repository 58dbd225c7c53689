/* From the value a pickle holds to the entries of a catalog, by the rule of PyTorch 2.13's flatten_state_dict: mappings
 * flatten, lists only where they hold tensors or mappings (at any depth of lists), tuples are leaves, an empty mapping
 * gives no entry. A pickled nn.Module counts as the mapping that its state_dict() would give, one that torch.compile wrapped as if it
 * were not wrapped, and a TensorDict as the dict of its tensors.
 *
 * Source of the behavior: torch/distributed/checkpoint/_nested_dict.py, _traverse.py; nn/modules/module.py. */
#ifndef TSR_FORMATS_TORCH_TORCH_FLATTEN_H
#define TSR_FORMATS_TORCH_TORCH_FLATTEN_H

#include "tessera/catalog.h"
#include "tessera/host.h"
#include "tessera/sys/containers.h"

typedef struct tsr_torch_flat {
    tsr_entry *entries;
    uint64_t entry_count;
    tsr_mapping *mappings;
    uint64_t mapping_count;
} tsr_torch_flat;

/* Entries and mappings in order of the walk, with path items; names joined by '.'. A root that is not a mapping has the name ""
 * and an empty path. Everything lives in `arena`; entries share chunks and values with the tree. Errors: TSR_E_FORMAT when
 * two paths give one name (both are named), TSR_E_LIMIT beyond limits.entries or .depth, or where shared parts would expand
 * to more than *room bytes, TSR_E_NOMEM. Subtracts the bytes that it makes from *room. */
tsr_status tsr_torch_flatten(const tsr_value *root, const tsr_host *host, uint64_t *room, tsr_arena *arena,
                             tsr_torch_flat *out, tsr_error *err);

/* torch_file.c: leaves out the entries of a file that has lost its end whose bytes are lost: those with a chunk in TSR_NO_FILE.
 * Each becomes a finding. */
struct tsr_checkpoint;
tsr_status tsr_torch_leave_out_lost(struct tsr_checkpoint *checkpoint, tsr_torch_flat *flat, tsr_error *err);

enum { TSR_TORCH_KEY = 256 };

/* torch_tensor.c: fills in the kind, value and type of a leaf that is not a dense tensor and, for a tensor of another kind, its
 * dtype and shape. Names the tensors inside, as below. */
tsr_status tsr_torch_leaf(const tsr_value *value, const tsr_host *host, tsr_map *seen, tsr_arena *arena, tsr_entry *entry,
                          tsr_error *err);

/* What a walk over a state dict goes into, and in which order: mappings whose keys have names, lists that hold tensors or
 * mappings at any depth of lists, and pickled modules, which count as the mapping that their state_dict() would give. The walk
 * that names entries and the one that counts them beforehand share this. */

/* The mappings of a module: the walk takes them one after the other. */
enum { TSR_MODULE_PARTS = 4 };

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

/* Counts what a state dict expands to before it is expanded. A pickle names a dict a second time in two bytes, so a few
 * kilobytes can stand for any number of entries: each container is counted once, and its sum is used wherever it occurs.
 *
 *     d0 = {"w": t}      1 entry
 *     d1 = {"a": d0, "b": d0}      2 entries, and "a." and "b." in front of their names
 *     d2 = {"a": d1, "b": d1}      4 entries … 40 levels: 2^40 from 600 bytes, counted in 41 steps */

typedef struct tsr_torch_survey {
    const tsr_host *host;
    tsr_map *lists; /* lists that were looked through, for torch_walks_into */
    tsr_map *known; /* container → its number in `counts` */
    tsr_vec counts;
    uint64_t bytes; /* of all entries, their names and paths; UINT64_MAX: more than that */
} tsr_torch_survey;

/* Counts the tree under `root`. Linear in the pickle. Errors: TSR_E_LIMIT for a container that holds itself or nests deeper
 * than limits.depth, TSR_E_NOMEM. Close it in any case. */
tsr_status tsr_torch_survey_open(tsr_torch_survey *survey, const tsr_value *root, const tsr_host *host, tsr_error *err);
void tsr_torch_survey_close(tsr_torch_survey *survey);

#endif
