/* Whether loading a value of a checkpoint again would run code.
 *
 * Example:
 *
 *     if (entry->value && !tsr_value_is_data(entry->value, host))
 *         fprintf(stderr, "PyTorch would run code of others to load this object\n"); */
#ifndef TESSERA_SYS_LOADABLE_H
#define TESSERA_SYS_LOADABLE_H

#include "tessera/host.h"
#include "tessera/value.h"

TSR_API_BEGIN

/* Whether a value is data: it and everything inside it is of Python's, numpy's or PyTorch's own types. Loading it again
 * then imports and calls nothing else. torch.load(weights_only=True) may still refuse it. */
bool tsr_value_is_data(const tsr_value *value, const tsr_host *host);

TSR_API_END

#endif
