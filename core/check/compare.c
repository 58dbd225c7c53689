/* Compares the values of two tensors: one job reads the same tile of both and compares them. memcmp finds equal tiles; only
 * those that differ are compared element by element. */
#include "tessera/compare.h"

#include <math.h>

#include "base/cursor.h"
#include "check/check_share.h"
#include "stream/gather.h"
#include "stream/numeric.h"
#include "stream/tile_job.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/check.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/read.h"
#include "tessera/sys/try.h"
#include "tessera/value.h"

#define BLOCK 512u /* elements decoded at a time */

typedef struct comparison {
    const tsr_gather *a, *b;
    const tsr_tolerance *tolerance;
    tsr_difference *out;
} comparison;

typedef struct compare_job {
    tsr_tile a, b;
    uint64_t differing, first;
    double max_abs;
    uint64_t max_ulp;
} compare_job;

static uint64_t ulp_distance(const tsr_float_form *form, const uint8_t *a, const uint8_t *b)
{
    const int64_t x = tsr_float_ordinal(form, a), y = tsr_float_ordinal(form, b);
    return x > y ? (uint64_t)x - (uint64_t)y : (uint64_t)y - (uint64_t)x;
}

/* |a − b| of an element with one or two parts; NaN if either is NaN, 0 if they are equal. */
static double distance(const double *a, const double *b, uint32_t parts)
{
    double each[2] = {0, 0};
    for (uint32_t p = 0; p < parts; p++) each[p] = a[p] == b[p] ? 0 : fabs(a[p] - b[p]);
    return parts == 1 ? each[0] : hypot(each[0], each[1]);
}

static bool is_nan(const double *x, uint32_t parts)
{
    return isnan(x[0]) || (parts == 2 && isnan(x[1]));
}

static bool is_finite(const double *x, uint32_t parts)
{
    return isfinite(x[0]) && (parts == 1 || isfinite(x[1]));
}

static bool is_close(const tsr_tolerance *tolerance, const double *a, const double *b, uint32_t parts, double abs)
{
    if (is_nan(a, parts) || is_nan(b, parts)) return is_nan(a, parts) && is_nan(b, parts);
    if (abs == 0) return true;
    const double size = parts == 1 ? fabs(b[0]) : hypot(b[0], b[1]);
    return is_finite(a, parts) && is_finite(b, parts) && abs <= tolerance->atol + tolerance->rtol * size;
}

/* |a − b| of 64-bit integers, for which a double is not precise enough: 2^62 and 2^62 + 1 differ by 1. */
static double integer_distance(tsr_dtype dtype, const uint8_t *a, const uint8_t *b)
{
    const uint64_t x = tsr_load_le(a, 8), y = tsr_load_le(b, 8), sign = dtype == TSR_INT64 ? UINT64_C(1) << 63 : 0;
    return (x ^ sign) > (y ^ sign) ? (double)(x - y) : (double)(y - x);
}

/* A block of elements of both tensors, as stored and as numbers. */
typedef struct compared_block {
    tsr_dtype dtype;
    uint32_t parts, size; /* per element: count of numbers (0 if not numeric), and bytes */
    uint64_t first;       /* number of the first one */
    size_t count;
    const uint8_t *a, *b;
    double values_a[2 * BLOCK], values_b[2 * BLOCK];
} compared_block;

/* Compares element `i` of the block, whose bytes differ. */
static void judge(compare_job *job, const tsr_tolerance *tolerance, const compared_block *block, size_t i)
{
    const tsr_dtype dtype = block->dtype;
    const uint32_t parts = block->parts, size = block->size;
    const double *a = block->values_a + i * parts, *b = block->values_b + i * parts;
    const uint8_t *bytes_a = block->a + i * size, *bytes_b = block->b + i * size;
    const bool wide = dtype == TSR_INT64 || dtype == TSR_UINT64;
    const double abs = wide ? integer_distance(dtype, bytes_a, bytes_b) : parts ? distance(a, b, parts) : 0;
    if (!tolerance->exact && parts && is_close(tolerance, a, b, parts, abs)) return;
    if (job->differing++ == 0) job->first = block->first + i;
    if (!parts || is_nan(a, parts) || is_nan(b, parts)) return;
    if (abs > job->max_abs) job->max_abs = abs;
    const tsr_dtype part = tsr_dtype_part(dtype);
    const tsr_float_form *form = tsr_float_form_of(part);
    for (uint32_t p = 0; form && p < parts; p++) {
        const uint64_t ulp = ulp_distance(form, bytes_a + p * form->bytes, bytes_b + p * form->bytes);
        if (ulp > job->max_ulp) job->max_ulp = ulp;
    }
}

static void compare_block(compare_job *job, const tsr_tolerance *tolerance, compared_block *block)
{
    const uint32_t parts = block->parts, size = block->size;
    const uint8_t *a = block->a, *b = block->b;
    if (parts) {
        tsr_decode(tsr_dtype_part(block->dtype), a, block->count * parts, block->values_a);
        tsr_decode(tsr_dtype_part(block->dtype), b, block->count * parts, block->values_b);
    }
    for (size_t i = 0; i < block->count; i++)
        if (memcmp(a + i * size, b + i * size, size) != 0) judge(job, tolerance, block, i);
}

static tsr_status on_side(const char *side, tsr_status status, tsr_error *err)
{
    if (status != TSR_OK) tsr_error_context(err, "%s", side);
    return status;
}

static tsr_status fill_comparison(void *ctx, void *item, tsr_error *err)
{
    const comparison *c = ctx;
    compare_job *job = item;
    TSR_TRY(on_side("a", tsr_tile_fill(&job->a, err), err));
    TSR_TRY(on_side("b", tsr_tile_fill(&job->b, err), err));
    const uint32_t size = c->a->itemsize;
    const size_t step = (size_t)BLOCK * size;
    const uint8_t *a = job->a.data, *b = job->b.data;
    compared_block block; /* not zeroed, because its numbers take 16 KiB */
    if (memcmp(a, b, job->a.bytes) == 0) return TSR_OK;
    block.dtype = c->a->dtype;
    block.parts = tsr_dtype_parts(block.dtype);
    block.size = tsr_dtype_size(block.dtype);
    for (size_t at = 0; at < job->a.bytes; at += step) {
        const size_t bytes = job->a.bytes - at < step ? job->a.bytes - at : step;
        if (memcmp(a + at, b + at, bytes) == 0) continue;
        block.first = (job->a.byte_at + at) / size;
        block.count = bytes / size;
        block.a = a + at;
        block.b = b + at;
        compare_block(job, c->tolerance, &block);
    }
    return TSR_OK;
}

static tsr_status join_comparison(void *ctx, void *item, tsr_error *err)
{
    (void)err;
    const compare_job *job = item;
    tsr_difference *out = ((comparison *)ctx)->out;
    if (out->differing == 0) out->first = job->first;
    out->differing += job->differing;
    if (job->max_abs > out->max_abs) out->max_abs = job->max_abs;
    if (job->max_ulp > out->max_ulp) out->max_ulp = job->max_ulp;
    return TSR_OK;
}

static tsr_status compare_tiles(const comparison *c, tsr_box box, tsr_ring *ring, tsr_error *err)
{
    tsr_tiles tiles;
    for (tsr_tiles_start(&tiles, box, tsr_tile_most(ring, c->a, c->a->itemsize, 2)); !tiles.done; tsr_tiles_next(&tiles)) {
        void *item;
        uint8_t *memory;
        const size_t each = tsr_tile_memory((size_t)tiles.elements * c->a->itemsize);
        TSR_TRY(tsr_ring_job(ring, 2 * each, &item, &memory, err));
        compare_job *job = item;
        TSR_TRY(on_side("a", tsr_tile_start(&job->a, c->a, &tiles, memory, err), err));
        TSR_TRY(on_side("b", tsr_tile_start(&job->b, c->b, &tiles, memory + each, err), err));
    }
    return tsr_ring_end(ring, err);
}

/* Compares a box of two gathers with the same shape. `out->first` is relative to the box. */
static tsr_status compare_gathers(comparison *c, tsr_box box, tsr_ring *ring, tsr_error *err)
{
    *c->out = (tsr_difference){.numeric = tsr_dtype_parts(c->a->entry->dtype) != 0};
    tsr_box_volume(box, &c->out->elements);
    const tsr_ring_work work = {
        .job_size = sizeof(compare_job), .fill = fill_comparison, .drain = join_comparison, .ctx = c};
    TSR_TRY(tsr_ring_begin(ring, &work, err));
    return compare_tiles(c, box, ring, err);
}

tsr_status tsr_compare_copy(const tsr_gather *chunks, const tsr_chunk *replica, tsr_ring *ring, tsr_difference *out,
                            tsr_error *err)
{
    tsr_gather *copy;
    TSR_TRY(tsr_gather_open_chunks(chunks->checkpoint, chunks->entry, replica, 1, &copy, err));
    tsr_status status = TSR_OK;
    if (copy->part_count) {
        const tsr_box box = {copy->ndim, copy->parts[0].offsets, copy->parts[0].sizes};
        comparison c = {.a = chunks, .b = copy, .tolerance = &(tsr_tolerance){.exact = true}, .out = out};
        status = compare_gathers(&c, box, ring, err);
    }
    tsr_gather_close(copy);
    return status;
}

static tsr_status check_pair(const tsr_gather *a, const tsr_gather *b, tsr_error *err)
{
    bool same = a->entry->dtype == b->entry->dtype || a->dtype == TSR_FLOAT4_E2M1FN_X2;
    same = same && a->dtype == b->dtype &&
           tsr_box_equal((tsr_box){a->ndim, NULL, a->shape}, (tsr_box){b->ndim, NULL, b->shape});
    TSR_FAIL_IF(!same, err, TSR_E_USAGE, "'%.*s' and '%.*s' differ in dtype or shape, so their values cannot be compared",
                TSR_STR_ARG(a->entry->fqn), TSR_STR_ARG(b->entry->fqn));
    return TSR_OK;
}

tsr_status tsr_compare_tensors(tsr_stored_tensor a, tsr_stored_tensor b, const tsr_tolerance *tolerance, tsr_ring *ring,
                               tsr_difference *out, tsr_error *err)
{
    tsr_gather *gather_a = NULL, *gather_b = NULL;
    tsr_status status = on_side("a", tsr_gather_open(a.checkpoint, a.entry, NULL, &gather_a, err), err);
    if (status == TSR_OK) status = on_side("b", tsr_gather_open(b.checkpoint, b.entry, NULL, &gather_b, err), err);
    if (status == TSR_OK) status = check_pair(gather_a, gather_b, err);
    if (status == TSR_OK) {
        const tsr_box whole = {gather_a->ndim, NULL, gather_a->shape};
        comparison c = {.a = gather_a, .b = gather_b, .tolerance = tolerance, .out = out};
        status = compare_gathers(&c, whole, ring, err);
    }
    tsr_gather_close(gather_a);
    tsr_gather_close(gather_b);
    return status;
}

/* ---- compare pairs ---- */

/* Compares the values of all pairs of a diff. */

enum { VALUE_DEPTH = 256 }; /* the same as in tsr_value_match */

bool tsr_pair_is_comparable(const tsr_diff_pair *pair)
{
    if (pair->what & (TSR_DIFF_DTYPE | TSR_DIFF_SHAPE | TSR_DIFF_OBJECT)) return false;
    if (pair->a->kind == TSR_ENTRY_TENSOR || pair->b->kind == TSR_ENTRY_TENSOR) return pair->a->kind == pair->b->kind;
    return pair->a->value && pair->b->value;
}

typedef struct object_pair {
    tsr_checkpoint *a, *b;
    const tsr_tolerance *tolerance;
    tsr_ring *ring;
    tsr_difference *out;
    tsr_map *seen; /* tensors of A that were compared already */
    tsr_status status;
    tsr_error *err;
} object_pair;

static void add_difference(tsr_difference *sum, const tsr_difference *one)
{
    if (sum->differing == 0) sum->first = one->first;
    sum->elements += one->elements;
    sum->differing += one->differing;
    if (one->differing) sum->numeric = sum->differing == one->differing ? one->numeric : sum->numeric && one->numeric;
    if (one->max_abs > sum->max_abs) sum->max_abs = one->max_abs;
    if (one->max_ulp > sum->max_ulp) sum->max_ulp = one->max_ulp;
}

static bool compare_inner(void *ctx, const tsr_entry *a, const tsr_entry *b)
{
    object_pair *o = ctx;
    tsr_difference one;
    bool inserted;
    o->status = tsr_map_put(o->seen, (tsr_str){(const char *)&a, sizeof(const tsr_entry *)}, 1, NULL, &inserted, o->err);
    if (o->status != TSR_OK || !inserted) return o->status == TSR_OK;
    tsr_arena *arena = tsr_arena_new(tsr_checkpoint_host(o->a)->allocator, 0, o->err);
    a = arena ? tsr_entry_readable(o->a, arena, a, o->err) : NULL;
    b = a ? tsr_entry_readable(o->b, arena, b, o->err) : NULL;
    o->status = b ? tsr_compare_tensors((tsr_stored_tensor){o->a, a}, (tsr_stored_tensor){o->b, b}, o->tolerance, o->ring,
                                        &one, o->err)
                  : TSR_E_NOMEM;
    tsr_arena_free(arena);
    if (o->status == TSR_OK) add_difference(o->out, &one);
    return o->status == TSR_OK;
}

static tsr_status compare_objects(object_pair *o, const tsr_diff_pair *pair)
{
    const tsr_host *host = tsr_checkpoint_host(o->a);
    *o->out = (tsr_difference){0};
    o->seen = tsr_map_new(host->allocator, 0, o->err);
    if (!o->seen) return TSR_E_NOMEM;
    const tsr_match match =
        tsr_value_match_tensors(pair->a->value, pair->b->value, VALUE_DEPTH, host->limits.expansion, compare_inner, o);
    tsr_map_free(o->seen);
    TSR_FAIL_IF(o->status == TSR_OK && match == TSR_TOO_LARGE, o->err, TSR_E_LIMIT,
                "'%.*s' is too deep or too large to compare", TSR_STR_ARG(pair->a->fqn));
    return o->status;
}

tsr_status tsr_compare_pair(tsr_checkpoint *a, tsr_checkpoint *b, tsr_diff_pair *pair, const tsr_value_comparison *how,
                            tsr_difference *out, tsr_error *err)
{
    object_pair objects = {.a = a, .b = b, .tolerance = how->tolerance, .ring = how->ring, .out = out, .err = err};
    if (pair->a->kind == TSR_ENTRY_TENSOR)
        TSR_TRY(tsr_compare_tensors((tsr_stored_tensor){a, pair->a}, (tsr_stored_tensor){b, pair->b}, how->tolerance,
                                    how->ring, out, err));
    else TSR_TRY(compare_objects(&objects, pair));
    if (out->differing) pair->what |= TSR_DIFF_VALUE;
    return TSR_OK;
}

static tsr_status check_repeats(tsr_checkpoint *checkpoint, const tsr_diff *diff, bool second, tsr_error *err)
{
    tsr_repeats repeats;
    tsr_status status = TSR_OK;
    tsr_repeats_open(&repeats, checkpoint);
    for (uint64_t i = 0; i < diff->pair_count && status == TSR_OK; i++) {
        const tsr_diff_pair *pair = &diff->pairs[i];
        if (tsr_pair_is_comparable(pair))
            status = tsr_repeats_add(&repeats, second ? pair->b : pair->a, NULL, NULL, NULL, err);
    }
    if (status == TSR_OK) status = tsr_repeats_check(&repeats, err);
    tsr_repeats_close(&repeats);
    return status;
}

tsr_status tsr_diff_check_repeats(tsr_checkpoint *a, tsr_checkpoint *b, const tsr_diff *diff, tsr_error *err)
{
    TSR_TRY(check_repeats(a, diff, false, err));
    return check_repeats(b, diff, true, err);
}

tsr_status tsr_diff_values(tsr_checkpoint *a, tsr_checkpoint *b, tsr_diff *diff, const tsr_value_comparison *how,
                           tsr_difference *differences, tsr_error *err)
{
    uint64_t total = 0, done = 0, bytes;
    TSR_TRY(tsr_diff_check_repeats(a, b, diff, err));
    for (uint64_t i = 0; i < diff->pair_count; i++) {
        const tsr_diff_pair *pair = &diff->pairs[i];
        if (pair->a->kind == TSR_ENTRY_TENSOR && tsr_pair_is_comparable(pair) && tsr_entry_bytes(pair->a, &bytes))
            total += bytes;
    }
    tsr_status status = TSR_OK;
    for (uint64_t i = 0; i < diff->pair_count && status == TSR_OK; i++) {
        tsr_diff_pair *pair = &diff->pairs[i];
        if (!tsr_pair_is_comparable(pair)) continue;
        status = tsr_compare_pair(a, b, pair, how, &differences[i], err);
        if (pair->a->kind == TSR_ENTRY_TENSOR && tsr_entry_bytes(pair->a, &bytes)) done += bytes;
        bool go_on = !how->progress || !how->progress->step || how->progress->step(how->progress->ctx, done, total);
        if (status == TSR_OK && !go_on) status = tsr_fail(err, TSR_E_CANCELLED, "interrupted");
    }
    return status;
}
