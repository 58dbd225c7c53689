/* What loaders may be given: which classes and calls of a value are passed on, and which loader takes them. */
#ifndef TSR_FORMATS_TORCH_TORCH_LOADABLE_H
#define TSR_FORMATS_TORCH_TORCH_LOADABLE_H

#include "tessera/memory.h"
#include "tessera/sys/loadable.h"
#include "tessera/value.h"

/* Whether torch.load(weights_only=True) takes the value: it names no class beyond that loader's own list. */
bool tsr_torch_weights_only(const tsr_value *value, const tsr_host *host);
/* The same of the value by itself, whatever its items are. */
bool tsr_torch_is_plain(const tsr_value *value);

#endif
