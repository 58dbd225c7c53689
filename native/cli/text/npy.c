/* magic 6 bytes | version 2 | length 2 (1.0) or 4 (2.0) | "{'descr': …, 'fortran_order': False, 'shape': (…), }" spaces \n
 *   padded to a multiple of 64 bytes. */
#include "cli/text/npy.h"

#include <inttypes.h>
#include <stdio.h>

/* NumPy's name for a dtype ("<f4"); NULL if NumPy has no such dtype (bfloat16, float8, …). */
static const char *descr_of(tsr_dtype dtype)
{
    switch (dtype) {
    case TSR_FLOAT64: return "<f8";
    case TSR_FLOAT32: return "<f4";
    case TSR_FLOAT16: return "<f2";
    case TSR_INT64: return "<i8";
    case TSR_INT32: return "<i4";
    case TSR_INT16: return "<i2";
    case TSR_INT8: return "|i1";
    case TSR_UINT64: return "<u8";
    case TSR_UINT32: return "<u4";
    case TSR_UINT16: return "<u2";
    case TSR_UINT8: return "|u1";
    case TSR_BOOL: return "|b1";
    case TSR_COMPLEX64: return "<c8";
    case TSR_COMPLEX128: return "<c16";
    default: return NULL;
    }
}

tsr_status cli_npy_header(tsr_dtype dtype, uint32_t ndim, const uint64_t *shape, tsr_arena *arena, tsr_str *out,
                          tsr_error *err)
{
    const char *descr = descr_of(dtype);
    if (!descr) {
        return tsr_raise(err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
                         "NumPy has no dtype for %s; name the output .bin to write raw bytes",
                         tsr_dtype_describe(dtype)->name);
    }
    size_t room = 128 + (size_t)ndim * 22, used;
    char *text = tsr_arena_array(arena, room + 64, 1, err);
    if (!text) return TSR_E_NOMEM;
    used = (size_t)snprintf(text, room, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
    for (uint32_t d = 0; d < ndim; d++)
        used += (size_t)snprintf(text + used, room - used, "%" PRIu64 "%s", shape[d],
                                 d + 1 < ndim ? ", "
                                 : ndim == 1  ? ","
                                              : "");
    used += (size_t)snprintf(text + used, room - used, "), }");
    size_t prefix = used + 10 + 1 + 63 <= 65535 ? 10 : 12; /* magic, version, length */
    size_t total = (prefix + used + 1 + 63) / 64 * 64, length = total - prefix;
    char *header = tsr_arena_array(arena, total, 1, err);
    if (!header) return TSR_E_NOMEM;
    memcpy(header, prefix == 10 ? "\x93NUMPY\x01\x00" : "\x93NUMPY\x02\x00", 8);
    for (size_t i = 8; i < prefix; i++) header[i] = (char)(length >> 8 * (i - 8));
    memcpy(header + prefix, text, used);
    memset(header + prefix + used, ' ', total - prefix - used - 1);
    header[total - 1] = '\n';
    *out = (tsr_str){header, total};
    return TSR_OK;
}
