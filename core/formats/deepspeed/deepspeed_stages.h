/* Weights that several stages of a pipeline have under one name. Tied weights are equal. If a tied module also has other
 * weights, such as an embedding's positions, every stage trains its own:
 *
 *   stage 0   tied_modules.embed.weight   tied_modules.embed.positions
 *   stage 1   tied_modules.embed.weight   tied_modules.embed.positions     listed as
 * mp_rank_01.tied_modules.embed.positions */
#ifndef TSR_FORMATS_DEEPSPEED_DEEPSPEED_STAGES_H
#define TSR_FORMATS_DEEPSPEED_DEEPSPEED_STAGES_H

#include "formats/deepspeed/deepspeed_rows.h"
#include "formats/deepspeed/deepspeed_weights.h"

/* Renames weights of a column if an earlier stage, whose weights are in `model`, has different values under the same name,
 * and reports this. Reads a few values of both. `trained` has the column's float32 weights. Sets *renamed if there was any
 * such weight. Does nothing if there is only one stage, and for tensor-parallel ranks. Fails if reading fails, or with
 * TSR_E_NOMEM. */
tsr_status tsr_ds_stages_rename(tsr_ds_weights *weights, const tsr_ds_rows *trained, const tsr_ds_rows *model, bool *renamed,
                                tsr_error *err);

#endif
