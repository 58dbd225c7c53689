/* Presents the merge of several checkpoints as one mapped checkpoint over the first of them. */
#include <math.h>
#include <stdatomic.h>

#include "base/line.h"
#include "formats/common/metadata.h"
#include "mapping/mapped.h"
#include "merge/lora_parts.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/check.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/mapping.h"
#include "tessera/sys/merge.h"
#include "tessera/sys/options.h"
#include "tessera/sys/read.h"
#include "tessera/sys/stored_optimizers.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

/* Sums over two whole tensors: Σa², Σb² and Σab. They are valid if `known` is not 0. */
typedef struct tsr_angle {
    double aa, bb, ab;
    uint64_t known;
} tsr_angle;

typedef struct tsr_merge {
    tsr_merge_method method;
    const tsr_merge_input *inputs; /* `count` of them, then the base of task arithmetic */
    uint32_t count;                /* does not count the base */
    double divisor;                /* of linear: the sum of the weights; 1 if there is nothing to divide by */
    /* The same for sums in float32: the weights are rounded to float32 before they are added, as their products are. */
    float float_divisor;
    double t;
    tsr_dtype dtype; /* of the results; TSR_DTYPE_NONE: that of the inputs, which must agree */
    tsr_selection selection;
    tsr_angle *angles;                 /* only for slerp; by entry number of the first input */
    const struct tsr_merged **tensors; /* only for slerp, by the same number; NULL for entries that are not merged */
    uint64_t entry_count;
} tsr_merge;

/* One merged tensor: the context of its computed file. */
typedef struct tsr_merged {
    const tsr_merge *merge;
    const tsr_entry *const *entries; /* by input */
    tsr_dtype sums, dtype;           /* of the arithmetic; of the result */
    uint64_t order;
} tsr_merged;

/* The tensor as the input with number `input` stores it. */
static inline tsr_stored_tensor tsr_merge_input_tensor(const tsr_merged *tensor, uint32_t input)
{
    return (tsr_stored_tensor){tensor->merge->inputs[input].checkpoint, tensor->entries[input]};
}

/* Whether an entry is a tensor whose elements are added. Other entries must be equal in all inputs. */
static inline bool tsr_merge_sums(const tsr_entry *entry)
{
    return entry->kind == TSR_ENTRY_TENSOR && tsr_cast_possible(entry->dtype, TSR_FLOAT32);
}

/* ---- read ---- */

tsr_status tsr_merge_read(tsr_stored_tensor tensor, const tsr_run *run, tsr_dtype dtype, uint8_t *bytes, void *out,
                          tsr_cast_losses *losses, tsr_error *err)
{
    const tsr_dtype own = tensor.entry->dtype;
    const size_t count = (size_t)run->count, size = count * tsr_dtype_size(own);
    if (own == dtype) return tsr_read_run(tensor.checkpoint, tensor.entry, run, out, size, err);
    TSR_TRY(tsr_read_run(tensor.checkpoint, tensor.entry, run, bytes, size, err));
    tsr_cast_counted(own, dtype, bytes, count, out, losses);
    return TSR_OK;
}

/* ---- check ---- */

/* Checks that the inputs of a merge agree with each other. */

enum { VALUE_DEPTH = 256, VALUE_NODES = 10000000 };

static void describe(const tsr_entry *entry, char *text, size_t capacity)
{
    tsr_line line = tsr_line_on(text, capacity);
    if (entry->kind == TSR_ENTRY_OBJECT) tsr_line_format(&line, "an object");
    else tsr_line_format(&line, "%s [", tsr_dtype_describe(entry->dtype)->name);
    if (entry->kind == TSR_ENTRY_OBJECT) return;
    for (uint32_t d = 0; d < entry->ndim; d++)
        tsr_line_format(&line, "%s%llu", d ? ", " : "", (unsigned long long)entry->shape[d]);
    tsr_line_format(&line, "]");
}

/* Whether both are the same kind of entry and, if they are tensors, have the same shape and dtype. `casts` allows two
 * different floating-point dtypes. */
static bool same_tensor(const tsr_entry *a, const tsr_entry *b, bool casts)
{
    if (a->kind != b->kind) return false;
    if (a->kind != TSR_ENTRY_TENSOR) return true;
    return (a->dtype == b->dtype || (casts && tsr_merge_sums(a) && tsr_merge_sums(b))) && a->ndim == b->ndim &&
           (!a->ndim || !memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape));
}

static tsr_status differ(const tsr_merge_input *a, const tsr_entry *entry, const tsr_merge_input *b, tsr_error *err)
{
    return tsr_fail(
        err, TSR_E_FORMAT,
        "'%.*s' is not a floating-point tensor, so it cannot be merged, and it differs between '%.*s' and '%.*s'; leave it out "
        "with --exclude",
        TSR_STR_ARG(entry->fqn), TSR_STR_ARG(a->name), TSR_STR_ARG(b->name));
}

static tsr_status compare(const tsr_merge_input *a, const tsr_entry *of_a, const tsr_merge_input *b, const tsr_entry *of_b,
                          tsr_ring *ring, tsr_error *err)
{
    static const tsr_tolerance bitwise = {.exact = true};
    tsr_diff_pair pair = {.a = of_a, .b = of_b};
    tsr_difference difference = {0};
    const tsr_value_comparison how = {.tolerance = &bitwise, .ring = ring};
    const bool objects = of_a->kind == TSR_ENTRY_OBJECT;
    if (objects && tsr_value_match(of_a->value, of_b->value, VALUE_DEPTH, VALUE_NODES) != TSR_SAME)
        return differ(a, of_a, b, err);
    if (!tsr_pair_is_comparable(&pair)) return differ(a, of_a, b, err);
    TSR_TRY(tsr_compare_pair(a->checkpoint, b->checkpoint, &pair, &how, &difference, err));
    return difference.differing ? differ(a, of_a, b, err) : TSR_OK;
}

/* An entry that is not summed, and the same entry of input `other`. */
typedef struct equal_pair {
    const tsr_entry *a, *b;
    uint32_t other;
} equal_pair;

/* Pairs of tensors that must be equal, shared out among threads. Each is read by one thread: they are small, so one read or two per tensor
 * would keep the other threads waiting. */
typedef struct equality {
    const tsr_merge *merge;
    const equal_pair *pairs;
    size_t count, threads;
    tsr_host alone;
    atomic_size_t first_failed; /* `count`: none */
} equality;

static tsr_status compare_equal(const equality *e, size_t index, tsr_ring *ring, tsr_error *err)
{
    const equal_pair *pair = &e->pairs[index];
    const tsr_merge_input *inputs = e->merge->inputs;
    return compare(&inputs[0], pair->a, &inputs[pair->other], pair->b, ring, err);
}

static void compare_share(void *arg, size_t thread)
{
    equality *e = arg;
    tsr_error ignored = {0};
    tsr_ring *ring = NULL;
    size_t i = thread;
    tsr_status status = tsr_ring_new(&e->alone, TSR_RING_LEAST_BYTES, &ring, &ignored);
    while (status == TSR_OK && i < atomic_load(&e->first_failed)) {
        status = compare_equal(e, i, ring, &ignored);
        if (status == TSR_OK) i += e->threads;
    }
    size_t first = atomic_load(&e->first_failed);
    while (status != TSR_OK && i < first && !atomic_compare_exchange_weak(&e->first_failed, &first, i)) continue;
    tsr_ring_free(ring);
}

static tsr_status compare_all(const tsr_merge *merge, const tsr_vec *pairs, const tsr_host *host, tsr_ring *ring,
                              tsr_error *err)
{
    equality e = {
        .merge = merge, .pairs = pairs->items, .count = pairs->count, .threads = tsr_threads(host), .alone = *host};
    e.alone.parallel_for = NULL;
    e.alone.threads = 1;
    atomic_init(&e.first_failed, e.count);
    tsr_parallel(host, e.threads < e.count ? e.threads : e.count, compare_share, &e);
    /* Once more from the first failure on, for its error message; and if that was due to a lack of memory, for the others. */
    for (size_t i = atomic_load(&e.first_failed); i < e.count; i++) TSR_TRY(compare_equal(&e, i, ring, err));
    return TSR_OK;
}

/* Checks that an entry of the first input and the same entry of input `other` can be summed or, if they cannot, that they are equal; the pair
 * of a small tensor is added to `pairs` instead, to be compared later. Fails with TSR_E_FORMAT and a message that names both inputs otherwise. */
static tsr_status merge_check(const tsr_merge *merge, uint32_t other, const tsr_entry *of_a, const tsr_entry *of_b,
                              tsr_ring *ring, tsr_vec *pairs, tsr_error *err)
{
    uint64_t bytes;
    const tsr_merge_input *a = &merge->inputs[0], *b = &merge->inputs[other];
    char x[160], y[160];
    if (!same_tensor(of_a, of_b, merge->dtype != TSR_DTYPE_NONE)) {
        const bool cast_helps = same_tensor(of_a, of_b, true);
        describe(of_a, x, sizeof x);
        describe(of_b, y, sizeof y);
        return tsr_fail(err, TSR_E_FORMAT, "'%.*s' is %s in '%.*s' and %s in '%.*s'%s", TSR_STR_ARG(of_a->fqn), x,
                        TSR_STR_ARG(a->name), y, TSR_STR_ARG(b->name),
                        cast_helps ? "; pass --dtype to choose the dtype of the result" : "");
    }
    if (tsr_merge_sums(of_a)) return TSR_OK;
    if (of_a->kind != TSR_ENTRY_TENSOR || !tsr_entry_bytes(of_a, &bytes) || bytes > TSR_RING_LEAST_BYTES)
        return compare(a, of_a, b, of_b, ring, err);
    equal_pair *pair = tsr_vec_push(pairs, err);
    if (!pair) return TSR_E_NOMEM;
    *pair = (equal_pair){of_a, of_b, other};
    return TSR_OK;
}

/* ---- slerp ---- */

/* Spherical interpolation: measures the angle between two tensors and computes their factors from it. */

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

/* Computes the factors of the two inputs. Reads both tensors completely if their angle was not measured
 * before. Errors of reading. */
static tsr_status merge_factors(const tsr_merged *tensor, double factors[2], tsr_error *err)
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
    tsr_parallel(host, count, measure_one, &s);
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

/* ---- sum ---- */

/* Computes weighted sums of runs of elements. */

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
    if (merge->method == TSR_MERGE_SLERP) TSR_TRY(merge_factors(tensor, factors, err));
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

/* Computes a run of the merged elements (tsr_computed.compute); `ctx` is a tsr_merged. */
static tsr_status merge_sum(const void *ctx, uint64_t first, size_t count, uint8_t *out, tsr_cast_losses *losses,
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

/* ---- open ---- */

typedef struct builder {
    const tsr_merge_input *given;
    tsr_merge_options options;
    uint32_t count; /* without the base */
    tsr_mapped *m;
    tsr_merge *merge;
    uint32_t inputs; /* with the base */
    tsr_ring *ring;
    tsr_map *storages; /* storage_id of the first input → index in `tied` */
    tsr_vec tied;      /* of tied_row: the first tensor of each storage */
    tsr_vec equals;    /* of equal_pair */
    bool *scalars; /* by entry of the first input: whether it is one of an optimizer's state, which `dtype` does not cast */
    tsr_error *err;
} builder;

typedef struct tied_row {
    const tsr_merged *tensor;
    size_t row;
    uint32_t file;
} tied_row;

/* ---- tied tensors ---- */

/* Sets *is to whether two tensors of one checkpoint are exactly the same stored bytes. */
static tsr_status is_alias(tsr_checkpoint *checkpoint, const tsr_entry *a, const tsr_entry *b, bool *is, tsr_error *err)
{
    tsr_view x, y;
    *is = a->storage_id && a->storage_id == b->storage_id && a->dtype == b->dtype && a->ndim == b->ndim &&
          a->chunk_count == 1 && b->chunk_count == 1 &&
          (!a->ndim || !memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape));
    if (!*is) return TSR_OK;
    tsr_arena *scratch = tsr_arena_new(tsr_checkpoint_host(checkpoint)->allocator, 0, err);
    if (!scratch) return TSR_E_NOMEM;
    tsr_status status = tsr_checkpoint_locate(checkpoint, a, a->chunks, scratch, &x, err);
    if (status == TSR_OK) status = tsr_checkpoint_locate(checkpoint, b, b->chunks, scratch, &y, err);
    *is = status == TSR_OK && tsr_view_is_plain(&x) && tsr_view_is_plain(&y) && x.file == y.file &&
          x.byte_offset == y.byte_offset;
    tsr_arena_free(scratch);
    return status;
}

/* Finds the earlier tensor that this one is tied to in every input, so that both share one computed file. *out is NULL if
 * there is none. Remembers the first tensor of each storage. */
static tsr_status find_tied(builder *b, const tsr_merged *tensor, tied_row **out)
{
    const tsr_entry *entry = tensor->entries[0];
    uint32_t *first;
    bool inserted, is = true;
    *out = NULL;
    if (!entry->storage_id) return TSR_OK;
    const tsr_str key = {(const char *)&entry->storage_id, sizeof entry->storage_id};
    TSR_TRY(tsr_map_put(b->storages, key, (uint32_t)b->tied.count, &first, &inserted, b->err));
    if (!inserted) {
        tied_row *found = (tied_row *)b->tied.items + *first;
        for (uint32_t i = 0; i < b->inputs && is; i++)
            TSR_TRY(is_alias(b->merge->inputs[i].checkpoint, tensor->entries[i], found->tensor->entries[i], &is, b->err));
        if (is) *out = found;
        return TSR_OK;
    }
    tied_row *added = tsr_vec_push(&b->tied, b->err);
    if (!added) return TSR_E_NOMEM;
    *added = (tied_row){.tensor = tensor, .row = b->m->rows.count};
    return TSR_OK;
}

/* ---- entries ---- */

static tsr_status add_sum(builder *b, tsr_merged *tensor)
{
    const tsr_entry *entry = tensor->entries[0];
    const tsr_computed by = {.dtype = tensor->dtype, .compute = merge_sum, .ctx = tensor};
    tied_row *tied;
    uint32_t file;
    const size_t noted = b->tied.count;
    TSR_TRY(find_tied(b, tensor, &tied));
    if (tied) {
        file = tied->file;
        TSR_TRY(tsr_mapped_share(b->m, entry, tensor->order, by.dtype, file, b->err));
    } else {
        TSR_TRY(tsr_mapped_compute(b->m, entry, tensor->order, &by, &file, b->err));
    }
    tsr_mapped_row *rows = b->m->rows.items;
    if (b->tied.count > noted) ((tied_row *)b->tied.items)[noted].file = file;
    if (tied) {
        rows[tied->row].entry.storage_id = rows[b->m->rows.count - 1].entry.storage_id = entry->storage_id;
        rows[b->m->rows.count - 1].entry.is_second_name = entry->is_second_name;
    }
    if (b->merge->tensors) b->merge->tensors[tensor->order] = tensor;
    return TSR_OK;
}

static tsr_status refuse_opaque(const builder *b, const tsr_entry *entry)
{
    return tsr_fail(b->err, TSR_E_UNSUPPORTED,
                    "'%.*s' in '%.*s' is %.*s, which cannot be merged; leave it out with --exclude", TSR_STR_ARG(entry->fqn),
                    TSR_STR_ARG(b->merge->inputs[0].name), TSR_STR_ARG(entry->type));
}

/* Whether an entry is compared and merged. */
static bool is_merged(const builder *b, const tsr_entry *entry)
{
    if (b->options.skip_objects && entry->kind == TSR_ENTRY_OBJECT) return false;
    return tsr_selection_keeps(&b->merge->selection, entry->fqn);
}

static tsr_status add_entry(builder *b, const tsr_entry *entry, uint64_t order)
{
    const tsr_merge_input *inputs = b->merge->inputs;
    tsr_arena *arena = b->m->own->arena;
    if (!is_merged(b, entry)) return tsr_mapped_keep(b->m, entry, order, b->err);
    if (entry->kind == TSR_ENTRY_OPAQUE) return refuse_opaque(b, entry);
    const tsr_entry **entries = tsr_arena_array(arena, b->inputs, sizeof *entries, b->err);
    tsr_merged *tensor = entries ? TSR_ARENA_NEW(arena, tsr_merged, b->err) : NULL;
    if (!tensor) return TSR_E_NOMEM;
    *tensor = (tsr_merged){.merge = b->merge,
                           .entries = entries,
                           .sums = TSR_FLOAT32,
                           .dtype = b->options.dtype && !b->scalars[order] ? b->options.dtype : entry->dtype,
                           .order = order};
    entries[0] = entry;
    for (uint32_t i = 1; i < b->inputs; i++) {
        entries[i] = tsr_checkpoint_entry(inputs[i].checkpoint, entry->fqn);
        TSR_FAIL_IF(!entries[i], b->err, TSR_E_FORMAT, "'%.*s' is in '%.*s' but not in '%.*s'", TSR_STR_ARG(entry->fqn),
                    TSR_STR_ARG(inputs[0].name), TSR_STR_ARG(inputs[i].name));
        TSR_TRY(merge_check(b->merge, i, entry, entries[i], b->ring, &b->equals, b->err));
    }
    for (uint32_t i = 0; i < b->inputs; i++)
        if (entries[i]->dtype == TSR_FLOAT64) tensor->sums = TSR_FLOAT64;
    return tsr_merge_sums(entry) ? add_sum(b, tensor) : tsr_mapped_keep(b->m, entry, order, b->err);
}

/* Refuses names that the first input does not have. */
static tsr_status check_names(const builder *b)
{
    const tsr_merge_input *inputs = b->merge->inputs;
    for (uint32_t i = 1; i < b->inputs; i++) {
        const tsr_catalog *catalog = tsr_checkpoint_catalog(inputs[i].checkpoint);
        for (uint64_t e = 0; e < catalog->entry_count; e++) {
            const tsr_str fqn = catalog->entries[e].fqn;
            if (is_merged(b, &catalog->entries[e]) && !tsr_checkpoint_entry(inputs[0].checkpoint, fqn))
                return tsr_fail(b->err, TSR_E_FORMAT, "'%.*s' is in '%.*s' but not in '%.*s'", TSR_STR_ARG(fqn),
                                TSR_STR_ARG(inputs[i].name), TSR_STR_ARG(inputs[0].name));
        }
    }
    return TSR_OK;
}

/* Rejects too many repeated elements before any values are compared. The job that writes the merge only sees sums, each of
 * which is computed. */
static tsr_status check_repeats(const builder *b, tsr_checkpoint *input)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(input);
    tsr_repeats repeats;
    tsr_status status = TSR_OK;
    tsr_repeats_open(&repeats, input);
    for (uint64_t i = 0; i < catalog->entry_count && status == TSR_OK; i++)
        if (is_merged(b, &catalog->entries[i]))
            status = tsr_repeats_add(&repeats, &catalog->entries[i], NULL, NULL, NULL, b->err);
    if (status == TSR_OK) status = tsr_repeats_check(&repeats, b->err);
    tsr_repeats_close(&repeats);
    return status;
}

/* Refuses numbers that would be added without their scales. */
static tsr_status check_scaled(const builder *b)
{
    const tsr_arithmetic sum = {.selection = b->merge->selection};
    for (uint32_t i = 0; i < b->inputs; i++) {
        const tsr_merge_input *input = &b->merge->inputs[i];
        const tsr_status status = tsr_check_arithmetic(input->checkpoint, &sum, b->err);
        if (status != TSR_OK) tsr_error_context(b->err, "%.*s", TSR_STR_ARG(input->name));
        if (status != TSR_OK) return status;
    }
    return TSR_OK;
}

static tsr_status fill_all(builder *b)
{
    const tsr_catalog *catalog = &b->m->source->catalog;
    b->scalars = tsr_arena_array(b->m->own->arena, (size_t)catalog->entry_count, sizeof *b->scalars, b->err);
    if (!b->scalars) return TSR_E_NOMEM;
    TSR_TRY(tsr_optimizer_scalars(catalog, b->m->own->host->allocator, b->scalars, b->err));
    TSR_TRY(check_scaled(b));
    TSR_TRY(check_names(b));
    for (uint32_t i = 0; i < b->inputs; i++) TSR_TRY(check_repeats(b, b->merge->inputs[i].checkpoint));
    for (uint64_t i = 0; i < catalog->entry_count; i++) TSR_TRY(add_entry(b, &catalog->entries[i], i));
    return compare_all(b->merge, &b->equals, b->m->own->host, b->ring, b->err);
}

/* ---- the merge ---- */

static tsr_status copy_inputs(const builder *b, tsr_merge *merge)
{
    tsr_arena *arena = b->m->own->arena;
    tsr_merge_input *inputs = tsr_arena_array(arena, (size_t)b->inputs, sizeof *inputs, b->err);
    tsr_checkpoint **checkpoints = tsr_arena_array(arena, (size_t)b->inputs, sizeof(tsr_checkpoint *), b->err);
    merge->inputs = inputs;
    if (!checkpoints) return TSR_E_NOMEM;
    for (uint32_t i = 0; inputs && i < b->inputs; i++)
        checkpoints[i] = i < b->count ? b->given[i].checkpoint : b->options.base->checkpoint;
    b->m->others = checkpoints;
    b->m->other_count = b->inputs;
    for (uint32_t i = 0; inputs && i < b->inputs; i++) {
        inputs[i] = i < b->count ? b->given[i] : *b->options.base;
        inputs[i].name = tsr_arena_str(arena, inputs[i].name, b->err);
        if (!inputs[i].name.data) return TSR_E_NOMEM;
    }
    return inputs ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status new_merge(builder *b)
{
    tsr_arena *arena = b->m->own->arena;
    tsr_merge *merge = b->merge = TSR_ARENA_NEW(arena, tsr_merge, b->err);
    if (!merge) return TSR_E_NOMEM;
    *merge = (tsr_merge){.method = b->options.method,
                         .count = b->count,
                         .divisor = 1,
                         .float_divisor = 1,
                         .t = b->options.t,
                         .dtype = b->options.dtype,
                         .selection = b->options.selection,
                         .entry_count = b->m->source->catalog.entry_count};
    TSR_TRY(copy_inputs(b, merge));
    if (merge->method == TSR_MERGE_LINEAR && !b->options.no_normalize) {
        merge->divisor = merge->float_divisor = 0;
        for (uint32_t i = 0; i < b->count; i++) {
            merge->divisor += merge->inputs[i].weight;
            merge->float_divisor += (float)merge->inputs[i].weight;
        }
        TSR_FAIL_IF(merge->divisor == 0 || merge->float_divisor == 0, b->err, TSR_E_USAGE,
                    "the weights sum to 0, so they cannot be normalized; pass --no-normalize to use them as they are");
    }
    b->m->ctx = merge;
    if (merge->method != TSR_MERGE_SLERP) return TSR_OK;
    merge->angles = tsr_arena_array(arena, (size_t)merge->entry_count, sizeof *merge->angles, b->err);
    merge->tensors = tsr_arena_array(arena, (size_t)merge->entry_count, sizeof *merge->tensors, b->err);
    return merge->angles && merge->tensors ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status fill(tsr_mapped *m, void *ctx, tsr_error *err)
{
    builder *b = ctx;
    for (uint32_t i = 0; i < b->count; i++)
        m->own->host = tsr_host_wider(m->own->host, tsr_checkpoint_host(b->given[i].checkpoint));
    const tsr_host *host = m->own->host;
    b->m = m;
    b->err = err;
    b->tied = tsr_vec_of(host->allocator, sizeof(tied_row));
    b->equals = tsr_vec_of(host->allocator, sizeof(equal_pair));
    b->storages = tsr_map_new(host->allocator, 0, err);
    tsr_status status = b->storages ? tsr_ring_new(host, 0, &b->ring, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = new_merge(b);
    if (status == TSR_OK) status = fill_all(b);
    tsr_ring_free(b->ring);
    tsr_map_free(b->storages);
    tsr_vec_free(&b->tied);
    tsr_vec_free(&b->equals);
    return status;
}

/* What the inputs agree on holds for the merge as well. */
static tsr_status join_metadata(const builder *b, tsr_checkpoint *merged, tsr_error *err)
{
    tsr_text_pairs *lists = tsr_arena_array(merged->arena, b->inputs, sizeof *lists, err);
    if (!lists) return TSR_E_NOMEM;
    for (uint32_t i = 0; i < b->inputs; i++) {
        const tsr_catalog *catalog = tsr_checkpoint_catalog(b->merge->inputs[i].checkpoint);
        lists[i] = (tsr_text_pairs){catalog->metadata, catalog->metadata_count};
    }
    return tsr_metadata_join(merged, lists, b->inputs, "inputs", err);
}

static tsr_status check_options(const builder *b, tsr_error *err)
{
    const tsr_merge_options *o = &b->options;
    TSR_FAIL_IF(o->method >= TSR_MERGE_METHODS || !b->count, err, TSR_E_USAGE, "a merge needs a method and an input");
    TSR_FAIL_IF((o->method == TSR_MERGE_TASK_ARITHMETIC) != (o->base != NULL), err, TSR_E_USAGE,
                o->base ? "a base can only be used with task-arithmetic" : "task-arithmetic needs a base");
    TSR_FAIL_IF(o->method == TSR_MERGE_SLERP && b->count != 2, err, TSR_E_USAGE, "slerp merges 2 checkpoints, found %u",
                (unsigned)b->count);
    char t[TSR_REAL_TEXT];
    TSR_FAIL_IF(o->method == TSR_MERGE_SLERP && !(o->t >= 0 && o->t <= 1), err, TSR_E_USAGE,
                "slerp's t %s is not between 0, the first checkpoint, and 1, the second", tsr_real_text(o->t, 6, t));
    TSR_FAIL_IF(o->dtype && !tsr_cast_possible(TSR_FLOAT32, o->dtype), err, TSR_E_USAGE, "merged tensors cannot be %s",
                tsr_dtype_describe(o->dtype)->name);
    return TSR_OK;
}

tsr_status tsr_merge_open(const tsr_merge_input *inputs, uint32_t count, const tsr_merge_options *options,
                          tsr_checkpoint **out, tsr_error *err)
{
    builder b = {.given = inputs, .count = count};
    const tsr_mapped_scheme scheme = {.fill = fill, .ctx = &b, .step = "merge", .keeps_names = true};
    *out = NULL;
    TSR_TRY(TSR_OPTIONS_COPY(&b.options, options, tsr_merge_options, err));
    TSR_TRY(check_options(&b, err));
    b.inputs = count + (b.options.base != NULL);
    TSR_TRY(tsr_mapped_open(inputs[0].checkpoint, &scheme, out, err));
    const tsr_status status = join_metadata(&b, *out, err);
    if (status == TSR_OK) return TSR_OK;
    tsr_checkpoint_close(*out);
    *out = NULL;
    return status;
}
