/* Quantizes to FP8 by blocks, with the same results as transformers' Fp8Quantize.
 *
 *   weight, 300 × 200, in tiles of 128 × 128        for each tile:  scale = 448 / max|w|, in float32
 *   ┌──────────┬──────┐                                             number = clamp(w · scale) as float8_e4m3fn
 *   │ 128×128  │128×72│  band 0                                     weight_scale_inv = 1 / scale
 *   ├──────────┼──────┤
 *   │          │      │  band 1               A tile at an edge is smaller, as if the rest of it were zeros.
 *   ├──────────┼──────┤
 *   │  44×128  │ 44×72│  band 2
 *   └──────────┴──────┘
 *
 * Both divisions follow torch: it computes the reciprocal, rounds it, multiplies it by 448, and rounds again. */
#include <math.h>

#include "mapping/mapping_quantize.h"
#include "tessera/sys/cast.h"
#include "tessera/sys/read_run.h"
#include "tessera/sys/try.h"

enum { STEP_ELEMENTS = 1 << 14, LARGEST_BYTES = 8 };
#define FP8_MAX 448.0f

/* Working memory for one computation. */
typedef struct room {
    float *values;  /* STEP_ELEMENTS */
    uint8_t *bytes; /* elements as they are stored */
    uint8_t *cast;  /* elements in the dtype to which they are cast first */
    float *maxima;  /* of one band; one per tile */
    size_t size;
} room;

static tsr_status room_open(const tsr_quantized_weight *w, room *out, tsr_error *err)
{
    *out = (room){.size = STEP_ELEMENTS * (sizeof(float) + 2 * LARGEST_BYTES) + (size_t)w->tiles * sizeof(float)};
    char *memory = tsr_alloc(w->shared->source->host->allocator, 1, out->size, err);
    if (!memory) return TSR_E_NOMEM;
    out->bytes = (uint8_t *)memory;
    out->cast = out->bytes + STEP_ELEMENTS * LARGEST_BYTES;
    out->values = (float *)(void *)(out->cast + STEP_ELEMENTS * LARGEST_BYTES);
    out->maxima = out->values + STEP_ELEMENTS;
    return TSR_OK;
}

static void room_close(const tsr_quantized_weight *w, const room *r)
{
    tsr_free(w->shared->source->host->allocator, r->bytes, 1, r->size);
}

/* Reads elements [first, first + count), at most STEP_ELEMENTS, into r->values. Adds what the cast to the dtype of the options
 * loses to *losses. */
static tsr_status load(const tsr_quantized_weight *w, uint64_t first, size_t count, const room *r, tsr_cast_losses *losses,
                       tsr_error *err)
{
    const tsr_run run = {.first = first, .count = count};
    tsr_dtype dtype = w->entry->dtype;
    const uint8_t *stored = r->bytes;
    TSR_TRY(tsr_read_run(w->shared->source, w->entry, &run, r->bytes, count * tsr_dtype_size(dtype), err));
    if (w->shared->dtype != TSR_DTYPE_NONE && w->shared->dtype != dtype) {
        tsr_cast_counted(dtype, w->shared->dtype, r->bytes, count, r->cast, losses);
        dtype = w->shared->dtype;
        stored = r->cast;
    }
    if (dtype == TSR_FLOAT32) memcpy(r->values, stored, count * sizeof(float));
    else tsr_cast(dtype, TSR_FLOAT32, stored, count, (uint8_t *)r->values);
    return TSR_OK;
}

/* Returns how many of the `count` elements from `first` on are in the same tile and row. */
static size_t in_tile(const tsr_quantized_weight *w, uint64_t first, size_t count)
{
    const uint64_t column = first % w->columns, edge = (column / TSR_TILE + 1) * TSR_TILE;
    const uint64_t left = (edge < w->columns ? edge : w->columns) - column;
    return left < count ? (size_t)left : count;
}

/* ---- the largest magnitude of each tile ---- */

static tsr_status refuse(const tsr_quantized_weight *w, uint64_t at, float value, tsr_error *err)
{
    return tsr_fail(
        err, TSR_E_UNSUPPORTED,
        "'%.*s' is %s at [%llu, %llu], so its block has no scale; repair the weight, or leave it out with --no-quantize",
        TSR_STR_ARG(w->entry->fqn), isnan(value) ? "NaN" : "infinite", (unsigned long long)(at / w->columns),
        (unsigned long long)(at % w->columns));
}

static tsr_status raise_maxima(const tsr_quantized_weight *w, uint64_t first, size_t count, const room *r, tsr_error *err)
{
    for (size_t i = 0, next; i < count; i = next) {
        float *max = &r->maxima[(first + i) % w->columns / TSR_TILE];
        for (next = i + in_tile(w, first + i, count - i); i < next; i++) {
            const float magnitude = fabsf(r->values[i]);
            if (!(magnitude <= *max)) *max = magnitude;
            if (!isfinite(magnitude)) return refuse(w, first + i, magnitude, err);
        }
    }
    return TSR_OK;
}

static tsr_status compute_maxima(const tsr_quantized_weight *w, uint64_t band, const room *r, tsr_error *err)
{
    tsr_cast_losses ignored = {.zeros = 0};
    uint64_t first = band * TSR_TILE * w->columns;
    const uint64_t last_row = (band + 1) * TSR_TILE < w->rows ? (band + 1) * TSR_TILE : w->rows, end = last_row * w->columns;
    for (uint64_t t = 0; t < w->tiles; t++) r->maxima[t] = 0;
    for (size_t count; first < end; first += count) {
        count = end - first < STEP_ELEMENTS ? (size_t)(end - first) : STEP_ELEMENTS;
        TSR_TRY(load(w, first, count, r, &ignored, err)); /* they count when the numbers are read */
        TSR_TRY(raise_maxima(w, first, count, r, err));
    }
    return TSR_OK;
}

/* Sets r->maxima for the band. A thread that finds the slot busy computes them itself, because core has no means of
 * waiting. */
static tsr_status find_maxima(const tsr_quantized_weight *w, uint64_t band, const room *r, tsr_error *err)
{
    tsr_band_slot *slot = &w->shared->slots[band % TSR_BAND_SLOTS];
    const size_t size = (size_t)w->tiles * sizeof(float);
    bool known = false;
    if (!atomic_flag_test_and_set(&slot->busy)) {
        known = slot->weight == w && slot->band == band;
        if (known) memcpy(r->maxima, slot->maxima, size);
        atomic_flag_clear(&slot->busy);
    }
    if (known) return TSR_OK;
    TSR_TRY(compute_maxima(w, band, r, err));
    if (atomic_flag_test_and_set(&slot->busy)) return TSR_OK;
    slot->weight = w;
    slot->band = band;
    memcpy(slot->maxima, r->maxima, size);
    atomic_flag_clear(&slot->busy);
    return TSR_OK;
}

/* ---- numbers and scales ---- */

/* The scale is 1 for a tile of zeros. It is also 1 if it would be infinite, that is, if the largest magnitude is below
 * 1.4e-36. For the zeros in such a tile, Fp8Quantize produces NaN, whereas this produces zeros. */
static float scale_for(float max)
{
    const float scale = 1.0f / max * FP8_MAX;
    return max > 0 && isfinite(scale) ? scale : 1.0f;
}

static void scale_values(const tsr_quantized_weight *w, uint64_t first, size_t count, const room *r)
{
    for (size_t i = 0, next; i < count; i = next) {
        const float scale = scale_for(r->maxima[(first + i) % w->columns / TSR_TILE]);
        for (next = i + in_tile(w, first + i, count - i); i < next; i++) {
            const float scaled = r->values[i] * scale;
            r->values[i] = scaled > FP8_MAX ? FP8_MAX : scaled < -FP8_MAX ? -FP8_MAX : scaled;
        }
    }
}

static tsr_status put_numbers(const tsr_quantized_weight *w, uint64_t first, size_t count, const room *r, uint8_t *out,
                              tsr_cast_losses *losses, tsr_error *err)
{
    const uint64_t end = first + count;
    for (uint64_t at = first; at < end;) {
        const uint64_t band = at / w->columns / TSR_TILE, edge = (band + 1) * TSR_TILE * w->columns,
                       stop = edge < end ? edge : end;
        TSR_TRY(find_maxima(w, band, r, err));
        for (size_t step; at < stop; at += step) {
            step = stop - at < STEP_ELEMENTS ? (size_t)(stop - at) : STEP_ELEMENTS;
            TSR_TRY(load(w, at, step, r, losses, err));
            scale_values(w, at, step, r);
            tsr_cast(TSR_FLOAT32, TSR_FLOAT8_E4M3FN, (const uint8_t *)r->values, step, out + (at - first));
        }
    }
    return TSR_OK;
}

static tsr_status put_scales(const tsr_quantized_weight *w, uint64_t first, size_t count, const room *r, uint8_t *out,
                             tsr_cast_losses *losses, tsr_error *err)
{
    (void)losses; /* those of the numbers count */
    for (size_t i = 0; i < count; i++) {
        const uint64_t tile = (first + i) % w->tiles;
        if (i == 0 || tile == 0) TSR_TRY(find_maxima(w, (first + i) / w->tiles, r, err));
        const float inverse = 1.0f / scale_for(r->maxima[tile]);
        memcpy(out + i * sizeof inverse, &inverse, sizeof inverse);
    }
    return TSR_OK;
}

typedef tsr_status put_fn(const tsr_quantized_weight *w, uint64_t first, size_t count, const room *r, uint8_t *out,
                          tsr_cast_losses *losses, tsr_error *err);

static tsr_status in_room(put_fn *put, const tsr_quantized_weight *w, uint64_t first, size_t count, uint8_t *out,
                          tsr_cast_losses *losses, tsr_error *err)
{
    room r;
    TSR_TRY(room_open(w, &r, err));
    const tsr_status status = put(w, first, count, &r, out, losses, err);
    room_close(w, &r);
    return status;
}

tsr_status tsr_quantize_numbers(const void *ctx, uint64_t first, size_t count, uint8_t *out, tsr_cast_losses *losses,
                                tsr_error *err)
{
    return in_room(put_numbers, ctx, first, count, out, losses, err);
}

tsr_status tsr_quantize_scales(const void *ctx, uint64_t first, size_t count, uint8_t *out, tsr_cast_losses *losses,
                               tsr_error *err)
{
    return in_room(put_scales, ctx, first, count, out, losses, err);
}
