/* Computes weighted sums of runs of elements. */
#include "merge/merge_parts.h"
#include "tessera/sys/cast.h"
#include "tessera/sys/try.h"

/* sum += factor · (x − base), or factor · x if `base` is NULL */
static void add_floats(float *sum, float factor, const float *x, const float *base, size_t count)
{
    for (size_t i = 0; i < count && base; i++) sum[i] += factor * (x[i] - base[i]);
    for (size_t i = 0; i < count && !base; i++) sum[i] += factor * x[i];
}

static void add_doubles(double *sum, double factor, const double *x, const double *base, size_t count)
{
    for (size_t i = 0; i < count && base; i++) sum[i] += factor * (x[i] - base[i]);
    for (size_t i = 0; i < count && !base; i++) sum[i] += factor * x[i];
}

/* Sums start at -0, which changes no value that is added to it: a sum of negative zeros is one, too. */
static void start_sums(void *sum, bool wide, size_t count)
{
    double *doubles = sum;
    float *floats = sum;
    for (size_t i = 0; i < count && wide; i++) doubles[i] = -0.0;
    for (size_t i = 0; i < count && !wide; i++) floats[i] = -0.0f;
}

/* sum / divisor + base; there is no base if `base` is NULL */
static void finish_floats(float *sum, float divisor, const float *base, size_t count)
{
    for (size_t i = 0; i < count && divisor != 1; i++) sum[i] /= divisor;
    for (size_t i = 0; i < count && base; i++) sum[i] += base[i];
}

static void finish_doubles(double *sum, double divisor, const double *base, size_t count)
{
    for (size_t i = 0; i < count && divisor != 1; i++) sum[i] /= divisor;
    for (size_t i = 0; i < count && base; i++) sum[i] += base[i];
}

/* Working memory for one run: the sum, one input and the base in the dtype of the sums, and one input as it is stored. Each
 * has 8 bytes per element. */
typedef struct room {
    void *sum, *x, *base;
    uint8_t *bytes;
} room;

static tsr_status sum_run(const tsr_merged *tensor, const tsr_run *run, const room *r, tsr_cast_losses *losses,
                          tsr_error *err)
{
    const tsr_merge *merge = tensor->merge;
    const tsr_dtype sums = tensor->sums;
    const bool wide = sums == TSR_FLOAT64;
    const bool has_base = merge->method == TSR_MERGE_TASK_ARITHMETIC;
    const size_t count = (size_t)run->count;
    const void *base = has_base ? r->base : NULL;
    double factors[2] = {0};
    if (merge->method == TSR_MERGE_SLERP) TSR_TRY(tsr_merge_factors(tensor, factors, err));
    if (base)
        TSR_TRY(tsr_merge_read(tsr_merge_input_tensor(tensor, merge->count), run, sums, r->bytes, r->base, losses, err));
    start_sums(r->sum, wide, count);
    for (uint32_t i = 0; i < merge->count; i++) {
        const double factor = merge->method == TSR_MERGE_SLERP ? factors[i] : merge->inputs[i].weight;
        TSR_TRY(tsr_merge_read(tsr_merge_input_tensor(tensor, i), run, sums, r->bytes, r->x, losses, err));
        if (wide) add_doubles(r->sum, factor, r->x, base, count);
        else add_floats(r->sum, (float)factor, r->x, base, count);
    }
    if (wide) finish_doubles(r->sum, merge->divisor, base, count);
    else finish_floats(r->sum, merge->float_divisor, base, count);
    return TSR_OK;
}

tsr_status tsr_merge_sum(const void *ctx, uint64_t first, size_t count, uint8_t *out, tsr_cast_losses *losses,
                         tsr_error *err)
{
    const tsr_merged *tensor = ctx;
    const tsr_dtype sums = tensor->sums;
    const tsr_allocator *allocator = tsr_checkpoint_host(tensor->merge->inputs[0].checkpoint)->allocator;
    const tsr_run run = {.first = first, .count = count};
    double *memory = tsr_alloc(allocator, count, 4 * sizeof *memory, err);
    if (!memory) return TSR_E_NOMEM;
    const room r = {memory, memory + count, memory + 2 * count, (uint8_t *)(memory + 3 * count)};
    const tsr_status status = sum_run(tensor, &run, &r, losses, err);
    if (status == TSR_OK && sums != tensor->dtype) tsr_cast_counted(sums, tensor->dtype, r.sum, count, out, losses);
    else if (status == TSR_OK) memcpy(out, r.sum, count * tsr_dtype_size(sums));
    tsr_free(allocator, memory, count, 4 * sizeof *memory);
    return status;
}
