/* Single elements as text. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "exec/numeric.h"
#include "tessera/document.h"

static int put_float(double value, bool is_double, char *out, size_t capacity)
{
    int size = 0;
    if (isnan(value)) return snprintf(out, capacity, "nan");
    for (int digits = 1; digits <= 17; digits++) {
        size = snprintf(out, capacity, "%.*g", digits, value);
        double back = strtod(out, NULL);
        if (is_double ? back == value : (float)back == (float)value) break;
    }
    return size;
}

static uint64_t load(const uint8_t *bytes, uint32_t size)
{
    uint64_t value = 0;
    for (uint32_t i = 0; i < size && i < 8; i++) value |= (uint64_t)bytes[i] << 8 * i;
    return value;
}

static void put_complex(tsr_dtype dtype, const uint8_t *element, char *out, size_t capacity)
{
    double parts[2];
    char imaginary[32];
    tsr_decode(tsr_dtype_part(dtype), element, 2, parts);
    bool is_double = dtype == TSR_COMPLEX128;
    put_float(parts[1], is_double, imaginary, sizeof imaginary);
    int used = snprintf(out, capacity, "(");
    used += put_float(parts[0], is_double, out + used, capacity - (size_t)used);
    snprintf(out + used, capacity - (size_t)used, "%s%sj)", *imaginary == '-' ? "" : "+", imaginary);
}

const char *tsr_element_text(tsr_dtype dtype, const uint8_t *element, char *out, size_t capacity)
{
    const uint32_t size = tsr_dtype_size(dtype);
    const uint64_t raw = load(element, size);
    const unsigned spare = 64 - 8 * (size && size <= 8 ? size : 8);
    double value;
    *out = '\0';
    switch (tsr_dtype_describe(dtype)->kind) {
    case TSR_CLASS_INT: snprintf(out, capacity, "%" PRId64, (int64_t)(raw << spare) >> spare); break;
    case TSR_CLASS_UINT: snprintf(out, capacity, "%" PRIu64, raw); break;
    case TSR_CLASS_BOOL: snprintf(out, capacity, "%s", raw ? "true" : "false"); break;
    case TSR_CLASS_COMPLEX: put_complex(dtype, element, out, capacity); break;
    case TSR_CLASS_FLOAT:
        if (tsr_dtype_is_numeric(dtype)) {
            tsr_decode(dtype, element, 1, &value);
            put_float(value, dtype == TSR_FLOAT64, out, capacity);
            break;
        }
        /* fall through */
    default:
        for (uint32_t i = 0; i < size; i++) snprintf(out + 2 * i, capacity - 2 * i, "%02x", element[i]);
    }
    return out;
}
