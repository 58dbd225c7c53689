/* Writes FSDP1's flat parameters to the torch.save files of ranks, as LOCAL_STATE_DICT does. */
#ifndef TSR_CONVERT_RESHARD_FLAT_H
#define TSR_CONVERT_RESHARD_FLAT_H

#include "convert/reshard_to.h"
#include "write/torch_plan.h"

/* Renames the rows of every unit's parameters to the name of its flat parameter: that of the wrapped module, and
 * `_flat_param`. The unit's GLOB must state the module (MODULE.** or MODULE.*); the root's is where all flattened parameters
 * are. Fails with TSR_E_USAGE otherwise, and with TSR_E_UNSUPPORTED for use_orig_params, because PyTorch 2.13 cannot load
 * what it saves in that case. */
tsr_status tsr_flat_rows_name(const tsr_chosen *chosen, const tsr_plan *plan, tsr_arena *arena, tsr_error *err);

/* The slices of flat parameters on one rank. */
typedef struct tsr_flat_rank {
    const tsr_chosen *chosen;
    const tsr_plan *plan;
    uint64_t rank;
    tsr_entry *locals; /* one per unit: its slice */
} tsr_flat_rank;

/* Sets `locals`, and the values of the rank's rows: each unit's ShardedTensor at its first parameter, NULL at the others. */
tsr_status tsr_flat_values(const tsr_flat_rank *of, const tsr_value **values, tsr_arena *arena, tsr_error *err);

/* Sets the dtypes to which the slices in an opened plan are cast. */
void tsr_flat_casts(const tsr_flat_rank *of, tsr_torch_plan *file);

/* Makes the laid-out plan of the rank's file the stage of file `number`. The storage of a slice consists of pieces of its
 * parameters. */
tsr_status tsr_flat_stage(const tsr_flat_rank *of, tsr_torch_plan *file, uint32_t number, tsr_stage *out, tsr_error *err);

#endif
