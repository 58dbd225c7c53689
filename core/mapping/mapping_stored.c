/* Reads what is stored of packed weights: numbers, their groups and their scales; and bands of the rows of weights that are stored column by
 * column. */
#include "mapping/mapping_stored.h"
#include "tessera/box.h"
#include "tessera/read.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

enum {
    TURNED = TSR_TURNED_COLUMNS, /* columns that are turned at a time */
    BAND = 8 << 20,              /* bytes of the numbers of a band */
    LEAST_GROUP = 8              /* columns per group, on average, for scales that are read with their numbers */
};

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

/* The words of a part of a matrix of stored numbers. Sets the width and the first bit of *out. */
static tsr_area words_of(const tsr_codes *codes, const tsr_area *a, tsr_stored_words *out)
{
    const uint64_t item = tsr_dtype_size(codes->entry->dtype), period = codes->order ? codes->period : 1;
    const uint64_t begin = codes->down ? a->row : a->column, end = begin + (codes->down ? a->rows : a->columns);
    const uint64_t low = begin / period * period * codes->bits / (8 * item);
    const uint64_t high = ((end + period - 1) / period * period * codes->bits + 8 * item - 1) / (8 * item);
    tsr_area stored = *a;
    if (codes->down) stored.row = low, stored.rows = (size_t)(high - low);
    else stored.column = low, stored.columns = (size_t)(high - low);
    *out = (tsr_stored_words){.width = stored.columns * (size_t)item, .first = low * item * 8};
    return stored;
}

tsr_status tsr_packed_read_words(const tsr_packed_weight *p, const tsr_codes *codes, const tsr_area *a, uint8_t *words,
                                 tsr_stored_words *out, tsr_error *err)
{
    const tsr_area stored = words_of(codes, a, out);
    out->words = words;
    return read_area(p, codes->entry, &stored, words, err);
}

/* Reads and unpacks a part of a matrix of stored numbers. */
static tsr_status read_codes(const tsr_packed_weight *p, const tsr_codes *codes, const tsr_area *a, uint8_t *words,
                             uint8_t *out, tsr_error *err)
{
    tsr_stored_words stored;
    TSR_TRY(tsr_packed_read_words(p, codes, a, words, &stored, err));
    if (codes->down) tsr_codes_down(codes, a, words, out);
    else tsr_codes_across(codes, a, &stored, out);
    return TSR_OK;
}

float tsr_codes_number(const tsr_codes *codes, uint8_t code)
{
    const unsigned number = (code + codes->add) & ((1u << codes->bits) - 1);
    return (float)((int32_t)(number ^ codes->flip) - codes->bias);
}

/* The part of the scales, or of the zeros, that an area needs. */
static tsr_area scales_of(const tsr_packed_weight *p, const tsr_area *a, const tsr_packed_room *r)
{
    tsr_area s = {.matrix = a->matrix, .row = a->row, .rows = a->rows, .column = r->first_group, .columns = r->group_count};
    if (p->one_scale) s = (tsr_area){.rows = 1, .columns = 1};
    if (p->transposed) s = (tsr_area){.row = r->first_group, .rows = r->group_count, .column = a->row, .columns = a->rows};
    return s;
}

/* Turns codes of scales that are quantized themselves, from number `first` on, into scales. */
static tsr_status look_up_scales(const tsr_packed_weight *p, uint64_t first, size_t count, tsr_packed_room *r,
                                 tsr_error *err)
{
    const tsr_nested_scale *n = &p->nested;
    float table[TSR_PACKED_NUMBERS], *outer = r->values; /* which are computed later */
    const tsr_run all = {.first = 0, .count = TSR_PACKED_NUMBERS},
                  blocks = {.first = first / n->block, .count = (first + count - 1) / n->block - first / n->block + 1};
    TSR_TRY(tsr_read_run(p->source, n->table, &all, table, sizeof table, err));
    TSR_TRY(tsr_read_run(p->source, n->scale, &blocks, outer, (size_t)blocks.count * sizeof *outer, err));
    for (size_t i = 0; i < count; i++) {
        const float scale = table[r->words[i]] * outer[(first + i) / n->block - blocks.first];
        r->scales[i] = scale + n->offset;
    }
    return TSR_OK;
}

tsr_status tsr_packed_read_scales(const tsr_packed_weight *p, const tsr_area *a, tsr_packed_room *r, tsr_error *err)
{
    const tsr_area s = scales_of(p, a, r);
    const size_t count = s.rows * s.columns;
    TSR_TRY(read_area(p, p->scale, &s, r->words, err));
    if (p->nested.table) TSR_TRY(look_up_scales(p, s.column, count, r, err));
    else if (p->scale->dtype == TSR_FLOAT32) memcpy(r->scales, r->words, count * sizeof *r->scales);
    else tsr_cast(p->scale->dtype, TSR_FLOAT32, r->words, count, (uint8_t *)r->scales);
    if (!r->zeros) return TSR_OK;
    TSR_TRY(read_codes(p, &p->zeros, &s, r->words, r->codes, err));
    for (size_t i = 0; i < count; i++) r->zeros[i] = tsr_codes_number(&p->zeros, r->codes[i]);
    return TSR_OK;
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
    const size_t words = count * sizeof(float) + (rows + groups) * TSR_WORDS_SLACK,
                 size = 2 * count * sizeof(float) + count + words;
    const tsr_area a = {.row = band->row, .rows = rows};
    float *memory = tsr_alloc(allocator, size, 1, err);
    if (!memory) return TSR_E_NOMEM;
    uint8_t *const rest = (uint8_t *)(memory + 2 * count);
    tsr_packed_room r = {.group_count = groups,
                         .scales = memory,
                         .zeros = p->zeros.entry ? memory + count : NULL,
                         .words = rest,
                         .codes = rest + words};
    const tsr_status status = tsr_packed_read_scales(p, &a, &r, err);
    if (status == TSR_OK) turn_scales(r.scales, groups, rows, band->scales);
    if (status == TSR_OK && r.zeros) turn_scales(r.zeros, groups, rows, band->zeros);
    tsr_free(allocator, memory, size, 1);
    return status;
}

static bool turns_pairs(const tsr_packed_weight *p)
{
    return p->numbers.bits == 4 && (p->numbers.down || (p->numbers.order && p->numbers.period == 8));
}

static size_t turned_words(const tsr_packed_weight *p, uint64_t rows)
{
    return (size_t)(rows * TURNED * p->numbers.bits / 8) + (size_t)(rows + TURNED) * TSR_WORDS_SLACK;
}

/* The line of words that a column begins in, of words below each other; those of TURNED columns are whole lines. */
static size_t line_of(const tsr_packed_weight *p, uint64_t column)
{
    return (size_t)((column * p->numbers.bits + 31) / 32);
}

static size_t count_columns(const tsr_packed_weight *p, uint64_t column)
{
    return (size_t)(p->columns - column < TURNED ? p->columns - column : TURNED);
}

/* Reads a few columns, and turns them. */
static tsr_status fill_columns(const tsr_packed_weight *p, tsr_band *band, uint64_t column, tsr_error *err)
{
    const tsr_allocator *allocator = p->mapped->own->host->allocator;
    const size_t columns = count_columns(p, column), line = tsr_pairs_line((size_t)p->columns);
    const tsr_area turned = {.row = column, .rows = columns, .column = band->row, .columns = (size_t)band->rows};
    tsr_stored_words stored;
    if (!band->pairs)
        return tsr_packed_read_words(p, &p->numbers, &turned, band->numbers + line_of(p, column) * band->stored.width,
                                     &stored, err);
    const size_t size = turned_words(p, band->rows);
    uint8_t *const words = tsr_alloc(allocator, size, 1, err);
    if (!words) return TSR_E_NOMEM;
    const tsr_status status = tsr_packed_read_words(p, &p->numbers, &turned, words, &stored, err);
    if (status == TSR_OK)
        tsr_pairs_turn(&p->numbers, &stored, (size_t)band->rows, columns, line, band->numbers + column / 2);
    tsr_free(allocator, words, size, 1);
    return status;
}

/* The first column of a part. */
static uint64_t column_of(unsigned part)
{
    return (uint64_t)(part - 1) * TURNED;
}

static tsr_status fill_part(const tsr_packed_weight *p, tsr_band *band, unsigned part, tsr_error *err)
{
    TSR_TRY(part ? fill_columns(p, band, column_of(part), err) : read_band_scales(p, band, err));
    atomic_store(&band->has[part], true);
    atomic_fetch_add(&band->filled, 1);
    return TSR_OK;
}

static void copy_scales(const tsr_packed_weight *p, tsr_band *band, const tsr_band *from)
{
    const size_t first = (size_t)((band->row - from->row) * p->groups),
                 bytes = (size_t)(band->rows * p->groups) * sizeof(float);
    memcpy(band->scales, from->scales + first, bytes);
    if (band->zeros) memcpy(band->zeros, from->zeros + first, bytes);
}

static void copy_columns(const tsr_packed_weight *p, tsr_band *band, uint64_t column, const tsr_band *from)
{
    const size_t row = (size_t)(band->row - from->row), columns = count_columns(p, column), width = band->stored.width,
                 line = tsr_pairs_line((size_t)p->columns);
    const uint8_t *const pairs = from->numbers + row * line, *const words = from->numbers + row * sizeof(uint32_t);
    for (size_t at = (size_t)column / 2; band->pairs && at < band->rows * line; at += line)
        memcpy(band->numbers + at, pairs + at, (columns + 1) / 2);
    for (size_t i = line_of(p, column); !band->pairs && i < line_of(p, column + columns); i++)
        memcpy(band->numbers + i * width, words + i * from->stored.width, width);
}

/* Makes an empty band of rows [first, end), in the memory of `spare` if that is large enough. */
static tsr_band *new_band(const tsr_packed_weight *p, uint64_t first, uint64_t end, tsr_band *spare, tsr_error *err)
{
    const uint64_t rows = end - first;
    const tsr_area turned = {.rows = (size_t)p->columns, .column = first, .columns = (size_t)rows};
    tsr_stored_words stored;
    const tsr_area area = words_of(&p->numbers, &turned, &stored);
    const unsigned parts = 1 + (unsigned)((p->columns + TURNED - 1) / TURNED);
    const size_t lines = turns_pairs(p) ? (size_t)rows * tsr_pairs_line((size_t)p->columns) : area.rows * stored.width;
    const size_t head = (sizeof(tsr_band) + parts * sizeof(atomic_bool) + 15) / 16 * 16, scales = (size_t)(rows * p->groups);
    const size_t size = head + lines + TSR_WORDS_SLACK + 2 * scales * sizeof(float);
    const bool fits = spare && spare->size >= size;
    tsr_band *band = fits ? spare : tsr_alloc(p->mapped->own->host->allocator, size, 1, err);
    if (!fits) drop_band(p->mapped, spare);
    if (!band) return NULL;
    band->size = fits ? band->size : size;
    band->weight = p;
    band->row = first;
    band->rows = rows;
    band->scales = (float *)(void *)((uint8_t *)band + head);
    band->zeros = p->zeros.entry ? band->scales + scales : NULL;
    stored.words = band->numbers = (uint8_t *)(band->scales + 2 * scales);
    band->pairs = turns_pairs(p);
    band->stored = stored;
    band->parts = parts;
    atomic_init(&band->uses, 1);
    atomic_init(&band->next, 0);
    atomic_init(&band->filled, 0);
    atomic_init(&band->unread, (int64_t)rows);
    for (unsigned i = 0; i < parts; i++) atomic_init(&band->has[i], false);
    return band;
}

void tsr_band_leave(const tsr_packed_weight *p, tsr_band *band, uint64_t rows)
{
    if (band) atomic_fetch_sub(&band->unread, (int64_t)rows);
    drop_band(p->mapped, band);
}

/* Fills parts of a band as long as there are some that no thread has begun. */
static tsr_status help_fill(const tsr_packed_weight *p, tsr_band *band, tsr_error *err)
{
    for (unsigned part; (part = atomic_fetch_add(&band->next, 1)) < band->parts;) TSR_TRY(fill_part(p, band, part, err));
    return TSR_OK;
}

/* Makes a band of the area's rows for one thread, with what is there of the one for all threads. */
static tsr_status take_alone(const tsr_packed_weight *p, const tsr_area *a, const tsr_band *shared, tsr_band **out,
                             tsr_error *err)
{
    const uint64_t wanted = (a->row + a->rows + 7) / 8 * 8, end = shared->row + shared->rows;
    tsr_band *band = new_band(p, a->row / 8 * 8, wanted < end ? wanted : end, NULL, err);
    tsr_status status = TSR_OK;
    if (!band) return TSR_E_NOMEM;
    for (unsigned part = 0; status == TSR_OK && part < band->parts; part++) {
        if (!atomic_load(&shared->has[part])) status = fill_part(p, band, part, err);
        else if (part) copy_columns(p, band, column_of(part), shared);
        else copy_scales(p, band, shared);
    }
    if (status == TSR_OK) *out = band;
    else drop_band(p->mapped, band);
    return status;
}

/* What other threads are still reading when nothing is left to begin is read again, for the rows of the area only: that takes few bytes, and
 * no waiting. */
tsr_status tsr_band_take(const tsr_packed_weight *p, const tsr_area *a, tsr_band **out, tsr_error *err)
{
    const uint64_t most = BAND * UINT64_C(8) / (p->columns * p->numbers.bits) / 8 * 8, first = a->row / 8 * 8;
    tsr_band *spare, *band = find_band(p, a->row, &spare);
    if (!band) {
        band = new_band(p, first, p->rows - first < most ? p->rows : first + most, spare, err);
        if (!band) return TSR_E_NOMEM;
        atomic_fetch_add(&band->uses, 1);
        keep_band(p->mapped, band);
    }
    tsr_status status = help_fill(p, band, err);
    *out = band;
    if (status == TSR_OK && atomic_load(&band->filled) == band->parts) return TSR_OK;
    if (status == TSR_OK) status = take_alone(p, a, band, out, err);
    tsr_band_leave(p, band, status == TSR_OK ? (*out)->rows : band->rows);
    return status;
}

void tsr_packed_close(tsr_mapped *m)
{
    for (unsigned i = 0; i < TSR_BANDS; i++) drop_band(m, m->bands[i]);
}

bool tsr_packed_has_bands(const tsr_packed_weight *p, const tsr_area *a)
{
    if (!p->transposed || a->rows < TSR_TURNED_ROWS || a->columns != p->columns || p->rows % 8) return false;
    return p->columns <= BAND / TSR_TURNED_ROWS && p->groups <= p->columns / LEAST_GROUP;
}
