/* One table with the names of each dtype in PyTorch, its storages and safetensors, and with the size of its elements. */
#include "tessera/dtype.h"

#include "base/cursor.h"
#include "tessera/sys/catalog.h"
#include "tessera/torch_version.h"

static const tsr_dtype_info table[TSR_DTYPE_COUNT] = {
    [TSR_DTYPE_NONE] = {"none", NULL, NULL, 0, TSR_CLASS_NONE, 1},
    [TSR_FLOAT64] = {"float64", "F64", "DoubleStorage", 64, TSR_CLASS_FLOAT, 8},
    [TSR_FLOAT32] = {"float32", "F32", "FloatStorage", 32, TSR_CLASS_FLOAT, 4},
    [TSR_FLOAT16] = {"float16", "F16", "HalfStorage", 16, TSR_CLASS_FLOAT, 2},
    [TSR_BFLOAT16] = {"bfloat16", "BF16", "BFloat16Storage", 16, TSR_CLASS_FLOAT, 2},
    [TSR_FLOAT8_E4M3FN] = {"float8_e4m3fn", "F8_E4M3", NULL, 8, TSR_CLASS_FLOAT, 1},
    [TSR_FLOAT8_E4M3FNUZ] = {"float8_e4m3fnuz", "F8_E4M3FNUZ", NULL, 8, TSR_CLASS_FLOAT, 1},
    [TSR_FLOAT8_E5M2] = {"float8_e5m2", "F8_E5M2", NULL, 8, TSR_CLASS_FLOAT, 1},
    [TSR_FLOAT8_E5M2FNUZ] = {"float8_e5m2fnuz", "F8_E5M2FNUZ", NULL, 8, TSR_CLASS_FLOAT, 1},
    [TSR_FLOAT8_E8M0FNU] = {"float8_e8m0fnu", "F8_E8M0", NULL, 8, TSR_CLASS_FLOAT, 1},
    [TSR_FLOAT6_E2M3] = {"float6_e2m3", "F6_E2M3", NULL, 6, TSR_CLASS_FLOAT, 1},
    [TSR_FLOAT6_E3M2] = {"float6_e3m2", "F6_E3M2", NULL, 6, TSR_CLASS_FLOAT, 1},
    [TSR_FLOAT4_E2M1FN_X2] = {"float4_e2m1fn_x2", NULL, NULL, 8, TSR_CLASS_FLOAT, 1},
    [TSR_FLOAT4_E2M1FN] = {"float4_e2m1fn_x2", "F4", NULL, 4, TSR_CLASS_FLOAT, 1},
    [TSR_INT64] = {"int64", "I64", "LongStorage", 64, TSR_CLASS_INT, 8},
    [TSR_INT32] = {"int32", "I32", "IntStorage", 32, TSR_CLASS_INT, 4},
    [TSR_INT16] = {"int16", "I16", "ShortStorage", 16, TSR_CLASS_INT, 2},
    [TSR_INT8] = {"int8", "I8", "CharStorage", 8, TSR_CLASS_INT, 1},
    [TSR_UINT64] = {"uint64", "U64", NULL, 64, TSR_CLASS_UINT, 8},
    [TSR_UINT32] = {"uint32", "U32", NULL, 32, TSR_CLASS_UINT, 4},
    [TSR_UINT16] = {"uint16", "U16", NULL, 16, TSR_CLASS_UINT, 2},
    [TSR_UINT8] = {"uint8", "U8", "ByteStorage", 8, TSR_CLASS_UINT, 1},
    [TSR_BOOL] = {"bool", "BOOL", "BoolStorage", 8, TSR_CLASS_BOOL, 1},
    [TSR_COMPLEX32] = {"complex32", NULL, NULL, 32, TSR_CLASS_COMPLEX, 2},
    [TSR_BCOMPLEX32] = {"bcomplex32", NULL, NULL, 32, TSR_CLASS_COMPLEX, 2},
    [TSR_COMPLEX64] = {"complex64", "C64", "ComplexFloatStorage", 64, TSR_CLASS_COMPLEX, 4},
    [TSR_COMPLEX128] = {"complex128", NULL, "ComplexDoubleStorage", 128, TSR_CLASS_COMPLEX, 8},
    [TSR_QINT8] = {"qint8", NULL, "QInt8Storage", 8, TSR_CLASS_QUANTIZED, 1},
    [TSR_QUINT8] = {"quint8", NULL, "QUInt8Storage", 8, TSR_CLASS_QUANTIZED, 1},
    [TSR_QINT32] = {"qint32", NULL, "QInt32Storage", 32, TSR_CLASS_QUANTIZED, 4},
    [TSR_QUINT4X2] = {"quint4x2", NULL, "QUInt4x2Storage", 8, TSR_CLASS_QUANTIZED, 1},
    [TSR_QUINT2X4] = {"quint2x4", NULL, "QUInt2x4Storage", 8, TSR_CLASS_QUANTIZED, 1},
    [TSR_BITS8] = {"bits8", NULL, NULL, 8, TSR_CLASS_BITS, 1},
    [TSR_BITS16] = {"bits16", NULL, NULL, 16, TSR_CLASS_BITS, 2},
    [TSR_BITS1X8] = {"bits1x8", NULL, NULL, 8, TSR_CLASS_BITS, 1},
    [TSR_BITS2X4] = {"bits2x4", NULL, NULL, 8, TSR_CLASS_BITS, 1},
    [TSR_BITS4X2] = {"bits4x2", NULL, NULL, 8, TSR_CLASS_BITS, 1},
};

static bool is_name(tsr_str name, const char *known)
{
    return known && name.size == strlen(known) && memcmp(name.data, known, name.size) == 0;
}

const tsr_dtype_info *tsr_dtype_describe(tsr_dtype dtype)
{
    return &table[(unsigned)dtype < TSR_DTYPE_COUNT ? dtype : TSR_DTYPE_NONE];
}

tsr_dtype tsr_dtype_from_name(tsr_str name)
{
    tsr_str_skip(&name, TSR_STR("torch."));
    for (tsr_dtype d = TSR_DTYPE_NONE + 1; d < TSR_DTYPE_COUNT; d++)
        if (is_name(name, table[d].name)) return d;
    return TSR_DTYPE_NONE;
}

static bool is_name_in_any_case(tsr_str name, const char *known)
{
    if (!known || name.size != strlen(known)) return false;
    for (size_t i = 0; i < name.size; i++) {
        const char c = name.data[i], lower = c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
        const char k = known[i], known_lower = k >= 'A' && k <= 'Z' ? (char)(k - 'A' + 'a') : k;
        if (lower != known_lower) return false;
    }
    return true;
}

tsr_dtype tsr_dtype_from_text(tsr_str text)
{
    static const struct {
        const char *name;
        tsr_dtype dtype;
    } short_names[] = {{"double", TSR_FLOAT64}, {"float", TSR_FLOAT32}, {"half", TSR_FLOAT16},
                       {"fp64", TSR_FLOAT64},   {"fp32", TSR_FLOAT32},  {"fp16", TSR_FLOAT16},
                       {"long", TSR_INT64},     {"int", TSR_INT32},     {"short", TSR_INT16}};
    const tsr_dtype dtype = tsr_dtype_from_name(text);
    if (dtype != TSR_DTYPE_NONE) return dtype;
    for (size_t i = 0; i < sizeof short_names / sizeof *short_names; i++)
        if (is_name_in_any_case(text, short_names[i].name)) return short_names[i].dtype;
    for (tsr_dtype d = TSR_DTYPE_NONE + 1; d < TSR_DTYPE_COUNT; d++)
        if (is_name_in_any_case(text, table[d].safetensors_name) || is_name_in_any_case(text, table[d].name)) return d;
    return TSR_DTYPE_NONE;
}

tsr_dtype tsr_dtype_from_safetensors(tsr_str name)
{
    for (tsr_dtype d = TSR_DTYPE_NONE + 1; d < TSR_DTYPE_COUNT; d++)
        if (is_name(name, table[d].safetensors_name)) return d;
    return TSR_DTYPE_NONE;
}

tsr_dtype tsr_dtype_from_storage_class(tsr_str name)
{
    for (tsr_dtype d = TSR_DTYPE_NONE + 1; d < TSR_DTYPE_COUNT; d++)
        if (is_name(name, table[d].storage_class)) return d;
    return TSR_DTYPE_NONE;
}

bool tsr_dtype_pack(tsr_dtype *dtype, uint64_t *last_size)
{
    if (*dtype != TSR_FLOAT4_E2M1FN) return true;
    if (*last_size % 2) return false;
    *dtype = TSR_FLOAT4_E2M1FN_X2;
    *last_size /= 2;
    return true;
}

bool tsr_dtype_unpack(tsr_dtype *dtype, uint64_t *last_size)
{
    uint64_t twice;
    if (*dtype != TSR_FLOAT4_E2M1FN_X2) return true;
    if (!tsr_mul_u64(*last_size, 2, &twice)) return false;
    *dtype = TSR_FLOAT4_E2M1FN;
    *last_size = twice;
    return true;
}

uint32_t tsr_dtype_size(tsr_dtype dtype)
{
    unsigned bits = tsr_dtype_describe(dtype)->bits;
    return bits % 8 ? 0 : bits / 8;
}

bool tsr_dtype_bytes(tsr_dtype dtype, uint64_t elements, uint64_t *bytes)
{
    uint64_t bits;
    if (!tsr_mul_u64(elements, tsr_dtype_describe(dtype)->bits, &bits) || bits % 8) {
        uint32_t size = tsr_dtype_size(dtype);
        return size && tsr_mul_u64(elements, size, bytes);
    }
    *bytes = bits / 8;
    return true;
}

/* See tessera/torch_version.h. */

tsr_status tsr_torch_version_parse(tsr_str text, tsr_torch_version *out, tsr_error *err)
{
    uint32_t minor = 0;
    size_t at = 2;
    const bool numbered = text.size > 2 && text.data[0] == '2' && text.data[1] == '.';
    while (numbered && at < text.size && at < 5 && tsr_is_digit(text.data[at]))
        minor = 10 * minor + (uint32_t)(text.data[at++] - '0');
    const bool ends = numbered && at > 2 && (at == text.size || text.data[at] == '.' || text.data[at] == '+');
    if (!ends || minor < TSR_TORCH_OLDEST || minor > TSR_TORCH_NEWEST)
        return tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION,
                         "'%.*s' is not a supported version of PyTorch; choose one from 2.%d to 2.%d", TSR_STR_ARG(text),
                         TSR_TORCH_OLDEST, TSR_TORCH_NEWEST);
    *out = minor;
    return TSR_OK;
}

bool tsr_torch_version_has(tsr_torch_version version, tsr_dtype dtype)
{
    if (version == 0) return true;
    switch (dtype) {
    case TSR_FLOAT8_E8M0FNU: return version >= 7;
    case TSR_FLOAT4_E2M1FN:
    case TSR_FLOAT4_E2M1FN_X2: return version >= 8;
    case TSR_BCOMPLEX32: return version >= 14;
    default: return true;
    }
}
