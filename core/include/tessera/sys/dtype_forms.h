/* Element types as containers name them, the bytes of many elements, and the two ways of counting float4.
 *
 * Example:
 *
 *     tsr_dtype dtype = TSR_FLOAT4_E2M1FN;
 *     uint64_t columns = 8;
 *     if (tsr_dtype_pack(&dtype, &columns)) printf("%llu pairs\n", (unsigned long long)columns); */
#ifndef TESSERA_SYS_DTYPE_FORMS_H
#define TESSERA_SYS_DTYPE_FORMS_H

#include "tessera/dtype.h"
#include "tessera/torch_version.h"

TSR_API_BEGIN

/* TSR_DTYPE_NONE for an unknown name: "F32", and "FloatStorage". */
tsr_dtype tsr_dtype_from_safetensors(tsr_str name);
tsr_dtype tsr_dtype_from_storage_class(tsr_str name);

/* Finds the dtype that a person means: any name of tsr_dtype_from_name, safetensors' names, and the short names that the field
 * uses ("bf16", "fp32", "half"), in any case. For options and maps only: the names in checkpoints are exact. */
tsr_dtype tsr_dtype_from_text(tsr_str text);

/* Between the two ways of counting float4: F4 with an even last dimension becomes pairs with half of it, and back. Other
 * dtypes are left alone (true). false: the last dimension is odd or overflows; nothing was changed. */
bool tsr_dtype_pack(tsr_dtype *dtype, uint64_t *last_size);
bool tsr_dtype_unpack(tsr_dtype *dtype, uint64_t *last_size);

/* Bytes of `elements` elements; false when it overflows or is not whole bytes. */
bool tsr_dtype_bytes(tsr_dtype dtype, uint64_t elements, uint64_t *bytes);

/* Whether the version has the dtype. True for version 0. */
bool tsr_torch_version_has(tsr_torch_version version, tsr_dtype dtype);

TSR_API_END

#endif
