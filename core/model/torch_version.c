/* See tessera/torch_version.h. */
#include "tessera/torch_version.h"
#include "tessera/sys/catalog.h"

tsr_status tsr_torch_version_parse(tsr_str text, tsr_torch_version *out, tsr_error *err)
{
    uint32_t minor = 0;
    size_t at = 2;
    const bool numbered = text.size > 2 && text.data[0] == '2' && text.data[1] == '.';
    while (numbered && at < text.size && at < 5 && text.data[at] >= '0' && text.data[at] <= '9')
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
    default: return true;
    }
}
