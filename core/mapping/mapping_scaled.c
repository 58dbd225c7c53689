/* Computes the elements of a mapped checkpoint's files when they are read: casts them, or multiplies numbers by their scales. */
#include "mapping/mapped.h"
#include "mapping/mapping_packed.h"
#include "tessera/read.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

enum { NUMBERS = 256 };

/* The scales that a run of elements needs, in float32. `first` is the index of the first one. */
typedef struct scales_of_run {
    float *values, *zeros; /* zeros is NULL if there are none */
    uint64_t first;
    size_t count, itemsize;
} scales_of_run;

/* Unpacks pairs of 4-bit numbers into elements of 2 bytes without converting them to float32 first. A scale of one byte has
 * only 16 products, which are computed when the scale first occurs. Zero one before its first use, and use it
 * for one file. A run may have at most UNPACKED_ELEMENTS elements. */
enum { UNPACKED_ELEMENTS = 1 << 17, UNPACKED_INPUT = UNPACKED_ELEMENTS };
typedef struct unpacking {
    uint64_t tensor; /* the number of the tensor scale that the products contain */
    bool made[256];  /* by the stored byte of the scale */
    uint16_t products[256][16];
    uint16_t zeros[256], overflows[256]; /* which of the 16 products were lost, one bit each */
    bool lossy;                          /* whether any was */
    tsr_lossy range;                     /* products that the cast loses; its dtype is set when it is known */
    uint8_t *input;                      /* UNPACKED_INPUT bytes, aligned for float */
} unpacking;

bool tsr_mapped_is_integer(tsr_dtype dtype)
{
    return dtype == TSR_INT8 || dtype == TSR_UINT8 || dtype == TSR_INT32 || dtype == TSR_INT64;
}

/* Integers as float32, which holds all of them that numbers and zero points are; those beyond 2^24 are rounded. */
static void integers_to_floats(tsr_dtype dtype, const uint8_t *bytes, size_t count, float *out)
{
    for (size_t i = 0; i < count; i++) {
        int32_t word;
        int64_t wide;
        switch (dtype) {
        case TSR_INT8: out[i] = (float)(int8_t)bytes[i]; break;
        case TSR_UINT8: out[i] = (float)bytes[i]; break;
        case TSR_INT32: memcpy(&word, bytes + i * sizeof word, sizeof word), out[i] = (float)word; break;
        default: memcpy(&wide, bytes + i * sizeof wide, sizeof wide), out[i] = (float)wide; break;
        }
    }
}

/* Reads a run of an entry's elements as float32. `bytes` must have room for them as they are stored. */
static tsr_status read_floats(tsr_mapped *m, const tsr_entry *entry, const tsr_run *run, uint8_t *bytes, float *out,
                              tsr_error *err)
{
    const bool floats = entry->dtype == TSR_FLOAT32;
    const size_t count = (size_t)run->count;
    TSR_TRY(tsr_read_run(m->own, entry, run, floats ? (uint8_t *)out : bytes, count * tsr_dtype_size(entry->dtype), err));
    if (floats) return TSR_OK;
    if (tsr_mapped_is_integer(entry->dtype)) integers_to_floats(entry->dtype, bytes, count, out);
    else tsr_cast(entry->dtype, TSR_FLOAT32, bytes, count, (uint8_t *)out);
    return TSR_OK;
}

enum { TILE_ROWS = 128, TILE_COLUMNS = 4, TILE_BYTES = TILE_ROWS * TILE_COLUMNS };

/* Where a scale is in its tile: rows 0, 32, 64 and 96 are next to each other, then 1, 33, 65 and 97, and so on. */
static size_t place_in_tile(uint64_t row, uint64_t column)
{
    return (size_t)(row % 32 * 16 + row % TILE_ROWS / 32 * TILE_COLUMNS + column % TILE_COLUMNS);
}

/* Reads a run of scales of one byte out of their tiles, which follow each other row by row. */
static tsr_status read_tiles(tsr_mapped *m, const tsr_computed *file, const tsr_run *run, uint8_t *out, tsr_error *err)
{
    const uint64_t columns = file->scale_columns, width = (columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
    uint64_t row = run->first / columns, column = run->first % columns;
    const uint64_t last = run->first + run->count - 1, last_row = last / columns;
    uint64_t low = row / TILE_ROWS * width, high = (last_row / TILE_ROWS + 1) * width;
    if (row == last_row) high = low + last % columns / TILE_COLUMNS + 1, low += column / TILE_COLUMNS;
    const tsr_run tiles = {.first = low * TILE_BYTES, .count = (high - low) * TILE_BYTES};
    uint8_t *bytes = tsr_alloc(m->own->host->allocator, (size_t)tiles.count, 1, err);
    if (!bytes) return TSR_E_NOMEM;
    const tsr_status status = tsr_read_run(m->own, file->scale, &tiles, bytes, (size_t)tiles.count, err);
    for (size_t i = 0; i < run->count && status == TSR_OK; i++) {
        const uint64_t tile = row / TILE_ROWS * width + column / TILE_COLUMNS - low;
        out[i] = bytes[tile * TILE_BYTES + place_in_tile(row, column)];
        if (++column == columns) column = 0, row++;
    }
    tsr_free(m->own->host->allocator, bytes, (size_t)tiles.count, 1);
    return status;
}

/* Reads scales as they are stored, in their own order. */
static tsr_status read_stored_scales(tsr_mapped *m, const tsr_computed *file, const tsr_run *run, uint8_t *out,
                                     tsr_error *err)
{
    if (file->tiled) return read_tiles(m, file, run, out, err);
    return tsr_read_run(m->own, file->scale, run, out, (size_t)run->count * tsr_dtype_size(file->scale->dtype), err);
}

/* Reads scales. Those in uint8 are the exponents of E8M0. */
static tsr_status read_scales(tsr_mapped *m, const tsr_computed *file, const tsr_run *run, uint8_t *bytes, float *out,
                              tsr_error *err)
{
    const tsr_dtype stored = file->scale->dtype, dtype = stored == TSR_UINT8 ? TSR_FLOAT8_E8M0FNU : stored;
    if (tsr_dtype_size(stored) != 1) return read_floats(m, file->scale, run, bytes, out, err);
    TSR_TRY(read_stored_scales(m, file, run, bytes, err));
    tsr_cast(dtype, TSR_FLOAT32, bytes, (size_t)run->count, (uint8_t *)out);
    return TSR_OK;
}

/* Rounds to the numbers that a dtype has. */
static void round_to(tsr_dtype dtype, float *values, size_t count)
{
    uint8_t narrow[NUMBERS * sizeof(float)];
    if (dtype == TSR_FLOAT32) return;
    for (size_t i = 0, n; i < count; i += n) {
        n = count - i < NUMBERS ? count - i : NUMBERS;
        tsr_cast(TSR_FLOAT32, dtype, (const uint8_t *)(values + i), n, narrow);
        tsr_cast(dtype, TSR_FLOAT32, narrow, n, (uint8_t *)(values + i));
    }
}

/* The dtype of differences and products in the library. */
static tsr_dtype computed_in(const tsr_computed *file)
{
    return file->computed_in == TSR_DTYPE_NONE ? file->dtype : file->computed_in;
}

/* (number - zero) · scale; `zero` is NULL if there is none. */
static void multiply_numbers(const tsr_computed *file, float *values, size_t count, const float *zero, float scale)
{
    const bool exact = file->zero && file->zero->dtype == TSR_INT8 && file->input->dtype == TSR_INT8;
    if (zero)
        for (size_t i = 0; i < count; i++) values[i] -= *zero;
    if (zero && !exact) round_to(computed_in(file), values, count);
    for (size_t i = 0; i < count; i++) values[i] *= scale;
    if (computed_in(file) != file->dtype) round_to(computed_in(file), values, count);
}

/* Returns the index of the scale of an element; scales are numbered row by row. `row` counts the rows of all matrices. */
static uint64_t scale_at(const tsr_computed *file, uint64_t row, uint64_t column)
{
    const uint64_t matrix = row / file->rows, inside = row % file->rows;
    return (matrix * file->scale_rows + inside / file->block_rows) * file->scale_columns + column / file->block_columns;
}

/* Multiplies elements of one row, from `column` on, by the scales of their blocks. `scales` and `zeros`, which may be NULL,
 * begin with those of the first element. */
static void multiply_row(const tsr_computed *file, uint64_t column, size_t count, const float *scales, const float *zeros,
                         float *out)
{
    const bool plain = !zeros && computed_in(file) == file->dtype;
    for (size_t i = 0, next, block = 0; i < count; i = next, block++) {
        const uint64_t left = file->block_columns - (column + i) % file->block_columns;
        const float scale = scales[block];
        next = left < count - i ? i + (size_t)left : count;
        if (!plain) multiply_numbers(file, out + i, next - i, zeros ? &zeros[block] : NULL, scale);
        else
            for (; i < next; i++) out[i] *= scale;
    }
}

static void multiply(const tsr_computed *file, const tsr_run *run, const scales_of_run *scales, float *out)
{
    uint64_t row = run->first / file->columns, column = run->first % file->columns;
    for (uint64_t done = 0, count; done < run->count; done += count, row++, column = 0) {
        count = run->count - done < file->columns - column ? run->count - done : file->columns - column;
        const uint64_t at = scale_at(file, row, column) - scales->first;
        const float *zeros = scales->zeros ? scales->zeros + at : NULL;
        multiply_row(file, column, (size_t)count, scales->values + at, zeros, out + done);
    }
}

static void scales_close(const tsr_mapped *m, const scales_of_run *scales);

/* Reads scales and zeros into memory for both as float32, and for either as it is stored, which is at most 8 bytes each. */
static tsr_status scales_read(tsr_mapped *m, const tsr_computed *file, const tsr_run *needed, scales_of_run *out,
                              tsr_error *err)
{
    float *zeros = out->values + out->count;
    uint8_t *stored = (uint8_t *)(zeros + out->count);
    TSR_TRY(read_scales(m, file, needed, stored, out->values, err));
    if (file->rounds_scales) round_to(computed_in(file), out->values, out->count);
    if (!file->zero) return TSR_OK;
    TSR_TRY(read_floats(m, file->zero, needed, stored, zeros, err));
    round_to(computed_in(file), zeros, out->count);
    out->zeros = zeros;
    return TSR_OK;
}

static tsr_status scales_open(tsr_mapped *m, const tsr_computed *file, const tsr_run *run, scales_of_run *out,
                              tsr_error *err)
{
    const uint64_t first = run->first, last = first + run->count - 1, columns = file->columns, begin_row = first / columns,
                   end_row = last / columns;
    /* Rows that are there from end to end need the scales from the first column to the last. */
    const uint64_t low = scale_at(file, begin_row, begin_row == end_row ? first % columns : 0);
    const uint64_t high = scale_at(file, end_row, begin_row == end_row ? last % columns : columns - 1);
    const tsr_run needed = {.first = low, .count = high - low + 1};
    const tsr_allocator *allocator = m->own->host->allocator;
    *out = (scales_of_run){.first = low, .count = (size_t)needed.count, .itemsize = 2 * sizeof(float) + sizeof(int64_t)};
    out->values = tsr_alloc(allocator, out->count, out->itemsize, err);
    if (!out->values) return TSR_E_NOMEM;
    const tsr_status status = scales_read(m, file, &needed, out, err);
    if (status != TSR_OK) scales_close(m, out);
    return status;
}

static void scales_close(const tsr_mapped *m, const scales_of_run *scales)
{
    tsr_free(m->own->host->allocator, scales->values, scales->count, scales->itemsize);
}

static tsr_status read_scaled(tsr_mapped *m, const tsr_computed *file, const tsr_run *run, uint8_t *input, float *out,
                              tsr_error *err)
{
    scales_of_run scales;
    TSR_TRY(read_floats(m, file->input, run, input, out, err));
    TSR_TRY(scales_open(m, file, run, &scales, err));
    multiply(file, run, &scales, out);
    scales_close(m, &scales);
    return TSR_OK;
}

enum { MXFP4_GROUP = 32, NVFP4_GROUP = 16, E2M1_NUMBERS = 16 };

#define E2M1_EACH(with) \
    with(0) with(0.5f) with(1) with(1.5f) with(2) with(3) with(4) with(6) with(-0.0f) with(-0.5f) with(-1) with(-1.5f) \
        with(-2) with(-3) with(-4) with(-6)
#define E2M1_PAIRS(second) \
    {0, second}, {0.5f, second}, {1, second}, {1.5f, second}, {2, second}, {3, second}, {4, second}, {6, second}, \
        {-0.0f, second}, {-0.5f, second}, {-1, second}, {-1.5f, second}, {-2, second}, {-3, second}, {-4, second}, \
        {-6, second},

/* The two numbers in each byte; the first one is in the low half. */
static const float e2m1[256][2] = {E2M1_EACH(E2M1_PAIRS)};

/* Packed numbers and the scales of their groups: as they are stored, and memory for the scales as float32. */
typedef struct packed_run {
    const uint8_t *pairs;  /* from the byte that contains number `first` */
    const uint8_t *stored; /* from the scale of number `first` */
    float *scales;
    size_t group_count;
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

/* Converts stored scales of groups to float32. They are combined with the tensor's scale and rounded to float32 before
 * numbers are multiplied by them, as in torchao and, with the division, in compressed-tensors. All these groups share the
 * tensor scale of element `first`. */
static tsr_status cast_scales(tsr_mapped *m, const tsr_computed *file, uint64_t first, tsr_str stored, float *out,
                              tsr_error *err)
{
    const tsr_dtype dtype = file->kind == TSR_COMPUTED_MXFP4 ? TSR_FLOAT8_E8M0FNU : TSR_FLOAT8_E4M3FN;
    tsr_cast(dtype, TSR_FLOAT32, (const uint8_t *)stored.data, stored.size, (uint8_t *)out);
    if (file->rounds_scales) round_to(computed_in(file), out, stored.size);
    if (!file->tensor_scale) return TSR_OK;
    const tsr_run one = {.first = first / file->tensor_elements, .count = 1};
    float factor;
    TSR_TRY(read_floats(m, file->tensor_scale, &one, NULL, &factor, err)); /* it is float32 */
    for (size_t i = 0; i < stored.size; i++) out[i] = file->divides ? out[i] / factor : out[i] * factor;
    return TSR_OK;
}

/* Reads packed numbers and their scales. `input` has 8 bytes per element, or UNPACKED_INPUT bytes for at most
 * UNPACKED_ELEMENTS elements. */
static tsr_status read_stored(tsr_mapped *m, const tsr_computed *file, const tsr_run *run, uint8_t *input, packed_run *out,
                              tsr_error *err)
{
    const unsigned group = file->kind == TSR_COMPUTED_MXFP4 ? MXFP4_GROUP : NVFP4_GROUP;
    const uint64_t end = run->first + run->count, first_group = run->first / group;
    const tsr_run pairs = {.first = run->first / 2, .count = (end + 1) / 2 - run->first / 2};
    const tsr_run groups = {.first = first_group, .count = (end - 1) / group + 1 - first_group};
    const size_t group_count = (size_t)groups.count;
    uint8_t *stored = input + group_count * sizeof(float), *bytes = stored + group_count;
    *out = (packed_run){.pairs = bytes,
                        .stored = stored,
                        .scales = (float *)(void *)input,
                        .group_count = group_count,
                        .first = run->first,
                        .end = end,
                        .group = group};
    TSR_TRY(read_stored_scales(m, file, &groups, stored, err));
    return tsr_read_run(m->own, file->input, &pairs, bytes, (size_t)pairs.count, err);
}

/* Returns how many elements at the beginning of a run share one tensor scale. */
static uint64_t in_one_tensor(const tsr_computed *file, uint64_t first, uint64_t count)
{
    const uint64_t left = file->tensor_scale ? file->tensor_elements - first % file->tensor_elements : count;
    return left < count ? left : count;
}

static tsr_status read_packed(tsr_mapped *m, const tsr_computed *file, const tsr_run *run, uint8_t *input, float *out,
                              tsr_error *err)
{
    packed_run packed;
    const uint64_t end = run->first + run->count;
    for (tsr_run part = *run; part.first < end; part.first += part.count) {
        part.count = in_one_tensor(file, part.first, end - part.first);
        TSR_TRY(read_stored(m, file, &part, input, &packed, err));
        const tsr_str stored = {(const char *)packed.stored, packed.group_count};
        TSR_TRY(cast_scales(m, file, part.first, stored, packed.scales, err));
        multiply_packed(&packed, out + (part.first - run->first));
    }
    return TSR_OK;
}

/* Whether the file can be unpacked by tables of 16 products. */
static bool unpacks(const tsr_computed *file)
{
    const bool packed = file->kind == TSR_COMPUTED_MXFP4 || file->kind == TSR_COMPUTED_NVFP4;
    return packed && tsr_dtype_size(file->dtype) == sizeof(uint16_t);
}

/* All E2M1 numbers. They are volatile because gcc would compute the product of a number that it knows to be negative as the
 * negated product of the positive one, which also negates a NaN. */
static const volatile uint8_t all_pairs[E2M1_NUMBERS / 2] = {0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe};

/* Notes which products of a scale the cast lost. */
static void note_losses(const tsr_computed *file, const float *exact, uint8_t scale, unpacking *u)
{
    tsr_cast_losses all = {.zeros = 0};
    u->zeros[scale] = u->overflows[scale] = 0;
    if (u->range.from == TSR_DTYPE_NONE) u->range = tsr_lossy_of(TSR_FLOAT32, file->dtype);
    tsr_count_losses(&u->range, (const uint8_t *)exact, E2M1_NUMBERS, &all);
    if (!all.zeros && !all.overflows) return;
    u->lossy = true;
    for (unsigned i = 0; i < E2M1_NUMBERS; i++) {
        tsr_cast_losses one = {.zeros = 0};
        tsr_count_losses(&u->range, (const uint8_t *)&exact[i], 1, &one);
        u->zeros[scale] |= (uint16_t)(one.zeros << i);
        u->overflows[scale] |= (uint16_t)(one.overflows << i);
    }
}

/* Computes the products of each scale that occurs for the first time. */
static tsr_status make_products(tsr_mapped *m, const tsr_computed *file, const packed_run *packed, unpacking *u,
                                tsr_error *err)
{
    const uint64_t tensor = file->tensor_scale ? packed->first / file->tensor_elements : 0;
    uint8_t pairs[E2M1_NUMBERS / 2];
    for (size_t i = 0; i < sizeof pairs; i++) pairs[i] = all_pairs[i];
    if (u->tensor != tensor) memset(u->made, 0, sizeof u->made);
    u->tensor = tensor;
    for (size_t g = 0; g < packed->group_count; g++) {
        const uint8_t scale = packed->stored[g];
        float factor, exact[E2M1_NUMBERS];
        if (u->made[scale]) continue;
        TSR_TRY(cast_scales(m, file, packed->first, (tsr_str){(const char *)&packed->stored[g], 1}, &factor, err));
        multiply_group(pairs, E2M1_NUMBERS, factor, exact);
        tsr_cast(TSR_FLOAT32, file->dtype, (const uint8_t *)exact, E2M1_NUMBERS, (uint8_t *)u->products[scale]);
        note_losses(file, exact, scale, u);
        u->made[scale] = true;
    }
    return TSR_OK;
}

static void look_up_group(const uint8_t *pairs, unsigned count, const uint16_t *products, uint8_t *out)
{
    for (unsigned i = 0; i < count / 2; i++) {
        const uint16_t two[2] = {products[pairs[i] & 15], products[pairs[i] >> 4]};
        memcpy(out + i * sizeof two, two, sizeof two);
    }
}

void tsr_look_up_pairs(const tsr_host *host, const tsr_pair_groups *groups, uint8_t *out)
{
    if (host->look_up_pairs) {
        host->look_up_pairs(groups, out);
        return;
    }
    const uint8_t *pairs = groups->pairs;
    for (size_t i = 0; i < groups->count; i++, pairs += groups->group_bytes, out += 4 * groups->group_bytes) {
        const uint16_t *products = groups->products[groups->tables[i]];
        if (groups->group_bytes == MXFP4_GROUP / 2) look_up_group(pairs, MXFP4_GROUP, products, out);
        else if (groups->group_bytes == NVFP4_GROUP / 2) look_up_group(pairs, NVFP4_GROUP, products, out);
        else if (TSR_PRODUCTS_BUILT) look_up_group(pairs, 2 * (unsigned)groups->group_bytes, products, out);
    }
}

static void look_up(const tsr_host *host, const packed_run *run, const unpacking *u, uint8_t *out)
{
    const uint64_t first_pair = run->first / 2, first_group = run->first / run->group;
    for (uint64_t i = run->first; i < run->end;) {
        const uint64_t group = i / run->group, edge = (group + 1) * run->group, stop = edge < run->end ? edge : run->end;
        const uint8_t *tables = run->stored + (group - first_group);
        const tsr_pair_groups whole = {run->pairs + (i / 2 - first_pair), tables, (size_t)((run->end - i) / run->group),
                                       run->group / 2, u->products};
        if (i % run->group == 0 && whole.count) {
            tsr_look_up_pairs(host, &whole, out + (i - run->first) * sizeof(uint16_t));
            i += whole.count * run->group;
            continue;
        }
        for (; i < stop; i++) {
            const uint8_t pair = run->pairs[i / 2 - first_pair];
            const uint16_t *product = &u->products[*tables][i % 2 ? pair >> 4 : pair & 15];
            memcpy(out + (i - run->first) * sizeof *product, product, sizeof *product);
        }
    }
}

/* Counts the products of the run that were lost. */
static void count_losses(const packed_run *run, const unpacking *u, tsr_cast_losses *losses)
{
    const uint64_t first_pair = run->first / 2, first_group = run->first / run->group;
    for (uint64_t i = run->first; i < run->end; i++) {
        const uint8_t pair = run->pairs[i / 2 - first_pair], scale = run->stored[i / run->group - first_group];
        const unsigned code = i % 2 ? pair >> 4 : pair & 15;
        losses->zeros += u->zeros[scale] >> code & 1;
        losses->overflows += u->overflows[scale] >> code & 1;
    }
}

static tsr_status unpack(tsr_mapped *m, const tsr_computed *file, const tsr_run *run, unpacking *u, uint8_t *out,
                         tsr_cast_losses *losses, tsr_error *err)
{
    packed_run packed;
    const uint64_t end = run->first + run->count;
    for (tsr_run part = *run; part.first < end; part.first += part.count) {
        part.count = in_one_tensor(file, part.first, end - part.first);
        TSR_TRY(read_stored(m, file, &part, u->input, &packed, err));
        TSR_TRY(make_products(m, file, &packed, u, err));
        look_up(m->own->host, &packed, u, out + (part.first - run->first) * sizeof(uint16_t));
        if (u->lossy) count_losses(&packed, u, losses);
    }
    return TSR_OK;
}

/* Computes a run of elements of a SCALED, MXFP4 or NVFP4 file in float32. `input` is memory of 8 bytes per element. */
static tsr_status scaled(tsr_mapped *m, const tsr_computed *file, const tsr_run *run, uint8_t *input, float *out,
                         tsr_error *err)
{
    if (file->kind == TSR_COMPUTED_MXFP4 || file->kind == TSR_COMPUTED_NVFP4)
        return read_packed(m, file, run, input, out, err);
    return read_scaled(m, file, run, input, out, err);
}

/* ---- products ---- */

/* A table of products for each scale of one row of scales:
 *
 *   scales  [ s0 | s1 | s2 | … ]        tables  [ 256 products with s0 | 256 with s1 | … ]
 *
 *   rows    [ ···· | ···· | ···· ]      all rows with these scales look their products up, block after block
 *
 * A table is made when its scale is first needed, by the same conversions that would be made of each element. */

enum {
    PRODUCTS_RUN = 1 << 17, /* the most elements of a run */
    USES = 4,               /* of each product at least, on average */
    MOST_BYTES = 1 << 20,   /* of all tables: they are read out of the second-level cache */
};

typedef struct product_tables {
    const tsr_allocator *allocator;
    const tsr_computed *file;
    size_t size;             /* of all that follows this */
    uint64_t row;            /* of scales, whose products these are; UINT64_MAX: none yet */
    uint8_t *input;          /* PRODUCTS_RUN */
    uint8_t *tables;         /* file->scale_columns of NUMBERS products */
    bool *made;              /* file->scale_columns */
    bool *lossy;             /* file->scale_columns: whether a product was lost in the cast */
    tsr_lossy range;         /* products that the cast loses */
    tsr_cast_losses *losses; /* of the current read */
    float numbers[NUMBERS];
} product_tables;

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static size_t table_bytes(const tsr_computed *file)
{
    return NUMBERS * (size_t)tsr_dtype_size(file->dtype);
}

/* Whether each product is used so often in a read of `elements` that tables pay. Scaled numbers have one byte each. */
static bool products_pay(const tsr_computed *file, uint64_t elements)
{
    const uint32_t itemsize = tsr_dtype_size(file->dtype);
    if (!elements || file->kind != TSR_COMPUTED_SCALED || tsr_dtype_size(file->input->dtype) != 1) return false;
    if (itemsize != sizeof(uint16_t) && itemsize != sizeof(float)) return false;
    if (file->scale_columns > MOST_BYTES / table_bytes(file)) return false;
    const uint64_t width = least(file->block_columns, file->columns), rows = elements / file->columns;
    const uint64_t uses = rows ? width * least(rows, file->block_rows) : least(width, elements);
    return uses >= USES * NUMBERS;
}

static void fill_numbers(product_tables *p)
{
    uint8_t codes[NUMBERS];
    for (unsigned i = 0; i < NUMBERS; i++) codes[i] = (uint8_t)i;
    if (tsr_mapped_is_integer(p->file->input->dtype)) integers_to_floats(p->file->input->dtype, codes, NUMBERS, p->numbers);
    else tsr_cast(p->file->input->dtype, TSR_FLOAT32, codes, NUMBERS, (uint8_t *)p->numbers);
}

/* For one read of one file, for which they pay. */
static tsr_status products_open(const tsr_mapped *m, const tsr_computed *file, product_tables **out, tsr_error *err)
{
    const tsr_allocator *allocator = m->own->host->allocator;
    const size_t tables = (size_t)file->scale_columns * table_bytes(file);
    const size_t size = PRODUCTS_RUN + tables + 2 * (size_t)file->scale_columns;
    product_tables *p = tsr_alloc(allocator, 1, sizeof *p + size, err);
    if (!p) return TSR_E_NOMEM;
    *p = (product_tables){.allocator = allocator, .file = file, .size = size, .row = UINT64_MAX};
    p->input = (uint8_t *)(p + 1);
    p->tables = p->input + PRODUCTS_RUN;
    p->made = (bool *)(p->tables + tables);
    p->lossy = p->made + file->scale_columns;
    p->range = tsr_lossy_of(TSR_FLOAT32, file->dtype);
    fill_numbers(p);
    *out = p;
    return TSR_OK;
}

static void products_close(product_tables *p)
{
    if (p) tsr_free(p->allocator, p, 1, sizeof *p + p->size);
}

/* Where the products of the scale in a column of scales are, which is `scale`, as its zero is `zero`. */
static const uint8_t *table_of(product_tables *p, size_t column, const float *zero, float scale)
{
    uint8_t *table = p->tables + column * table_bytes(p->file);
    if (p->made[column]) return table;
    float exact[NUMBERS];
    tsr_cast_losses losses = {.zeros = 0};
    memcpy(exact, p->numbers, sizeof exact);
    multiply_numbers(p->file, exact, NUMBERS, zero, scale);
    if (p->file->dtype == TSR_FLOAT32) memcpy(table, exact, sizeof exact);
    else tsr_cast(TSR_FLOAT32, p->file->dtype, (const uint8_t *)exact, NUMBERS, table);
    tsr_count_losses(&p->range, (const uint8_t *)exact, NUMBERS, &losses);
    p->made[column] = true;
    p->lossy[column] = losses.zeros || losses.overflows;
    return table;
}

/* Counts what the products of these codes lose, for a scale with which some do. */
static void products_count_losses(const product_tables *p, const float *zero, float scale, const uint8_t *codes,
                                  size_t count)
{
    for (size_t i = 0; i < count; i += NUMBERS) {
        float exact[NUMBERS];
        const size_t n = (size_t)least(count - i, NUMBERS);
        for (size_t k = 0; k < n; k++) exact[k] = p->numbers[codes[i + k]];
        multiply_numbers(p->file, exact, n, zero, scale);
        tsr_count_losses(&p->range, (const uint8_t *)exact, n, p->losses);
    }
}

/* Several at a time, as stores would take longest otherwise. */
void tsr_look_up_halves(const uint8_t *table, const uint8_t *codes, size_t count, uint8_t *out)
{
    const uint16_t *products = (const uint16_t *)(const void *)table;
    size_t i = 0;
    for (; i + 4 <= count; i += 4) {
        const uint16_t four[4] = {products[codes[i]], products[codes[i + 1]], products[codes[i + 2]],
                                  products[codes[i + 3]]};
        memcpy(out + i * sizeof(uint16_t), four, sizeof four);
    }
    for (; i < count; i++) memcpy(out + i * sizeof(uint16_t), &products[codes[i]], sizeof(uint16_t));
}

static void products_look_up(uint32_t itemsize, const uint8_t *table, const uint8_t *codes, size_t count, uint8_t *out)
{
    if (itemsize == sizeof(uint16_t)) {
        tsr_look_up_halves(table, codes, count, out);
        return;
    }
    for (size_t i = 0; i < count; i++) memcpy(out + i * sizeof(float), table + codes[i] * sizeof(float), sizeof(float));
}

/* Elements of one row, from `column` on. `scales` and `zeros`: those of the row, from that of the first element on. */
static void look_up_row(product_tables *p, uint64_t column, size_t count, const float *scales, const float *zeros,
                        const uint8_t *codes, uint8_t *out)
{
    const uint64_t width = p->file->block_columns;
    const uint32_t itemsize = tsr_dtype_size(p->file->dtype);
    size_t block = (size_t)(column / width), left = (size_t)least(width - column % width, count);
    for (size_t done = 0; done < count; left = (size_t)least(width, count - done), block++, scales++) {
        products_look_up(itemsize, table_of(p, block, zeros, *scales), codes + done, left, out + done * itemsize);
        if (p->lossy[block]) products_count_losses(p, zeros, *scales, codes + done, left);
        if (zeros) zeros++;
        done += left;
    }
}

static void look_up_run(product_tables *p, const tsr_run *run, const scales_of_run *scales, uint8_t *out)
{
    const tsr_computed *file = p->file;
    uint64_t row = run->first / file->columns, column = run->first % file->columns;
    for (uint64_t done = 0, count; done < run->count; done += count, row++, column = 0) {
        const uint64_t at = scale_at(file, row, column), scale_row = at / file->scale_columns;
        count = least(run->count - done, file->columns - column);
        if (p->row != scale_row) memset(p->made, 0, (size_t)file->scale_columns);
        p->row = scale_row;
        look_up_row(p, column, (size_t)count, scales->values + (at - scales->first),
                    scales->zeros ? scales->zeros + (at - scales->first) : NULL, p->input + done,
                    out + done * tsr_dtype_size(file->dtype));
    }
}

/* A run of elements of the file, in its dtype. Adds what casts to it lose to *losses. */
static tsr_status products_read(product_tables *p, tsr_mapped *m, const tsr_run *run, uint8_t *out, tsr_cast_losses *losses,
                                tsr_error *err)
{
    p->losses = losses;
    scales_of_run scales;
    TSR_TRY(tsr_read_run(m->own, p->file->input, run, p->input, (size_t)run->count, err));
    TSR_TRY(scales_open(m, p->file, run, &scales, err));
    look_up_run(p, run, &scales, out);
    scales_close(m, &scales);
    return TSR_OK;
}

/* ---- files ---- */

enum { STEP_ELEMENTS = 1 << 14, LARGEST = 16 }; /* elements computed at a time; bytes of the largest element */
_Static_assert(UNPACKED_INPUT + sizeof(unpacking) <= STEP_ELEMENTS * LARGEST, "both are in the memory of a step");
enum { RUN_ELEMENTS = 1 << 17 }; /* elements at a time for TSR_COMPUTED_BY */

/* The state of a read of a computed file. */
typedef struct computing {
    tsr_mapped *m;
    const tsr_computed *file;
    uint8_t *scratch;         /* STEP_ELEMENTS of the largest element, or NULL */
    unpacking *unpacking;     /* or NULL */
    product_tables *products; /* or NULL */
    size_t most;              /* elements to compute at a time */
    tsr_cast_losses losses;
} computing;

/* Computes elements of the file in its dtype. */
static tsr_status compute(computing *c, const tsr_run *run, uint8_t *out, tsr_error *err)
{
    const tsr_computed *file = c->file;
    const size_t count = (size_t)run->count;
    if (file->kind == TSR_COMPUTED_BY) return file->compute(file->ctx, run->first, count, out, &c->losses, err);
    if (c->unpacking) return unpack(c->m, file, run, c->unpacking, out, &c->losses, err);
    if (TSR_PRODUCTS_BUILT && c->products) return products_read(c->products, c->m, run, out, &c->losses, err);
    if (file->kind == TSR_COMPUTED_CAST) {
        TSR_TRY(tsr_read_run(c->m->own, file->input, run, c->scratch, count * tsr_dtype_size(file->input->dtype), err));
        tsr_cast_counted(file->input->dtype, file->dtype, c->scratch, count, out, &c->losses);
        return TSR_OK;
    }
    float *products = (float *)(void *)(c->scratch + STEP_ELEMENTS * LARGEST / 2);
    TSR_TRY(scaled(c->m, file, run, c->scratch, products, err));
    tsr_cast_counted(TSR_FLOAT32, file->dtype, (const uint8_t *)products, count, out, &c->losses);
    return TSR_OK;
}

/* Whole elements are made where they belong; only one that is read in part is copied. */
static tsr_status compute_all(computing *c, uint64_t offset, uint8_t *buffer, size_t size, tsr_error *err)
{
    const uint32_t itemsize = tsr_dtype_size(c->file->dtype);
    while (size) {
        uint8_t edge[LARGEST];
        const size_t skip = (size_t)(offset % itemsize), whole = skip ? 0 : size / itemsize;
        const tsr_run run = {.first = offset / itemsize, .count = !whole ? 1 : whole < c->most ? whole : c->most};
        TSR_TRY(compute(c, &run, whole ? buffer : edge, err));
        const size_t made = (size_t)run.count * itemsize - skip, taken = made < size ? made : size;
        if (!whole) memcpy(buffer, edge + skip, taken);
        buffer += taken, offset += taken, size -= taken;
    }
    return TSR_OK;
}

/* What a step computes with, in memory of one. */
static void choose_step(computing *c)
{
    c->most = STEP_ELEMENTS;
    if (!unpacks(c->file)) return;
    c->unpacking = (unpacking *)(void *)(c->scratch + UNPACKED_INPUT);
    memset(c->unpacking, 0, sizeof *c->unpacking);
    c->unpacking->input = c->scratch;
    c->most = UNPACKED_ELEMENTS;
}

static tsr_status run_steps(computing *c, uint64_t offset, uint8_t *buffer, size_t size, tsr_error *err)
{
    tsr_mapped *m = c->m;
    const tsr_computed *file = c->file;
    const tsr_allocator *allocator = m->own->host->allocator;
    if (file->kind == TSR_COMPUTED_BY) {
        if (file->most) c->most = file->most;
        return compute_all(c, offset, buffer, size, err);
    }
    if (TSR_PRODUCTS_BUILT && products_pay(file, size / tsr_dtype_size(file->dtype))) {
        c->most = PRODUCTS_RUN;
        TSR_TRY(products_open(m, file, &c->products, err));
    } else {
        c->scratch = tsr_alloc(allocator, STEP_ELEMENTS, LARGEST, err);
        if (!c->scratch) return TSR_E_NOMEM;
        choose_step(c);
    }
    const tsr_status status = compute_all(c, offset, buffer, size, err);
    tsr_free(allocator, c->scratch, STEP_ELEMENTS, LARGEST);
    if (TSR_PRODUCTS_BUILT) products_close(c->products);
    return status;
}

tsr_status tsr_computed_read(tsr_mapped *m, size_t number, uint64_t offset, uint8_t *buffer, size_t size, tsr_error *err)
{
    computing c = {.m = m, .file = (const tsr_computed *)m->computed.items + number, .most = RUN_ELEMENTS};
    const tsr_status status = run_steps(&c, offset, buffer, size, err);
    if (c.losses.zeros || c.losses.overflows) {
        atomic_fetch_add_explicit(&m->losses[number].zeros, c.losses.zeros, memory_order_relaxed);
        atomic_fetch_add_explicit(&m->losses[number].overflows, c.losses.overflows, memory_order_relaxed);
        atomic_store_explicit(&m->lossy, true, memory_order_relaxed);
    }
    return status;
}
