/* Which tensors of a catalog are counters and settings of optimizers, such as `step`: casts would round them. Optimizers are
 * found in whatever form: by FQN, by parameter id, flattened, in a list, as a part of a framework's directory.
 *
 *   PREFIX.state.0.step, next to PREFIX.param_groups…     the state dict of an optimizer
 *   optim.state.fc.weight.step                            without its groups, under the name of an optimizer
 *   state.fc.weight.step                                  a file that holds nothing else
 *
 * Example:
 *
 *     bool *is = tsr_arena_array(arena, (size_t)catalog->entry_count, sizeof *is, &err);
 *     if (is) status = tsr_optimizer_scalars(catalog, host->allocator, is, &err); */
#ifndef TESSERA_SYS_OPTIMIZER_SCALARS_H
#define TESSERA_SYS_OPTIMIZER_SCALARS_H

#include "tessera/catalog.h"
#include "tessera/memory.h"

TSR_API_BEGIN

/* Sets is[i] for every entry of the catalog: whether it is a tensor without dims in the state or the groups of an optimizer.
 * TSR_E_NOMEM. */
tsr_status tsr_optimizer_scalars(const tsr_catalog *catalog, const tsr_allocator *allocator, bool *is, tsr_error *err);

TSR_API_END

#endif
