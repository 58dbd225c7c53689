/* What loading a torch.save pickle would do beside making data: pickle_verdict.h, and what the known functions would do with
 * the arguments that they are given here. */
#ifndef TSR_FORMATS_TORCH_TORCH_VERDICT_H
#define TSR_FORMATS_TORCH_TORCH_VERDICT_H

#include "formats/pickle/pickle_verdict.h"
#include "formats/torch/torch_build.h"

/* Adds the findings on the pickle of `build`, if these are wanted. `resolves`: PyTorch resolves persistent ids
 * in it. */
tsr_status tsr_torch_verdict(const tsr_torch_build *build, bool resolves, tsr_error *err);
/* The same of a pickle that ends at `end` of its `size` bytes. */
tsr_status tsr_torch_verdict_on_end(const tsr_torch_build *build, uint64_t end, uint64_t size, tsr_error *err);

#endif
