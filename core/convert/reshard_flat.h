/* FSDP1's flat parameters in the torch.save files of ranks, as LOCAL_STATE_DICT has them. */
#ifndef TSR_CONVERT_RESHARD_FLAT_H
#define TSR_CONVERT_RESHARD_FLAT_H

#include "convert/reshard_to.h"
#include "write/torch_plan.h"

/* Renames the rows of every unit's parameters to the name of its flat parameter: the wrapped module's, which its GLOB must
 * tell (MODULE.** or MODULE.*; the root's is where all flattened parameters are), and `_flat_param`. TSR_E_USAGE otherwise;
 * TSR_E_UNSUPPORTED with use_orig_params, under which PyTorch 2.13 does not load what it saves so. */
tsr_status tsr_flat_rows_name(const tsr_chosen *chosen, const tsr_plan *plan, tsr_arena *arena, tsr_error *err);

/* The slices of flat parameters that one rank has. */
typedef struct tsr_flat_rank {
    const tsr_chosen *chosen;
    const tsr_plan *plan;
    uint64_t rank;
    tsr_entry *locals; /* one per unit: its slice */
} tsr_flat_rank;

/* Sets the locals, and the values of the rank's rows: each unit's ShardedTensor at its first parameter, NULL at the others. */
tsr_status tsr_flat_values(const tsr_flat_rank *of, const tsr_value **values, tsr_arena *arena, tsr_error *err);

/* Gives the slices in a plan that was opened the types that they are cast to. */
void tsr_flat_casts(const tsr_flat_rank *of, tsr_torch_plan *file);

/* The laid out plan of the rank's file as the stage of file `number`: a slice's storage is made of pieces of its parameters. */
tsr_status tsr_flat_stage(const tsr_flat_rank *of, tsr_torch_plan *file, uint32_t number, tsr_stage *out, tsr_error *err);

#endif
