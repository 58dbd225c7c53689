/* Computes weights from packed numbers, their zeros and their scales when they are read. */
#include "mapping/mapping_packed.h"
#include "tessera/box.h"
#include "tessera/read.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

enum {
    NUMBERS = 256,
    ROWS = 64,     /* are unpacked at a time */
    STEP = 2048,   /* columns of a row are computed at a time */
    PAD = 64,      /* keeps unpacked rows from being at the same places of a cache */
    SLACK = 16,    /* bytes of a line of words beyond its numbers */
    BAND = 4 << 20 /* bytes that are read at a time of numbers that are stored column by column */
};

/* A part of one matrix: of the weight, or of what is stored. */
typedef struct area {
    uint64_t matrix, row, column;
    size_t rows, columns;
} area;

/* What is stored of a part of a matrix of numbers. */
typedef struct stored_words {
    const uint8_t *words;
    size_t width;   /* bytes per line */
    uint64_t first; /* the number of the first bit in its line of the matrix */
} stored_words;

/* Rows of a weight whose numbers are stored column by column. A read of few rows takes few bytes from each column, so the rows around
 * them are read with them and kept for the next read. A thread that uses a band has taken it out of the mapped checkpoint. */
typedef struct tsr_band {
    const tsr_packed_weight *weight;
    uint64_t row, rows;
    size_t size; /* of this block */
    stored_words stored;
    uint8_t words[];
} tsr_band;

/* The memory for one area of a weight, all in one block. */
typedef struct room {
    size_t size;
    float *numbers;        /* what each code means */
    float *values;         /* products */
    float *scales, *zeros; /* zeros NULL: there are none */
    int32_t *groups;       /* with an index, of each column, counted from first_group */
    uint8_t *rounded, *codes, *words;
    uint8_t *table, *row; /* products in the dtype of the weight: by group and code; of a part of a row */
    uint64_t first_group;
    size_t group_count;
    size_t apart, beside; /* how far the scales of the next row, and those of the next group, are from each other */
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

/* The 8 numbers of 4 bits in a word, each in a byte, the lowest first. */
static uint64_t spread(const uint8_t *word)
{
    uint64_t x = (uint64_t)word[0] | (uint64_t)word[1] << 8 | (uint64_t)word[2] << 16 | (uint64_t)word[3] << 24;
    x = (x | x << 16) & UINT64_C(0x0000FFFF0000FFFF);
    x = (x | x << 8) & UINT64_C(0x00FF00FF00FF00FF);
    return (x | x << 4) & UINT64_C(0x0F0F0F0F0F0F0F0F);
}

static void put_bytes(uint64_t x, uint8_t *out)
{
    for (unsigned i = 0; i < 8; i++) out[i] = (uint8_t)(x >> 8 * i);
}

/* Unpacks 8 numbers of 4 bits at a time, from the first whole word on; returns how many. */
static size_t unpack_words(const tsr_codes *codes, const area *a, uint64_t first, const uint8_t *words, uint8_t *out)
{
    size_t done = 0;
    const bool swapped = codes->order && codes->period == 2;
    if (codes->bits != 4 || a->column % 8 || (a->column * 4 - first) % 8 || (codes->order && !swapped)) return 0;
    words += (a->column * 4 - first) / 8;
    for (; done + 8 <= a->columns; done += 8, words += 4) {
        const uint64_t x = spread(words);
        const uint64_t even = UINT64_C(0x00FF00FF00FF00FF);
        put_bytes(swapped ? (x & even) << 8 | (x >> 8 & even) : x, out + done);
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

/* Reads the words of a part of a matrix of stored numbers. */
static tsr_status read_words(const tsr_packed_weight *p, const tsr_codes *codes, const area *a, uint8_t *words,
                             stored_words *out, tsr_error *err)
{
    const uint64_t item = tsr_dtype_size(codes->entry->dtype), period = codes->order ? codes->period : 1;
    const uint64_t begin = codes->down ? a->row : a->column, end = begin + (codes->down ? a->rows : a->columns);
    const uint64_t low = begin / period * period * codes->bits / (8 * item);
    const uint64_t high = ((end + period - 1) / period * period * codes->bits + 8 * item - 1) / (8 * item);
    area stored = *a;
    if (codes->down) stored.row = low, stored.rows = (size_t)(high - low);
    else stored.column = low, stored.columns = (size_t)(high - low);
    *out = (stored_words){words, stored.columns * (size_t)item, low * item * 8};
    return read_area(p, codes->entry, &stored, words, err);
}

/* Reads and unpacks a part of a matrix of stored numbers. */
static tsr_status read_codes(const tsr_packed_weight *p, const tsr_codes *codes, const area *a, uint8_t *words, uint8_t *out,
                             tsr_error *err)
{
    stored_words stored;
    TSR_TRY(read_words(p, codes, a, words, &stored, err));
    if (codes->down) unpack_down(codes, a, words, out);
    else unpack_across(codes, a, stored.width, stored.first, words, out);
    return TSR_OK;
}

/* ---- rows of numbers that are stored column by column ---- */

/* Turns 8 rows of 8 bytes: byte i of x[k] becomes byte k of x[i]. */
static void turn(uint64_t x[8])
{
    static const uint64_t masks[] = {UINT64_C(0x00FF00FF00FF00FF), UINT64_C(0x0000FFFF0000FFFF),
                                     UINT64_C(0x00000000FFFFFFFF)};
    for (unsigned step = 0; step < 3; step++) {
        const unsigned far = 1u << step, bits = 8 << step;
        for (unsigned i = 0; i < 8; i++) {
            if (i & far) continue;
            const uint64_t moved = (x[i] >> bits ^ x[i + far]) & masks[step];
            x[i + far] ^= moved;
            x[i] ^= moved << bits;
        }
    }
}

/* Words that hold numbers of one row: each is unpacked where its numbers belong. Lines are far apart in memory, so some of them are
 * brought together first. Returns how many columns are done. */
static size_t unpack_down_words(const tsr_codes *codes, const area *a, const stored_words *stored, uint8_t *out)
{
    enum { LINES = 16 };
    uint8_t near[LINES][ROWS * sizeof(uint32_t)];
    const unsigned bits = codes->bits, each = 32 / bits, mask = (1u << bits) - 1;
    const size_t whole = a->columns / each, line = (size_t)((a->column * bits - stored->first) / 32);
    if (!TSR_PRODUCTS_BUILT || 32 % bits || a->column * bits % 32) return 0;
    for (size_t w = 0; w < whole; w++) {
        const uint8_t *words = stored->words + (line + w) * stored->width + a->row * sizeof(uint32_t);
        for (size_t j = 0; w % LINES == 0 && j < LINES && w + j < whole; j++, words += stored->width)
            memcpy(near[j], words, a->rows * sizeof(uint32_t));
        words = near[w % LINES];
        for (size_t i = 0; i < a->rows; i++, words += sizeof(uint32_t)) {
            uint8_t *to = out + i * (a->columns + PAD) + w * each;
            if (bits == 4) put_bytes(spread(words), to);
            for (unsigned j = 0; bits != 4 && j < each; j++) to[j] = (uint8_t)(words[j * bits / 8] >> j * bits % 8 & mask);
        }
    }
    return whole * each;
}

/* Words that hold numbers of 8 rows: 8 columns are turned at a time. Returns how many columns are done. */
static size_t unpack_across_words(const tsr_codes *codes, const area *a, const stored_words *stored, uint8_t *out)
{
    const uint8_t *words = stored->words + (a->row * 4 - stored->first) / 8;
    if (!TSR_PRODUCTS_BUILT || codes->bits != 4 || !codes->order || codes->period != 8) return 0;
    const size_t whole = a->columns / 8 * 8;
    for (size_t k = 0; k < whole; k += 8) {
        for (size_t i = 0; i < a->rows; i += 8) {
            uint64_t x[8];
            for (unsigned j = 0; j < 8; j++) x[j] = spread(words + (k + j) * stored->width + i / 2);
            turn(x);
            for (unsigned j = 0; j < 8; j++) put_bytes(x[codes->order[j]], out + (i + j) * (a->columns + PAD) + k);
        }
    }
    return whole;
}

/* Unpacks rows of an area, whose numbers are stored as its columns. `a->row` counts from the first stored one if the numbers are
 * below each other. */
static void unpack_turned(const tsr_codes *codes, const area *a, const stored_words *stored, uint8_t *out)
{
    const unsigned bits = codes->bits, mask = (1u << bits) - 1;
    size_t k = codes->down ? unpack_down_words(codes, a, stored, out) : unpack_across_words(codes, a, stored, out);
    for (; k < a->columns; k++) {
        for (size_t i = 0; i < a->rows; i++) {
            uint64_t bit;
            const uint8_t *at, *next;
            if (codes->down) {
                bit = (a->column + k) * bits - stored->first;
                at = stored->words + bit / 32 * stored->width + (a->row + i) * sizeof(uint32_t) + bit % 32 / 8;
                next = bit % 32 / 8 < 3 ? at + 1 : at + stored->width - 3;
            } else {
                bit = place_of(codes, a->row + i) * bits - stored->first;
                at = stored->words + k * stored->width + bit / 8;
                next = at + 1;
            }
            const unsigned high = bit % 8 + bits > 8 ? *next : 0;
            out[i * (a->columns + PAD) + k] = (uint8_t)((high << 8 | *at) >> bit % 8 & mask);
        }
    }
}

static float number_of(const tsr_codes *codes, uint8_t code)
{
    const unsigned number = (code + codes->add) & ((1u << codes->bits) - 1);
    return (float)((int32_t)(number ^ codes->flip) - codes->bias);
}

/* Finds out which groups there are in the area and, with an index, the group of every column. */
static tsr_status find_groups(const tsr_packed_weight *p, const area *a, room *r, tsr_error *err)
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

/* Rounds products to the dtype that the library gives them, and casts them to the one that is wanted. */
static void round_products(const tsr_packed_weight *p, float *values, size_t count, uint8_t *rounded, uint8_t *out,
                           tsr_cast_losses *losses)
{
    if (p->factor != 1)
        for (size_t i = 0; i < count; i++) values[i] *= p->factor;
    if (p->rounded == TSR_FLOAT32 || p->rounded == p->dtype) {
        tsr_cast_counted(TSR_FLOAT32, p->dtype, (const uint8_t *)values, count, out, losses);
        return;
    }
    tsr_cast_counted(TSR_FLOAT32, p->rounded, (const uint8_t *)values, count, rounded, losses);
    tsr_cast_counted(p->rounded, p->dtype, rounded, count, out, losses);
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

/* Copies what each code of a run means. */
#define LOOK_UP(type) \
    static void look_up_##type(const uint8_t *table, const uint8_t *codes, size_t count, uint8_t *out) \
    { \
        for (size_t i = 0; i < count; i++) memcpy(out + i * sizeof(type), table + codes[i] * sizeof(type), sizeof(type)); \
    } \
    static void look_up_each_##type(const uint8_t *table, const uint8_t *codes, const int32_t *groups, unsigned bits, \
                                    size_t count, uint8_t *out) \
    { \
        for (size_t i = 0; i < count; i++) \
            memcpy(out + i * sizeof(type), table + (((size_t)groups[i] << bits) + codes[i]) * sizeof(type), sizeof(type)); \
    }
LOOK_UP(uint16_t)
LOOK_UP(uint32_t)
LOOK_UP(uint64_t)

/* Looks the products of the part up, if each is used often, and none of them loses anything in a cast, which would have to be
 * counted. Returns false otherwise. */
static bool look_up(const tsr_packed_weight *p, const row_part *part, const uint8_t *codes, room *r, uint8_t *out)
{
    const unsigned bits = p->numbers.bits;
    const size_t size = tsr_dtype_size(p->dtype);
    const size_t low = p->group_index ? 0 : run_from(p, r, part, 0).group,
                 high = p->group_index ? r->group_count - 1 : run_from(p, r, part, part->count - 1).group,
                 count = (high - low + 1) << bits;
    tsr_cast_losses losses = {0};
    if (count > part->count / 2 || size < 2) return false;
    for (size_t g = low; g <= high; g++) {
        const size_t place = place_in(p, r, g);
        const float scale = part->scales[place], zero = part->zeros ? part->zeros[place] : 0;
        float *products = r->values + ((g - low) << bits);
        for (size_t i = 0; i < (size_t)1 << bits; i++) products[i] = (r->numbers[i] - zero) * scale;
    }
    round_products(p, r->values, count, r->rounded, r->table, &losses);
    if (losses.zeros || losses.overflows) return false;
    uint8_t *row = r->row; /* small writes to `out`, which is large, would wait for memory */
    if (p->group_index && size == 2) look_up_each_uint16_t(r->table, codes, part->groups, bits, part->count, row);
    if (p->group_index && size == 4) look_up_each_uint32_t(r->table, codes, part->groups, bits, part->count, row);
    if (p->group_index && size == 8) look_up_each_uint64_t(r->table, codes, part->groups, bits, part->count, row);
    for (size_t k = 0; !p->group_index && k < part->count;) {
        const column_run run = run_from(p, r, part, k);
        const uint8_t *table = r->table + ((run.group - low) << bits) * size;
        if (size == 2) look_up_uint16_t(table, codes + k, run.end - k, row + k * size);
        else if (size == 4) look_up_uint32_t(table, codes + k, run.end - k, row + k * size);
        else look_up_uint64_t(table, codes + k, run.end - k, row + k * size);
        k = run.end;
    }
    memcpy(out, row, part->count * size);
    return true;
}

/* ---- bands ---- */

static void free_band(tsr_mapped *m, tsr_band *band)
{
    if (band) tsr_free(m->own->host->allocator, band, band->size, 1);
}

/* Keeps a band in the first place that is free, or instead of another one. */
static void keep_band(tsr_mapped *m, tsr_band *band)
{
    for (unsigned i = 0; i < TSR_BANDS; i++) {
        tsr_band *none = NULL;
        if (atomic_compare_exchange_strong(&m->bands[i], &none, band)) return;
    }
    free_band(m, atomic_exchange(&m->bands[0], band));
}

/* Takes the band that has the row. Without one, *spare becomes a band of another weight, or NULL. */
static tsr_band *find_band(const tsr_packed_weight *p, uint64_t row, tsr_band **spare)
{
    *spare = NULL;
    for (unsigned i = 0; i < TSR_BANDS; i++) {
        tsr_band *band = atomic_exchange(&p->mapped->bands[i], NULL), *found = NULL;
        if (band && band->weight == p && row >= band->row && row - band->row < band->rows) found = band;
        else if (band && band->weight != p && !*spare) *spare = band;
        else if (band) keep_band(p->mapped, band);
        if (found) {
            if (*spare) keep_band(p->mapped, *spare);
            return found;
        }
    }
    return NULL;
}

/* Takes the band that has the row, or reads the one that begins with it. */
static tsr_status take_band(const tsr_packed_weight *p, uint64_t row, tsr_band **out, tsr_error *err)
{
    tsr_band *band;
    *out = find_band(p, row, &band);
    if (*out) return TSR_OK;
    const uint64_t bits = p->columns * p->numbers.bits, most = BAND * UINT64_C(8) / bits / 8 * 8, first = row / 8 * 8;
    const uint64_t rows = p->rows - first < most ? p->rows - first : most;
    const size_t size = sizeof(tsr_band) + (size_t)(rows * bits / 8) + (size_t)(rows + p->columns) * SLACK;
    const area turned = {.rows = (size_t)p->columns, .column = first, .columns = (size_t)rows};
    if (band && band->size < size) {
        free_band(p->mapped, band);
        band = NULL;
    }
    const size_t has = band ? band->size : size;
    if (!band) band = tsr_alloc(p->mapped->own->host->allocator, size, 1, err);
    if (!band) return TSR_E_NOMEM;
    *band = (tsr_band){.weight = p, .row = first, .rows = rows, .size = has};
    const tsr_status status = read_words(p, &p->numbers, &turned, band->words, &band->stored, err);
    if (status == TSR_OK) *out = band;
    else free_band(p->mapped, band);
    return status;
}

void tsr_packed_close(tsr_mapped *m)
{
    for (unsigned i = 0; i < TSR_BANDS; i++) free_band(m, m->bands[i]);
}

/* Whether the area is of whole rows, enough of them to be worth a band. */
static bool has_bands(const tsr_packed_weight *p, const area *a)
{
    return TSR_PRODUCTS_BUILT && p->transposed && a->rows >= ROWS && a->columns == p->columns && p->columns <= BAND / ROWS &&
           p->rows % 8 == 0;
}

/* ---- areas ---- */

/* Rows and columns of an area that are computed together, and what is stored of the area. */
typedef struct block {
    size_t row, rows, column, columns; /* counted in the area */
    stored_words stored;
    uint64_t stored_row; /* of the weight */
} block;

/* Unpacks the rows of the block, `before` rows of the same words ahead of them. */
static void unpack_block(const tsr_packed_weight *p, const area *a, const block *b, size_t before, uint8_t *codes)
{
    const tsr_codes *numbers = &p->numbers;
    const uint32_t period = p->transposed && numbers->order ? numbers->period : 1;
    const uint64_t row = a->row + b->row;
    stored_words stored = b->stored;
    area part = {.column = a->column + b->column, .columns = b->columns};
    part.rows = (before + b->rows + period - 1) / period * period;
    part.row = numbers->down ? row - b->stored_row : row - before;
    if (!p->transposed) stored.words += b->row * stored.width;
    else if (!numbers->down) stored.words += b->column * stored.width;
    if (p->transposed) unpack_turned(numbers, &part, &stored, codes);
    else unpack_across(numbers, &part, stored.width, stored.first, stored.words, codes);
}

static void compute_block(const tsr_packed_weight *p, const area *a, const block *b, room *r, uint8_t *out,
                          tsr_cast_losses *losses)
{
    const tsr_codes *numbers = &p->numbers;
    const size_t itemsize = tsr_dtype_size(p->dtype), line = b->columns + (p->transposed ? PAD : 0);
    const size_t before = p->transposed && numbers->order ? (size_t)((a->row + b->row) % numbers->period) : 0;
    row_part part = {.groups = r->groups + b->column, .column = a->column + b->column, .count = b->columns};
    unpack_block(p, a, b, before, r->codes);
    for (size_t i = 0; i < b->rows; i++) {
        const size_t row = b->row + i, place = p->one_scale ? 0 : row * r->apart;
        const uint8_t *codes = r->codes + (before + i) * line;
        uint8_t *to = out + (row * a->columns + b->column) * itemsize;
        part.scales = r->scales + place;
        part.zeros = r->zeros ? r->zeros + place : NULL;
        if (!TSR_PRODUCTS_BUILT || !look_up(p, &part, codes, r, to)) multiply(p, &part, codes, r, to, losses);
    }
}

/* Blocks end at multiples of ROWS, so that words of several rows are unpacked whole. With an index, groups are in no order, so all of
 * them are needed for any column. */
static void compute_blocks(const tsr_packed_weight *p, const area *a, block b, room *r, uint8_t *out,
                           tsr_cast_losses *losses)
{
    const size_t step = p->group_index ? a->columns : STEP;
    for (b.row = 0; b.row < a->rows; b.row += b.rows) {
        const size_t rows = ROWS - (size_t)((a->row + b.row) % ROWS), left = a->rows - b.row;
        b.rows = rows < left ? rows : left;
        for (b.column = 0; b.column < a->columns; b.column += b.columns) {
            b.columns = a->columns - b.column < step ? a->columns - b.column : step;
            compute_block(p, a, &b, r, out, losses);
        }
    }
}

static tsr_status compute_area(const tsr_packed_weight *p, const area *a, const tsr_band *band, room *r, uint8_t *out,
                               tsr_cast_losses *losses, tsr_error *err)
{
    const area turned = {.row = a->column, .rows = a->columns, .column = a->row, .columns = a->rows};
    block b = {.stored_row = band ? band->row : a->row};
    TSR_TRY(find_groups(p, a, r, err));
    TSR_TRY(read_scales(p, a, r, err));
    if (band) b.stored = band->stored;
    else TSR_TRY(read_words(p, &p->numbers, p->transposed ? &turned : a, r->words, &b.stored, err));
    r->apart = p->transposed ? 1 : r->group_count;
    r->beside = p->transposed ? a->rows : 1;
    compute_blocks(p, a, b, r, out, losses);
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
    const size_t part = columns < STEP || p->group_index ? columns : STEP;
    const size_t unpacked = (rows < ROWS && !p->transposed ? rows : ROWS) * (part + PAD);
    const size_t codes = unpacked > scales ? unpacked : scales;              /* also those of zeros */
    const size_t values = part > groups ? part + NUMBERS : groups + NUMBERS; /* also the scales of scales */
    const size_t lines = rows + columns + groups;
    const size_t words = (elements > scales * sizeof(float) ? elements : scales * sizeof(float)) + lines * SLACK;
    *r = (room){.size = 2 * values * sizeof(float) + 2 * scales * sizeof(float) + columns * sizeof(int32_t) +
                        NUMBERS * sizeof(float) + 2 * part * sizeof(double) + codes + words + 10 * 16};
    uint8_t *memory = tsr_alloc(p->source->host->allocator, r->size, 1, err);
    if (!memory) return TSR_E_NOMEM;
    r->numbers = take(&memory, NUMBERS * sizeof(float)); /* the first: the block is freed by it */
    r->values = take(&memory, values * sizeof(float));
    r->rounded = take(&memory, values * sizeof(float));
    r->scales = take(&memory, scales * sizeof(float));
    r->zeros = take(&memory, scales * sizeof(float));
    if (!p->zeros.entry) r->zeros = NULL;
    r->groups = take(&memory, columns * sizeof(int32_t));
    r->table = take(&memory, part * sizeof(double));
    r->row = take(&memory, part * sizeof(double));
    r->codes = take(&memory, codes);
    r->words = memory;
    for (unsigned i = 0; i < NUMBERS; i++) r->numbers[i] = p->table ? p->table[i % 16] : number_of(&p->numbers, (uint8_t)i);
    return TSR_OK;
}

static tsr_status compute_all(const tsr_packed_weight *p, uint64_t first, size_t count, room *r, uint8_t *out,
                              tsr_cast_losses *losses, tsr_error *err)
{
    const uint64_t end = first + count;
    for (uint64_t at = first; at < end;) {
        const uint64_t row = at / p->columns;
        area a = {.matrix = row / p->rows, .row = row % p->rows, .rows = 1, .column = at % p->columns};
        const uint64_t line = p->columns - a.column, whole = (end - at) / p->columns, left = p->rows - a.row;
        a.columns = (size_t)(line < end - at ? line : end - at);
        if (!a.column && whole) a.rows = (size_t)(whole < left ? whole : left);
        tsr_band *band = NULL;
        if (has_bands(p, &a)) TSR_TRY(take_band(p, a.row, &band, err));
        if (band && band->row + band->rows - a.row < a.rows) a.rows = (size_t)(band->row + band->rows - a.row);
        const tsr_status status = compute_area(p, &a, band, r, out + (at - first) * tsr_dtype_size(p->dtype), losses, err);
        if (band) keep_band(p->mapped, band);
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
