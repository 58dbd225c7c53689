/* Numbers times scales, while they are read. */
#include "mapping/mapped.h"
#include "tessera/read.h"
#include "tessera/sys/cast.h"
#include "tessera/sys/read_run.h"
#include "tessera/sys/try.h"

/* Elements [first, first + count) of an entry as float32; `bytes` has room for them. */
static tsr_status read_floats(tsr_mapped *m, const tsr_entry *entry, const tsr_run *run, uint8_t *bytes, float *out, tsr_error *err)
{
    const bool floats = entry->dtype == TSR_FLOAT32;
    const size_t count = (size_t)run->count;
    TSR_TRY(tsr_read_run(m->own, entry, run, floats ? (uint8_t *)out : bytes, count * tsr_dtype_size(entry->dtype), err));
    if (entry->dtype == TSR_INT8)
        for (size_t i = 0; i < count; i++) out[i] = (float)(int8_t)bytes[i];
    else if (!floats) tsr_cast(entry->dtype == TSR_UINT8 ? TSR_FLOAT8_E8M0FNU : entry->dtype, TSR_FLOAT32, bytes, count, (uint8_t *)out);
    return TSR_OK;
}

/* Which scales elements of row `row`, from `column` on, have: the index of the first, as the scale's rows follow each other. */
static uint64_t scale_at(const tsr_computed *file, uint64_t row, uint64_t column)
{
    const uint64_t matrix = row / file->rows, inside = row % file->rows;
    return (matrix * file->scale_rows + inside / file->block_rows) * file->scale_columns + column / file->block_columns;
}

/* Elements of one row, from `column` on, times the scales of their blocks; `scales`: from that of the first one on. */
static void multiply_row(const tsr_computed *file, uint64_t column, size_t count, const float *scales, float *out)
{
    for (size_t i = 0, next; i < count; i = next, scales++) {
        const uint64_t left = file->block_columns - (column + i) % file->block_columns;
        const float scale = *scales;
        for (next = left < count - i ? i + (size_t)left : count; i < next; i++) out[i] *= scale;
    }
}

static void multiply(const tsr_computed *file, const tsr_run *run, const float *scales, uint64_t first_scale, float *out)
{
    uint64_t row = run->first / file->columns, column = run->first % file->columns;
    for (uint64_t done = 0, count; done < run->count; done += count, row++, column = 0) {
        count = run->count - done < file->columns - column ? run->count - done : file->columns - column;
        multiply_row(file, column, (size_t)count, scales + (scale_at(file, row, column) - first_scale), out + done);
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

enum { MXFP4_GROUP = 32, NVFP4_GROUP = 16 };

#define E2M1_EACH(with) \
    with(0) with(0.5f) with(1) with(1.5f) with(2) with(3) with(4) with(6) with(-0.0f) with(-0.5f) with(-1) with(-1.5f) \
        with(-2) with(-3) with(-4) with(-6)
#define E2M1_PAIRS(second) \
    {0, second}, {0.5f, second}, {1, second}, {1.5f, second}, {2, second}, {3, second}, {4, second}, {6, second}, \
        {-0.0f, second}, {-0.5f, second}, {-1, second}, {-1.5f, second}, {-2, second}, {-3, second}, {-4, second}, \
        {-6, second},

/* The two numbers of each byte; the first one is in the low half. */
static const float e2m1[256][2] = {E2M1_EACH(E2M1_PAIRS)};

/* Numbers in packed bytes, and the scales of their groups as float32. */
typedef struct packed_run {
    const uint8_t *pairs; /* from the byte on that has number `first` */
    const float *scales;  /* from the scale of number `first` on */
    uint64_t first, end;
    unsigned group;
} packed_run;

static void multiply_group(const uint8_t *pairs, unsigned count, float scale, float *out)
{
    for (unsigned i = 0; i < count / 2; i++) {
        out[2 * i] = e2m1[pairs[i]][0] * scale;
        out[2 * i + 1] = e2m1[pairs[i]][1] * scale;
    }
}

static void multiply_packed(const packed_run *run, float *out)
{
    const uint64_t first_pair = run->first / 2, first_group = run->first / run->group;
    for (uint64_t i = run->first; i < run->end;) {
        const uint64_t group = i / run->group, edge = (group + 1) * run->group, stop = edge < run->end ? edge : run->end;
        const float scale = run->scales[group - first_group];
        if (stop - i == run->group) {
            multiply_group(run->pairs + (i / 2 - first_pair), run->group, scale, out + (i - run->first));
            i = stop;
        }
        for (; i < stop; i++) out[i - run->first] = e2m1[run->pairs[i / 2 - first_pair]][i % 2] * scale;
    }
}

/* The scales of groups and that of their tensor, rounded to float32 before a number is multiplied by them, as torchao does and, with the
 * division, compressed-tensors. `first`: the first element, whose tensor scale all have. */
static tsr_status scale_groups(tsr_mapped *m, const tsr_computed *file, uint64_t first, float *scales, size_t count,
                               tsr_error *err)
{
    const tsr_run one = {.first = first / file->tensor_elements, .count = 1};
    float factor;
    TSR_TRY(read_floats(m, file->tensor_scale, &one, NULL, &factor, err)); /* it is float32 */
    for (size_t i = 0; i < count; i++) scales[i] = file->divides ? scales[i] / factor : scales[i] * factor;
    return TSR_OK;
}

/* `input` has room for 8 bytes per element. */
static tsr_status read_packed(tsr_mapped *m, const tsr_computed *file, const tsr_run *run, uint8_t *input, float *out,
                              tsr_error *err)
{
    const bool mxfp4 = file->kind == TSR_COMPUTED_MXFP4;
    packed_run packed = {.first = run->first, .end = run->first + run->count, .group = mxfp4 ? MXFP4_GROUP : NVFP4_GROUP};
    const uint64_t first_group = packed.first / packed.group;
    const tsr_run pairs = {.first = packed.first / 2, .count = (packed.end + 1) / 2 - packed.first / 2};
    const tsr_run groups = {.first = first_group, .count = (packed.end - 1) / packed.group + 1 - first_group};
    float *scales = (float *)(void *)input;
    uint8_t *stored = (uint8_t *)(scales + groups.count), *bytes = stored + groups.count;
    TSR_TRY(tsr_read_run(m->own, file->scale, &groups, stored, (size_t)groups.count, err));
    TSR_TRY(tsr_read_run(m->own, file->input, &pairs, bytes, (size_t)pairs.count, err));
    tsr_cast(mxfp4 ? TSR_FLOAT8_E8M0FNU : TSR_FLOAT8_E4M3FN, TSR_FLOAT32, stored, (size_t)groups.count, (uint8_t *)scales);
    if (file->tensor_scale) TSR_TRY(scale_groups(m, file, packed.first, scales, (size_t)groups.count, err));
    packed.pairs = bytes;
    packed.scales = scales;
    multiply_packed(&packed, out);
    return TSR_OK;
}

/* Runs of elements that have one tensor scale. */
static tsr_status read_nvfp4(tsr_mapped *m, const tsr_computed *file, const tsr_run *run, uint8_t *input, float *out,
                             tsr_error *err)
{
    for (uint64_t first = run->first, end = first + run->count; first < end;) {
        const uint64_t left = file->tensor_elements - first % file->tensor_elements;
        const tsr_run part = {.first = first, .count = left < end - first ? left : end - first};
        TSR_TRY(read_packed(m, file, &part, input, out, err));
        first += part.count, out += part.count;
    }
    return TSR_OK;
}

tsr_status tsr_mapped_scaled(tsr_mapped *m, const tsr_computed *file, const tsr_run *run, uint8_t *input, float *out,
                             tsr_error *err)
{
    if (file->kind == TSR_COMPUTED_MXFP4) return read_packed(m, file, run, input, out, err);
    if (file->kind == TSR_COMPUTED_NVFP4) return read_nvfp4(m, file, run, input, out, err);
    return read_scaled(m, file, run, input, out, err);
}
