/* Computes W + scale·(B·A), in blocks of bounded size. */
#include "merge/lora_sum.h"
#include "merge/merge_read.h"
#include "tessera/read.h"
#include "tessera/sys/cast.h"
#include "tessera/sys/try.h"

enum { ROOM = TSR_LORA_ROWS * TSR_LORA_RANKS + 3 * TSR_LORA_RUN }; /* doubles, without the bytes */

/* The part of a product that is computed in one go: rows [row, row + rows) and columns [column, column + columns) of W,
 * summed over [rank, rank + ranks) of the inner dimension. */
typedef struct block {
    uint64_t row, rows, column, columns, rank, ranks, expert;
} block;

/* Reads a box of a tensor as if it were a matrix whose rows have all elements of its other dims. */
static tsr_status read_box(const tsr_fold *fold, const tsr_entry *entry, const uint64_t offsets[2], const uint64_t sizes[2],
                           uint8_t *out, tsr_error *err)
{
    const size_t size = (size_t)sizes[1] * tsr_dtype_size(entry->dtype);
    uint64_t width = 1;
    if (entry->ndim == 2)
        return tsr_read_box(fold->adapter, entry, (tsr_box){2, offsets, sizes}, out, (size_t)sizes[0] * size, err);
    for (uint32_t i = 1; i < entry->ndim; i++) width *= entry->shape[i];
    for (uint64_t row = offsets[0]; row < offsets[0] + sizes[0]; row++, out += size) {
        const tsr_run run = {.first = row * width + offsets[1], .count = sizes[1]};
        TSR_TRY(tsr_read_run(fold->adapter, entry, &run, out, size, err));
    }
    return TSR_OK;
}

/* Reads the box [box[0], box[0] + box[1]) × [box[2], box[2] + box[3]) of a matrix as float64, and transposes it if the fold
 * is transposed. The matrix may be that of one expert: A has its rows, and B its columns at intervals. */
static tsr_status load(const tsr_fold *fold, const tsr_entry *entry, const uint64_t box[5], const tsr_lora_room *r,
                       double *out, tsr_error *err)
{
    const bool turned = fold->transposed, is_b = entry == fold->b;
    const uint64_t every = is_b && fold->experts ? fold->experts : 1, skip = is_b ? box[4] : 0;
    const uint64_t offsets[] = {box[0] + (is_b ? fold->first_output : box[4] * fold->rank), box[2] * every},
                   sizes[] = {box[1], box[3] * every};
    const size_t count = (size_t)(sizes[0] * sizes[1]);
    TSR_TRY(read_box(fold, entry, offsets, sizes, r->bytes, err));
    double *to = turned || every > 1 ? r->loaded : out;
    if (entry->dtype == TSR_FLOAT64) memcpy(to, r->bytes, count * sizeof *to);
    else tsr_cast(entry->dtype, TSR_FLOAT64, r->bytes, count, (uint8_t *)to);
    for (uint64_t x = 0; to != out && x < box[1]; x++)
        for (uint64_t y = 0; y < box[3]; y++)
            out[turned ? y * box[1] + x : x * box[3] + y] = to[x * sizes[1] + y * every + skip];
    return TSR_OK;
}

static tsr_status load_left(const tsr_fold *fold, const block *b, const tsr_lora_room *r, tsr_error *err)
{
    const uint64_t plain[] = {b->row, b->rows, b->rank, b->ranks, b->expert},
                   turned[] = {b->rank, b->ranks, b->row, b->rows, b->expert};
    return load(fold, fold->transposed ? fold->a : fold->b, fold->transposed ? turned : plain, r, r->left, err);
}

static tsr_status load_right(const tsr_fold *fold, const block *b, const tsr_lora_room *r, tsr_error *err)
{
    const uint64_t plain[] = {b->rank, b->ranks, b->column, b->columns, b->expert},
                   turned[] = {b->column, b->columns, b->rank, b->ranks, b->expert};
    return load(fold, fold->transposed ? fold->b : fold->a, fold->transposed ? turned : plain, r, r->right, err);
}

/* Adds the block's products to the sums of the elements that are in the run. */
static void add_block(const tsr_fold *fold, const block *b, const tsr_run *run, const tsr_lora_room *r)
{
    const uint64_t width = fold->columns, end = run->first + run->count;
    for (uint64_t i = 0; i < b->rows; i++) {
        const uint64_t at = (b->row + i) * width + b->column;
        const uint64_t from = at < run->first ? run->first - at : 0, to = at >= end               ? 0
                                                                          : at + b->columns > end ? end - at
                                                                                                  : b->columns;
        if (from >= to) continue;
        double *sums = r->sums + (at + from - run->first);
        for (uint64_t k = 0; k < b->ranks; k++) {
            const double factor = r->left[i * b->ranks + k], *row = r->right + k * b->columns + from;
            for (uint64_t j = 0; j < to - from; j++) sums[j] += factor * row[j];
        }
    }
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* How many rows or columns of B are in memory with these ranks: the columns of other experts are read with them. */
static uint64_t outputs_at_once(const tsr_fold *fold, uint64_t ranks)
{
    const uint64_t most = TSR_LORA_RUN / (ranks * (fold->experts ? fold->experts : 1));
    return most ? most : 1;
}

static tsr_status add_rows(const tsr_fold *fold, block *b, const tsr_run *run, const tsr_lora_room *r, tsr_error *err)
{
    const uint64_t width = fold->columns, last = (run->first + run->count - 1) / width;
    const uint64_t most = least(TSR_LORA_ROWS, outputs_at_once(fold, b->ranks));
    TSR_TRY(load_right(fold, b, r, err));
    for (b->row = run->first / width; b->row <= last; b->row += b->rows) {
        b->rows = least(most, last + 1 - b->row);
        TSR_TRY(load_left(fold, b, r, err));
        add_block(fold, b, run, r);
    }
    return TSR_OK;
}

static tsr_status add_products(const tsr_fold *fold, uint64_t expert, const tsr_run *run, const tsr_lora_room *r,
                               tsr_error *err)
{
    const uint64_t width = fold->columns;
    block b = {.expert = expert};
    for (; b.rank < fold->rank; b.rank += b.ranks) {
        b.ranks = least(TSR_LORA_RANKS, fold->rank - b.rank);
        if (fold->experts) b.ranks = least(b.ranks, TSR_LORA_RUN / fold->experts);
        const uint64_t most = least(TSR_LORA_COLUMNS, outputs_at_once(fold, b.ranks));
        for (b.column = 0; b.column < width; b.column += b.columns) {
            b.columns = least(most, width - b.column);
            TSR_TRY(add_rows(fold, &b, run, r, err));
        }
    }
    return TSR_OK;
}

/* Splits the run where the matrix of the next expert starts. */
static tsr_status add_matrices(const tsr_fold *fold, const tsr_run *run, const tsr_lora_room *r, tsr_error *err)
{
    const uint64_t size = fold->rows * fold->columns, end = run->first + run->count;
    tsr_run part;
    for (uint64_t at = run->first; at < end; at += part.count) {
        tsr_lora_room here = *r;
        here.sums += at - run->first;
        part = (tsr_run){.first = at % size, .count = least(end - at, size - at % size)};
        TSR_TRY(add_products(fold, fold->expert + at / size, &part, &here, err));
    }
    return TSR_OK;
}

static tsr_status read_weight(const tsr_fold *fold, const tsr_run *run, tsr_dtype dtype, const tsr_lora_room *r,
                              uint8_t *out, tsr_error *err)
{
    const tsr_stored_tensor start = {fold->adapter, fold->start}, weight = {fold->base, fold->weight};
    if (fold->before) {
        TSR_TRY(tsr_lora_sum(fold->before, run->first, (size_t)run->count, r->bytes, r->losses, err));
        tsr_cast_counted(fold->before->dtype, dtype, r->bytes, (size_t)run->count, out, r->losses);
        return TSR_OK;
    }
    TSR_TRY(tsr_merge_read(fold->start ? start : weight, run, dtype, r->bytes, out, r->losses, err));
    return fold->tokens ? tsr_lora_put_tokens(fold, run, dtype, r, out, err) : TSR_OK;
}

/* Computes the change to the run's elements, without the scale, in r->sums. */
static tsr_status read_change(const tsr_fold *fold, const tsr_run *run, const tsr_lora_room *r, tsr_error *err)
{
    const tsr_stored_tensor change = {fold->adapter, fold->b};
    if (!fold->a) return tsr_merge_read(change, run, TSR_FLOAT64, r->bytes, r->sums, r->losses, err);
    memset(r->sums, 0, (size_t)run->count * sizeof *r->sums);
    return add_matrices(fold, run, r, err);
}

/* Scales r->sums and rounds them to the weight's dtype; they stay stored as float64. */
static void round_change(const tsr_fold *fold, size_t count, const tsr_lora_room *r)
{
    const tsr_dtype dtype = fold->weight->dtype;
    for (size_t i = 0; i < count; i++) r->sums[i] *= fold->scale;
    if (dtype == TSR_FLOAT64) return;
    tsr_cast(TSR_FLOAT64, dtype, (const uint8_t *)r->sums, count, r->bytes);
    tsr_cast(dtype, TSR_FLOAT64, r->bytes, count, (uint8_t *)r->sums);
}

/* Rounds as PyTorch does: every operation gives float32, unless one of the tensors is float64. */
static tsr_status values(const tsr_fold *fold, const tsr_run *run, const tsr_lora_room *r, tsr_error *err)
{
    const size_t count = (size_t)run->count;
    const bool wide = fold->weight->dtype == TSR_FLOAT64, precise = wide || fold->b->dtype == TSR_FLOAT64;
    TSR_TRY(read_change(fold, run, r, err));
    TSR_TRY(read_weight(fold, run, TSR_FLOAT64, r, (uint8_t *)r->loaded, err));
    if (fold->rounds) round_change(fold, count, r);
    for (size_t i = 0; i < count; i++) {
        const double scale = fold->rounds ? 1 : fold->scale;
        const double change = precise ? r->sums[i] * scale : (double)((float)r->sums[i] * (float)scale);
        r->loaded[i] = precise ? r->loaded[i] + change : (double)((float)r->loaded[i] + (float)change);
    }
    return TSR_OK;
}

static tsr_status sum_run(const tsr_fold *fold, const tsr_run *run, const tsr_lora_room *r, uint8_t *out, tsr_error *err)
{
    const size_t count = (size_t)run->count;
    if (fold->magnitude) TSR_TRY(tsr_dora_values(fold, run, r, err));
    else TSR_TRY(values(fold, run, r, err));
    if (fold->dtype == TSR_FLOAT64) memcpy(out, r->loaded, count * sizeof *r->loaded);
    else tsr_cast_counted(TSR_FLOAT64, fold->dtype, (const uint8_t *)r->loaded, count, out, r->losses);
    return TSR_OK;
}

tsr_status tsr_lora_sum(const void *ctx, uint64_t first, size_t count, uint8_t *out, tsr_cast_losses *losses, tsr_error *err)
{
    const tsr_fold *fold = ctx;
    const tsr_allocator *allocator = tsr_checkpoint_host(fold->base)->allocator;
    tsr_status status = TSR_OK;
    double *memory = tsr_alloc(allocator, ROOM + TSR_LORA_RUN, sizeof *memory, err);
    if (!memory) return TSR_E_NOMEM;
    const tsr_lora_room r = {memory,
                             memory + TSR_LORA_RUN,
                             memory + TSR_LORA_RUN + TSR_LORA_ROWS * TSR_LORA_RANKS,
                             memory + 2 * TSR_LORA_RUN + TSR_LORA_ROWS * TSR_LORA_RANKS,
                             (uint8_t *)(memory + 3 * TSR_LORA_RUN + TSR_LORA_ROWS * TSR_LORA_RANKS),
                             losses,
                             values};
    for (tsr_run run = {.first = first}; count && status == TSR_OK; run.first += run.count, count -= (size_t)run.count) {
        run.count = least(TSR_LORA_RUN, count);
        if (fold->magnitude) run.count = tsr_dora_step(fold, run.first, run.count);
        if (!fold->b) status = read_weight(fold, &run, fold->dtype, &r, out, err);
        else status = sum_run(fold, &run, &r, out, err);
        out += (size_t)run.count * tsr_dtype_size(fold->dtype);
    }
    tsr_free(allocator, memory, ROOM + TSR_LORA_RUN, sizeof *memory);
    return status;
}
