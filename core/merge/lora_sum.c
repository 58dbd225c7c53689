/* Computes W + scale·(B·A), in blocks of bounded size. */
#include <math.h>
#include <stdatomic.h>

#include "codec/json.h"
#include "merge/lora_parts.h"
#include "tessera/read.h"
#include "tessera/sys/check.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"

/* ---- dora ---- */

/* DoRA: every output of W + scale·(B·A) is scaled so that its norm is the one that the adapter has for it. PEFT computes
 *
 *     magnitude / norm(W + scale·(B·A)) · (W + scale·(B·A))
 *
 * in float32. The order in which PyTorch adds squares depends on the processor, so here they are added in float64, and the norm
 * is rounded once. */

/* The factors of the columns of a transposed matrix. Computing them needs the whole matrix, so they are kept. */
struct tsr_dora_factors {
    atomic_bool known;
    atomic_flag busy;
    double values[]; /* written once, by the thread that sets `busy` */
};
_Static_assert(sizeof(struct tsr_dora_factors) <= sizeof(double), "the flags need more room");

static bool is_wide(const tsr_fold *fold)
{
    return fold->weight->dtype == TSR_FLOAT64;
}

static double dora_factor(const tsr_fold *fold, double magnitude, double squares)
{
    const double norm = sqrt(squares);
    return is_wide(fold) ? magnitude / norm : (double)((float)magnitude / (float)norm);
}

static double scaled(const tsr_fold *fold, double value, double by)
{
    return is_wide(fold) ? value * by : (double)((float)value * (float)by);
}

static tsr_status read_magnitudes(const tsr_fold *fold, uint64_t first, uint64_t count, const tsr_lora_room *r, double *out,
                                  tsr_error *err)
{
    const tsr_stored_tensor magnitudes = {fold->adapter, fold->magnitude};
    const tsr_run run = {.first = first, .count = count};
    return tsr_merge_read(magnitudes, &run, TSR_FLOAT64, r->bytes, out, r->losses, err);
}

/* ---- rows ---- */

/* How many of the `count` elements from `first` on, at most TSR_LORA_RUN, should be one run: whole rows where possible, so
 * that they need not be computed twice. */
static uint64_t dora_step(const tsr_fold *fold, uint64_t first, uint64_t count)
{
    const uint64_t width = fold->columns, rest = width - first % width;
    if (fold->transposed) return count;
    if (rest == width && count >= width) return count - count % width;
    return rest < count ? rest : count;
}

/* The run is a part of a row, so its norm needs the rest of the row, too. */
static tsr_status add_row(const tsr_fold *fold, uint64_t row, const tsr_lora_room *r, double *squares, tsr_error *err)
{
    const uint64_t end = (row + 1) * fold->columns;
    *squares = 0;
    for (tsr_run part = {.first = row * fold->columns}; part.first < end; part.first += part.count) {
        part.count = end - part.first < TSR_LORA_RUN ? end - part.first : TSR_LORA_RUN;
        TSR_TRY(r->values(fold, &part, r, err));
        for (uint64_t i = 0; i < part.count; i++) *squares += r->loaded[i] * r->loaded[i];
    }
    return TSR_OK;
}

static tsr_status scale_rows(const tsr_fold *fold, const tsr_run *run, const tsr_lora_room *r, tsr_error *err)
{
    const uint64_t width = fold->columns, row = run->first / width;
    const uint64_t each = run->count < width ? run->count : width;
    double squares = 0;
    if (run->count < width) TSR_TRY(add_row(fold, row, r, &squares, err));
    TSR_TRY(r->values(fold, run, r, err));
    TSR_TRY(read_magnitudes(fold, row, run->count / each, r, r->sums, err));
    for (uint64_t i = 0; i < run->count; i += each) {
        for (uint64_t j = 0; each == width && j < width; j++)
            squares = (j ? squares : 0) + r->loaded[i + j] * r->loaded[i + j];
        const double by = dora_factor(fold, r->sums[i / each], squares);
        for (uint64_t j = 0; j < each; j++) r->loaded[i + j] = scaled(fold, r->loaded[i + j], by);
    }
    return TSR_OK;
}

/* ---- columns ---- */

static tsr_status compute_factors(const tsr_fold *fold, const tsr_lora_room *r, double *out, tsr_error *err)
{
    const uint64_t width = fold->columns, all = fold->rows * width;
    memset(out, 0, (size_t)width * sizeof *out);
    for (tsr_run part = {.first = 0}; part.first < all; part.first += part.count) {
        part.count = all - part.first < TSR_LORA_RUN ? all - part.first : TSR_LORA_RUN;
        TSR_TRY(r->values(fold, &part, r, err));
        for (uint64_t i = 0, column = part.first % width; i < part.count; i++) {
            out[column] += r->loaded[i] * r->loaded[i];
            if (++column == width) column = 0;
        }
    }
    for (uint64_t first = 0, count; first < width; first += count) {
        count = width - first < TSR_LORA_RUN ? width - first : TSR_LORA_RUN;
        TSR_TRY(read_magnitudes(fold, first, count, r, r->sums, err));
        for (uint64_t i = 0; i < count; i++) out[first + i] = dora_factor(fold, r->sums[i], out[first + i]);
    }
    return TSR_OK;
}

static tsr_status scale_run(const tsr_fold *fold, const tsr_run *run, const tsr_lora_room *r, const double *factors,
                            tsr_error *err)
{
    const uint64_t width = fold->columns;
    TSR_TRY(r->values(fold, run, r, err));
    for (uint64_t i = 0, column = run->first % width; i < run->count; i++) {
        r->loaded[i] = scaled(fold, r->loaded[i], factors[column]);
        if (++column == width) column = 0;
    }
    return TSR_OK;
}

/* Several threads may compute the factors at the same time, because core has no means of waiting. The first of them keeps
 * them. */
static tsr_status scale_columns(const tsr_fold *fold, const tsr_run *run, const tsr_lora_room *r, tsr_error *err)
{
    struct tsr_dora_factors *kept = fold->factors;
    const tsr_allocator *allocator = tsr_checkpoint_host(fold->base)->allocator;
    const size_t width = (size_t)fold->columns;
    if (atomic_load(&kept->known)) return scale_run(fold, run, r, kept->values, err);
    double *factors = tsr_alloc(allocator, width, sizeof *factors, err);
    if (!factors) return TSR_E_NOMEM;
    tsr_status status = compute_factors(fold, r, factors, err);
    if (status == TSR_OK && !atomic_flag_test_and_set(&kept->busy)) {
        memcpy(kept->values, factors, width * sizeof *factors);
        atomic_store(&kept->known, true);
    }
    if (status == TSR_OK) status = scale_run(fold, run, r, factors, err);
    tsr_free(allocator, factors, width, sizeof *factors);
    return status;
}

tsr_status tsr_dora_open(tsr_arena *arena, tsr_fold *fold, tsr_error *err)
{
    const tsr_entry *entry = fold->magnitude;
    const uint64_t outputs = fold->transposed ? fold->columns : fold->rows;
    uint64_t count;
    TSR_FAIL_IF(!tsr_entry_elements(entry, &count) || count != outputs || !tsr_cast_possible(entry->dtype, TSR_FLOAT64), err,
                TSR_E_FORMAT, "'%.*s' does not have one floating-point number for each of the %llu outputs of '%.*s'",
                TSR_STR_ARG(entry->fqn), (unsigned long long)outputs, TSR_STR_ARG(fold->weight->fqn));
    if (!fold->transposed) return TSR_OK;
    fold->factors = tsr_arena_array(arena, (size_t)outputs + 1, sizeof(double), err); /* the first is room for the flags */
    if (!fold->factors) return TSR_E_NOMEM;
    atomic_init(&fold->factors->known, false);
    atomic_flag_clear(&fold->factors->busy);
    return TSR_OK;
}

/* ---- sum ---- */

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

/* Replaces those elements of a run, which `out` has in `dtype`, that the adapter has rows for. */
static tsr_status put_tokens(const tsr_fold *fold, const tsr_run *run, tsr_dtype dtype, const tsr_lora_room *r, uint8_t *out,
                             tsr_error *err)
{
    const tsr_stored_tensor tokens = {fold->adapter, fold->tokens};
    const uint64_t width = fold->weight->shape[1], end = run->first + run->count;
    for (uint64_t i = 0; i < fold->tokens->shape[0]; i++) {
        const uint64_t start = fold->token_rows[i] * width, from = start > run->first ? start : run->first;
        const uint64_t to = start + width < end ? start + width : end;
        if (from >= to) continue;
        const tsr_run part = {.first = i * width + (from - start), .count = to - from};
        TSR_TRY(tsr_merge_read(tokens, &part, dtype, r->bytes, out + (from - run->first) * tsr_dtype_size(dtype), r->losses,
                               err));
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
    return fold->tokens ? put_tokens(fold, run, dtype, r, out, err) : TSR_OK;
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
static tsr_status sum_values(const tsr_fold *fold, const tsr_run *run, const tsr_lora_room *r, tsr_error *err)
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
    if (fold->magnitude) TSR_TRY(fold->transposed ? scale_columns(fold, run, r, err) : scale_rows(fold, run, r, err));
    else TSR_TRY(sum_values(fold, run, r, err));
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
                             sum_values};
    for (tsr_run run = {.first = first}; count && status == TSR_OK; run.first += run.count, count -= (size_t)run.count) {
        run.count = least(TSR_LORA_RUN, count);
        if (fold->magnitude) run.count = dora_step(fold, run.first, run.count);
        if (!fold->b) status = read_weight(fold, &run, fold->dtype, &r, out, err);
        else status = sum_run(fold, &run, &r, out, err);
        out += (size_t)run.count * tsr_dtype_size(fold->dtype);
    }
    tsr_free(allocator, memory, ROOM + TSR_LORA_RUN, sizeof *memory);
    return status;
}

/* ---- experts ---- */

/* target_parameters: matrices of parameters that have no module of their own, such as the fused weights of experts.
 *
 *   lora_A  [experts · rank, inputs]     the rows of one expert follow each other
 *   lora_B  [outputs, rank · experts]    the columns of one expert are `experts` apart
 *
 * The adapter's names do not state the parameter, only its module: with two parameters of one module, the matrices of the first
 * are EXPERTS.base_layer.lora_A, and those of the second are EXPERTS.lora_A. The shapes show which is which. Checkpoints may
 * store the experts one by one, although transformers fuses them when it loads them. */

/* The weights that transformers fuses, as its modules would name them apart. */
typedef struct split_name {
    const char *fused, *parts[2];
} split_name;

static const split_name splits[] = {{"gate_up_proj", {"gate_proj", "up_proj"}}, {"down_proj", {"down_proj", NULL}}};

static bool fits(const tsr_lora_pair *pair, uint64_t outputs, uint64_t inputs)
{
    return pair->b->shape[0] == outputs && pair->a->shape[1] == inputs;
}

static tsr_status put(tsr_str target, const tsr_lora_place *place, tsr_vec *out, tsr_error *err)
{
    tsr_lora_place *added = target.data ? tsr_vec_push(out, err) : NULL;
    if (!added) return TSR_E_NOMEM;
    *added = *place;
    added->target = target;
    return TSR_OK;
}

/* Adds a parameter that the base has under the name that transformers has for it. */
static tsr_status find_fused(tsr_lora_names *names, const tsr_lora_pair *pair, tsr_str parameter, tsr_vec *out,
                             tsr_error *err)
{
    TSR_TRY(tsr_lora_stored(names, parameter, &parameter, err));
    const tsr_entry *w = tsr_checkpoint_entry(names->m->source, parameter);
    if (!w || w->kind != TSR_ENTRY_TENSOR || w->ndim < 2 || w->ndim > 3) return TSR_OK;
    const uint64_t *sizes = w->shape + (w->ndim - 2);
    const tsr_lora_place place = {.experts = w->ndim == 3 ? w->shape[0] : 1, .outputs = pair->b->shape[0]};
    const bool matches = fits(pair, sizes[0], sizes[1]) || (w->ndim == 3 && fits(pair, sizes[1], sizes[0]));
    return matches ? put(parameter, &place, out, err) : TSR_OK;
}

/* Finds the weight of one expert, under whatever name the base has it. */
static tsr_status find_part(tsr_lora_names *names, tsr_str module, const char *part, uint64_t expert, const tsr_entry **out,
                            tsr_error *err)
{
    tsr_str name = tsr_arena_format(names->m->own->arena, err, "%.*s.%llu.%s.weight", TSR_STR_ARG(module),
                                    (unsigned long long)expert, part);
    if (!name.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_lora_stored(names, name, &name, err));
    *out = tsr_checkpoint_entry(names->m->source, name);
    return TSR_OK;
}

/* Adds the weights of all experts, if the base has them one by one. */
static tsr_status find_split(tsr_lora_names *names, const tsr_lora_pair *pair, tsr_str module, const split_name *split,
                             tsr_vec *out, tsr_error *err)
{
    tsr_lora_place place = {.outputs = pair->b->shape[0]};
    const unsigned parts = split->parts[1] ? 2 : 1;
    const uint64_t from = out->count;
    for (bool found = true; found; place.expert += found) {
        for (unsigned i = 0; found && i < parts; i++) {
            const tsr_entry *w;
            TSR_TRY(find_part(names, module, split->parts[i], place.expert, &w, err));
            found = w && w->kind == TSR_ENTRY_TENSOR && w->ndim == 2 && fits(pair, w->shape[0] * parts, w->shape[1]);
            place.first_output = i * (place.outputs / parts);
            if (found) TSR_TRY(put(w->fqn, &place, out, err));
        }
    }
    for (size_t i = from; i < out->count; i++) ((tsr_lora_place *)out->items)[i].experts = place.expert;
    return TSR_OK;
}

/* Adds the places of one parameter that target_parameters selects. */
static tsr_status find_places(tsr_lora_names *names, const tsr_lora_pair *pair, tsr_str module, tsr_str parameter,
                              tsr_vec *out, tsr_error *err)
{
    const size_t before = out->count;
    TSR_TRY(find_fused(names, pair, parameter, out, err));
    for (size_t i = 0; out->count == before && i < sizeof splits / sizeof *splits; i++)
        if (tsr_lora_ends(parameter, tsr_str_from(splits[i].fused)))
            TSR_TRY(find_split(names, pair, module, &splits[i], out, err));
    TSR_FAIL_IF(before && out->count > before, err, TSR_E_UNSUPPORTED,
                "'%.*s' of the adapter fits both '%.*s' and another parameter of its module; fold this adapter with PEFT",
                TSR_STR_ARG(pair->b->fqn), TSR_STR_ARG(parameter));
    return TSR_OK;
}

tsr_status tsr_lora_find_places(tsr_lora_names *names, const tsr_lora_config *config, const tsr_lora_pair *pair,
                                tsr_str module, tsr_lora_places *out, tsr_error *err)
{
    const cJSON *list = tsr_lora_parameters(config), *item;
    const bool matrices = pair->a->ndim == 2 && pair->b->ndim == 2;
    cJSON_ArrayForEach(item, list)
    {
        if (!matrices || !cJSON_IsString(item)) continue;
        const char *dot = strrchr(item->valuestring, '.'), *last = dot ? dot + 1 : item->valuestring;
        const tsr_str name = tsr_arena_format(names->m->own->arena, err, "%.*s.%s", TSR_STR_ARG(module), last);
        const size_t before = out->places.count;
        if (!name.data) return TSR_E_NOMEM;
        if (!tsr_lora_lists(list, name) || (before && tsr_str_equal(name, out->parameter))) continue;
        TSR_TRY(find_places(names, pair, module, name, &out->places, err));
        if (out->places.count > before) out->parameter = name;
    }
    TSR_FAIL_IF(
        !out->places.count, err, TSR_E_NOT_FOUND,
        "'%.*s' of the adapter does not fit any tensor of the base that target_parameters selects; if transformers makes it "
        "from other tensors when it loads the base, fold this adapter with PEFT",
        TSR_STR_ARG(pair->b->fqn));
    return TSR_OK;
}
