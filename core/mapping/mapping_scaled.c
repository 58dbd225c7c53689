/* Numbers times scales, while they are read. */
#include "base/try.h"
#include "mapping/mapped.h"
#include "tessera/read.h"
#include "tessera/sys/cast.h"
#include "tessera/sys/read_run.h"

/* Elements [first, first + count) of an entry as float32; `bytes` has room for them. */
static tsr_status read_floats(tsr_mapped *m, const tsr_entry *entry, const tsr_run *run, uint8_t *bytes, float *out, tsr_error *err)
{
    TSR_TRY(tsr_read_run(m->own, entry, run, bytes, (size_t)run->count * tsr_dtype_size(entry->dtype), err));
    if (entry->dtype == TSR_INT8)
        for (uint64_t i = 0; i < run->count; i++) out[i] = (float)(int8_t)bytes[i];
    else tsr_cast(entry->dtype, TSR_FLOAT32, bytes, (size_t)run->count, (uint8_t *)out);
    return TSR_OK;
}

/* Which scales elements of row `row`, from `column` on, have: the index of the first, as the scale's rows follow each other. */
static uint64_t scale_at(const tsr_computed *file, uint64_t row, uint64_t column)
{
    const uint64_t matrix = row / file->rows, inside = row % file->rows;
    return (matrix * file->scale_rows + inside / file->block_rows) * file->scale_columns + column / file->block_columns;
}

static void multiply(const tsr_computed *file, const tsr_run *run, const float *scales, uint64_t first_scale, float *out)
{
    const size_t count = (size_t)run->count;
    uint64_t row = run->first / file->columns, column = run->first % file->columns;
    for (size_t i = 0; i < count; row++, column = 0) {
        for (; i < count && column < file->columns; i++, column++) out[i] *= scales[scale_at(file, row, column) - first_scale];
    }
}

static tsr_status read_scaled(tsr_mapped *m, const tsr_computed *file, const tsr_run *run, uint8_t *input, float *out,
                              tsr_error *err)
{
    TSR_TRY(read_floats(m, file->input, run, input, out, err));
    const uint64_t first = run->first, last = first + run->count - 1, columns = file->columns, begin_row = first / columns,
                   end_row = last / columns;
    /* Rows that are there from end to end need the scales from the first column to the last. */
    const uint64_t low = scale_at(file, begin_row, begin_row == end_row ? first % columns : 0);
    const uint64_t high = scale_at(file, end_row, begin_row == end_row ? last % columns : columns - 1);
    const tsr_run needed = {.first = low, .count = high - low + 1};
    const tsr_allocator *allocator = m->own->host->allocator;
    const size_t itemsize = tsr_dtype_size(file->scale->dtype) + sizeof(float);
    float *scales = tsr_alloc(allocator, (size_t)needed.count, itemsize, err);
    if (!scales) return TSR_E_NOMEM;
    const tsr_status status = read_floats(m, file->scale, &needed, (uint8_t *)(scales + needed.count), scales, err);
    if (status == TSR_OK) multiply(file, run, scales, low, out);
    tsr_free(allocator, scales, (size_t)needed.count, itemsize);
    return status;
}

/* Powers of two from 2^-127 to 2^128: the exponent is a byte, biased by 127. */
static float power_of_two(uint8_t exponent)
{
    float value;
    tsr_cast(TSR_FLOAT8_E8M0FNU, TSR_FLOAT32, &exponent, 1, (uint8_t *)&value);
    return value;
}

enum { MXFP4_GROUP = 32, NVFP4_GROUP = 16 };

static const float e2m1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

static tsr_status read_mxfp4(tsr_mapped *m, const tsr_computed *file, const tsr_run *run, uint8_t *input, float *out,
                             tsr_error *err)
{
    const uint64_t first = run->first, end = first + run->count, first_scale = first / MXFP4_GROUP;
    const tsr_run pairs = {.first = first / 2, .count = (end + 1) / 2 - first / 2};
    const tsr_run exponents = {.first = first_scale, .count = (end - 1) / MXFP4_GROUP + 1 - first_scale};
    uint8_t *scales = input + pairs.count;
    TSR_TRY(tsr_read_run(m->own, file->input, &pairs, input, (size_t)pairs.count, err));
    TSR_TRY(tsr_read_run(m->own, file->scale, &exponents, scales, (size_t)exponents.count, err));
    for (uint64_t i = first; i < end; i++) {
        const unsigned nibble = input[i / 2 - pairs.first] >> (i % 2 ? 4 : 0) & 15;
        out[i - first] = e2m1[nibble] * power_of_two(scales[i / MXFP4_GROUP - first_scale]);
    }
    return TSR_OK;
}

static void multiply_group(const uint8_t *pairs, float scale, float *out)
{
    for (unsigned i = 0; i < NVFP4_GROUP / 2; i++) {
        out[2 * i] = e2m1[pairs[i] & 15] * scale;
        out[2 * i + 1] = e2m1[pairs[i] >> 4] * scale;
    }
}

/* Elements [first, first + count) of one `tensor_scale`. The scale of a group is rounded to float32 before a number is multiplied by it,
 * as torchao does and, with the division, compressed-tensors. */
static tsr_status read_nvfp4_run(tsr_mapped *m, const tsr_computed *file, const tsr_run *part, uint8_t *input, float *out, tsr_error *err)
{
    const uint64_t first = part->first, end = first + part->count, first_scale = first / NVFP4_GROUP;
    const tsr_run pairs = {.first = first / 2, .count = (end + 1) / 2 - first / 2};
    const tsr_run groups = {.first = first_scale, .count = (end - 1) / NVFP4_GROUP + 1 - first_scale};
    const tsr_run one = {.first = first / file->tensor_elements, .count = 1};
    uint8_t *scales = input + pairs.count, number[sizeof(float)];
    float factor, scale;
    TSR_TRY(read_floats(m, file->tensor_scale, &one, number, &factor, err));
    TSR_TRY(tsr_read_run(m->own, file->input, &pairs, input, (size_t)pairs.count, err));
    TSR_TRY(tsr_read_run(m->own, file->scale, &groups, scales, (size_t)groups.count, err));
    for (uint64_t i = first; i < end;) {
        const uint64_t group = i / NVFP4_GROUP, stop = (group + 1) * NVFP4_GROUP < end ? (group + 1) * NVFP4_GROUP : end;
        tsr_cast(TSR_FLOAT8_E4M3FN, TSR_FLOAT32, &scales[group - first_scale], 1, (uint8_t *)&scale);
        scale = file->divides ? scale / factor : scale * factor;
        const uint8_t *pair = input + (i / 2 - pairs.first);
        if (stop - i == NVFP4_GROUP) multiply_group(pair, scale, out + (i - first)), i = stop;
        for (; i < stop; i++) out[i - first] = e2m1[input[i / 2 - pairs.first] >> (i % 2 ? 4 : 0) & 15] * scale;
    }
    return TSR_OK;
}

static tsr_status read_nvfp4(tsr_mapped *m, const tsr_computed *file, const tsr_run *run, uint8_t *input, float *out,
                             tsr_error *err)
{
    for (uint64_t first = run->first, end = first + run->count; first < end;) {
        const uint64_t left = file->tensor_elements - first % file->tensor_elements;
        const tsr_run part = {.first = first, .count = left < end - first ? left : end - first};
        TSR_TRY(read_nvfp4_run(m, file, &part, input, out, err));
        first += part.count, out += part.count;
    }
    return TSR_OK;
}

tsr_status tsr_mapped_scaled(tsr_mapped *m, const tsr_computed *file, const tsr_run *run, uint8_t *input, float *out,
                             tsr_error *err)
{
    if (file->kind == TSR_COMPUTED_MXFP4) return read_mxfp4(m, file, run, input, out, err);
    if (file->kind == TSR_COMPUTED_NVFP4) return read_nvfp4(m, file, run, input, out, err);
    return read_scaled(m, file, run, input, out, err);
}
