/* Spherical interpolation: measures the angle between two tensors and computes their factors from it. */
#include <math.h>

#include "merge/merge_parts.h"
#include "tessera/sys/merge_angles.h"
#include "tessera/sys/try.h"

enum { RUN = 1 << 16 };

/* Both limits are those of mergekit's slerp. Nearly parallel vectors are interpolated along the line, because sin(angle) is
 * close to 0. Vectors whose length is at most SHORTEST are not normalized. */
#define NEARLY_PARALLEL 0.9995
#define SHORTEST        1e-8

static void add_products(const double *a, const double *b, size_t count, tsr_angle *sums)
{
    for (size_t i = 0; i < count; i++) {
        sums->aa += a[i] * a[i];
        sums->bb += b[i] * b[i];
        sums->ab += a[i] * b[i];
    }
}

static tsr_status measure(const tsr_merged *tensor, tsr_angle *out, tsr_error *err)
{
    const tsr_merge_input *inputs = tensor->merge->inputs;
    const tsr_allocator *allocator = tsr_checkpoint_host(inputs[0].checkpoint)->allocator;
    uint64_t elements = 0;
    tsr_status status = TSR_OK;
    double *memory = tsr_alloc(allocator, RUN, 3 * sizeof *memory, err);
    if (!memory) return TSR_E_NOMEM;
    tsr_angle sums = {.known = 1};
    tsr_cast_losses losses = {.zeros = 0}; /* none: float64 has all values */
    tsr_entry_elements(tensor->entries[0], &elements);
    for (uint64_t first = 0; first < elements && status == TSR_OK; first += RUN) {
        const tsr_run run = {.first = first, .count = elements - first < RUN ? elements - first : RUN};
        for (unsigned i = 0; i < 2 && status == TSR_OK; i++)
            status = tsr_merge_read(tsr_merge_input_tensor(tensor, i), &run, TSR_FLOAT64,
                                    (uint8_t *)(memory + 2 * (size_t)RUN), memory + i * (size_t)RUN, &losses, err);
        if (status == TSR_OK) add_products(memory, memory + RUN, (size_t)run.count, &sums);
    }
    tsr_free(allocator, memory, RUN, 3 * sizeof *memory);
    if (status == TSR_OK) *out = sums;
    return status;
}

static double length(double squares)
{
    const double root = sqrt(squares);
    return root > SHORTEST ? root : 1;
}

static void factors_of(double cosine, double t, double factors[2])
{
    const double angle = acos(cosine), sine = sin(angle);
    factors[0] = sin((1 - t) * angle) / sine;
    factors[1] = sin(t * angle) / sine;
}

/* Every step rounds to float32, as in the library where the tensors are float32. Where elements nearly cancel, every bit of
 * the factors shows in the result. */
static void float_factors_of(float cosine, float t, double factors[2])
{
    const float angle = acosf(cosine), sine = sinf(angle);
    factors[0] = sinf((1 - t) * angle) / sine;
    factors[1] = sinf(t * angle) / sine;
}

tsr_status tsr_merge_factors(const tsr_merged *tensor, double factors[2], tsr_error *err)
{
    const double t = tensor->merge->t;
    tsr_angle sums = tensor->merge->angles[tensor->order];
    if (!sums.known) TSR_TRY(measure(tensor, &sums, err));
    double cosine = sums.ab / (length(sums.aa) * length(sums.bb));
    cosine = cosine > 1 ? 1 : cosine < -1 ? -1 : cosine;
    const bool wide = tensor->sums == TSR_FLOAT64;
    factors[0] = wide ? 1 - t : 1 - (float)t;
    factors[1] = t;
    if (fabs(cosine) > NEARLY_PARALLEL) return TSR_OK;
    if (wide) factors_of(cosine, t, factors);
    else float_factors_of((float)cosine, (float)t, factors);
    return TSR_OK;
}

typedef struct share {
    tsr_merge *merge;
    uint64_t part, parts;
    tsr_status *results; /* by entry of the share */
} share;

static void measure_one(void *arg, size_t index)
{
    const share *s = arg;
    const uint64_t order = index * s->parts + s->part;
    const tsr_merged *tensor = s->merge->tensors[order];
    tsr_error ignored = {0};
    s->results[index] = tensor ? measure(tensor, &s->merge->angles[order], &ignored) : TSR_OK;
}

static tsr_merge *merge_of(tsr_checkpoint *merged)
{
    const tsr_mapped *m = merged->state;
    return m->ctx;
}

tsr_status tsr_merge_measure(tsr_checkpoint *merged, uint64_t part, uint64_t parts, tsr_error *err)
{
    const tsr_host *host = merged->host;
    share s = {.merge = merge_of(merged), .part = part, .parts = parts};
    if (s.merge->method != TSR_MERGE_SLERP || s.merge->entry_count <= part) return TSR_OK;
    const size_t count = (size_t)((s.merge->entry_count - part - 1) / parts + 1);
    s.results = tsr_alloc(host->allocator, count, sizeof *s.results, err);
    if (!s.results) return TSR_E_NOMEM;
    if (host->parallel_for) host->parallel_for(host->parallel_ctx, count, measure_one, &s);
    for (size_t i = 0; i < count && !host->parallel_for; i++) measure_one(&s, i);
    size_t failed = 0;
    while (failed < count && s.results[failed] == TSR_OK) failed++;
    tsr_free(host->allocator, s.results, count, sizeof *s.results);
    if (failed == count) return TSR_OK;
    const uint64_t order = failed * parts + part;
    return measure(s.merge->tensors[order], &s.merge->angles[order], err); /* run again for its error message */
}

tsr_str tsr_merge_angles(tsr_checkpoint *merged)
{
    const tsr_merge *merge = merge_of(merged);
    return (tsr_str){(const char *)merge->angles, merge->angles ? (size_t)merge->entry_count * sizeof *merge->angles : 0};
}

void tsr_merge_take_angles(tsr_checkpoint *merged, tsr_str angles)
{
    tsr_merge *merge = merge_of(merged);
    const uint64_t count = angles.size / sizeof *merge->angles;
    for (uint64_t i = 0; i < count && i < merge->entry_count; i++) {
        tsr_angle angle;
        memcpy(&angle, angles.data + i * sizeof angle, sizeof angle);
        if (angle.known) merge->angles[i] = angle;
    }
}
