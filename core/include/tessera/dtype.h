/* Element types, by PyTorch's names without the "torch." prefix.
 *
 * Example:
 *
 *     const tsr_dtype dtype = tsr_dtype_from_name(TSR_STR("torch.bfloat16"));
 *     printf("%s is %s in safetensors\n", tsr_dtype_describe(dtype)->name, tsr_dtype_describe(dtype)->safetensors_name); */
#ifndef TESSERA_DTYPE_H
#define TESSERA_DTYPE_H

#include "tessera/str.h"

TSR_API_BEGIN

typedef enum tsr_dtype {
    TSR_DTYPE_NONE = 0,
    TSR_FLOAT64,
    TSR_FLOAT32,
    TSR_FLOAT16,
    TSR_BFLOAT16,
    TSR_FLOAT8_E4M3FN,
    TSR_FLOAT8_E4M3FNUZ,
    TSR_FLOAT8_E5M2,
    TSR_FLOAT8_E5M2FNUZ,
    TSR_FLOAT8_E8M0FNU,
    TSR_FLOAT6_E2M3,      /* safetensors' F6_E2M3: 6 bits per element, not a torch dtype */
    TSR_FLOAT6_E3M2,      /* safetensors' F6_E3M2 */
    TSR_FLOAT4_E2M1FN_X2, /* torch: one element is a packed pair, one byte */
    TSR_FLOAT4_E2M1FN,    /* safetensors' F4: 4 bits per element; same bytes, twice the last dimension, same printed name */
    TSR_INT64,
    TSR_INT32,
    TSR_INT16,
    TSR_INT8,
    TSR_UINT64,
    TSR_UINT32,
    TSR_UINT16,
    TSR_UINT8,
    TSR_BOOL,
    TSR_COMPLEX32,  /* two float16 */
    TSR_BCOMPLEX32, /* two bfloat16 */
    TSR_COMPLEX64,
    TSR_COMPLEX128,
    TSR_QINT8,
    TSR_QUINT8,
    TSR_QINT32,
    TSR_QUINT4X2,
    TSR_QUINT2X4,
    TSR_BITS8,
    TSR_BITS16,
    TSR_BITS1X8,
    TSR_BITS2X4,
    TSR_BITS4X2,
    TSR_DTYPE_COUNT
} tsr_dtype;

typedef enum tsr_dtype_class {
    TSR_CLASS_NONE,
    TSR_CLASS_FLOAT,
    TSR_CLASS_INT,
    TSR_CLASS_UINT,
    TSR_CLASS_BOOL,
    TSR_CLASS_COMPLEX,
    TSR_CLASS_QUANTIZED,
    TSR_CLASS_BITS
} tsr_dtype_class;

typedef struct tsr_dtype_info {
    const char *name;             /* "float32": torch's, without prefix; "float6_e2m3" where torch has none */
    const char *safetensors_name; /* "F32"; NULL where safetensors has none */
    const char *storage_class;    /* "FloatStorage": the typed storage of torch.save; NULL where only untyped */
    uint8_t bits;                 /* of one element: 8 × itemsize, except float6 (6) and safetensors' F4 (4) */
    tsr_dtype_class kind;
    uint8_t swap_bytes; /* unit of byte-order swapping: 8 for complex128, 4 for complex64 */
} tsr_dtype_info;

/* Describes a dtype. Valid for every enumerator, including TSR_DTYPE_NONE (name "none"). The result is static. */
const tsr_dtype_info *tsr_dtype_describe(tsr_dtype dtype);
/* Finds a dtype by name; returns TSR_DTYPE_NONE when the name is unknown. Accepts "float32" and "torch.float32". */
tsr_dtype tsr_dtype_from_name(tsr_str name);

/* Returns the bytes of one element, or 0 for float6 and F4, whose elements are not byte-aligned. */
uint32_t tsr_dtype_size(tsr_dtype dtype);

TSR_API_END

#endif
