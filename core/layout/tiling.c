/* Checks whether boxes tile a tensor exactly, that is, whether the sum of their indicator functions is 1 everywhere. A
 * linear form decides this without sorting or comparing boxes: give every coordinate x of axis d a pseudo-random number
 * W_d(x) mod p = 2^61 - 1. Then
 *
 *   sum over boxes of prod_d (W_d(end) - W_d(begin))  ==  prod_d (W_d(size) - W_d(0))
 *
 * holds for every exact tiling (the products telescope over the cells of the common grid) and, by Schwartz and Zippel, for
 * any other list with probability at most ndim / p. If it does not hold, the same form, restricted to a region, shows which
 * halves of the region contain the damage. Regions are split at faces of boxes until none is left inside:
 *
 *   +-----+--+        +-----+ +--+        a region without a face inside is in no box (a hole)
 *   |  1  |2 |   =>   |  1  | |2 |   =>   or completely in two or more (an overlap)
 *   +--+..|  |        +--+..| |  |  ok */
#include "base/cursor.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/try.h"
#include "tessera/validate.h"

#define PRIME ((UINT64_C(1) << 61) - 1)

/* Limit on box visits for counting further damage once some was found: this many per box, plus a few for short lists. */
#define VISITS_PER_BOX 24u
#define VISITS_LEAST   4096u

static uint64_t reduce(uint64_t x)
{
    x = (x & PRIME) + (x >> 61);
    return x >= PRIME ? x - PRIME : x;
}

/* a × b mod p for a, b < p, using 2^61 = 1 and only 64-bit products. */
static uint64_t multiply(uint64_t a, uint64_t b)
{
    uint64_t a1 = a >> 31, a0 = a & 0x7fffffff, b1 = b >> 31, b0 = b & 0x7fffffff;
    uint64_t middle = a1 * b0 + a0 * b1;
    return reduce(2 * a1 * b1 + (middle >> 30) + ((middle & 0x3fffffff) << 31) + a0 * b0);
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    return x ^ (x >> 32);
}

static uint64_t weight(uint64_t seed, uint32_t dim, uint64_t at)
{
    return reduce(mix(at + (seed ^ (dim * 0x9e3779b97f4a7c15u))));
}

static uint64_t span_weight(uint64_t seed, uint32_t dim, uint64_t begin, uint64_t end)
{
    return reduce(weight(seed, dim, end) + PRIME - weight(seed, dim, begin));
}

/* A region or box as begin[ndim] followed by end[ndim]. */
typedef const uint64_t *extent;

typedef struct search {
    uint32_t ndim;
    uint64_t seed;
    tsr_vec boxes;   /* begin[ndim], end[ndim] of each box that has elements, clipped to the tensor */
    tsr_vec numbers; /* the numbers of their chunks */
    tsr_vec regions; /* stack of regions still to be searched */
    tsr_vec ends;    /* per region: where its list in `lists` ends; it begins where that of the region below ends */
    tsr_vec lists;   /* box indexes */
    tsr_vec scratch;
    uint64_t visits;
    uint64_t random;
    uint64_t hole_elements;
    bool hole_wanted; /* the boxes have fewer elements than the tensor, and no hole was found yet */
    tsr_tiling *out;
} search;

static extent box_at(const search *s, uint64_t index)
{
    return (const uint64_t *)s->boxes.items + index * 2 * s->ndim;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}
static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static bool inside(extent box, extent region, uint32_t ndim)
{
    for (uint32_t d = 0; d < ndim; d++) {
        if (box[d] >= region[ndim + d] || box[ndim + d] <= region[d]) return false;
    }
    return true;
}

/* Whether the listed boxes, clipped to the region, tile it. */
static bool tiles(search *s, extent region, const uint64_t *list, size_t count)
{
    uint64_t whole = 1, sum = 0;
    for (uint32_t d = 0; d < s->ndim; d++) whole = multiply(whole, span_weight(s->seed, d, region[d], region[s->ndim + d]));
    for (size_t i = 0; i < count; i++) {
        extent box = box_at(s, list[i]);
        uint64_t part = 1;
        for (uint32_t d = 0; d < s->ndim; d++) {
            part = multiply(
                part, span_weight(s->seed, d, larger(box[d], region[d]), smaller(box[s->ndim + d], region[s->ndim + d])));
        }
        sum = reduce(sum + part);
    }
    s->visits += count;
    return sum == whole;
}

/* Whether the boxes together have fewer elements in the region than the region itself, so that part of it must be in no
 * box. */
static bool lacks(search *s, extent region)
{
    const uint64_t *list = s->scratch.items;
    uint64_t whole = 1, sum = 0;
    for (uint32_t d = 0; d < s->ndim; d++) whole *= region[s->ndim + d] - region[d];
    for (size_t i = 0; i < s->scratch.count && sum < whole; i++) {
        extent box = box_at(s, list[i]);
        uint64_t part = 1;
        if (!inside(box, region, s->ndim)) continue;
        for (uint32_t d = 0; d < s->ndim; d++) {
            part *= smaller(box[s->ndim + d], region[s->ndim + d]) - larger(box[d], region[d]);
        }
        sum = part < whole - sum ? sum + part : whole;
    }
    s->visits += s->scratch.count;
    return sum < whole;
}

/* Chooses one of the faces strictly inside the region at random, each with the same probability. */
static bool choose_face(search *s, extent region, uint32_t *dim, uint64_t *cut)
{
    const uint64_t *list = s->scratch.items;
    uint64_t faces = 0;
    s->visits += s->scratch.count;
    for (size_t i = 0; i < s->scratch.count; i++) {
        extent box = box_at(s, list[i]);
        for (uint32_t side = 0; side < 2 * s->ndim; side++) {
            uint32_t d = side % s->ndim;
            if (box[side] <= region[d] || box[side] >= region[s->ndim + d]) continue;
            s->random = mix(s->random + 0x9e3779b97f4a7c15u);
            if (s->random % ++faces != 0) continue;
            *dim = d;
            *cut = box[side];
        }
    }
    return faces > 0;
}

static void report_hole(search *s, extent region)
{
    uint64_t volume = 1;
    bool first = s->hole_elements == 0;
    for (uint32_t d = 0; d < s->ndim; d++) {
        uint64_t size = region[s->ndim + d] - region[d];
        volume *= size;
        if (!first) continue;
        s->out->hole_offsets[d] = region[d];
        s->out->hole_sizes[d] = size;
    }
    s->hole_elements += volume;
    s->hole_wanted = false;
}

static void report_overlap(search *s, extent region)
{
    const uint64_t *numbers = s->numbers.items, *list = s->scratch.items;
    if (s->out->overlap[0] != TSR_NO_CHUNK) return;
    s->out->overlap[0] = numbers[list[0]];
    s->out->overlap[1] = numbers[list[1]];
    for (uint32_t d = 0; d < s->ndim; d++) s->out->overlap_offsets[d] = region[d];
}

static void cut_region(extent region, uint32_t ndim, uint32_t dim, uint64_t cut, bool upper, uint64_t *half)
{
    memcpy(half, region, 2 * ndim * sizeof *half);
    half[upper ? dim : ndim + dim] = cut;
}

/* Pushes a region with the boxes of `scratch` that intersect it, unless they tile it. */
static tsr_status push_region(search *s, extent region, tsr_error *err)
{
    const uint64_t *list = s->scratch.items;
    size_t begin = s->lists.count;
    TSR_TRY(tsr_vec_reserve(&s->lists, s->scratch.count + 1, err));
    uint64_t *kept = (uint64_t *)s->lists.items + begin;
    size_t count = 0;
    for (size_t i = 0; i < s->scratch.count; i++) {
        if (inside(box_at(s, list[i]), region, s->ndim)) kept[count++] = list[i];
    }
    if (tiles(s, region, kept, count)) return TSR_OK;
    uint64_t *copy = tsr_vec_push(&s->regions, err), *end = copy ? tsr_vec_push(&s->ends, err) : NULL;
    if (!end) return TSR_E_NOMEM;
    memcpy(copy, region, 2 * s->ndim * sizeof *copy);
    *end = s->lists.count = begin + count;
    return TSR_OK;
}

/* Pops the topmost region and its list into `region` and `scratch`. */
static tsr_status pop_region(search *s, uint64_t *region, tsr_error *err)
{
    const uint64_t *ends = s->ends.items;
    size_t begin = s->ends.count > 1 ? ends[s->ends.count - 2] : 0, count = ends[s->ends.count - 1] - begin;
    s->scratch.count = 0;
    TSR_TRY(tsr_vec_reserve(&s->scratch, count + 1, err));
    memcpy(s->scratch.items, (uint64_t *)s->lists.items + begin, count * sizeof(uint64_t));
    s->scratch.count = count;
    s->lists.count = begin;
    s->regions.count--;
    s->ends.count--;
    memcpy(region, (uint64_t *)s->regions.items + s->regions.count * 2 * s->ndim, 2 * s->ndim * sizeof *region);
    return TSR_OK;
}

/* Reports or splits the topmost region, which is known not to be tiled. If a hole is wanted, the half that certainly has one
 * is pushed last. */
static tsr_status search_region(search *s, tsr_error *err)
{
    uint64_t region[2 * TSR_MAX_NDIM], lower[2 * TSR_MAX_NDIM], upper[2 * TSR_MAX_NDIM], cut = 0;
    uint32_t dim = 0;
    TSR_TRY(pop_region(s, region, err));
    if (!choose_face(s, region, &dim, &cut)) {
        if (s->scratch.count == 0) {
            report_hole(s, region);
        } else {
            report_overlap(s, region);
        }
        return TSR_OK;
    }
    cut_region(region, s->ndim, dim, cut, false, lower);
    cut_region(region, s->ndim, dim, cut, true, upper);
    bool upper_on_top = s->hole_wanted && lacks(s, upper);
    TSR_TRY(push_region(s, upper_on_top ? lower : upper, err));
    return push_region(s, upper_on_top ? upper : lower, err);
}

static tsr_status search_damage(search *s, const uint64_t *shape, tsr_error *err)
{
    uint64_t whole[2 * TSR_MAX_NDIM] = {0}, budget = VISITS_LEAST + VISITS_PER_BOX * s->numbers.count;
    memcpy(whole + s->ndim, shape, s->ndim * sizeof *whole);
    TSR_TRY(tsr_vec_reserve(&s->scratch, s->numbers.count + 1, err));
    for (uint64_t i = 0; i < s->numbers.count; i++) ((uint64_t *)s->scratch.items)[s->scratch.count++] = i;
    TSR_TRY(push_region(s, whole, err));
    while (s->ends.count > 0) {
        bool found = s->hole_elements > 0 || s->out->overlap[0] != TSR_NO_CHUNK;
        if (found && !s->hole_wanted && s->visits > budget) break;
        TSR_TRY(search_region(s, err));
    }
    s->out->missing_at_least = s->ends.count > 0;
    return TSR_OK;
}

/* Fills boxes and numbers. `*sum` is the number of elements of all boxes, saturated. */
static tsr_status gather(search *s, const uint64_t *shape, const tsr_chunk *chunks, uint64_t count, uint64_t *sum,
                         tsr_error *err)
{
    uint64_t offsets[TSR_MAX_NDIM], sizes[TSR_MAX_NDIM], volume;
    tsr_box tensor = {s->ndim, NULL, shape};
    *sum = 0;
    for (uint64_t i = 0; i < count; i++) {
        tsr_box box = {s->ndim, chunks[i].offsets, chunks[i].sizes};
        if (!tsr_box_intersect(tensor, box, offsets, sizes)) continue;
        uint64_t *number = tsr_vec_push(&s->numbers, err), *ends = number ? tsr_vec_push(&s->boxes, err) : NULL;
        if (!ends) return TSR_E_NOMEM;
        *number = i;
        for (uint32_t d = 0; d < s->ndim; d++) {
            ends[d] = offsets[d];
            ends[s->ndim + d] = offsets[d] + sizes[d];
        }
        tsr_box_volume((tsr_box){s->ndim, NULL, sizes}, &volume); /* cannot overflow: it is within the tensor */
        if (!tsr_add_u64(*sum, volume, sum)) *sum = UINT64_MAX;
    }
    return TSR_OK;
}

static tsr_status locate_damage(search *s, const uint64_t *shape, uint64_t elements, const tsr_chunk *chunks, uint64_t count,
                                tsr_error *err)
{
    uint64_t sum;
    TSR_TRY(gather(s, shape, chunks, count, &sum, err));
    uint64_t lacking = sum < elements ? elements - sum : 0;
    s->hole_wanted = lacking > 0;
    TSR_TRY(search_damage(s, shape, err));
    s->out->missing = s->out->missing_at_least && lacking > s->hole_elements ? lacking : s->hole_elements;
    return TSR_OK;
}

/* Evaluates the linear form over all chunks, which must be within the tensor. */
static bool is_exact(uint32_t ndim, const uint64_t *shape, const tsr_chunk *chunks, uint64_t count, uint64_t seed)
{
    uint64_t whole = 1, sum = 0;
    for (uint32_t d = 0; d < ndim; d++) whole = multiply(whole, span_weight(seed, d, 0, shape[d]));
    for (uint64_t i = 0; i < count; i++) {
        uint64_t part = 1;
        for (uint32_t d = 0; d < ndim; d++) {
            uint64_t begin = chunks[i].offsets[d];
            part = multiply(part, span_weight(seed, d, begin, begin + chunks[i].sizes[d]));
        }
        sum = reduce(sum + part);
    }
    return sum == whole;
}

/* Collects what a single pass over the chunks shows. Returns a seed that depends on all coordinates. */
static uint64_t look_over(tsr_box tensor, const tsr_chunk *chunks, uint64_t count, tsr_tiling *out)
{
    uint64_t seed = mix(count);
    for (uint64_t i = 0; i < count; i++) {
        tsr_box box = {tensor.ndim, chunks[i].offsets, chunks[i].sizes};
        if (tsr_box_is_empty(box)) out->empty_chunks++;
        if (out->outside == TSR_NO_CHUNK && !tsr_box_contains(tensor, box)) out->outside = i;
        for (uint32_t d = 0; d < tensor.ndim; d++) {
            seed = (seed ^ chunks[i].offsets[d]) * 0x9fb21c651e98df25u;
            seed = (seed ^ (seed >> 29) ^ chunks[i].sizes[d]) * 0xc2b2ae3d27d4eb4fu;
        }
    }
    return mix(seed);
}

tsr_status tsr_tiling_check(const tsr_allocator *allocator, tsr_shape shape, const tsr_chunk *chunks, uint64_t count,
                            tsr_tiling *out, tsr_error *err)
{
    const uint32_t ndim = shape.ndim;
    uint64_t elements;
    tsr_box tensor = {ndim, NULL, shape.sizes};
    TSR_FAIL_IF(ndim > TSR_MAX_NDIM, err, TSR_E_LIMIT, "%u dimensions; at most %u are supported", ndim, TSR_MAX_NDIM);
    TSR_FAIL_IF(!tsr_box_volume(tensor, &elements), err, TSR_E_LIMIT, "the tensor has more than 2^64 elements");
    memset(out, 0, sizeof *out);
    out->outside = out->overlap[0] = out->overlap[1] = TSR_NO_CHUNK;
    uint64_t seed = look_over(tensor, chunks, count, out);
    bool within = out->outside == TSR_NO_CHUNK;
    out->exact = within && (elements == 0 || is_exact(ndim, shape.sizes, chunks, count, seed));
    if (out->exact || elements == 0) return TSR_OK;

    search s = {.ndim = ndim, .seed = seed, .random = 1, .out = out};
    s.boxes = s.regions = tsr_vec_of(allocator, (ndim ? 2 * ndim : 1) * sizeof(uint64_t));
    s.numbers = s.ends = s.lists = s.scratch = tsr_vec_of(allocator, sizeof(uint64_t));
    tsr_status status = locate_damage(&s, shape.sizes, elements, chunks, count, err);
    tsr_vec_free(&s.boxes);
    tsr_vec_free(&s.regions);
    tsr_vec_free(&s.numbers);
    tsr_vec_free(&s.ends);
    tsr_vec_free(&s.lists);
    tsr_vec_free(&s.scratch);
    return status;
}

tsr_status tsr_entry_must_tile(const tsr_entry *entry, const tsr_allocator *allocator, tsr_error *err)
{
    tsr_tiling tiling;
    TSR_TRY(tsr_tiling_check(allocator, (tsr_shape){entry->ndim, entry->shape}, entry->chunks, entry->chunk_count, &tiling,
                             err));
    TSR_FAIL_IF(!tiling.exact, err, TSR_E_FORMAT,
                "the chunks of '%.*s' do not tile it: %s (elements not covered: %llu); tessera validate shows where",
                TSR_STR_ARG(entry->fqn),
                tiling.overlap[0] != TSR_NO_CHUNK ? "some overlap"
                : tiling.outside != TSR_NO_CHUNK  ? "one reaches beyond it"
                                                  : "there is a gap",
                (unsigned long long)tiling.missing);
    return TSR_OK;
}
