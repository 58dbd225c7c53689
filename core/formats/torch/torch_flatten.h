/* From the value a pickle holds to the entries of a catalog, by the rule of PyTorch 2.13's flatten_state_dict: mappings
 * flatten, lists only where they hold tensors or mappings (at any depth of lists), tuples are leaves, an empty mapping
 * gives no entry. A pickled nn.Module counts as the mapping that its state_dict() would give.
 *
 * Source of the behavior: torch/distributed/checkpoint/_nested_dict.py, _traverse.py; nn/modules/module.py. */
#ifndef TSR_FORMATS_TORCH_TORCH_FLATTEN_H
#define TSR_FORMATS_TORCH_TORCH_FLATTEN_H

#include "tessera/catalog.h"
#include "tessera/host.h"
#include "tessera/sys/map.h"

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

/* torch_inner.c: fills in the kind, value and type of a leaf that is not a dense tensor and, for a tensor of another kind, its
 * dtype and shape. Names the tensors inside, as below. */
tsr_status tsr_torch_leaf(const tsr_value *value, const tsr_host *host, tsr_map *seen, tsr_arena *arena, tsr_entry *entry,
                          tsr_error *err);

#endif
