/* Options about dtypes: --dtype, --raw-cast and --for-torch. */
#include "tessera/convert.h"
#include "tessera/sys/cast.h"
#include "tessera/sys/casts.h"
#include "tessera/sys/dtype_forms.h"
#include "tessera/sys/options.h"
#include "tessera/sys/scaled.h"
#include "tessera/sys/try.h"

tsr_status tsr_check_cast_target(tsr_dtype dtype, tsr_error *err)
{
    const bool known = dtype == TSR_DTYPE_NONE || tsr_cast_possible(dtype, dtype);
    TSR_FAIL_IF(!known, err, TSR_E_USAGE, "tensors can only be cast to floating-point types, not to %s",
                tsr_dtype_describe(dtype)->name);
    return TSR_OK;
}

static bool is_wanted(const void *ctx, tsr_str fqn)
{
    const tsr_convert_options *options = ctx;
    return !options->want || options->want(options->want_ctx, fqn);
}

tsr_status tsr_check_casts(tsr_checkpoint *checkpoint, const tsr_convert_options *options, tsr_error *err)
{
    tsr_convert_options own;
    TSR_TRY(TSR_OPTIONS_COPY(&own, options, tsr_convert_options, err));
    TSR_TRY(tsr_check_cast_target(own.dtype, err));
    const tsr_arithmetic cast = {.selection = {is_wanted, &own}, .dtype = own.dtype};
    return own.dtype == TSR_DTYPE_NONE || own.raw_cast ? TSR_OK : tsr_check_arithmetic(checkpoint, &cast, err);
}

tsr_status tsr_cast_parse(tsr_str dtype, bool raw_cast, tsr_dtype *out, tsr_error *err)
{
    *out = dtype.data ? tsr_dtype_from_text(dtype) : TSR_DTYPE_NONE;
    TSR_FAIL_IF(dtype.data && *out == TSR_DTYPE_NONE, err, TSR_E_USAGE,
                "unknown dtype '%.*s'; choose a floating-point dtype such as float32, bfloat16, float16 or float8_e4m3fn",
                TSR_STR_ARG(dtype));
    TSR_FAIL_IF(raw_cast && !dtype.data, err, TSR_E_USAGE, "--raw-cast needs --dtype");
    return TSR_OK;
}

tsr_status tsr_for_torch_parse(tsr_str version, tsr_container to, tsr_torch_version *out, tsr_error *err)
{
    *out = 0;
    if (!version.data) return TSR_OK;
    TSR_FAIL_IF(to == TSR_TO_SAFETENSORS, err, TSR_E_USAGE,
                "--for-torch cannot be used with --to safetensors, whose files are the same for every version");
    return tsr_torch_version_parse(version, out, err);
}
