/* Formats single elements as text. */
#include <inttypes.h>

#include "base/cursor.h"
#include "base/line.h"
#include "stream/numeric.h"
#include "tessera/sys/cast.h"
#include "tessera/sys/document.h"
#include "tessera/sys/document_text.h"

static void put_number(tsr_line *line, tsr_dtype dtype, const uint8_t *element)
{
    double value;
    tsr_decode(dtype, element, 1, &value);
    tsr_line_real(line, value, dtype != TSR_FLOAT64);
}

static void put_complex(tsr_line *line, tsr_dtype dtype, const uint8_t *element)
{
    const tsr_dtype part = tsr_dtype_part(dtype);
    char imaginary[48];
    tsr_line second = tsr_line_on(imaginary, sizeof imaginary);
    put_number(&second, part, element + tsr_dtype_size(part));
    tsr_line_put(line, "(", 1);
    put_number(line, part, element);
    tsr_line_format(line, "%s%sj)", *imaginary == '-' ? "" : "+", imaginary);
}

static int64_t sign_extended(uint64_t raw, uint32_t size)
{
    const uint64_t sign = (uint64_t)1 << (8 * size - 1);
    return (int64_t)((raw ^ sign) - sign);
}

const char *tsr_element_text(tsr_dtype dtype, const uint8_t *element, char *out, size_t capacity)
{
    const tsr_dtype_class kind = tsr_dtype_describe(dtype)->kind;
    const uint32_t size = tsr_dtype_size(dtype);
    tsr_line line = tsr_line_on(out, capacity);
    if (kind == TSR_CLASS_INT) tsr_line_format(&line, "%" PRId64, sign_extended(tsr_load_le(element, size), size));
    else if (kind == TSR_CLASS_UINT) tsr_line_format(&line, "%" PRIu64, tsr_load_le(element, size));
    else if (kind == TSR_CLASS_BOOL) tsr_line_format(&line, "%s", *element ? "true" : "false");
    else if (kind == TSR_CLASS_COMPLEX) put_complex(&line, dtype, element);
    else if (kind == TSR_CLASS_FLOAT && tsr_dtype_is_numeric(dtype)) put_number(&line, dtype, element);
    else
        for (uint32_t i = 0; i < size; i++) tsr_line_format(&line, "%02x", element[i]);
    return out;
}
