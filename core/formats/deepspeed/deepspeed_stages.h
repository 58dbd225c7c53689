/* Weights that several stages of a pipeline hold under one name. The tied ones are equal. What a tied module has besides, as an embedding's
 * positions, every stage trains for itself:
 *
 *   stage 0   tied_modules.embed.weight   tied_modules.embed.positions
 *   stage 1   tied_modules.embed.weight   tied_modules.embed.positions     listed as mp_rank_01.tied_modules.embed.positions
 */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_STAGES_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_STAGES_H

#include "formats/deepspeed/deepspeed_rows.h"
#include "formats/deepspeed/deepspeed_weights.h"

/* Gives the weights of a column names of their own where an earlier stage, whose weights `model` has, holds other values, and reports them.
 * Reads a few values of both. `trained` has the column's float32 weights. *renamed: there are such. Without several stages, and for
 * tensor-parallel ranks, nothing is done. Errors: those of reading; TSR_E_NOMEM. */
tsr_status tsr_ds_stages_rename(tsr_ds_weights *weights, const tsr_ds_rows *trained, const tsr_ds_rows *model, bool *renamed, tsr_error *err);

#endif
