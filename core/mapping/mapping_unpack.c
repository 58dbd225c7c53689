/* Computes weights from packed numbers, their zeros and their scales when they are read. */
#include "mapping/mapping_packed.h"
#include "tessera/box.h"
#include "tessera/read.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

enum {
    NUMBERS = 256,
    ROWS = TSR_TURNED_ROWS, /* are unpacked at a time */
    STEP = 2048,            /* columns of a row are computed at a time */
    BYTES_STEP = 16384, /* the same for numbers of 8 bits, whose tables take longer to make, and which are not unpacked */
    SLACK = 16,         /* bytes of a line of words beyond its numbers */
    TURNED = TSR_TURNED_COLUMNS, /* columns that are turned at a time */
    BAND = 4 << 20,              /* bytes that are read at a time of numbers that are stored column by column */
    LEAST_GROUP = 8,             /* columns per group, on average, for scales that are read with their numbers */
    PAIR_NUMBERS = 16,           /* products of a group, if numbers have 4 bits */
    ALIGNED = 16                 /* the columns at which processors look up pairs: see tsr_pair_groups */
};

/* Rows of a weight that is stored column by column, and their scales. Numbers of 4 bits are turned while what is stored of a few columns is
 * in the caches; others when they are needed. A read of few rows takes few bytes from each column, so the rows
 * around them are read with them, for all threads. Each use is counted, and so is the place among the mapped checkpoint's bands, which a
 * thread empties while it looks at the band. */
typedef struct tsr_band {
    atomic_uint uses;
    atomic_bool filled;
    const tsr_packed_weight *weight;
    uint64_t row, rows;
    _Atomic int64_t unread; /* rows of which nothing has been computed yet; fewer than 0 if some are computed again */
    size_t size;            /* of this block */
    float *scales, *zeros;  /* row by row */
    uint8_t *pairs;         /* row by row; NULL: there is what is stored */
    tsr_stored_words stored;
} tsr_band;

/* The memory for one area of a weight, all in one block. */
typedef struct room {
    size_t size;
    float *numbers;        /* what each code means */
    float *values;         /* products */
    float *scales, *zeros; /* zeros NULL: there are none */
    int32_t *groups;       /* with an index, of each column, counted from first_group */
    uint16_t *places;      /* and where the products of that group are among those of pairs */
    uint8_t *rounded, *codes, *words;
    uint8_t *table, *row;    /* products in the dtype of the weight: by group and code; of a part of a row */
    uint8_t *spread;         /* codes of a part of a row of pairs */
    uint8_t tables[NUMBERS]; /* 0, 1, 2, …: groups have the tables of their numbers */
    uint64_t first_group;
    size_t group_count;
    size_t apart, beside; /* how far the scales of the next row, and those of the next group, are from each other */
} room;

/* ---- reading ---- */

/* Reads a part of an entry with two dims, or with three, the first of which counts matrices. */
static tsr_status read_area(const tsr_packed_weight *p, const tsr_entry *entry, const tsr_area *a, void *out, tsr_error *err)
{
    const uint64_t offsets[] = {a->matrix, a->row, a->column}, sizes[] = {1, a->rows, a->columns};
    const size_t count = a->rows * a->columns, bytes = count * tsr_dtype_size(entry->dtype);
    const unsigned skip = entry->ndim == 3 ? 0 : 1;
    if (!p->flat && entry->ndim > 1)
        return tsr_read_box(p->source, entry, (tsr_box){entry->ndim, offsets + skip, sizes + skip}, out, bytes, err);
    const tsr_run run = {.first = a->row + a->column, .count = count}; /* one of them is 0 */
    return tsr_read_run(p->source, entry, &run, out, bytes, err);
}

/* Reads the words of a part of a matrix of stored numbers. */
static tsr_status read_words(const tsr_packed_weight *p, const tsr_codes *codes, const tsr_area *a, uint8_t *words,
                             tsr_stored_words *out, tsr_error *err)
{
    const uint64_t item = tsr_dtype_size(codes->entry->dtype), period = codes->order ? codes->period : 1;
    const uint64_t begin = codes->down ? a->row : a->column, end = begin + (codes->down ? a->rows : a->columns);
    const uint64_t low = begin / period * period * codes->bits / (8 * item);
    const uint64_t high = ((end + period - 1) / period * period * codes->bits + 8 * item - 1) / (8 * item);
    tsr_area stored = *a;
    if (codes->down) stored.row = low, stored.rows = (size_t)(high - low);
    else stored.column = low, stored.columns = (size_t)(high - low);
    *out = (tsr_stored_words){words, stored.columns * (size_t)item, low * item * 8};
    return read_area(p, codes->entry, &stored, words, err);
}

/* Reads and unpacks a part of a matrix of stored numbers. */
static tsr_status read_codes(const tsr_packed_weight *p, const tsr_codes *codes, const tsr_area *a, uint8_t *words,
                             uint8_t *out, tsr_error *err)
{
    tsr_stored_words stored;
    TSR_TRY(read_words(p, codes, a, words, &stored, err));
    if (codes->down) tsr_codes_down(codes, a, words, out);
    else tsr_codes_across(codes, a, &stored, out);
    return TSR_OK;
}

static float number_of(const tsr_codes *codes, uint8_t code)
{
    const unsigned number = (code + codes->add) & ((1u << codes->bits) - 1);
    return (float)((int32_t)(number ^ codes->flip) - codes->bias);
}

/* Finds out which groups there are in the area and, with an index, the group of every column. */
static tsr_status find_groups(const tsr_packed_weight *p, const tsr_area *a, room *r, tsr_error *err)
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
    for (size_t k = 0; k < a->columns; k++) {
        r->groups[k] -= low;
        r->places[k] = (uint16_t)(r->groups[k] * PAIR_NUMBERS); /* if there are that many */
    }
    r->first_group = (uint64_t)low;
    r->group_count = (size_t)(high - low) + 1;
    return TSR_OK;
}

/* The part of the scales, or of the zeros, that an area needs. */
static tsr_area scales_of(const tsr_packed_weight *p, const tsr_area *a, const room *r)
{
    tsr_area s = {.matrix = a->matrix, .row = a->row, .rows = a->rows, .column = r->first_group, .columns = r->group_count};
    if (p->one_scale) s = (tsr_area){.rows = 1, .columns = 1};
    if (p->transposed) s = (tsr_area){.row = r->first_group, .rows = r->group_count, .column = a->row, .columns = a->rows};
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

static tsr_status read_scales(const tsr_packed_weight *p, const tsr_area *a, room *r, tsr_error *err)
{
    const tsr_area s = scales_of(p, a, r);
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

static column_run run_from(const tsr_packed_weight *p, const room *r, const row_part *part, size_t k)
{
    if (!p->group_index) {
        const uint64_t group = (part->column + k) / p->group, end = (group + 1) * p->group - part->column;
        return (column_run){(size_t)(group - r->first_group), end < part->count ? (size_t)end : part->count};
    }
    column_run run = {(size_t)part->groups[k], k + 1};
    while (run.end < part->count && (size_t)part->groups[run.end] == run.group) run.end++;
    return run;
}

static size_t place_in(const tsr_packed_weight *p, const room *r, size_t group)
{
    return p->one_scale ? 0 : group * r->beside;
}

static void cast(const tsr_lossy *lossy, tsr_dtype to, const uint8_t *values, size_t count, uint8_t *out,
                 tsr_cast_losses *losses)
{
    tsr_cast(lossy->from, to, values, count, out);
    tsr_count_losses(lossy, values, count, losses);
}

/* Rounds products to the dtype that the library gives them, and casts them to the one that is wanted. */
static void round_products(const tsr_packed_weight *p, float *values, size_t count, uint8_t *rounded, uint8_t *out,
                           tsr_cast_losses *losses)
{
    if (p->factor != 1)
        for (size_t i = 0; i < count; i++) values[i] *= p->factor;
    const bool once = p->rounded == TSR_FLOAT32 || p->rounded == p->dtype;
    cast(&p->rounding, once ? p->dtype : p->rounded, (const uint8_t *)values, count, once ? out : rounded, losses);
    if (!once) cast(&p->casting, p->dtype, rounded, count, out, losses);
}

/* Multiplies the numbers of the part one by one. */
static void multiply(const tsr_packed_weight *p, const row_part *part, const uint8_t *codes, room *r, uint8_t *out,
                     tsr_cast_losses *losses)
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

static group_range groups_of(const tsr_packed_weight *p, const row_part *part, const room *r)
{
    if (p->group_index) return (group_range){0, r->group_count};
    const size_t low = run_from(p, r, part, 0).group;
    return (group_range){low, run_from(p, r, part, part->count - 1).group - low + 1};
}

/* Makes tables of the products of these groups, if each is used often, and none of them loses anything in a cast, which would have to be
 * counted. Returns false otherwise. */
static bool make_tables(const tsr_packed_weight *p, const row_part *part, group_range groups, room *r)
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

/* Products of columns in any order of groups, several at a time, as stores would take longest otherwise. */
static void look_up_ordered_pairs(const uint16_t *table, const uint16_t *places, const uint8_t *pairs, size_t count,
                                  uint8_t *out)
{
    size_t i = 0;
    for (; i + 4 <= count; i += 4, pairs += 2) {
        const uint16_t four[4] = {table[places[i] + (pairs[0] & 15)], table[places[i + 1] + (pairs[0] >> 4)],
                                  table[places[i + 2] + (pairs[1] & 15)], table[places[i + 3] + (pairs[1] >> 4)]};
        memcpy(out + i * sizeof *four, four, sizeof four);
    }
    for (; i < count; i++) {
        const uint8_t pair = pairs[i % 4 / 2];
        memcpy(out + i * sizeof *table, &table[places[i] + (i % 2 ? pair >> 4 : pair & 15)], sizeof *table);
    }
}

/* Products of pairs, of 2 bytes each. */
static void look_up_pairs(const tsr_packed_weight *p, const row_part *part, group_range groups, const uint8_t *pairs,
                          const room *r, uint8_t *out)
{
    const uint16_t *table = (const uint16_t *)(const void *)r->table;
    if (p->group_index) {
        look_up_ordered_pairs(table, r->places, pairs, part->count, out);
        return;
    }
    for (size_t k = 0, end; k < part->count; k = end) {
        const column_run run = run_from(p, r, part, k);
        const size_t number = run.group - groups.low, whole = (part->count - k) / (size_t)p->group;
        tsr_pair_groups found = {.pairs = pairs + k / 2,
                                 .tables = r->tables + number,
                                 .count = 1,
                                 .products = (const uint16_t(*)[PAIR_NUMBERS])r->table};
        if (run.end - k == p->group) found.count = whole, end = k + whole * (size_t)p->group;
        else end = run.end;
        found.group_bytes = (end - k) / found.count / ALIGNED * ALIGNED / 2;
        if (found.group_bytes) tsr_look_up_pairs(p->source->host, &found, out + k * sizeof *table);
        for (size_t i = k + 2 * found.count * found.group_bytes; i < end; i++) {
            const uint8_t code = i % 2 ? pairs[i / 2] >> 4 : pairs[i / 2] & 15;
            memcpy(out + i * sizeof *table, &table[number * PAIR_NUMBERS + code], sizeof *table);
        }
    }
}

/* Products of codes. */
static void look_up_codes(const tsr_packed_weight *p, const row_part *part, group_range groups, const uint8_t *codes,
                          const room *r, uint8_t *out)
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

/* ---- bands ---- */

/* Ends a use of the band. */
static void drop_band(tsr_mapped *m, tsr_band *band)
{
    if (band && atomic_fetch_sub(&band->uses, 1) == 1) tsr_free(m->own->host->allocator, band, band->size, 1);
}

/* Keeps a band in the first place that is free, or instead of another one. */
static void keep_band(tsr_mapped *m, tsr_band *band)
{
    for (unsigned i = 0; i < TSR_BANDS; i++) {
        tsr_band *none = NULL;
        if (atomic_compare_exchange_strong(&m->bands[i], &none, band)) return;
    }
    drop_band(m, atomic_exchange(&m->bands[0], band));
}

static bool is_needed(const tsr_packed_weight *p, tsr_band *band)
{
    return atomic_load(&band->uses) > 1 || (band->weight == p && atomic_load(&band->unread) > 0);
}

/* Finds the band that has the row, and begins a use of it. *spare becomes NULL then; without one, it becomes a band that is not needed any more, or NULL. */
static tsr_band *find_band(const tsr_packed_weight *p, uint64_t row, tsr_band **spare)
{
    tsr_band *found = NULL;
    *spare = NULL;
    for (unsigned i = 0; i < TSR_BANDS && !found; i++) {
        tsr_band *band = atomic_exchange(&p->mapped->bands[i], NULL);
        if (!band) continue;
        if (band->weight == p && row >= band->row && row - band->row < band->rows) {
            found = band;
            atomic_fetch_add(&band->uses, 1);
        } else if (!*spare && !is_needed(p, band)) {
            *spare = band;
            continue;
        }
        keep_band(p->mapped, band);
    }
    if (found && *spare) {
        keep_band(p->mapped, *spare);
        *spare = NULL;
    }
    return found;
}

/* Turns numbers of groups into numbers of rows, as many rows at a time as a line of a cache has numbers. */
static void turn_scales(const float *scales, size_t groups, size_t rows, float *out)
{
    enum { NEAR = 16 };
    for (size_t first = 0; first < rows; first += NEAR) {
        const size_t end = rows - first < NEAR ? rows : first + NEAR;
        for (size_t g = 0; g < groups; g++)
            for (size_t i = first; i < end; i++) out[i * groups + g] = scales[g * rows + i];
    }
}

/* Reads the scales and zeros of a band of a weight whose columns are its lines. */
static tsr_status read_band_scales(const tsr_packed_weight *p, tsr_band *band, tsr_error *err)
{
    const tsr_allocator *allocator = p->mapped->own->host->allocator;
    const size_t rows = (size_t)band->rows, groups = (size_t)p->groups, count = rows * groups;
    const size_t words = count * sizeof(float) + (rows + groups) * SLACK, size = 2 * count * sizeof(float) + count + words;
    const tsr_area a = {.row = band->row, .rows = rows};
    float *memory = tsr_alloc(allocator, size, 1, err);
    if (!memory) return TSR_E_NOMEM;
    uint8_t *const rest = (uint8_t *)(memory + 2 * count);
    room r = {.group_count = groups,
              .scales = memory,
              .zeros = p->zeros.entry ? memory + count : NULL,
              .words = rest,
              .codes = rest + words};
    const tsr_status status = read_scales(p, &a, &r, err);
    if (status == TSR_OK) turn_scales(r.scales, groups, rows, band->scales);
    if (status == TSR_OK && r.zeros) turn_scales(r.zeros, groups, rows, band->zeros);
    tsr_free(allocator, memory, size, 1);
    return status;
}

/* The memory of a band for its numbers, and for what is stored of TURNED of its columns. */
static size_t band_words(const tsr_packed_weight *p, uint64_t rows)
{
    return (size_t)(rows * p->columns * p->numbers.bits / 8) + (size_t)(rows + p->columns) * SLACK;
}

static size_t turned_words(const tsr_packed_weight *p, uint64_t rows)
{
    return (size_t)(rows * TURNED * p->numbers.bits / 8) + (size_t)(rows + TURNED) * SLACK;
}

static bool turns_pairs(const tsr_packed_weight *p)
{
    return p->numbers.bits == 4 && (p->numbers.down || (p->numbers.order && p->numbers.period == 8));
}

/* Reads a few columns at a time, and turns them. */
static tsr_status fill_pairs(const tsr_packed_weight *p, tsr_band *band, uint8_t *words, tsr_error *err)
{
    const size_t line = tsr_pairs_line((size_t)p->columns);
    for (uint64_t k = 0; k < p->columns; k += TURNED) {
        const size_t columns = (size_t)(p->columns - k < TURNED ? p->columns - k : TURNED);
        const tsr_area turned = {.row = k, .rows = columns, .column = band->row, .columns = (size_t)band->rows};
        TSR_TRY(read_words(p, &p->numbers, &turned, words, &band->stored, err));
        tsr_pairs_turn(&p->numbers, &band->stored, (size_t)band->rows, columns, line, band->pairs + k / 2);
    }
    return TSR_OK;
}

static tsr_status fill_band(const tsr_packed_weight *p, tsr_band *band, tsr_error *err)
{
    const size_t scales = (size_t)(band->rows * p->groups);
    const tsr_area turned = {.rows = (size_t)p->columns, .column = band->row, .columns = (size_t)band->rows};
    band->scales = (float *)(band + 1);
    band->zeros = p->zeros.entry ? band->scales + scales : NULL;
    uint8_t *const words = (uint8_t *)(band->scales + 2 * scales);
    band->pairs = turns_pairs(p) ? words + turned_words(p, band->rows) : NULL;
    TSR_TRY(read_band_scales(p, band, err));
    if (band->pairs) return fill_pairs(p, band, words, err);
    return read_words(p, &p->numbers, &turned, words, &band->stored, err);
}

/* Makes an empty band of rows [first, end), in the memory of `spare` if that is large enough. */
static tsr_band *new_band(const tsr_packed_weight *p, uint64_t first, uint64_t end, tsr_band *spare, tsr_error *err)
{
    const uint64_t rows = end - first;
    const size_t words =
        turns_pairs(p) ? turned_words(p, rows) + (size_t)rows * tsr_pairs_line((size_t)p->columns) : band_words(p, rows);
    const size_t size = sizeof(tsr_band) + words + 2 * (size_t)(rows * p->groups) * sizeof(float);
    const bool fits = spare && spare->size >= size;
    tsr_band *band = fits ? spare : tsr_alloc(p->mapped->own->host->allocator, size, 1, err);
    if (!fits) drop_band(p->mapped, spare);
    if (!band) return NULL;
    band->size = fits ? band->size : size;
    band->weight = p;
    band->row = first;
    band->rows = rows;
    atomic_init(&band->uses, 1);
    atomic_init(&band->filled, false);
    atomic_init(&band->unread, (int64_t)rows);
    return band;
}

/* Ends a use in which these rows were computed. */
static void leave_band(const tsr_packed_weight *p, tsr_band *band, uint64_t rows)
{
    if (band) atomic_fetch_sub(&band->unread, (int64_t)rows);
    drop_band(p->mapped, band);
}

/* Begins a use of a band that has the first rows of the area. While another thread reads the one for all threads, only the area's rows are
 * read, which takes as many reads of the columns, but no waiting. */
static tsr_status take_band(const tsr_packed_weight *p, const tsr_area *a, tsr_band **out, tsr_error *err)
{
    const uint64_t most = BAND * UINT64_C(8) / (p->columns * p->numbers.bits) / 8 * 8, first = a->row / 8 * 8;
    const uint64_t wanted = (a->row + a->rows + 7) / 8 * 8, last = p->rows - first < most ? p->rows : first + most;
    tsr_band *spare, *band = find_band(p, a->row, &spare);
    if (band && atomic_load(&band->filled)) {
        *out = band;
        return TSR_OK;
    }
    const bool shared = !band;
    drop_band(p->mapped, band);
    *out = band = new_band(p, first, shared || wanted > last ? last : wanted, spare, err);
    if (!band) return TSR_E_NOMEM;
    if (shared) {
        atomic_fetch_add(&band->uses, 1);
        keep_band(p->mapped, band);
    }
    const tsr_status status = fill_band(p, band, err);
    atomic_store(&band->filled, status == TSR_OK);
    if (status != TSR_OK) leave_band(p, band, band->rows);
    return status;
}

void tsr_packed_close(tsr_mapped *m)
{
    for (unsigned i = 0; i < TSR_BANDS; i++) drop_band(m, m->bands[i]);
}

/* Whether the area is of whole rows, enough of them to be worth a band. */
static bool has_bands(const tsr_packed_weight *p, const tsr_area *a)
{
    if (!TSR_PRODUCTS_BUILT || !p->transposed || a->rows < ROWS || a->columns != p->columns || p->rows % 8) return false;
    return p->columns <= BAND / ROWS && p->groups <= p->columns / LEAST_GROUP;
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
        for (size_t i = 0; i < b->rows; i++) tsr_pairs_swap(words + i * stored.width, line, codes + i * line);
        return (unpacked){codes, line, true};
    }
    tsr_codes_across(numbers, &part, &stored, codes);
    return (unpacked){codes, b->columns, false};
}

/* Looks up the products of a row, or computes them. */
static void compute_row(const tsr_packed_weight *p, const row_part *part, const uint8_t *codes, bool pairs, room *r,
                        uint8_t *out, tsr_cast_losses *losses)
{
    const group_range groups = groups_of(p, part, r);
    const bool aligned =
        p->group_index ? groups.count <= UINT16_MAX / PAIR_NUMBERS : p->group % ALIGNED == 0 && part->column % ALIGNED == 0;
    const bool made = TSR_PRODUCTS_BUILT && make_tables(p, part, groups, r);
    if (made && pairs && aligned && tsr_dtype_size(p->dtype) == sizeof(uint16_t)) {
        look_up_pairs(p, part, groups, codes, r, out);
        return;
    }
    if (TSR_PRODUCTS_BUILT && pairs) {
        tsr_pairs_spread(codes, part->count, r->spread);
        codes = r->spread;
    }
    if (made) look_up_codes(p, part, groups, codes, r, out);
    else multiply(p, part, codes, r, out, losses);
}

static void compute_block(const tsr_packed_weight *p, const tsr_area *a, const block *b, room *r, uint8_t *out,
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
static void compute_blocks(const tsr_packed_weight *p, const tsr_area *a, block b, room *r, uint8_t *out,
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

static tsr_status read_area_parts(const tsr_packed_weight *p, const tsr_area *a, block *b, room *r, tsr_error *err)
{
    const tsr_area turned = {.row = a->column, .rows = a->columns, .column = a->row, .columns = a->rows};
    TSR_TRY(read_scales(p, a, r, err));
    r->apart = p->transposed ? 1 : r->group_count;
    r->beside = p->transposed ? a->rows : 1;
    b->stored_row = a->row;
    return read_words(p, &p->numbers, p->transposed ? &turned : a, r->words, &b->stored, err);
}

/* What a band holds of the area. */
static block part_of_band(const tsr_packed_weight *p, const tsr_band *band, const tsr_area *a, room *r)
{
    const size_t groups = (size_t)p->groups, first = (size_t)(a->row - band->row) * groups + (size_t)r->first_group;
    r->scales = band->scales + first;
    r->zeros = band->zeros ? band->zeros + first : NULL;
    r->apart = groups;
    r->beside = 1;
    const size_t row = (size_t)(a->row - band->row), line = tsr_pairs_line((size_t)p->columns);
    return (block){.stored = band->stored, .stored_row = band->row, .pairs = band->pairs ? band->pairs + row * line : NULL};
}

static tsr_status compute_area(const tsr_packed_weight *p, const tsr_area *a, const tsr_band *band, const room *whole,
                               uint8_t *out, tsr_cast_losses *losses, tsr_error *err)
{
    room r = *whole;
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
static tsr_status room_open(const tsr_packed_weight *p, size_t rows, size_t columns, room *r, tsr_error *err)
{
    const size_t groups = most_groups(p, columns), scales = rows * groups, elements = rows * columns;
    const size_t part = step_of(p, columns), turned = ROWS * tsr_turned_line(part);
    const size_t line_bytes = p->transposed ? turned : (rows < ROWS ? rows : ROWS) * part;
    const size_t codes = line_bytes > scales ? line_bytes : scales;          /* also those of zeros */
    const size_t values = part > groups ? part + NUMBERS : groups + NUMBERS; /* also the scales of scales */
    const size_t lines = rows + columns + groups;
    const size_t words = (elements > scales * sizeof(float) ? elements : scales * sizeof(float)) + lines * SLACK;
    *r = (room){.size = 2 * values * sizeof(float) + 2 * scales * sizeof(float) +
                        columns * (sizeof(int32_t) + sizeof(uint16_t)) + NUMBERS * sizeof(float) +
                        2 * part * sizeof(double) + part + codes + words + 12 * 16};
    uint8_t *memory = tsr_alloc(p->source->host->allocator, r->size, 1, err);
    if (!memory) return TSR_E_NOMEM;
    r->numbers = take(&memory, NUMBERS * sizeof(float)); /* the first: the block is freed by it */
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
    for (unsigned i = 0; i < NUMBERS; i++) r->tables[i] = (uint8_t)i;
    for (unsigned i = 0; i < NUMBERS; i++) r->numbers[i] = p->table ? p->table[i % 16] : number_of(&p->numbers, (uint8_t)i);
    return TSR_OK;
}

static tsr_status compute_all(const tsr_packed_weight *p, uint64_t first, size_t count, room *r, uint8_t *out,
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
        if (has_bands(p, &a)) TSR_TRY(take_band(p, &a, &band, err));
        if (band && band->row + band->rows - a.row < a.rows) a.rows = (size_t)(band->row + band->rows - a.row);
        const tsr_status status = compute_area(p, &a, band, r, out + (at - first) * tsr_dtype_size(p->dtype), losses, err);
        leave_band(p, band, a.rows);
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
    room r;
    TSR_TRY(room_open(p, most ? (size_t)most : 1, count < p->columns ? count : (size_t)p->columns, &r, err));
    const tsr_status status = compute_all(p, first, count, &r, out, losses, err);
    tsr_free(p->source->host->allocator, r.numbers, r.size, 1);
    return status;
}
