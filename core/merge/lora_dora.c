/* DoRA: every output of W + scale·(B·A) is scaled so that its norm is the one that the adapter has for it. PEFT computes
 *
 *     magnitude / norm(W + scale·(B·A)) · (W + scale·(B·A))
 *
 * in float32. The order in which PyTorch adds squares depends on the processor, so here they are added in float64, and the norm
 * is rounded once. */
#include <math.h>
#include <stdatomic.h>

#include "merge/lora_sum.h"
#include "merge/merge_read.h"
#include "tessera/sys/cast.h"
#include "tessera/sys/try.h"

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

static double factor(const tsr_fold *fold, double magnitude, double squares)
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

uint64_t tsr_dora_step(const tsr_fold *fold, uint64_t first, uint64_t count)
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
        const double by = factor(fold, r->sums[i / each], squares);
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
        for (uint64_t i = 0; i < count; i++) out[first + i] = factor(fold, r->sums[i], out[first + i]);
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

tsr_status tsr_dora_values(const tsr_fold *fold, const tsr_run *run, const tsr_lora_room *r, tsr_error *err)
{
    return fold->transposed ? scale_columns(fold, run, r, err) : scale_rows(fold, run, r, err);
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
