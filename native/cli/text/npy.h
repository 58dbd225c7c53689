/* The header of a .npy file (NumPy format 1.0 and 2.0, numpy.lib.format). */
#ifndef TSR_CLI_TEXT_NPY_H
#define TSR_CLI_TEXT_NPY_H

#include "tessera/dtype.h"
#include "tessera/memory.h"

/* Makes the header of a C-ordered array, in `arena`. The data after it is 64-byte aligned. The version is 2.0 if the header
 * is too long for 1.0. Errors: TSR_E_UNSUPPORTED for a dtype that NumPy does not have, TSR_E_NOMEM. */
tsr_status cli_npy_header(tsr_dtype dtype, uint32_t ndim, const uint64_t *shape, tsr_arena *arena, tsr_str *out,
                          tsr_error *err);

#endif
