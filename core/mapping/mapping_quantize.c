/* Decides which weights are quantized and which are kept, and makes the quantization_config that says so. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "mapping/mapped.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/json.h"
#include "tessera/sys/options.h"
#include "tessera/sys/read.h"
#include "tessera/sys/stored_optimizers.h"
#include "tessera/sys/try.h"

/* The rows and the columns that share a scale, and the number of bands whose maxima are remembered. */
enum { TSR_TILE = 128, TSR_BAND_SLOTS = 64 };

typedef struct tsr_quantized_weight tsr_quantized_weight;

/* The largest magnitudes in one band, which is the 128 rows of one row of tiles. They are remembered because several threads
 * compute the rows of a band in several runs. `busy` protects the other members; no thread waits for it. */
typedef struct tsr_band_slot {
    atomic_flag busy;
    const tsr_quantized_weight *weight;
    uint64_t band;
    float *maxima;
} tsr_band_slot;

/* What all weights of a checkpoint share. */
typedef struct tsr_quantizing {
    tsr_checkpoint *source;
    tsr_dtype dtype;     /* to which weights are cast first; TSR_DTYPE_NONE: they are not */
    uint64_t most_tiles; /* in a row of the widest weight */
    tsr_band_slot slots[TSR_BAND_SLOTS];
} tsr_quantizing;

struct tsr_quantized_weight {
    tsr_quantizing *shared;
    const tsr_entry *entry; /* in the source; two dims */
    uint64_t rows, columns;
    uint64_t tiles; /* in a row */
};

/* ---- quantize tiles ---- */

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
    tsr_free(w->shared->source->host->allocator, r.bytes, 1, r.size);
    return status;
}

/* These two compute the numbers and the scales of a weight (tsr_computed.compute); `ctx` is a tsr_quantized_weight.
 * TSR_E_UNSUPPORTED, naming the weight and the element, if it contains NaN or infinity. */
static tsr_status quantize_numbers(const void *ctx, uint64_t first, size_t count, uint8_t *out, tsr_cast_losses *losses,
                                   tsr_error *err)
{
    return in_room(put_numbers, ctx, first, count, out, losses, err);
}

static tsr_status quantize_scales(const void *ctx, uint64_t first, size_t count, uint8_t *out, tsr_cast_losses *losses,
                                  tsr_error *err)
{
    return in_room(put_scales, ctx, first, count, out, losses, err);
}

/* ---- quantize ---- */

#define ENDING       ".weight"
#define SCALE_ENDING "_scale_inv"

typedef struct quantizer {
    tsr_mapped *m;
    tsr_quantize_options options;
    tsr_quantizing *shared;
    tsr_vec kept;  /* of tsr_str */
    bool *scalars; /* by entry of the source: whether it is one of an optimizer's state, which is not cast */
    tsr_quantized *out;
    tsr_error *err;
} quantizer;

/* Whether the module is not a linear layer, or is too sensitive to its precision: embeddings, norms, output layers and
 * routers. transformers recognizes them by the classes of the model; here only names are known. */
static bool is_delicate(tsr_str module)
{
    static const char *const parts[] = {"embed", "norm"};
    static const char *const names[] = {"lm_head", "score", "classifier", "wte",
                                        "wpe",     "gate",  "router",     "shared_expert_gate"};
    const tsr_str last = tsr_last_component(module);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (tsr_str_contains(last, tsr_str_from(parts[i]))) return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (tsr_str_equal(last, tsr_str_from(names[i]))) return true;
    /* Meta's output layer; T5's embedding. */
    return tsr_str_equal(module, TSR_STR("output")) || tsr_str_equal(module, TSR_STR("shared"));
}

static bool is_float(const tsr_entry *entry)
{
    return entry->kind == TSR_ENTRY_TENSOR && tsr_dtype_size(entry->dtype) > 1 &&
           tsr_cast_possible(entry->dtype, TSR_FLOAT32);
}

static bool asks(bool (*callback)(void *ctx, tsr_str fqn), void *ctx, tsr_str fqn)
{
    return !callback || callback(ctx, fqn);
}

/* Refuses several experts in one tensor: they are most of a model, so keeping them must not go unnoticed. */
static tsr_status refuse_stacks(const quantizer *q, const tsr_entry *entry)
{
    TSR_FAIL_IF(is_float(entry) && entry->ndim > 2 && tsr_str_contains(entry->fqn, TSR_STR("experts.")), q->err,
                TSR_E_UNSUPPORTED,
                "'%.*s' holds several experts in one tensor, but --quantize makes blocks of two dims; take it apart with a "
                "map (such as "
                "--map transformers-qwen3_moe --inverse), or leave it as it is with --no-quantize",
                TSR_STR_ARG(entry->fqn));
    return TSR_OK;
}

/* Sets *out to whether the entry is quantized. Remembers the names of matrices that are kept. */
static tsr_status decide(quantizer *q, const tsr_entry *entry, bool *out)
{
    const tsr_str ending = TSR_STR(ENDING);
    *out = false;
    if (!is_float(entry) || !asks(q->options.want, q->options.want_ctx, entry->fqn)) return TSR_OK;
    const bool chosen = asks(q->options.quantize, q->options.quantize_ctx, entry->fqn);
    if (chosen) TSR_TRY(refuse_stacks(q, entry));
    if (entry->ndim != 2 || !tsr_str_ends(entry->fqn, ending)) return TSR_OK;
    *out = chosen && !is_delicate((tsr_str){entry->fqn.data, entry->fqn.size - ending.size});
    if (*out) return TSR_OK;
    tsr_str *kept = tsr_vec_push(&q->kept, q->err);
    if (kept) *kept = entry->fqn;
    return kept ? TSR_OK : TSR_E_NOMEM;
}

/* Makes the name of the weight's scale. The name must not be taken, and it must be selected like the weight. */
static tsr_status name_scale(const quantizer *q, const tsr_entry *entry, tsr_str *out)
{
    *out = tsr_arena_format(q->m->own->arena, q->err, "%.*s" SCALE_ENDING, TSR_STR_ARG(entry->fqn));
    if (!out->data) return TSR_E_NOMEM;
    TSR_FAIL_IF(tsr_checkpoint_entry(q->m->source, *out), q->err, TSR_E_UNSUPPORTED,
                "'%.*s' has a scale already, '%.*s'; pass --dequantize too, or leave it as it is with --no-quantize",
                TSR_STR_ARG(entry->fqn), TSR_STR_ARG(*out));
    TSR_FAIL_IF(!asks(q->options.want, q->options.want_ctx, *out), q->err, TSR_E_USAGE,
                "--include and --exclude select '%.*s' without its scale '%.*s'; select both", TSR_STR_ARG(entry->fqn),
                TSR_STR_ARG(*out));
    return TSR_OK;
}

/* Puts the scale into the same dict as its weight. */
static tsr_status copy_path(const quantizer *q, const tsr_entry *weight, tsr_entry *scale)
{
    const uint32_t length = weight->path_length;
    tsr_path_item *path = length ? tsr_arena_array(q->m->own->arena, length, sizeof *path, q->err) : NULL;
    if (!length || weight->path[length - 1].kind != TSR_PATH_KEY) return TSR_OK;
    if (!path) return TSR_E_NOMEM;
    memcpy(path, weight->path, length * sizeof *path);
    tsr_str *key = &path[length - 1].key;
    *key = tsr_arena_format(q->m->own->arena, q->err, "%.*s" SCALE_ENDING, TSR_STR_ARG(*key));
    scale->path = path;
    scale->path_length = length;
    return key->data ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status add_scales(quantizer *q, const tsr_quantized_weight *weight, uint64_t order)
{
    uint32_t file;
    uint64_t shape[] = {weight->rows / TSR_TILE + (weight->rows % TSR_TILE != 0), weight->tiles};
    tsr_entry like = {.kind = TSR_ENTRY_TENSOR, .shape = shape, .ndim = 2};
    const tsr_computed by = {.dtype = TSR_FLOAT32, .compute = quantize_scales, .ctx = weight};
    TSR_TRY(name_scale(q, weight->entry, &like.fqn));
    uint64_t *kept = tsr_arena_array(q->m->own->arena, 2, sizeof *kept, q->err);
    tsr_entry *entry = kept ? TSR_ARENA_NEW(q->m->own->arena, tsr_entry, q->err) : NULL;
    if (!entry) return TSR_E_NOMEM;
    memcpy(kept, shape, sizeof shape);
    *entry = like;
    entry->shape = kept;
    TSR_TRY(copy_path(q, weight->entry, entry));
    TSR_TRY(tsr_mapped_compute(q->m, entry, order, &by, &file, q->err));
    ((tsr_mapped_row *)q->m->rows.items)[q->m->rows.count - 1].sources = &weight->entry;
    return TSR_OK;
}

static tsr_status quantize(quantizer *q, const tsr_entry *entry, uint64_t order)
{
    uint32_t file;
    tsr_quantized_weight *weight = TSR_ARENA_NEW(q->m->own->arena, tsr_quantized_weight, q->err);
    if (!weight) return TSR_E_NOMEM;
    *weight =
        (tsr_quantized_weight){.shared = q->shared, .entry = entry, .rows = entry->shape[0], .columns = entry->shape[1]};
    weight->tiles = weight->columns / TSR_TILE + (weight->columns % TSR_TILE != 0);
    if (weight->tiles > q->shared->most_tiles) q->shared->most_tiles = weight->tiles;
    const tsr_computed by = {.dtype = TSR_FLOAT8_E4M3FN, .compute = quantize_numbers, .ctx = weight, .input = entry};
    TSR_TRY(tsr_mapped_compute(q->m, entry, order, &by, &file, q->err));
    q->out->count++;
    return add_scales(q, weight, order);
}

/* Keeps the entry, but casts it to the dtype of the options, except scalars of an optimizer's state. */
static tsr_status keep(quantizer *q, const tsr_entry *entry, uint64_t order)
{
    const tsr_dtype dtype = q->options.dtype;
    if (!is_float(entry) || dtype == TSR_DTYPE_NONE || dtype == entry->dtype || q->scalars[order])
        return tsr_mapped_keep(q->m, entry, order, q->err);
    tsr_mapped_tensor tensor;
    const tsr_entry **sources = TSR_ARENA_NEW(q->m->own->arena, const tsr_entry *, q->err);
    tsr_mapped_row *row = sources ? tsr_vec_push(&q->m->rows, q->err) : NULL;
    if (!row) return TSR_E_NOMEM;
    *sources = entry;
    *row = (tsr_mapped_row){.order = order, .step = tsr_step_name(TSR_STEP_CAST), .sources = sources, .source_count = 1};
    TSR_TRY(tsr_boxes_of_entry(&q->m->maker, entry, &tensor));
    TSR_TRY(tsr_mapped_cast(q->m, &tensor, dtype, &tensor, q->err));
    TSR_TRY(tsr_mapped_entry(q->m, &tensor, entry, entry->fqn, &row->entry, q->err));
    row->entry.path = entry->path;
    row->entry.path_length = entry->path_length;
    return TSR_OK;
}

static tsr_status open_slots(quantizer *q)
{
    for (unsigned i = 0; i < TSR_BAND_SLOTS; i++) {
        tsr_band_slot *slot = &q->shared->slots[i];
        atomic_flag_clear(&slot->busy);
        slot->maxima = tsr_arena_array(q->m->own->arena, (size_t)q->shared->most_tiles, sizeof *slot->maxima, q->err);
        if (!slot->maxima) return TSR_E_NOMEM;
    }
    return TSR_OK;
}

static tsr_status list_kept(quantizer *q)
{
    tsr_str *kept = tsr_arena_array(q->m->own->arena, q->kept.count, sizeof *kept, q->err);
    if (!kept) return TSR_E_NOMEM;
    if (q->kept.count) memcpy(kept, q->kept.items, q->kept.count * sizeof *kept);
    q->out->kept = kept;
    q->out->kept_count = q->kept.count;
    return TSR_OK;
}

static tsr_status fill_entries(quantizer *q)
{
    const tsr_catalog *catalog = &q->m->source->catalog;
    q->shared = TSR_ARENA_NEW(q->m->own->arena, tsr_quantizing, q->err);
    q->scalars = tsr_arena_array(q->m->own->arena, (size_t)catalog->entry_count, sizeof *q->scalars, q->err);
    if (!q->shared || !q->scalars) return TSR_E_NOMEM;
    TSR_TRY(tsr_optimizer_scalars(catalog, q->m->own->host->allocator, q->scalars, q->err));
    *q->shared = (tsr_quantizing){.source = q->m->source, .dtype = q->options.dtype};
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        bool chosen;
        TSR_TRY(decide(q, &catalog->entries[i], &chosen));
        TSR_TRY(chosen ? quantize(q, &catalog->entries[i], i) : keep(q, &catalog->entries[i], i));
    }
    TSR_FAIL_IF(
        !q->out->count, q->err, TSR_E_UNSUPPORTED,
        "--quantize: the checkpoint has no linear weights (floating-point tensors of two dims whose names end in " ENDING
        ")");
    TSR_TRY(list_kept(q));
    return open_slots(q);
}

static tsr_status fill(tsr_mapped *m, void *ctx, tsr_error *err)
{
    quantizer *q = ctx;
    q->m = m;
    q->err = err;
    q->kept = tsr_vec_of(m->own->host->allocator, sizeof(tsr_str));
    const tsr_status status = fill_entries(q);
    tsr_vec_free(&q->kept);
    return status;
}

tsr_status tsr_mapping_quantize(tsr_checkpoint *source, const tsr_quantize_options *options, tsr_quantized *quantized,
                                tsr_checkpoint **out, tsr_error *err)
{
    quantizer q = {.out = quantized};
    *out = NULL;
    *quantized = (tsr_quantized){.count = 0};
    TSR_TRY(TSR_OPTIONS_COPY(&q.options, options, tsr_quantize_options, err));
    TSR_FAIL_IF(q.options.dtype != TSR_DTYPE_NONE && !tsr_cast_possible(q.options.dtype, TSR_FLOAT32), err, TSR_E_USAGE,
                "%s is not a floating-point dtype", tsr_dtype_describe(q.options.dtype)->name);
    const tsr_mapped_scheme scheme = {.fill = fill, .ctx = &q, .step = "quantize"};
    return tsr_mapped_open(source, &scheme, out, err);
}

/* ---- quantization_config ---- */

static tsr_str without_ending(tsr_str weight)
{
    return (tsr_str){weight.data, weight.size - (sizeof ENDING - 1)};
}

/* The last two components of a module's name. transformers compares the names in its list with the ends of module names. */
static tsr_str end_of(tsr_str module)
{
    size_t at = module.size;
    for (unsigned dots = 0; at && (module.data[at - 1] != '.' || ++dots < 2); at--) {
    }
    return tsr_str_after(module, at);
}

/* Orders names by their last characters first. */
static int by_end(const void *a, const void *b)
{
    const tsr_str x = *(const tsr_str *)a, y = *(const tsr_str *)b;
    for (size_t i = 1; i <= x.size && i <= y.size; i++) {
        const unsigned char c = (unsigned char)x.data[x.size - i], d = (unsigned char)y.data[y.size - i];
        if (c != d) return c < d ? -1 : 1;
    }
    return (x.size > y.size) - (x.size < y.size);
}

/* Lists the modules of quantized weights (of tsr_str), ordered by their ends. */
static tsr_status list_quantized(const tsr_catalog *catalog, tsr_vec *modules, tsr_error *err)
{
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        if (entry->dtype != TSR_FLOAT8_E4M3FN || !tsr_str_ends(entry->fqn, TSR_STR(ENDING))) continue;
        tsr_str *module = tsr_vec_push(modules, err);
        if (!module) return TSR_E_NOMEM;
        *module = without_ending(entry->fqn);
    }
    if (modules->count) qsort(modules->items, modules->count, sizeof(tsr_str), by_end);
    return TSR_OK;
}

/* Whether the name of one of the modules ends like this. Modules that are not quantized must then be listed by their whole
 * names. */
static bool is_shared(const tsr_vec *modules, tsr_str end)
{
    const tsr_str *all = modules->items;
    size_t low = 0, high = modules->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (by_end(&all[middle], &end) < 0) low = middle + 1;
        else high = middle;
    }
    return low < modules->count && tsr_str_ends(all[low], end);
}

static tsr_status append(void *text, const char *data, size_t size, tsr_error *err)
{
    return tsr_vec_append(text, data, size, err);
}

/* Lists the modules that a loader must not convert, each once. `ends` is an empty map. */
static tsr_status put_kept(tsr_json *json, const tsr_vec *quantized, const tsr_quantized *made, tsr_map *ends,
                           tsr_error *err)
{
    enum { ONCE = 1, WHOLE = 2 };
    const char *comma = "";
    for (uint64_t i = 0; i < made->kept_count; i++) {
        const tsr_str module = without_ending(made->kept[i]), end = end_of(module);
        const uint32_t known = tsr_map_get(ends, end, 0), how = known ? known : is_shared(quantized, end) ? WHOLE : ONCE;
        TSR_TRY(tsr_map_put(ends, end, how, NULL, NULL, err));
        if (known == ONCE) continue;
        tsr_json_raw(json, tsr_str_from(comma));
        tsr_json_str(json, how == WHOLE ? module : end);
        comma = ", ";
    }
    return TSR_OK;
}

/* Puts the document into `text`. Its spaces are those of Python's json.dumps, as in the config.json that it goes into. */
static tsr_status put_config(tsr_vec *text, const tsr_vec *quantized, const tsr_quantized *made, tsr_map *ends,
                             tsr_error *err)
{
    tsr_json json;
    tsr_json_start(&json, append, text, 0, err);
    tsr_json_raw(&json, TSR_STR("{\"quant_method\": \"fp8\", \"activation_scheme\": \"dynamic\", "
                                "\"weight_block_size\": [128, 128], \"modules_to_not_convert\": ["));
    TSR_TRY(put_kept(&json, quantized, made, ends, err));
    tsr_json_raw(&json, TSR_STR("]}"));
    TSR_TRY(tsr_json_finish(&json));
    if (text->count && ((const char *)text->items)[text->count - 1] == '\n') text->count--; /* the end of a document */
    return TSR_OK;
}

tsr_status tsr_quantized_config(const tsr_checkpoint *checkpoint, const tsr_quantized *made, tsr_arena *arena, tsr_str *out,
                                tsr_error *err)
{
    const tsr_allocator *allocator = tsr_checkpoint_host(checkpoint)->allocator;
    tsr_vec quantized = tsr_vec_of(allocator, sizeof(tsr_str)), text = tsr_vec_of(allocator, 1);
    tsr_map *ends = tsr_map_new(allocator, 0, err);
    tsr_status status = ends ? list_quantized(tsr_checkpoint_catalog(checkpoint), &quantized, err) : TSR_E_NOMEM;
    if (status == TSR_OK) status = put_config(&text, &quantized, made, ends, err);
    if (status == TSR_OK) *out = tsr_arena_str(arena, (tsr_str){text.items, text.count}, err);
    tsr_vec_free(&quantized);
    tsr_vec_free(&text);
    tsr_map_free(ends);
    return status == TSR_OK && !out->data ? TSR_E_NOMEM : status;
}
