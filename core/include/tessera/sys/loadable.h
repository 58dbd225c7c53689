/* Whether loading a value of a checkpoint again would run code.
 *
 * Example:
 *
 *     tsr_str foreign;
 *     if (entry->value && !tsr_value_is_data(entry->value, host, &foreign))
 *         fprintf(stderr, "PyTorch would import %.*s to load this object\n", TSR_STR_ARG(foreign)); */
#ifndef TESSERA_SYS_LOADABLE_H
#define TESSERA_SYS_LOADABLE_H

#include "tessera/host.h"
#include "tessera/value.h"

TSR_API_BEGIN

/* Whether a value is data: it and everything inside it is of Python's, numpy's or PyTorch's own types. Loading it again
 * then imports and calls nothing else. torch.load(weights_only=True) may still refuse it.
 *
 * `foreign` receives the name of a class or function in the value that is not data. It is borrowed from the value, and empty if
 * the value is data, if it is too large to be searched, or if its own class was not kept. */
bool tsr_value_is_data(const tsr_value *value, const tsr_host *host, tsr_str *foreign);

TSR_API_END

#endif
