/* Element types as containers other than safetensors name them, and the two ways of counting float4.
 *
 * Example:
 *
 *     tsr_dtype dtype = TSR_FLOAT4_E2M1FN;
 *     uint64_t columns = 8;
 *     if (tsr_dtype_pack(&dtype, &columns)) printf("%llu pairs\n", (unsigned long long)columns); */
#ifndef TESSERA_SYS_DTYPE_FORMS_H
#define TESSERA_SYS_DTYPE_FORMS_H

#include "tessera/dtype.h"

TSR_API_BEGIN

/* "FloatStorage": TSR_DTYPE_NONE for an unknown name. */
tsr_dtype tsr_dtype_from_storage_class(tsr_str name);

/* Between the two ways of counting float4: F4 with an even last dimension becomes pairs with half of it, and back. Other
 * dtypes are left alone (true). false: the last dimension is odd or overflows; nothing was changed. */
bool tsr_dtype_pack(tsr_dtype *dtype, uint64_t *last_size);
bool tsr_dtype_unpack(tsr_dtype *dtype, uint64_t *last_size);

TSR_API_END

#endif
