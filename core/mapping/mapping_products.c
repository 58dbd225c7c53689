/* A table of products for each scale of one row of scales:
 *
 *   scales  [ s0 | s1 | s2 | … ]        tables  [ 256 products with s0 | 256 with s1 | … ]
 *
 *   rows    [ ···· | ···· | ···· ]      all rows with these scales look their products up, block after block
 *
 * A table is made when its scale is first needed, by the same conversions that would be made of each element. */
#include "mapping/mapping_products.h"

#include "tessera/sys/alloc.h"
#include "tessera/sys/cast.h"
#include "tessera/sys/try.h"

enum {
    NUMBERS = 256,
    USES = 4,             /* of each product at least, on average */
    MOST_BYTES = 1 << 20, /* of all tables: they are read out of the second-level cache */
};

struct tsr_products {
    const tsr_allocator *allocator;
    const tsr_computed *file;
    size_t size;             /* of all that follows this */
    uint64_t row;            /* of scales, whose products these are; UINT64_MAX: none yet */
    uint8_t *input;          /* TSR_PRODUCTS_RUN */
    uint8_t *tables;         /* file->scale_columns of NUMBERS products */
    bool *made;              /* file->scale_columns */
    bool *lossy;             /* file->scale_columns: whether a product was lost in the cast */
    tsr_lossy range;         /* products that the cast loses */
    tsr_cast_losses *losses; /* of the current read */
    float numbers[NUMBERS];
};

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static size_t table_bytes(const tsr_computed *file)
{
    return NUMBERS * (size_t)tsr_dtype_size(file->dtype);
}

/* Scaled numbers have one byte each. */
bool tsr_products_pay(const tsr_computed *file, uint64_t elements)
{
    const uint32_t itemsize = tsr_dtype_size(file->dtype);
    if (!elements || file->kind != TSR_COMPUTED_SCALED) return false;
    if (itemsize != sizeof(uint16_t) && itemsize != sizeof(float)) return false;
    if (file->scale_columns > MOST_BYTES / table_bytes(file)) return false;
    const uint64_t width = least(file->block_columns, file->columns), rows = elements / file->columns;
    const uint64_t uses = rows ? width * least(rows, file->block_rows) : least(width, elements);
    return uses >= USES * NUMBERS;
}

static void fill_numbers(tsr_products *p)
{
    uint8_t codes[NUMBERS];
    for (unsigned i = 0; i < NUMBERS; i++) codes[i] = (uint8_t)i;
    if (p->file->input->dtype == TSR_INT8)
        for (unsigned i = 0; i < NUMBERS; i++) p->numbers[i] = (float)(int8_t)codes[i];
    else tsr_cast(p->file->input->dtype, TSR_FLOAT32, codes, NUMBERS, (uint8_t *)p->numbers);
}

tsr_status tsr_products_open(const tsr_mapped *m, const tsr_computed *file, tsr_products **out, tsr_error *err)
{
    const tsr_allocator *allocator = m->own->host->allocator;
    const size_t tables = (size_t)file->scale_columns * table_bytes(file);
    const size_t size = TSR_PRODUCTS_RUN + tables + 2 * (size_t)file->scale_columns;
    tsr_products *p = tsr_alloc(allocator, 1, sizeof *p + size, err);
    if (!p) return TSR_E_NOMEM;
    *p = (tsr_products){.allocator = allocator, .file = file, .size = size, .row = UINT64_MAX};
    p->input = (uint8_t *)(p + 1);
    p->tables = p->input + TSR_PRODUCTS_RUN;
    p->made = (bool *)(p->tables + tables);
    p->lossy = p->made + file->scale_columns;
    p->range = tsr_lossy_of(TSR_FLOAT32, file->dtype);
    fill_numbers(p);
    *out = p;
    return TSR_OK;
}

void tsr_products_close(tsr_products *p)
{
    if (p) tsr_free(p->allocator, p, 1, sizeof *p + p->size);
}

/* Where the products of the scale in a column of scales are, which is `scale`. */
static const uint8_t *table_of(tsr_products *p, size_t column, float scale)
{
    uint8_t *table = p->tables + column * table_bytes(p->file);
    if (p->made[column]) return table;
    float exact[NUMBERS];
    tsr_cast_losses losses = {.zeros = 0};
    for (unsigned i = 0; i < NUMBERS; i++) exact[i] = p->numbers[i] * scale;
    if (p->file->dtype == TSR_FLOAT32) memcpy(table, exact, sizeof exact);
    else tsr_cast(TSR_FLOAT32, p->file->dtype, (const uint8_t *)exact, NUMBERS, table);
    tsr_count_losses(&p->range, (const uint8_t *)exact, NUMBERS, &losses);
    p->made[column] = true;
    p->lossy[column] = losses.zeros || losses.overflows;
    return table;
}

/* Counts what the products of these codes lose, for a scale with which some do. */
static void count_losses(const tsr_products *p, float scale, const uint8_t *codes, size_t count)
{
    for (size_t i = 0; i < count; i += NUMBERS) {
        float exact[NUMBERS];
        const size_t n = (size_t)least(count - i, NUMBERS);
        for (size_t k = 0; k < n; k++) exact[k] = p->numbers[codes[i + k]] * scale;
        tsr_count_losses(&p->range, (const uint8_t *)exact, n, p->losses);
    }
}

/* Several at a time, as stores would take longest otherwise. */
static void look_up_halves(const uint8_t *table, const uint8_t *codes, size_t count, uint8_t *out)
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

static void look_up(uint32_t itemsize, const uint8_t *table, const uint8_t *codes, size_t count, uint8_t *out)
{
    if (itemsize == sizeof(uint16_t)) {
        look_up_halves(table, codes, count, out);
        return;
    }
    for (size_t i = 0; i < count; i++) memcpy(out + i * sizeof(float), table + codes[i] * sizeof(float), sizeof(float));
}

/* Elements of one row, from `column` on. `scales`: those of the row, from that of the first element on. */
static void look_up_row(tsr_products *p, uint64_t column, size_t count, const float *scales, const uint8_t *codes,
                        uint8_t *out)
{
    const uint64_t width = p->file->block_columns;
    const uint32_t itemsize = tsr_dtype_size(p->file->dtype);
    size_t block = (size_t)(column / width), left = (size_t)least(width - column % width, count);
    for (size_t done = 0; done < count; left = (size_t)least(width, count - done), block++, scales++) {
        look_up(itemsize, table_of(p, block, *scales), codes + done, left, out + done * itemsize);
        if (p->lossy[block]) count_losses(p, *scales, codes + done, left);
        done += left;
    }
}

static void look_up_run(tsr_products *p, const tsr_run *run, const tsr_scales_read *scales, uint8_t *out)
{
    const tsr_computed *file = p->file;
    uint64_t row = run->first / file->columns, column = run->first % file->columns;
    for (uint64_t done = 0, count; done < run->count; done += count, row++, column = 0) {
        const uint64_t at = tsr_scale_at(file, row, column), scale_row = at / file->scale_columns;
        count = least(run->count - done, file->columns - column);
        if (p->row != scale_row) memset(p->made, 0, (size_t)file->scale_columns);
        p->row = scale_row;
        look_up_row(p, column, (size_t)count, scales->values + (at - scales->first), p->input + done,
                    out + done * tsr_dtype_size(file->dtype));
    }
}

tsr_status tsr_products_read(tsr_products *p, tsr_mapped *m, const tsr_run *run, uint8_t *out, tsr_cast_losses *losses,
                             tsr_error *err)
{
    p->losses = losses;
    tsr_scales_read scales;
    TSR_TRY(tsr_read_run(m->own, p->file->input, run, p->input, (size_t)run->count, err));
    TSR_TRY(tsr_scales_open(m, p->file, run, &scales, err));
    look_up_run(p, run, &scales, out);
    tsr_scales_close(m, &scales);
    return TSR_OK;
}
