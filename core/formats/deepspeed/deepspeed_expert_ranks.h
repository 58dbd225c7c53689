/* The optimizers of a mixture of experts without ZeRO. Each expert-parallel rank has a file with the states of its experts
 * and of everything else, which all ranks have alike:
 *
 *   mp_rank_00_model_states.pt                {"module": everything but the experts, "optimizer": of rank 0}
 *   expp_rank_0_mp_rank_00_optim_states.pt    {"optimizer": {"state": {0: …, 1: …}, "param_groups": …}}
 *
 * The numbers count the parameters of a rank, whose module has its own experts only: with 4 experts on 2 ranks, the experts 0
 * and 1, or 2 and 3. DeepSpeed loads these files, and not the copy in the model states. */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_EXPERT_RANKS_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_EXPERT_RANKS_H

#include "formats/deepspeed/deepspeed_plain.h"

/* Like tsr_ds_plain_add, for the optimizers of all expert-parallel ranks; `from` has those of the model states. Reports files
 * that are missing, or that are not of this save. */
tsr_status tsr_ds_expert_ranks_add(const tsr_ds_plain *from, const tsr_value **groups, tsr_error *err);

#endif
