/* Computes weights from packed numbers, their zeros and their scales when they are read. */
#include "mapping/mapping_packed.h"
#include "tessera/box.h"
#include "tessera/read.h"
#include "tessera/sys/alloc.h"
#include "tessera/sys/read_run.h"
#include "tessera/sys/try.h"

enum { NUMBERS = 256, TILE = 16, SLACK = 16 }; /* SLACK: bytes of a line of words beyond its numbers */

/* A part of one matrix: of the weight, or of what is stored. */
typedef struct area {
    uint64_t matrix, row, column;
    size_t rows, columns;
} area;

/* The memory for one area of a weight, all in one block. */
typedef struct room {
    size_t size;
    float *values, *scales, *zeros; /* zeros NULL: there are none */
    int32_t *groups;                /* of each column, counted from first_group */
    uint8_t *rounded, *codes, *words;
    uint64_t first_group;
    size_t group_count;
} room;

/* ---- reading ---- */

/* Reads a part of an entry with two dims, or with three, the first of which counts matrices. */
static tsr_status read_area(const tsr_packed_weight *p, const tsr_entry *entry, const area *a, void *out, tsr_error *err)
{
    const uint64_t offsets[] = {a->matrix, a->row, a->column}, sizes[] = {1, a->rows, a->columns};
    const size_t count = a->rows * a->columns, bytes = count * tsr_dtype_size(entry->dtype);
    const unsigned skip = entry->ndim == 3 ? 0 : 1;
    if (!p->flat && entry->ndim > 1)
        return tsr_read_box(p->source, entry, (tsr_box){entry->ndim, offsets + skip, sizes + skip}, out, bytes, err);
    const tsr_run run = {.first = a->row + a->column, .count = count}; /* one of them is 0 */
    return tsr_read_run(p->source, entry, &run, out, bytes, err);
}

/* Numbers whose words are below each other: those of a row have the same place in their words. */
static void unpack_down(const tsr_codes *codes, const area *a, const uint8_t *words, uint8_t *out)
{
    const uint64_t first = a->row * codes->bits / 32 * 32;
    const size_t width = a->columns * sizeof(uint32_t);
    for (size_t i = 0; i < a->rows; i++, out += a->columns) {
        const uint64_t bit = (a->row + i) * codes->bits - first;
        const unsigned shift = bit % 32, mask = (1u << codes->bits) - 1, left = 32 - shift;
        const uint8_t *line = words + bit / 32 * width;
        const bool straddles = codes->bits > left;
        for (size_t k = 0; k < a->columns; k++) {
            uint32_t low;
            memcpy(&low, line + k * sizeof low, sizeof low);
            out[k] = (uint8_t)(low >> shift & mask);
        }
        for (size_t k = 0; straddles && k < a->columns; k++) {
            uint32_t high;
            memcpy(&high, line + width + k * sizeof high, sizeof high);
            out[k] |= (uint8_t)(high << left & mask);
        }
    }
}

/* Where number `at` of a line is in its words, in numbers. */
static uint64_t place_of(const tsr_codes *codes, uint64_t at)
{
    if (!codes->order) return at;
    const uint64_t start = at / codes->period * codes->period;
    return start + codes->order[at - start];
}

/* Unpacks 8 numbers of 4 bits at a time, from the first whole word on; returns how many. */
static size_t unpack_words(const tsr_codes *codes, const area *a, uint64_t first, const uint8_t *words, uint8_t *out)
{
    size_t done = 0;
    unsigned shifts[8];
    if (codes->bits != 4 || a->column % 8 || (a->column * 4 - first) % 8) return 0;
    for (unsigned i = 0; i < 8; i++) shifts[i] = 4 * (unsigned)place_of(codes, i);
    for (words += (a->column * 4 - first) / 8; done + 8 <= a->columns; done += 8, words += 4) {
        const uint32_t word =
            (uint32_t)words[0] | (uint32_t)words[1] << 8 | (uint32_t)words[2] << 16 | (uint32_t)words[3] << 24;
        for (unsigned i = 0; i < 8; i++) out[done + i] = (uint8_t)(word >> shifts[i] & 15);
    }
    return done;
}

/* Numbers whose words are next to each other. A row has `width` bytes, the first of which has bit `first`. */
static void unpack_across(const tsr_codes *codes, const area *a, size_t width, uint64_t first, const uint8_t *words,
                          uint8_t *out)
{
    const unsigned mask = (1u << codes->bits) - 1;
    for (size_t i = 0; i < a->rows; i++, words += width, out += a->columns) {
        size_t k = unpack_words(codes, a, first, words, out);
        if (codes->bits == 8) {
            memcpy(out, words + (a->column - first / 8), a->columns);
            k = a->columns;
        }
        for (; k < a->columns; k++) {
            const uint64_t bit = place_of(codes, a->column + k) * codes->bits - first;
            const unsigned low = words[bit / 8], high = bit % 8 + codes->bits > 8 ? words[bit / 8 + 1] : 0;
            out[k] = (uint8_t)((high << 8 | low) >> bit % 8 & mask);
        }
    }
}

/* Reads and unpacks a part of a matrix of stored numbers. */
static tsr_status read_codes(const tsr_packed_weight *p, const tsr_codes *codes, const area *a, uint8_t *words, uint8_t *out,
                             tsr_error *err)
{
    const uint64_t item = tsr_dtype_size(codes->entry->dtype), period = codes->order ? codes->period : 1;
    const uint64_t begin = codes->down ? a->row : a->column, end = begin + (codes->down ? a->rows : a->columns);
    const uint64_t low = begin / period * period * codes->bits / (8 * item);
    const uint64_t high = ((end + period - 1) / period * period * codes->bits + 8 * item - 1) / (8 * item);
    area stored = *a;
    if (codes->down) stored.row = low, stored.rows = (size_t)(high - low);
    else stored.column = low, stored.columns = (size_t)(high - low);
    TSR_TRY(read_area(p, codes->entry, &stored, words, err));
    if (codes->down) unpack_down(codes, a, words, out);
    else unpack_across(codes, a, (size_t)((high - low) * item), low * item * 8, words, out);
    return TSR_OK;
}

static float number_of(const tsr_codes *codes, uint8_t code)
{
    const unsigned number = (code + codes->add) & ((1u << codes->bits) - 1);
    return (float)((int32_t)(number ^ codes->flip) - codes->bias);
}

/* Sets the group of every column of the area, and which groups there are. */
static tsr_status find_groups(const tsr_packed_weight *p, const area *a, room *r, tsr_error *err)
{
    int32_t low = INT32_MAX, high = 0;
    const tsr_run run = {.first = a->column, .count = a->columns};
    r->first_group = a->column / p->group;
    if (!p->group_index) {
        uint64_t left = p->group - a->column % p->group;
        for (size_t k = 0; k < a->columns; k++) {
            r->groups[k] = high;
            if (!--left) left = p->group, high++;
        }
        r->group_count = (size_t)((a->column + a->columns - 1) / p->group - r->first_group + 1);
        return TSR_OK;
    }
    TSR_TRY(tsr_read_run(p->source, p->group_index, &run, r->groups, a->columns * sizeof *r->groups, err));
    for (size_t k = 0; k < a->columns; k++) {
        TSR_FAIL_IF(r->groups[k] < 0 || (uint64_t)r->groups[k] >= p->groups, err, TSR_E_FORMAT,
                    "'%.*s' has a group that '%.*s' does not have", TSR_STR_ARG(p->group_index->fqn),
                    TSR_STR_ARG(p->scale->fqn)); /* it was in order when it was opened */
        if (r->groups[k] < low) low = r->groups[k];
        if (r->groups[k] > high) high = r->groups[k];
    }
    for (size_t k = 0; k < a->columns; k++) r->groups[k] -= low;
    r->first_group = (uint64_t)low;
    r->group_count = (size_t)(high - low) + 1;
    return TSR_OK;
}

/* The part of the scales, or of the zeros, that an area needs. */
static area scales_of(const tsr_packed_weight *p, const area *a, const room *r)
{
    area s = {.matrix = a->matrix, .row = a->row, .rows = a->rows, .column = r->first_group, .columns = r->group_count};
    if (p->one_scale) s = (area){.rows = 1, .columns = 1};
    if (p->transposed) s = (area){.row = r->first_group, .rows = r->group_count, .column = a->row, .columns = a->rows};
    return s;
}

/* Turns codes of scales that are quantized themselves, from number `first` on, into scales. */
static tsr_status look_up_scales(const tsr_packed_weight *p, uint64_t first, size_t count, room *r, tsr_error *err)
{
    const tsr_nested_scale *n = &p->nested;
    float table[NUMBERS], *outer = r->values; /* which are computed later */
    const tsr_run all = {.first = 0, .count = NUMBERS},
                  blocks = {.first = first / n->block, .count = (first + count - 1) / n->block - first / n->block + 1};
    TSR_TRY(tsr_read_run(p->source, n->table, &all, table, sizeof table, err));
    TSR_TRY(tsr_read_run(p->source, n->scale, &blocks, outer, (size_t)blocks.count * sizeof *outer, err));
    for (size_t i = 0; i < count; i++) {
        const float scale = table[r->words[i]] * outer[(first + i) / n->block - blocks.first];
        r->scales[i] = scale + n->offset;
    }
    return TSR_OK;
}

static tsr_status read_scales(const tsr_packed_weight *p, const area *a, room *r, tsr_error *err)
{
    const area s = scales_of(p, a, r);
    const size_t count = s.rows * s.columns;
    TSR_TRY(read_area(p, p->scale, &s, r->words, err));
    if (p->nested.table) TSR_TRY(look_up_scales(p, s.column, count, r, err));
    else if (p->scale->dtype == TSR_FLOAT32) memcpy(r->scales, r->words, count * sizeof *r->scales);
    else tsr_cast(p->scale->dtype, TSR_FLOAT32, r->words, count, (uint8_t *)r->scales);
    if (!r->zeros) return TSR_OK;
    TSR_TRY(read_codes(p, &p->zeros, &s, r->words, r->codes, err));
    for (size_t i = 0; i < count; i++) r->zeros[i] = number_of(&p->zeros, r->codes[i]);
    return TSR_OK;
}

/* ---- computing ---- */

/* Multiplies numbers that share a zero and a scale. Those of few bits are looked up. */
static void multiply_group(const tsr_packed_weight *p, const float *numbers, const uint8_t *codes, size_t count, float zero,
                           float scale, float *out)
{
    float products[16];
    if (p->numbers.bits > 4) {
        const float less = (float)p->numbers.bias + zero; /* integers, as the numbers are */
        for (size_t k = 0; k < count; k++) out[k] = ((float)(codes[k] ^ p->numbers.flip) - less) * scale;
        return;
    }
    for (unsigned i = 0; i < 16; i++) products[i] = (numbers[i] - zero) * scale;
    for (size_t k = 0; k < count; k++) out[k] = products[codes[k]];
}

/* The area is stored row by row. */
static void multiply_rows(const tsr_packed_weight *p, const area *a, const float *numbers, const room *r)
{
    const uint8_t *codes = r->codes;
    float *out = r->values;
    for (size_t i = 0; i < a->rows; i++, codes += a->columns, out += a->columns) {
        for (size_t k = 0, end; k < a->columns; k = end) {
            const size_t group = p->one_scale ? 0 : i * r->group_count + (size_t)r->groups[k];
            const uint64_t left = p->group - (a->column + k) % p->group;
            end = k + 1;
            if (!p->group_index) end = left < a->columns - k ? k + (size_t)left : a->columns;
            else
                while (end < a->columns && r->groups[end] == r->groups[k]) end++;
            multiply_group(p, numbers, codes + k, end - k, r->zeros ? r->zeros[group] : 0, r->scales[group], out + k);
        }
    }
}

/* The area is stored column by column, and so are its scales. Some columns at a time are multiplied and then turned. */
static void multiply_columns(const area *a, const room *r)
{
    float *tile = (float *)(void *)r->rounded; /* it is needed later */
    for (size_t first = 0; first < a->columns; first += TILE) {
        const size_t count = a->columns - first < TILE ? a->columns - first : TILE;
        for (size_t k = 0; k < count; k++) {
            const size_t group = (size_t)r->groups[first + k] * a->rows;
            const float *scales = r->scales + group, *zeros = r->zeros + group;
            const uint8_t *codes = r->codes + (first + k) * a->rows;
            for (size_t i = 0; i < a->rows; i++) tile[k * a->rows + i] = ((float)codes[i] - zeros[i]) * scales[i];
        }
        for (size_t i = 0; i < a->rows; i++)
            for (size_t k = 0; k < count; k++) r->values[i * a->columns + first + k] = tile[k * a->rows + i];
    }
}

/* Rounds the products to the dtype that the library gives them, and casts them to the one that is wanted. */
static void round_products(const tsr_packed_weight *p, size_t count, room *r, uint8_t *out, tsr_cast_losses *losses)
{
    const uint8_t *values = (const uint8_t *)r->values;
    if (p->factor != 1)
        for (size_t i = 0; i < count; i++) r->values[i] *= p->factor;
    if (p->rounded == TSR_FLOAT32 || p->rounded == p->dtype) {
        tsr_cast_counted(TSR_FLOAT32, p->dtype, values, count, out, losses);
        return;
    }
    tsr_cast_counted(TSR_FLOAT32, p->rounded, values, count, r->rounded, losses);
    tsr_cast_counted(p->rounded, p->dtype, r->rounded, count, out, losses);
}

static tsr_status compute_area(const tsr_packed_weight *p, const area *a, const float *numbers, room *r, uint8_t *out,
                               tsr_cast_losses *losses, tsr_error *err)
{
    const area turned = {.row = a->column, .rows = a->columns, .column = a->row, .columns = a->rows};
    TSR_TRY(find_groups(p, a, r, err));
    TSR_TRY(read_scales(p, a, r, err));
    TSR_TRY(read_codes(p, &p->numbers, p->transposed ? &turned : a, r->words, r->codes, err));
    if (p->transposed) multiply_columns(a, r);
    else multiply_rows(p, a, numbers, r);
    round_products(p, a->rows * a->columns, r, out, losses);
    return TSR_OK;
}

/* The most groups that `columns` adjacent columns can have. */
static size_t most_groups(const tsr_packed_weight *p, size_t columns)
{
    const uint64_t most = p->group_index ? p->groups : (columns - 1) / p->group + 2;
    return (size_t)(most < p->groups ? most : p->groups);
}

/* Makes room for areas of at most `rows` and `columns`. */
static tsr_status room_open(const tsr_packed_weight *p, size_t rows, size_t columns, room *r, tsr_error *err)
{
    const size_t elements = rows * columns, scales = rows * most_groups(p, columns),
                 larger = elements > scales ? elements : scales;
    const size_t lines = rows + columns + most_groups(p, columns);
    const size_t words = larger * sizeof(float) + lines * SLACK;
    *r = (room){.size =
                    sizeof(float) * (elements + 2 * scales + columns + NUMBERS) + elements * sizeof(float) + larger + words};
    uint8_t *memory = tsr_alloc(p->source->host->allocator, r->size, 1, err);
    if (!memory) return TSR_E_NOMEM;
    r->values = (float *)(void *)memory;
    r->scales = r->values + elements + NUMBERS; /* look_up_scales puts fewer scales than that into `values` */
    r->groups = (int32_t *)(void *)(r->scales + 2 * scales);
    r->zeros = p->zeros.entry ? r->scales + scales : NULL;
    r->rounded = (uint8_t *)(r->groups + columns);
    r->codes = r->rounded + elements * sizeof(float);
    r->words = r->codes + larger;
    return TSR_OK;
}

static tsr_status compute_all(const tsr_packed_weight *p, uint64_t first, size_t count, const float *numbers, room *r,
                              uint8_t *out, tsr_cast_losses *losses, tsr_error *err)
{
    const uint64_t end = first + count;
    for (uint64_t at = first; at < end;) {
        const uint64_t row = at / p->columns;
        area a = {.matrix = row / p->rows, .row = row % p->rows, .rows = 1, .column = at % p->columns};
        const uint64_t line = p->columns - a.column, whole = (end - at) / p->columns, left = p->rows - a.row;
        a.columns = (size_t)(line < end - at ? line : end - at);
        if (!a.column && whole) a.rows = (size_t)(whole < left ? whole : left);
        TSR_TRY(compute_area(p, &a, numbers, r, out + (at - first) * tsr_dtype_size(p->dtype), losses, err));
        at += (uint64_t)a.rows * a.columns;
    }
    return TSR_OK;
}

tsr_status tsr_packed_compute(const void *ctx, uint64_t first, size_t count, uint8_t *out, tsr_cast_losses *losses,
                              tsr_error *err)
{
    const tsr_packed_weight *p = ctx;
    const uint64_t rows = count / p->columns, most = rows < p->rows ? rows : p->rows;
    float numbers[NUMBERS];
    room r;
    for (unsigned i = 0; i < NUMBERS; i++) numbers[i] = p->table ? p->table[i % 16] : number_of(&p->numbers, (uint8_t)i);
    TSR_TRY(room_open(p, most ? (size_t)most : 1, count < p->columns ? count : (size_t)p->columns, &r, err));
    const tsr_status status = compute_all(p, first, count, numbers, &r, out, losses, err);
    tsr_free(p->source->host->allocator, r.values, r.size, 1);
    return status;
}
