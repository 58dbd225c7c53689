/* With which arguments the known functions and classes of torch.save pickles can be called: what else they are given makes
 * PyTorch's loader raise. */
#ifndef TSR_FORMATS_PICKLE_TORCH_SIGNATURE_H
#define TSR_FORMATS_PICKLE_TORCH_SIGNATURE_H

#include "formats/pickle/torch_names.h"

/* False when `callee`, a GLOBAL, raises with the items of the TUPLE `args`; true when it takes them, or is not known here. */
bool tsr_torch_accepts(const tsr_pickle *pickle, tsr_ref callee, tsr_ref args);
/* False when what `object` is made as raises for the state that BUILD gives to it. */
bool tsr_torch_accepts_state(const tsr_pickle *pickle, tsr_ref object);
/* Whether the text of a STR names a device that PyTorch, or a plugin that is known here, places storages on. */
bool tsr_torch_is_device(const tsr_pickle *pickle, tsr_ref ref);

#endif
