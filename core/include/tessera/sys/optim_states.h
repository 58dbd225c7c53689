/* Which state each parameter of a checkpoint's optimizers has: what is missing, and for which parameter, before a job
 * resumes with it. Forms: nested by FQN (torch.distributed.checkpoint.state_dict), flattened by FQN (its
 * flatten_optimizer_state_dict), keyed by parameter id (torch.optim.Optimizer.state_dict). Pure.
 *
 * Example:
 *
 *     tsr_optim_states *optimizers;
 *     uint32_t count;
 *     status = tsr_optim_states_of(catalog, host->allocator, arena, &optimizers, &count, &err);
 *     for (uint32_t i = 0; status == TSR_OK && i < count; i++)
 *         printf("%.*s: %u parameters\n", TSR_STR_ARG(optimizers[i].optimizer), (unsigned)optimizers[i].row_count); */
#ifndef TESSERA_SYS_OPTIM_STATES_H
#define TESSERA_SYS_OPTIM_STATES_H

#include "tessera/catalog.h"

TSR_API_BEGIN

typedef struct tsr_param_states {
    tsr_str parameter;              /* FQN, or the id in decimal */
    const tsr_entry *entry;         /* its values; NULL when no entry has this name */
    bool in_group;                  /* a param group lists it */
    const tsr_entry *const *states; /* one per name of the optimizer; NULL: the parameter has none of this name */
    uint32_t state_count;           /* that the parameter has */
} tsr_param_states;

typedef struct tsr_optim_states {
    tsr_str optimizer;    /* its name in the checkpoint: "optim"; empty when the root is the optimizer */
    const tsr_str *names; /* "exp_avg", …, in order of appearance */
    uint32_t name_count;
    const tsr_param_states *rows; /* in order of the groups, then of appearance */
    uint32_t row_count;
} tsr_optim_states;

/* The optimizers of a catalog in order of appearance; what has no param groups is none. Results live in `arena` and borrow
 * the catalog. O(entries + parameters × names). Errors: TSR_E_NOMEM, TSR_E_LIMIT. */
tsr_status tsr_optim_states_of(const tsr_catalog *catalog, const tsr_allocator *allocator, tsr_arena *arena,
                               tsr_optim_states **out, uint32_t *count, tsr_error *err);

TSR_API_END

#endif
