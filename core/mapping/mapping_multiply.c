/* Finds out how the shape of a scale fits that of its numbers: by tensor, row, group or block, MXFP4 or NVFP4. */
#include "mapping/mapped.h"
#include "mapping/mapping_match.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

bool tsr_mapped_is_scalable(tsr_dtype dtype)
{
    return dtype == TSR_FLOAT8_E4M3FN || dtype == TSR_FLOAT8_E4M3FNUZ || dtype == TSR_FLOAT8_E5M2 ||
           dtype == TSR_FLOAT8_E5M2FNUZ || dtype == TSR_INT8;
}

/* Whether a scale may have this dtype: anything that can be cast to float32, and uint8, in which MXFP8 checkpoints store the
 * exponents of E8M0. */
static bool mapped_is_scale(tsr_dtype dtype)
{
    return dtype == TSR_UINT8 || tsr_cast_possible(dtype, TSR_FLOAT32);
}

bool tsr_mapped_is_packed_mxfp4(const tsr_entry *entry, const tsr_entry *scales)
{
    const uint32_t ndim = entry->ndim;
    const bool exponents = scales->dtype == TSR_FLOAT8_E8M0FNU || scales->dtype == TSR_UINT8;
    if ((entry->dtype != TSR_INT8 && entry->dtype != TSR_UINT8) || !exponents || ndim < 2 || scales->ndim != ndim)
        return false;
    if (memcmp(scales->shape, entry->shape, (ndim - 1) * sizeof *scales->shape) != 0) return false;
    return entry->shape[ndim - 1] % 16 == 0 && scales->shape[ndim - 1] == entry->shape[ndim - 1] / 16;
}

static tsr_status misfit(const tsr_entry *entry, const tsr_entry *scale, tsr_error *err)
{
    tsr_mapped_tensor a = {.ndim = entry->ndim}, b = {.ndim = scale->ndim};
    a.shape = (uint64_t *)(uintptr_t)entry->shape;
    b.shape = (uint64_t *)(uintptr_t)scale->shape;
    return tsr_fail(err, TSR_E_FORMAT, "the scale '%.*s' %s does not fit '%.*s' %s", TSR_STR_ARG(scale->fqn),
                    tsr_shape_of(&b).text, TSR_STR_ARG(entry->fqn), tsr_shape_of(&a).text);
}

static uint64_t count_blocks(uint64_t size, uint64_t block)
{
    return size / block + (size % block != 0);
}

/* Returns how many of `size` elements share one of `scales` scales, or 0 if they do not fit. `block` is the size of a block
 * along this dim. Equal groups of any size are accepted if `groups` is true. */
static uint64_t share(uint64_t size, uint64_t scales, uint64_t block, bool groups)
{
    if (scales == 1) return size ? size : 1;
    if (scales == size) return 1;
    if (scales == count_blocks(size, block)) return block;
    return groups && scales && size % scales == 0 ? size / scales : 0;
}

/* Accepts a scale with one number, with one per row, or with as many dims as the numbers have. */
static bool set_blocks(const tsr_scaling *how, const tsr_entry *entry, const tsr_entry *scale, tsr_computed *file)
{
    uint64_t count, matrices = 1;
    const uint32_t ndim = entry->ndim;
    if (!tsr_entry_elements(scale, &count) || !count) return false;
    file->columns = ndim ? entry->shape[ndim - 1] : 1;
    file->rows = ndim > 1 ? entry->shape[ndim - 2] : 1;
    const bool per_row = scale->ndim == 1 && ndim == 2 && count == file->rows;
    if (count != 1 && !per_row && (scale->ndim != ndim || !ndim)) return false;
    for (uint32_t d = 0; d + 2 < ndim; d++) {
        if (count != 1 && scale->shape[d] != entry->shape[d]) return false;
        matrices *= entry->shape[d];
    }
    if (count == 1) file->rows *= matrices;
    file->scale_columns = count == 1 || per_row ? 1 : scale->shape[ndim - 1];
    file->scale_rows = per_row ? count : count == 1 || ndim < 2 ? 1 : scale->shape[ndim - 2];
    file->block_rows = share(file->rows, file->scale_rows, how->block[0], false);
    file->block_columns = share(file->columns, file->scale_columns, how->block[1], true);
    return file->block_rows && file->block_columns;
}

/* Whether the blocks are those of the scheme. */
static bool follows_scheme(const tsr_scaling *how, const tsr_computed *file)
{
    switch (how->scheme) {
    case TSR_SCALES_BLOCK:
        return file->scale_rows == count_blocks(file->rows, how->block[0]) &&
               file->scale_columns == count_blocks(file->columns, how->block[1]);
    case TSR_SCALES_ROW: return file->scale_rows == file->rows && file->scale_columns == 1;
    case TSR_SCALES_TENSOR: return file->scale_rows == 1 && file->scale_columns == 1;
    default: return true;
    }
}

/* Makes an entry of the source readable through the mapped store. */
static tsr_status borrow(tsr_mapped *m, const tsr_entry *entry, const tsr_entry **out, tsr_error *err)
{
    tsr_mapped_tensor tensor;
    tsr_entry *copy = TSR_ARENA_NEW(m->own->arena, tsr_entry, err);
    if (!copy) return TSR_E_NOMEM;
    *out = copy;
    TSR_TRY(tsr_boxes_of_entry(&m->maker, entry, &tensor));
    return tsr_mapped_entry(m, &tensor, entry, entry->fqn, copy, err);
}

/* Adds the file that computes the products. The name, shape and dtype of `out` must be set. */
static tsr_status add_file(tsr_mapped *m, const tsr_computed *file, tsr_mapped_tensor *out, tsr_error *err)
{
    uint32_t number;
    const tsr_entry whole = {.shape = out->shape, .ndim = out->ndim};
    tsr_computed *added = tsr_mapped_add_file(m, out->dtype, &number, err);
    if (!added) return TSR_E_NOMEM;
    *added = *file;
    TSR_FAIL_IF(!tsr_entry_elements(&whole, &added->elements), err, TSR_E_LIMIT, "'%.*s' has too many elements",
                TSR_STR_ARG(out->name));
    return tsr_boxes_of_file(&m->maker, number, false, out);
}

static tsr_status multiply(const tsr_scaling *how, tsr_computed *file, tsr_mapped_tensor *out, tsr_error *err)
{
    const tsr_entry *entry = file->input, *scale = file->scale;
    TSR_FAIL_IF(how->affine ? !tsr_mapped_is_integer(entry->dtype) : !tsr_mapped_is_scalable(entry->dtype), err,
                TSR_E_FORMAT, "'%.*s' is %s, but only float8 and int8 numbers are multiplied by a scale",
                TSR_STR_ARG(entry->fqn), tsr_dtype_describe(entry->dtype)->name);
    TSR_FAIL_IF(!mapped_is_scale(scale->dtype), err, TSR_E_FORMAT, "'%.*s' is %s, which cannot be a scale",
                TSR_STR_ARG(scale->fqn), tsr_dtype_describe(scale->dtype)->name);
    if (!set_blocks(how, entry, scale, file) || !follows_scheme(how, file)) return misfit(entry, scale, err);
    *out = (tsr_mapped_tensor){.name = entry->fqn, .dtype = how->dtype, .ndim = entry->ndim};
    out->shape = (uint64_t *)(uintptr_t)entry->shape;
    return TSR_OK;
}

/* Sets the shape and the name of unpacked numbers. The sizes are those of `like`, except the last one, which is multiplied
 * by `group`. `ending` is removed from the name, because only packed numbers have it. */
static tsr_status name_unpacked(tsr_mapped *m, const tsr_entry *like, uint64_t group, const char *ending,
                                tsr_mapped_tensor *out, tsr_error *err)
{
    const uint32_t ndim = like->ndim;
    uint64_t *shape = tsr_arena_array(m->own->arena, ndim, sizeof *shape, err);
    if (!shape) return TSR_E_NOMEM;
    memcpy(shape, like->shape, ndim * sizeof *shape);
    TSR_FAIL_IF(shape[ndim - 1] > UINT64_MAX / group, err, TSR_E_LIMIT, "'%.*s' has too many elements",
                TSR_STR_ARG(like->fqn));
    shape[ndim - 1] *= group;
    out->ndim = ndim;
    out->shape = shape;
    if (tsr_str_ends(out->name, tsr_str_from(ending))) out->name.size -= strlen(ending);
    return TSR_OK;
}

/* Pairs [experts, rows, groups, 16] become [experts, rows, 32 · groups], and so do the same pairs as [experts, rows,
 * 16 · groups]. */
static tsr_status unpack_mxfp4(tsr_mapped *m, const tsr_scaling *how, tsr_computed *file, tsr_mapped_tensor *out,
                               tsr_error *err)
{
    const tsr_entry *entry = file->input, *scales = file->scale;
    const uint32_t ndim = entry->ndim ? entry->ndim - 1 : 0;
    const bool packed = ndim && entry->dtype == TSR_UINT8 && scales->dtype == TSR_UINT8 && entry->shape[ndim] == 16;
    const bool fits =
        packed && scales->ndim == ndim && memcmp(scales->shape, entry->shape, ndim * sizeof *scales->shape) == 0;
    if (!fits && !tsr_mapped_is_packed_mxfp4(entry, scales)) return misfit(entry, scales, err);
    file->kind = TSR_COMPUTED_MXFP4;
    *out = (tsr_mapped_tensor){.name = entry->fqn, .dtype = how->dtype};
    return name_unpacked(m, scales, 32, tsr_str_ends(out->name, TSR_STR("_packed")) ? "_packed" : "_blocks", out, err);
}

/* Accepts no scale for the tensor, one number, or one per expert in torchao's shape [experts, 1, 1]. */
static bool set_tensor_scale(const tsr_entry *entry, tsr_computed *file)
{
    const tsr_entry *scale = file->tensor_scale;
    uint64_t count = 1, elements;
    if ((scale && !tsr_entry_elements(scale, &count)) || !tsr_entry_elements(entry, &elements) || elements > UINT64_MAX / 2)
        return false;
    if (count != 1 && (entry->ndim != 3 || scale->ndim != 3 || count != entry->shape[0] || scale->shape[0] != count))
        return false;
    file->tensor_elements = elements && count ? 2 * elements / count : 1;
    return true;
}

/* Pairs [rows, 8 · groups] with scales [rows, groups] become [rows, 16 · groups]. */
static tsr_status unpack_nvfp4(tsr_mapped *m, const tsr_scaling *how, tsr_computed *file, tsr_mapped_tensor *out,
                               tsr_error *err)
{
    const tsr_entry *entry = file->input, *scales = file->scale;
    const uint32_t ndim = entry->ndim;
    TSR_FAIL_IF(entry->dtype != TSR_UINT8 || scales->dtype != TSR_FLOAT8_E4M3FN, err, TSR_E_FORMAT,
                "'%.*s' is %s with scales '%.*s' in %s, but NVFP4 is uint8 with scales in float8_e4m3fn",
                TSR_STR_ARG(entry->fqn), tsr_dtype_describe(entry->dtype)->name, TSR_STR_ARG(scales->fqn),
                tsr_dtype_describe(scales->dtype)->name);
    TSR_FAIL_IF(how->tensor_scale && how->tensor_scale->dtype != TSR_FLOAT32, err, TSR_E_FORMAT,
                "'%.*s' is %s, but the scale of an NVFP4 tensor is float32", TSR_STR_ARG(how->tensor_scale->fqn),
                tsr_dtype_describe(how->tensor_scale->dtype)->name);
    const bool fits =
        ndim >= 2 && scales->ndim == ndim && memcmp(scales->shape, entry->shape, (ndim - 1) * sizeof *scales->shape) == 0;
    if (!fits || entry->shape[ndim - 1] % 8 || scales->shape[ndim - 1] != entry->shape[ndim - 1] / 8)
        return misfit(entry, scales, err);
    file->kind = TSR_COMPUTED_NVFP4;
    file->tensor_scale = how->tensor_scale;
    file->divides = how->divides;
    if (!set_tensor_scale(entry, file)) return misfit(entry, how->tensor_scale, err);
    *out = (tsr_mapped_tensor){.name = entry->fqn, .dtype = how->dtype};
    return name_unpacked(m, scales, 16, "_packed", out, err);
}

static tsr_status choose(tsr_mapped *m, const tsr_scaling *how, tsr_computed *file, tsr_mapped_tensor *out, tsr_error *err)
{
    if (how->scheme == TSR_SCALES_MXFP4) return unpack_mxfp4(m, how, file, out, err);
    if (how->scheme == TSR_SCALES_NVFP4) return unpack_nvfp4(m, how, file, out, err);
    return multiply(how, file, out, err);
}

tsr_status tsr_mapped_multiply(tsr_mapped *m, const tsr_scaling *how, const tsr_entry *entry, const tsr_entry *scale,
                               tsr_mapped_tensor *out, tsr_error *err)
{
    tsr_computed file = {.kind = TSR_COMPUTED_SCALED,
                         .dtype = how->dtype,
                         .input = entry,
                         .scale = scale,
                         .zero = how->zero,
                         .computed_in = how->computed_in,
                         .tiled = how->tiled,
                         .rounds_scales = how->rounds_scales};
    TSR_TRY(choose(m, how, &file, out, err));
    if (file.tiled) file.scale_columns = scale->shape[scale->ndim - 1];
    TSR_TRY(borrow(m, entry, &file.input, err));
    TSR_TRY(borrow(m, how->stored_scale ? how->stored_scale : scale, &file.scale, err));
    if (file.tensor_scale) TSR_TRY(borrow(m, file.tensor_scale, &file.tensor_scale, err));
    if (file.zero) TSR_TRY(borrow(m, file.zero, &file.zero, err));
    return add_file(m, &file, out, err);
}

/* ---- companions ---- */

/* Finds scales by their names. The dtype also matters: bfloat16 numbers are the weights themselves, whatever is next to
 * them. */

/* clang-format off */
const tsr_companion tsr_companions[] = {
    {"",         "_scale_inv",             TSR_IN_BYTES,    false, true},  /* DeepSeek, transformers' finegrained_fp8 */
    {"",         "_scale",                 TSR_IN_BYTES,    false, true},  /* compressed-tensors, fbgemm, ModelOpt, ComfyUI's newer files */
    {"weight",   "scale_weight",           TSR_IN_BYTES,    false, true},  /* ComfyUI */
    {"weight",   "qscale_weight",          TSR_IN_BYTES,    false, true},  /* Mistral */
    {"weight",   "scale",                  TSR_IN_BYTES,    false, true},  /* DeepSeek's own files */
    {"",         "_scale_2",               TSR_IN_BYTES,    false, false}, /* ModelOpt's NVFP4 */
    {"",         "_scales",                TSR_IN_BYTES,    false, false}, /* EETQ */
    {"",         ".absmax",                TSR_IN_BYTES,    false, false}, /* bitsandbytes, 4 bits */
    {"",         ".quant_state.bitsandbytes__nf4", TSR_IN_ANY, false, false}, /* under the dtype of its quant_storage */
    {"",         ".quant_state.bitsandbytes__fp4", TSR_IN_ANY, false, false},
    {"weight",   "SCB",                    TSR_IN_BYTES,    false, false}, /* bitsandbytes, 8 bits */
    {"_blocks",  "_scales",                TSR_IN_BYTES,    false, false}, /* MXFP4 of gpt-oss */
    {"_packed",  "_scale",                 TSR_IN_INTEGERS, false, false}, /* compressed-tensors */
    {"_packed",  "_global_scale",          TSR_IN_INTEGERS, false, false}, /* its NVFP4 */
    {"weight_packed", "weight_shape",      TSR_IN_INTEGERS, true,  false},
    {"_data",    "_scale",                 TSR_IN_BYTES,    false, false}, /* quanto */
    {"_qdata",   "_scale",                 TSR_IN_BYTES,    false, false}, /* torchao in safetensors */
    {"qweight",  "scales",                 TSR_IN_INTEGERS, false, false}, /* GPTQ, AWQ */
    {"qweight",  "qzeros",                 TSR_IN_INTEGERS, true,  false},
    {"weight",   "scales",                 TSR_IN_INTEGERS, false, false}, /* MLX, gpt-fast */
    {"weight",   "weights_scaling_factor", TSR_IN_BYTES,    false, false}, /* TensorRT-LLM */
    {"W_q",      "scale",                  TSR_IN_INTEGERS, false, false}, /* HQQ */
    {"state1",   "absmax1",                TSR_IN_BYTES,    false, false}, /* bitsandbytes' optimizers */
    {"state2",   "absmax2",                TSR_IN_BYTES,    false, false},
};
/* clang-format on */
const size_t tsr_companion_count = sizeof tsr_companions / sizeof tsr_companions[0];

static bool may_hold(tsr_dtype dtype, tsr_companion_dtypes dtypes)
{
    if (dtypes == TSR_IN_ANY) return true;
    switch (dtype) {
    case TSR_FLOAT8_E4M3FN:
    case TSR_FLOAT8_E4M3FNUZ:
    case TSR_FLOAT8_E5M2:
    case TSR_FLOAT8_E5M2FNUZ:
    case TSR_FLOAT8_E8M0FNU:
    case TSR_FLOAT6_E2M3:
    case TSR_FLOAT6_E3M2:
    case TSR_FLOAT4_E2M1FN_X2:
    case TSR_FLOAT4_E2M1FN:
    case TSR_INT8:
    case TSR_UINT8: return true;
    case TSR_INT16:
    case TSR_INT32:
    case TSR_UINT32: return dtypes == TSR_IN_INTEGERS;
    default: return false;
    }
}

static bool is_pair(const tsr_entry *data, const tsr_entry *scale, const tsr_companion *companion)
{
    const bool tensors = data->kind == TSR_ENTRY_TENSOR && scale->kind == TSR_ENTRY_TENSOR;
    return tensors && may_hold(data->dtype, companion->dtypes) && (companion->packed || mapped_is_scale(scale->dtype));
}

tsr_status tsr_companion_named(const tsr_checkpoint *checkpoint, tsr_str fqn, const char *from, const char *to,
                               tsr_vec *text, const tsr_entry **out, tsr_error *err)
{
    const tsr_str old = tsr_str_from(from), new = tsr_str_from(to);
    *out = NULL;
    if (!tsr_str_ends(fqn, old)) return TSR_OK;
    const size_t stem = fqn.size - old.size;
    text->count = 0;
    TSR_TRY(tsr_vec_reserve(text, stem + new.size, err));
    if (stem) memcpy(text->items, fqn.data, stem);
    if (new.size) memcpy((char *)text->items + stem, new.data, new.size);
    *out = tsr_checkpoint_entry(checkpoint, (tsr_str){text->items, stem + new.size});
    return TSR_OK;
}

tsr_status tsr_companion_scale(const tsr_checkpoint *checkpoint, const tsr_entry *data, const tsr_companion *companion,
                               tsr_vec *text, const tsr_entry **out, tsr_error *err)
{
    *out = NULL;
    if (data->kind != TSR_ENTRY_TENSOR || !may_hold(data->dtype, companion->dtypes)) return TSR_OK;
    TSR_TRY(tsr_companion_named(checkpoint, data->fqn, companion->data, companion->scale, text, out, err));
    if (*out && !is_pair(data, *out, companion)) *out = NULL;
    return TSR_OK;
}

tsr_status tsr_companion_data(const tsr_checkpoint *checkpoint, const tsr_entry *scale, const tsr_companion *companion,
                              tsr_vec *text, const tsr_entry **out, tsr_error *err)
{
    *out = NULL;
    TSR_TRY(tsr_companion_named(checkpoint, scale->fqn, companion->scale, companion->data, text, out, err));
    if (*out && !is_pair(*out, scale, companion)) *out = NULL;
    return TSR_OK;
}
