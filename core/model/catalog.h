/* Finds where a tensor is in a value tree, for messages about tensors without a name. */
#ifndef TSR_MODEL_CATALOG_H
#define TSR_MODEL_CATALOG_H

#include "tessera/catalog.h"
#include "tessera/host.h"

/* The keys and positions that lead to the tensor, joined with dots; empty if it is not in the tree. Allocated in `arena`.
 * Every container is entered only once. TSR_E_NOMEM, TSR_E_LIMIT. */
tsr_status tsr_value_path(const tsr_value *root, const tsr_entry *tensor, const tsr_host *host, tsr_arena *arena,
                          tsr_str *out, tsr_error *err);

#endif
