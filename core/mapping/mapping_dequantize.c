/* Which entries are numbers and which are their scales. */
#include "base/try.h"
#include "mapping/mapped.h"
#include "tessera/sys/cast.h"

typedef struct finder {
    tsr_mapped *m;
    tsr_dtype dtype;
    uint64_t block[2];
    uint64_t found;
    tsr_error *err;
} finder;

/* The tensor that has the name of `of` with the ending `data` replaced by `other`, or NULL. */
static tsr_status find_sibling(const finder *f, tsr_str of, tsr_str data, const char *other, const tsr_entry **out)
{
    *out = NULL;
    if (!tsr_str_ends(of, data)) return TSR_OK;
    const tsr_str stem = {of.data, of.size - data.size};
    const tsr_str name = tsr_arena_format(f->m->own->arena, f->err, "%.*s%s", TSR_STR_ARG(stem), other);
    if (!name.data) return TSR_E_NOMEM;
    const tsr_entry *entry = tsr_checkpoint_entry(f->m->source, name);
    if (entry && entry->kind == TSR_ENTRY_TENSOR) *out = entry;
    return TSR_OK;
}

static bool holds_numbers(tsr_dtype dtype)
{
    return dtype == TSR_FLOAT8_E4M3FN || dtype == TSR_FLOAT8_E4M3FNUZ || dtype == TSR_FLOAT8_E5M2 || dtype == TSR_FLOAT8_E5M2FNUZ ||
           dtype == TSR_INT8;
}

/* The scale of float8 or int8 numbers, or NULL. */
static tsr_status find_scale(const finder *f, const tsr_entry *entry, const tsr_entry **scale)
{
    const tsr_entry *zero;
    *scale = NULL;
    if (entry->kind != TSR_ENTRY_TENSOR || !holds_numbers(entry->dtype)) return TSR_OK;
    TSR_TRY(find_sibling(f, entry->fqn, TSR_STR(""), "_scale_inv", scale));
    if (!*scale) TSR_TRY(find_sibling(f, entry->fqn, TSR_STR(""), "_scale", scale));
    if (*scale && !tsr_cast_possible((*scale)->dtype, TSR_FLOAT32)) *scale = NULL;
    if (!*scale) return TSR_OK;
    TSR_TRY(find_sibling(f, entry->fqn, TSR_STR(""), "_zero_point", &zero));
    TSR_FAIL_IF(zero, f->err, TSR_E_UNSUPPORTED, TSR_NO_POSITION, "'%.*s' has a zero point, '%.*s', which --dequantize does not support",
                TSR_STR_ARG(entry->fqn), TSR_STR_ARG(zero->fqn));
    return TSR_OK;
}

/* The scales of MXFP4 blocks, or NULL. */
static tsr_status find_mxfp4(const finder *f, const tsr_entry *entry, const tsr_entry **scales)
{
    *scales = NULL;
    const bool packed = entry->kind == TSR_ENTRY_TENSOR && entry->dtype == TSR_UINT8 && entry->rank >= 2;
    if (!packed || entry->shape[entry->rank - 1] != 16) return TSR_OK;
    TSR_TRY(find_sibling(f, entry->fqn, TSR_STR("_blocks"), "_scales", scales));
    if (*scales && (*scales)->dtype != TSR_UINT8) *scales = NULL;
    return TSR_OK;
}

static tsr_status misfit(const finder *f, const tsr_entry *entry, const tsr_entry *scale)
{
    tsr_mapped_tensor a = {.ndim = entry->rank}, b = {.ndim = scale->rank};
    a.shape = (uint64_t *)(uintptr_t)entry->shape;
    b.shape = (uint64_t *)(uintptr_t)scale->shape;
    return tsr_raise(f->err, TSR_E_FORMAT, TSR_NO_POSITION, "the scale '%.*s' %s does not fit '%.*s' %s", TSR_STR_ARG(scale->fqn),
                     tsr_shape_of(&b).text, TSR_STR_ARG(entry->fqn), tsr_shape_of(&a).text);
}

/* How many of `size` elements share one of `scales` scales; 0: they do not fit. `block` is the size of a block along this dim. */
static uint64_t share(uint64_t size, uint64_t scales, uint64_t block, bool groups)
{
    if (scales == 1) return size ? size : 1;
    if (scales == size) return 1;
    if (scales == size / block + (size % block != 0)) return block;
    return groups && scales && size % scales == 0 ? size / scales : 0;
}

/* The scale is one number, one per row, or has the dims of the numbers. */
static tsr_status set_blocks(const finder *f, const tsr_entry *entry, const tsr_entry *scale, tsr_computed *file)
{
    uint64_t count, matrices = 1;
    const uint32_t ndim = entry->rank;
    if (!tsr_entry_elements(scale, &count) || !count) return misfit(f, entry, scale);
    file->columns = ndim ? entry->shape[ndim - 1] : 1;
    file->rows = ndim > 1 ? entry->shape[ndim - 2] : 1;
    const bool per_row = scale->rank == 1 && ndim == 2 && count == file->rows;
    if (count != 1 && !per_row && (scale->rank != ndim || !ndim)) return misfit(f, entry, scale);
    for (uint32_t d = 0; d + 2 < ndim; d++) {
        if (count != 1 && scale->shape[d] != entry->shape[d]) return misfit(f, entry, scale);
        matrices *= entry->shape[d];
    }
    if (count == 1) file->rows *= matrices;
    file->scale_columns = count == 1 || per_row ? 1 : scale->shape[ndim - 1];
    file->scale_rows = per_row ? count : count == 1 || ndim < 2 ? 1 : scale->shape[ndim - 2];
    file->block_rows = share(file->rows, file->scale_rows, f->block[0], false);
    file->block_columns = share(file->columns, file->scale_columns, f->block[1], true);
    return file->block_rows && file->block_columns ? TSR_OK : misfit(f, entry, scale);
}

/* An entry of the source for reading through the mapped store. */
static tsr_status borrow(const finder *f, const tsr_entry *entry, const tsr_entry **out)
{
    tsr_mapped_tensor tensor;
    tsr_entry *copy = TSR_ARENA_NEW(f->m->own->arena, tsr_entry, f->err);
    if (!copy) return TSR_E_NOMEM;
    *out = copy;
    TSR_TRY(tsr_boxes_of_entry(&f->m->maker, entry, &tensor));
    return tsr_mapped_entry(f->m, &tensor, entry, entry->fqn, copy, f->err);
}

static tsr_status add_row(finder *f, const tsr_entry *entry, const tsr_entry *scale, uint64_t order, const tsr_mapped_tensor *tensor)
{
    const tsr_entry **sources = tsr_arena_array(f->m->own->arena, 2, sizeof *sources, f->err);
    tsr_mapped_row *row = sources ? tsr_vec_push(&f->m->rows, f->err) : NULL;
    if (!row) return TSR_E_NOMEM;
    sources[0] = entry;
    sources[1] = scale;
    *row = (tsr_mapped_row){.order = order, .sources = sources, .source_count = 2};
    f->found++;
    return tsr_mapped_entry(f->m, tensor, entry, tensor->name, &row->entry, f->err);
}

static tsr_status multiply(finder *f, const tsr_entry *entry, const tsr_entry *scale, uint64_t order)
{
    uint32_t number;
    tsr_computed file = {.kind = TSR_COMPUTED_SCALED, .dtype = f->dtype};
    TSR_TRY(set_blocks(f, entry, scale, &file));
    TSR_TRY(borrow(f, entry, &file.input));
    TSR_TRY(borrow(f, scale, &file.scale));
    TSR_FAIL_IF(!tsr_entry_elements(entry, &file.elements), f->err, TSR_E_LIMIT, TSR_NO_POSITION, "'%.*s' has too many elements",
                TSR_STR_ARG(entry->fqn));
    tsr_computed *added = tsr_mapped_add_file(f->m, f->dtype, &number, f->err);
    if (!added) return TSR_E_NOMEM;
    *added = file;
    tsr_mapped_tensor tensor = {.name = entry->fqn, .dtype = f->dtype, .ndim = entry->rank};
    tensor.shape = (uint64_t *)(uintptr_t)entry->shape;
    TSR_TRY(tsr_boxes_of_file(&f->m->maker, number, false, &tensor));
    return add_row(f, entry, scale, order, &tensor);
}

/* [experts, rows, groups, 16] pairs become [experts, rows, 32 · groups]. */
static tsr_status unpack(finder *f, const tsr_entry *entry, const tsr_entry *scales, uint64_t order)
{
    uint32_t number;
    const uint32_t ndim = entry->rank - 1;
    uint64_t *shape = tsr_arena_array(f->m->own->arena, ndim, sizeof *shape, f->err);
    tsr_computed file = {.kind = TSR_COMPUTED_MXFP4, .dtype = f->dtype};
    if (!shape) return TSR_E_NOMEM;
    if (scales->rank != ndim || memcmp(scales->shape, entry->shape, ndim * sizeof *shape) != 0) return misfit(f, entry, scales);
    memcpy(shape, entry->shape, ndim * sizeof *shape);
    TSR_FAIL_IF(shape[ndim - 1] > UINT64_MAX / 32, f->err, TSR_E_LIMIT, TSR_NO_POSITION, "'%.*s' has too many elements",
                TSR_STR_ARG(entry->fqn));
    shape[ndim - 1] *= 32;
    const tsr_entry whole = {.shape = shape, .rank = ndim};
    TSR_FAIL_IF(!tsr_entry_elements(&whole, &file.elements), f->err, TSR_E_LIMIT, TSR_NO_POSITION, "'%.*s' has too many elements",
                TSR_STR_ARG(entry->fqn));
    TSR_TRY(borrow(f, entry, &file.input));
    TSR_TRY(borrow(f, scales, &file.scale));
    tsr_computed *added = tsr_mapped_add_file(f->m, f->dtype, &number, f->err);
    if (!added) return TSR_E_NOMEM;
    *added = file;
    const size_t ending = sizeof "_blocks" - 1;
    tsr_mapped_tensor tensor = {{entry->fqn.data, entry->fqn.size - ending}, f->dtype, ndim, shape, NULL, 0};
    TSR_TRY(tsr_boxes_of_file(&f->m->maker, number, false, &tensor));
    return add_row(f, entry, scales, order, &tensor);
}

/* Whether the entry is the scale of numbers that are dequantized. */
static tsr_status is_used_scale(const finder *f, const tsr_entry *entry, bool *is)
{
    static const char *const endings[] = {"_scale_inv", "_scale"};
    const tsr_entry *data, *scale;
    *is = false;
    if (entry->kind != TSR_ENTRY_TENSOR) return TSR_OK;
    for (unsigned i = 0; i < 2 && !*is; i++) {
        TSR_TRY(find_sibling(f, entry->fqn, tsr_str_from(endings[i]), "", &data));
        if (!data) continue;
        TSR_TRY(find_scale(f, data, &scale));
        *is = scale == entry;
    }
    if (*is) return TSR_OK;
    TSR_TRY(find_sibling(f, entry->fqn, TSR_STR("_scales"), "_blocks", &data));
    if (!data) return TSR_OK;
    TSR_TRY(find_mxfp4(f, data, &scale));
    *is = scale == entry;
    return TSR_OK;
}

static tsr_status add_entry(finder *f, const tsr_entry *entry, uint64_t order)
{
    const tsr_entry *scale;
    bool is_scale;
    TSR_TRY(find_scale(f, entry, &scale));
    if (scale) return multiply(f, entry, scale, order);
    TSR_TRY(find_mxfp4(f, entry, &scale));
    if (scale) return unpack(f, entry, scale, order);
    TSR_TRY(is_used_scale(f, entry, &is_scale));
    return is_scale ? TSR_OK : tsr_mapped_keep(f->m, entry, order, f->err);
}

tsr_status tsr_mapped_dequantize(tsr_mapped *m, tsr_dtype dtype, tsr_error *err)
{
    finder f = {.m = m, .dtype = dtype, .err = err};
    const tsr_catalog *catalog = &m->source->catalog;
    TSR_FAIL_IF(!tsr_cast_possible(TSR_FLOAT32, dtype), err, TSR_E_USAGE, TSR_NO_POSITION, "scaled numbers cannot become %s",
                tsr_dtype_describe(dtype)->name);
    TSR_TRY(tsr_mapped_block(m, f.block, err));
    for (uint64_t i = 0; i < catalog->entry_count; i++) TSR_TRY(add_entry(&f, &catalog->entries[i], i));
    TSR_FAIL_IF(!f.found, err, TSR_E_UNSUPPORTED, TSR_NO_POSITION,
                "--dequantize: there are no float8, int8 or MXFP4 tensors with scales in the checkpoint");
    return TSR_OK;
}
