/* The header of a .npy file (NumPy format 1.0 and 2.0, numpy.lib.format). */
#ifndef TSR_CLI_TEXT_NPY_H
#define TSR_CLI_TEXT_NPY_H

#include "tessera/dtype.h"
#include "tessera/memory.h"

/* The header of a C-ordered array, its data 64-byte aligned; in `arena`. Version 2.0 where 1.0 is too short. Errors:
 * TSR_E_UNSUPPORTED for a dtype that NumPy does not have, TSR_E_NOMEM. */
tsr_status cli_npy_header(tsr_dtype dtype, uint32_t ndim, const uint64_t *shape, tsr_arena *arena, tsr_str *out,
                          tsr_error *err);

#endif
