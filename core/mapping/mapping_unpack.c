/* Computes weights from packed numbers, their zeros and their scales when they are read. */
#include "mapping/mapping_stored.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

enum {
    ROWS = TSR_TURNED_ROWS, /* are unpacked at a time */
    STEP = 2048,            /* columns of a row are computed at a time */
    BYTES_STEP = 16384, /* the same for numbers of 8 bits, whose tables take longer to make, and which are not unpacked */
    ALIGNED = 16        /* the columns at which processors look up pairs: see tsr_pair_groups */
};

/* ---- computing ---- */

/* Some columns of a row that are computed together. */
typedef struct row_part {
    const float *scales, *zeros; /* of the row's first group; zeros may be NULL */
    const int32_t *groups;       /* with an index, of its columns */
    uint64_t column;             /* the first one in the weight */
    size_t count;
} row_part;

/* The columns from one on that have the same group, up to `end`. */
typedef struct column_run {
    size_t group, end;
} column_run;

static column_run run_from(const tsr_packed_weight *p, const tsr_packed_room *r, const row_part *part, size_t k)
{
    if (!p->group_index) {
        const uint64_t group = (part->column + k) / p->group, end = (group + 1) * p->group - part->column;
        return (column_run){(size_t)(group - r->first_group), end < part->count ? (size_t)end : part->count};
    }
    column_run run = {(size_t)part->groups[k], k + 1};
    while (run.end < part->count && (size_t)part->groups[run.end] == run.group) run.end++;
    return run;
}

static size_t place_in(const tsr_packed_weight *p, const tsr_packed_room *r, size_t group)
{
    return p->one_scale ? 0 : group * r->beside;
}

static void cast(const tsr_lossy *lossy, tsr_dtype to, const uint8_t *values, size_t count, uint8_t *out,
                 tsr_cast_losses *losses)
{
    tsr_cast(lossy->from, to, values, count, out);
    tsr_count_losses(lossy, values, count, losses);
}

/* Rounds to float16 and then to bfloat16. Returns false if a value is neither 0 nor a normal number of float16: then the casts may lose it. */
static bool round_twice(const float *values, size_t count, uint8_t *out)
{
    enum { LEAST = 0x38800000, BEYOND = 0x477ff000 }; /* in float32: 2^-14, and what is rounded up to infinity */
    int32_t others = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        const int32_t size = (int32_t)(bits & INT32_MAX);
        others |= (size != 0) & ((size < LEAST) | (size >= BEYOND));
        bits = (bits + 0xfff + (bits >> 13 & 1)) & ~UINT32_C(0x1fff);
        const uint16_t rounded = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        memcpy(out + i * sizeof rounded, &rounded, sizeof rounded);
    }
    return !others;
}

/* Rounds products to the dtype that the library gives them, and casts them to the one that is wanted. */
static void round_products(const tsr_packed_weight *p, float *values, size_t count, uint8_t *rounded, uint8_t *out,
                           tsr_cast_losses *losses)
{
    if (p->factor != 1)
        for (size_t i = 0; i < count; i++) values[i] *= p->factor;
    const bool halves = p->rounded == TSR_FLOAT16 && p->dtype == TSR_BFLOAT16;
    if (TSR_PRODUCTS_BUILT && halves && round_twice(values, count, out)) return;
    const bool once = p->rounded == TSR_FLOAT32 || p->rounded == p->dtype;
    cast(&p->rounding, once ? p->dtype : p->rounded, (const uint8_t *)values, count, once ? out : rounded, losses);
    if (!once) cast(&p->casting, p->dtype, rounded, count, out, losses);
}

/* Multiplies the numbers of the part one by one. */
static void multiply(const tsr_packed_weight *p, const row_part *part, const uint8_t *codes, tsr_packed_room *r,
                     uint8_t *out, tsr_cast_losses *losses)
{
    for (size_t k = 0, end; k < part->count; k = end) {
        const column_run run = run_from(p, r, part, k);
        const size_t place = place_in(p, r, run.group);
        const float scale = part->scales[place], zero = part->zeros ? part->zeros[place] : 0;
        const float less = (float)p->numbers.bias + zero; /* integers, as the numbers are */
        end = run.end;
        for (size_t i = k; p->numbers.bits > 4 && i < end; i++)
            r->values[i] = ((float)(codes[i] ^ p->numbers.flip) - less) * scale;
        for (size_t i = k; p->numbers.bits <= 4 && i < end; i++) r->values[i] = (r->numbers[codes[i]] - zero) * scale;
    }
    round_products(p, r->values, part->count, r->rounded, out, losses);
}

/* Copies what each code means: of one group, and of columns in any order of groups. */
#define LOOK_UP(type) \
    static void look_up_##type(const uint8_t *table, const uint8_t *codes, size_t count, uint8_t *out) \
    { \
        for (size_t i = 0; i < count; i++) memcpy(out + i * sizeof(type), table + codes[i] * sizeof(type), sizeof(type)); \
    }
#define LOOK_UP_EACH(type) \
    static void look_up_each_##type(const uint8_t *table, const uint8_t *codes, const int32_t *groups, unsigned bits, \
                                    size_t count, uint8_t *out) \
    { \
        for (size_t i = 0; i < count; i++) \
            memcpy(out + i * sizeof(type), table + (((size_t)groups[i] << bits) + codes[i]) * sizeof(type), sizeof(type)); \
    }
LOOK_UP(uint32_t)
LOOK_UP(uint64_t)
LOOK_UP_EACH(uint16_t)
LOOK_UP_EACH(uint32_t)
LOOK_UP_EACH(uint64_t)

/* The groups of which a part of a row has columns. */
typedef struct group_range {
    size_t low, count;
} group_range;

static group_range groups_of(const tsr_packed_weight *p, const row_part *part, const tsr_packed_room *r)
{
    if (p->group_index) return (group_range){0, r->group_count};
    const size_t low = run_from(p, r, part, 0).group;
    return (group_range){low, run_from(p, r, part, part->count - 1).group - low + 1};
}

/* Makes tables of the products of these groups, if each is used often, and none of them loses anything in a cast, which would have to be
 * counted. Returns false otherwise. */
static bool make_tables(const tsr_packed_weight *p, const row_part *part, group_range groups, tsr_packed_room *r)
{
    const unsigned bits = p->numbers.bits;
    const size_t count = groups.count << bits;
    tsr_cast_losses losses = {0};
    if (count > part->count / 2 || tsr_dtype_size(p->dtype) < 2) return false;
    for (size_t g = 0; g < groups.count; g++) {
        const size_t place = place_in(p, r, groups.low + g);
        const float scale = part->scales[place], zero = part->zeros ? part->zeros[place] : 0;
        float *products = r->values + (g << bits);
        for (size_t i = 0; i < (size_t)1 << bits; i++) products[i] = (r->numbers[i] - zero) * scale;
    }
    round_products(p, r->values, count, r->rounded, r->table, &losses);
    return !losses.zeros && !losses.overflows;
}

/* The codes of a row of pairs. */
static void spread_pairs(const uint8_t *pairs, size_t count, uint8_t *out)
{
    for (size_t i = 0; i < count / 2; i++) {
        out[2 * i] = pairs[i] & 15;
        out[2 * i + 1] = pairs[i] >> 4;
    }
    if (count % 2) out[count - 1] = pairs[count / 2] & 15;
}

/* Products of columns in any order of groups. A pair's two products are halves of one word, from two tables that have the other half 0:
 * as many instructions again would be needed to put them together. */
static void look_up_ordered_pairs(const tsr_packed_room *r, size_t products, const uint8_t *pairs, size_t count,
                                  uint8_t *out)
{
    enum { AT_A_TIME = 64 };
    const uint16_t *table = (const uint16_t *)(const void *)r->table, *places = r->places, *odd = places + (count + 1) / 2;
    uint32_t *low = (uint32_t *)(void *)r->row, *high = low + products;
    for (size_t i = 0; i < products; i++) {
        const uint16_t halves[2][2] = {{table[i], 0}, {0, table[i]}};
        memcpy(&low[i], halves[0], sizeof *low);
        memcpy(&high[i], halves[1], sizeof *high);
    }
    tsr_look_up_ordered_pairs(low, high, places, odd, pairs, count / 2, out);
    const size_t last = count / 2;
    if (count % 2) memcpy(out + last * sizeof *low, &table[places[last] + (pairs[last] & 15)], sizeof *table);
}

/* Products of pairs, of 2 bytes each. */
static void look_up_pairs(const tsr_packed_weight *p, const row_part *part, group_range groups, const uint8_t *pairs,
                          const tsr_packed_room *r, uint8_t *out)
{
    const uint16_t *table = (const uint16_t *)(const void *)r->table;
    if (p->group_index) {
        look_up_ordered_pairs(r, groups.count * TSR_PAIR_NUMBERS, pairs, part->count, out);
        return;
    }
    for (size_t k = 0, end; k < part->count; k = end) {
        const column_run run = run_from(p, r, part, k);
        const size_t number = run.group - groups.low, whole = (part->count - k) / (size_t)p->group;
        tsr_pair_groups found = {.pairs = pairs + k / 2,
                                 .tables = r->tables + number,
                                 .count = 1,
                                 .products = (const uint16_t(*)[TSR_PAIR_NUMBERS])r->table};
        if (run.end - k == p->group) found.count = whole, end = k + whole * (size_t)p->group;
        else end = run.end;
        found.group_bytes = (end - k) / found.count / ALIGNED * ALIGNED / 2;
        if (found.group_bytes) tsr_look_up_pairs(p->source->host, &found, out + k * sizeof *table);
        for (size_t i = k + 2 * found.count * found.group_bytes; i < end; i++) {
            const uint8_t code = i % 2 ? pairs[i / 2] >> 4 : pairs[i / 2] & 15;
            memcpy(out + i * sizeof *table, &table[number * TSR_PAIR_NUMBERS + code], sizeof *table);
        }
    }
}

/* Products of codes. */
static void look_up_codes(const tsr_packed_weight *p, const row_part *part, group_range groups, const uint8_t *codes,
                          const tsr_packed_room *r, uint8_t *out)
{
    const unsigned bits = p->numbers.bits;
    const size_t size = tsr_dtype_size(p->dtype);
    uint8_t *row = r->row; /* small writes to `out`, which is large, would wait for memory */
    if (p->group_index && size == 2) look_up_each_uint16_t(r->table, codes, part->groups, bits, part->count, row);
    if (p->group_index && size == 4) look_up_each_uint32_t(r->table, codes, part->groups, bits, part->count, row);
    if (p->group_index && size == 8) look_up_each_uint64_t(r->table, codes, part->groups, bits, part->count, row);
    for (size_t k = 0; !p->group_index && k < part->count;) {
        const column_run run = run_from(p, r, part, k);
        const uint8_t *table = r->table + ((run.group - groups.low) << bits) * size;
        if (size == 2) tsr_look_up_halves(table, codes + k, run.end - k, row + k * size);
        else if (size == 4) look_up_uint32_t(table, codes + k, run.end - k, row + k * size);
        else look_up_uint64_t(table, codes + k, run.end - k, row + k * size);
        k = run.end;
    }
    memcpy(out, row, part->count * size);
}

/* ---- areas ---- */

/* Rows and columns of an area that are computed together, and what is stored of the area. */
typedef struct block {
    size_t row, rows, column, columns; /* counted in the area */
    tsr_stored_words stored;
    uint64_t stored_row;  /* of the weight */
    const uint8_t *pairs; /* of the area's first row, turned; or NULL */
} block;

/* The numbers of the rows of a block: codes, or pairs. */
typedef struct unpacked {
    const uint8_t *first;
    size_t line; /* bytes from one row to the next one */
    bool pairs;
} unpacked;

/* Unpacks rows that are stored column by column; `before` rows of the same words are ahead of the block's. */
static unpacked unpack_turned(const tsr_packed_weight *p, const tsr_area *a, const block *b, uint8_t *codes)
{
    const tsr_codes *numbers = &p->numbers;
    const uint32_t period = numbers->order ? numbers->period : 1;
    const uint64_t row = a->row + b->row;
    const size_t before = (size_t)(row % period), line = tsr_turned_line(b->columns),
                 pairs_line = tsr_pairs_line((size_t)p->columns);
    tsr_stored_words stored = b->stored;
    const tsr_area part = {.column = a->column + b->column,
                           .columns = b->columns,
                           .rows = (before + b->rows + period - 1) / period * period,
                           .row = numbers->down ? row - b->stored_row : row - before};
    if (TSR_PRODUCTS_BUILT && b->pairs) return (unpacked){b->pairs + b->row * pairs_line + b->column / 2, pairs_line, true};
    if (!numbers->down) stored.words += b->column * stored.width;
    tsr_codes_turned(numbers, &part, &stored, codes);
    return (unpacked){codes + before * line, line, false};
}

/* Pairs of which the second number is the low half. */
static void swap_pairs(const uint8_t *pairs, size_t bytes, uint8_t *out)
{
    for (size_t i = 0; i < bytes; i++) out[i] = (uint8_t)(pairs[i] << 4 | pairs[i] >> 4);
}

/* Numbers of 8 bits, and pairs from an even place on, are used where they are stored; so are pairs whose halves are swapped, but for that. */
static unpacked unpack_rows(const tsr_packed_weight *p, const tsr_area *a, const block *b, uint8_t *codes)
{
    const tsr_codes *numbers = &p->numbers;
    tsr_stored_words stored = b->stored;
    const tsr_area part = {.column = a->column + b->column, .rows = b->rows, .columns = b->columns};
    stored.words += b->row * stored.width;
    const uint8_t *const words = stored.words + (part.column * numbers->bits - stored.first) / 8;
    const bool pairs = numbers->bits == 4 && part.column % 2 == 0;
    if (TSR_PRODUCTS_BUILT && !numbers->order && (pairs || numbers->bits == 8))
        return (unpacked){words, stored.width, pairs};
    if (TSR_PRODUCTS_BUILT && pairs && numbers->period == 2) {
        const size_t line = (b->columns + 1) / 2;
        for (size_t i = 0; i < b->rows; i++) swap_pairs(words + i * stored.width, line, codes + i * line);
        return (unpacked){codes, line, true};
    }
    tsr_codes_across(numbers, &part, &stored, codes);
    return (unpacked){codes, b->columns, false};
}

/* Looks up the products of a row, or computes them. */
static void compute_row(const tsr_packed_weight *p, const row_part *part, const uint8_t *codes, bool pairs,
                        tsr_packed_room *r, uint8_t *out, tsr_cast_losses *losses)
{
    const group_range groups = groups_of(p, part, r);
    const bool aligned = p->group_index ? groups.count <= UINT16_MAX / TSR_PAIR_NUMBERS
                                        : p->group % ALIGNED == 0 && part->column % ALIGNED == 0;
    const bool made = TSR_PRODUCTS_BUILT && make_tables(p, part, groups, r);
    if (made && pairs && aligned && tsr_dtype_size(p->dtype) == sizeof(uint16_t)) {
        look_up_pairs(p, part, groups, codes, r, out);
        return;
    }
    if (TSR_PRODUCTS_BUILT && pairs) {
        spread_pairs(codes, part->count, r->spread);
        codes = r->spread;
    }
    if (made) look_up_codes(p, part, groups, codes, r, out);
    else multiply(p, part, codes, r, out, losses);
}

static void compute_block(const tsr_packed_weight *p, const tsr_area *a, const block *b, tsr_packed_room *r, uint8_t *out,
                          tsr_cast_losses *losses)
{
    const size_t itemsize = tsr_dtype_size(p->dtype);
    row_part part = {.groups = r->groups + b->column, .column = a->column + b->column, .count = b->columns};
    const unpacked numbers = p->transposed ? unpack_turned(p, a, b, r->codes) : unpack_rows(p, a, b, r->codes);
    for (size_t i = 0; i < b->rows; i++) {
        const size_t row = b->row + i, place = p->one_scale ? 0 : row * r->apart;
        part.scales = r->scales + place;
        part.zeros = r->zeros ? r->zeros + place : NULL;
        compute_row(p, &part, numbers.first + i * numbers.line, numbers.pairs, r,
                    out + (row * a->columns + b->column) * itemsize, losses);
    }
}

/* How many columns are computed together. With an index, groups are in no order, so all of them are needed for any column. */
static size_t step_of(const tsr_packed_weight *p, size_t columns)
{
    const size_t most = TSR_PRODUCTS_BUILT && p->numbers.bits == 8 && !p->transposed ? BYTES_STEP : STEP;
    return p->group_index || columns < most ? columns : most;
}

/* Blocks end at multiples of ROWS, so that words of several rows are unpacked whole. */
static void compute_blocks(const tsr_packed_weight *p, const tsr_area *a, block b, tsr_packed_room *r, uint8_t *out,
                           tsr_cast_losses *losses)
{
    const size_t step = step_of(p, a->columns);
    for (b.row = 0; b.row < a->rows; b.row += b.rows) {
        const size_t rows = ROWS - (size_t)((a->row + b.row) % ROWS), left = a->rows - b.row;
        b.rows = rows < left ? rows : left;
        for (b.column = 0; b.column < a->columns; b.column += b.columns) {
            b.columns = a->columns - b.column < step ? a->columns - b.column : step;
            compute_block(p, a, &b, r, out, losses);
        }
    }
}

static tsr_status read_area_parts(const tsr_packed_weight *p, const tsr_area *a, block *b, tsr_packed_room *r,
                                  tsr_error *err)
{
    const tsr_area turned = {.row = a->column, .rows = a->columns, .column = a->row, .columns = a->rows};
    TSR_TRY(tsr_packed_read_scales(p, a, r, err));
    r->apart = p->transposed ? 1 : r->group_count;
    r->beside = p->transposed ? a->rows : 1;
    b->stored_row = a->row;
    return tsr_packed_read_words(p, &p->numbers, p->transposed ? &turned : a, r->words, &b->stored, err);
}

/* What a band holds of the area. */
static block part_of_band(const tsr_packed_weight *p, const tsr_band *band, const tsr_area *a, tsr_packed_room *r)
{
    const size_t groups = (size_t)p->groups, first = (size_t)(a->row - band->row) * groups + (size_t)r->first_group;
    r->scales = band->scales + first;
    r->zeros = band->zeros ? band->zeros + first : NULL;
    r->apart = groups;
    r->beside = 1;
    const size_t row = (size_t)(a->row - band->row), line = tsr_pairs_line((size_t)p->columns);
    return (block){
        .stored = band->stored, .stored_row = band->row, .pairs = band->pairs ? band->numbers + row * line : NULL};
}

/* Finds out which groups there are in the area and, with an index, the group of every column. */
static tsr_status find_groups(const tsr_packed_weight *p, const tsr_area *a, tsr_packed_room *r, tsr_error *err)
{
    int32_t low = INT32_MAX, high = 0;
    const tsr_run run = {.first = a->column, .count = a->columns};
    r->first_group = a->column / p->group;
    if (!p->group_index) {
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
    const size_t even = (a->columns + 1) / 2;
    for (size_t k = 0; k < a->columns; k++) {
        r->groups[k] -= low;
        if (TSR_PRODUCTS_BUILT)
            r->places[k % 2 ? even + k / 2 : k / 2] =
                (uint16_t)(r->groups[k] * TSR_PAIR_NUMBERS); /* if there are that many */
    }
    r->first_group = (uint64_t)low;
    r->group_count = (size_t)(high - low) + 1;
    return TSR_OK;
}

static tsr_status compute_area(const tsr_packed_weight *p, const tsr_area *a, const tsr_band *band,
                               const tsr_packed_room *whole, uint8_t *out, tsr_cast_losses *losses, tsr_error *err)
{
    tsr_packed_room r = *whole;
    block b = {.row = 0};
    TSR_TRY(find_groups(p, a, &r, err));
    if (band) b = part_of_band(p, band, a, &r);
    else TSR_TRY(read_area_parts(p, a, &b, &r, err));
    compute_blocks(p, a, b, &r, out, losses);
    return TSR_OK;
}

/* The most groups that `columns` adjacent columns can have. */
static size_t most_groups(const tsr_packed_weight *p, size_t columns)
{
    const uint64_t most = p->group_index ? p->groups : (columns - 1) / p->group + 2;
    return (size_t)(most < p->groups ? most : p->groups);
}

/* Takes some of the room's memory, aligned for all that is kept in it. */
static void *take(uint8_t **memory, size_t bytes)
{
    uint8_t *taken = *memory;
    *memory += (bytes + 15) / 16 * 16;
    return taken;
}

/* Makes room for areas of at most `rows` and `columns`. */
static tsr_status room_open(const tsr_packed_weight *p, size_t rows, size_t columns, tsr_packed_room *r, tsr_error *err)
{
    const size_t groups = most_groups(p, columns), scales = rows * groups, elements = rows * columns;
    const size_t part = step_of(p, columns), turned = ROWS * tsr_turned_line(part);
    const size_t line_bytes = p->transposed ? turned : (rows < ROWS ? rows : ROWS) * part;
    const size_t codes = line_bytes > scales ? line_bytes : scales; /* also those of zeros */
    const size_t values =
        part > groups ? part + TSR_PACKED_NUMBERS : groups + TSR_PACKED_NUMBERS; /* also the scales of scales */
    const size_t lines = rows + columns + groups;
    const size_t words = (elements > scales * sizeof(float) ? elements : scales * sizeof(float)) + lines * TSR_WORDS_SLACK;
    *r = (tsr_packed_room){.size = 2 * values * sizeof(float) + 2 * scales * sizeof(float) +
                                   columns * (sizeof(int32_t) + sizeof(uint16_t)) + TSR_PACKED_NUMBERS * sizeof(float) +
                                   2 * part * sizeof(double) + part + codes + words + 12 * 16};
    uint8_t *memory = tsr_alloc(p->source->host->allocator, r->size, 1, err);
    if (!memory) return TSR_E_NOMEM;
    r->numbers = take(&memory, TSR_PACKED_NUMBERS * sizeof(float)); /* the first: the block is freed by it */
    r->values = take(&memory, values * sizeof(float));
    r->rounded = take(&memory, values * sizeof(float));
    r->scales = take(&memory, scales * sizeof(float));
    r->zeros = take(&memory, scales * sizeof(float));
    if (!p->zeros.entry) r->zeros = NULL;
    r->groups = take(&memory, columns * sizeof(int32_t));
    r->places = take(&memory, columns * sizeof(uint16_t));
    r->table = take(&memory, part * sizeof(double));
    r->row = take(&memory, part * sizeof(double));
    r->spread = take(&memory, part);
    r->codes = take(&memory, codes);
    r->words = memory;
    for (unsigned i = 0; i < TSR_PACKED_NUMBERS; i++) r->tables[i] = (uint8_t)i;
    for (unsigned i = 0; i < TSR_PACKED_NUMBERS; i++)
        r->numbers[i] = p->table ? p->table[i % 16] : tsr_codes_number(&p->numbers, (uint8_t)i);
    return TSR_OK;
}

static tsr_status compute_all(const tsr_packed_weight *p, uint64_t first, size_t count, tsr_packed_room *r, uint8_t *out,
                              tsr_cast_losses *losses, tsr_error *err)
{
    const uint64_t end = first + count;
    for (uint64_t at = first; at < end;) {
        const uint64_t row = at / p->columns;
        tsr_area a = {.matrix = row / p->rows, .row = row % p->rows, .rows = 1, .column = at % p->columns};
        const uint64_t line = p->columns - a.column, whole = (end - at) / p->columns, left = p->rows - a.row;
        a.columns = (size_t)(line < end - at ? line : end - at);
        if (!a.column && whole) a.rows = (size_t)(whole < left ? whole : left);
        tsr_band *band = NULL;
        if (TSR_PRODUCTS_BUILT && tsr_packed_has_bands(p, &a)) TSR_TRY(tsr_band_take(p, &a, &band, err));
        if (band && band->row + band->rows - a.row < a.rows) a.rows = (size_t)(band->row + band->rows - a.row);
        const tsr_status status = compute_area(p, &a, band, r, out + (at - first) * tsr_dtype_size(p->dtype), losses, err);
        tsr_band_leave(p, band, a.rows);
        TSR_TRY(status);
        at += (uint64_t)a.rows * a.columns;
    }
    return TSR_OK;
}

tsr_status tsr_packed_compute(const void *ctx, uint64_t first, size_t count, uint8_t *out, tsr_cast_losses *losses,
                              tsr_error *err)
{
    const tsr_packed_weight *p = ctx;
    const uint64_t rows = count / p->columns, most = rows < p->rows ? rows : p->rows;
    tsr_packed_room r;
    TSR_TRY(room_open(p, most ? (size_t)most : 1, count < p->columns ? count : (size_t)p->columns, &r, err));
    const tsr_status status = compute_all(p, first, count, &r, out, losses, err);
    tsr_free(p->source->host->allocator, r.numbers, r.size, 1);
    return status;
}
