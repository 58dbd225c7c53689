/* See deepspeed_parts.h. */
#include "formats/deepspeed/deepspeed_parts.h"

#include "formats/common/file_names.h"
#include "formats/common/rank_entries.h"
#include "formats/deepspeed/deepspeed_files.h"
#include "formats/deepspeed/deepspeed_module.h"
#include "formats/torch/torch_file.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/little_endian.h"
#include "tessera/sys/try.h"

#include <string.h>

/* ---- match ---- */

/* Matches float32 copies with 16-bit weights: they belong together if the rounded copy equals the weight. Instead of
 * comparing every pair, both sides are hashed: first only their shapes, then also the first values, then all values.
 * Whenever exactly one parameter and one weight have a hash, they are matched and left out of the next pass. */

enum { BLOCK = 4096, SAMPLE = 512 };

typedef enum depth { BY_SHAPE, BY_HEAD, BY_ALL } depth;

typedef struct matching {
    tsr_checkpoint *checkpoint;
    tsr_ds_numbered *numbered;
    tsr_ds_candidate *candidates;
    uint32_t count, candidate_count;
    tsr_error *err;
} matching;

static uint16_t to_bfloat16(uint32_t bits)
{
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Rounds to nearest, ties to even. */
static uint16_t to_float16(uint32_t bits)
{
    const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    const int32_t exponent = (int32_t)(magnitude >> 23) - 127 + 15;
    if (magnitude > 0x7f800000) return 0x7e00;
    if (exponent >= 31) return (uint16_t)(sign | 0x7c00);
    const uint32_t shift = exponent > 0 ? 13 : (uint32_t)(14 - exponent);
    if (shift > 24) return (uint16_t)sign;
    const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000, half = UINT32_C(1) << (shift - 1);
    uint32_t rounded = mantissa >> shift;
    const uint32_t rest = mantissa & ((UINT32_C(1) << shift) - 1);
    rounded += rest > half || (rest == half && (rounded & 1));
    /* Adding the implicit leading bit increments the exponent, as does a carry. */
    return (uint16_t)(sign | (exponent > 0 ? (uint32_t)((exponent - 1) << 10) + rounded : rounded));
}

/* Converts the bits of a float32 value to 16 bits, BFLOAT16 or FLOAT16, rounding to nearest, ties to even, as PyTorch
 * does. */
static uint16_t ds_round(uint32_t bits, tsr_dtype to)
{
    return to == TSR_BFLOAT16 ? to_bfloat16(bits) : to_float16(bits);
}

/* Whether the values are one contiguous range of bytes in a file. */
static bool ds_is_plain(const tsr_entry *tensor)
{
    return tensor->chunk_count == 1 && tensor->chunks[0].file != TSR_NO_FILE &&
           (!tensor->chunks[0].view || tsr_view_is_plain(tensor->chunks[0].view));
}

/* Hashes up to `elements` values, converted to the 16-bit dtype `to`, into *hash. */
static tsr_status digest_values(const matching *m, const tsr_entry *tensor, tsr_dtype to, uint64_t elements, uint64_t *hash)
{
    uint32_t wide[BLOCK];
    uint16_t narrow[BLOCK];
    const tsr_chunk *chunk = &tensor->chunks[0];
    const bool rounds = tensor->dtype == TSR_FLOAT32;
    for (uint64_t at = 0; at < elements; at += BLOCK) {
        const size_t count = elements - at < BLOCK ? (size_t)(elements - at) : BLOCK;
        const size_t itemsize = rounds ? sizeof *wide : sizeof *narrow;
        TSR_TRY(tsr_store_read(m->checkpoint->store, chunk->file, chunk->byte_offset + at * itemsize,
                               rounds ? (void *)wide : narrow, count * itemsize, m->err));
        for (size_t i = 0; rounds && i < count; i++) narrow[i] = ds_round(wide[i], to);
        *hash = tsr_hash_bytes(narrow, count * sizeof *narrow, *hash);
    }
    return TSR_OK;
}

/* `to` is the 16-bit dtype, or NONE when values are not read. */
static tsr_status digest(const matching *m, const tsr_entry *tensor, tsr_dtype to, depth how, uint64_t *hash)
{
    uint64_t elements;
    *hash = tsr_hash_bytes(tensor->shape, tensor->ndim * sizeof *tensor->shape, tensor->ndim);
    if (how == BY_SHAPE || !ds_is_plain(tensor) || !tsr_entry_elements(tensor, &elements)) return TSR_OK;
    return digest_values(m, tensor, to, how == BY_HEAD && elements > BLOCK ? BLOCK : elements, hash);
}

tsr_status tsr_ds_rounds_to(tsr_checkpoint *checkpoint, const tsr_entry *fp32, const tsr_entry *stored, bool *does,
                            tsr_error *err)
{
    const matching m = {.checkpoint = checkpoint, .err = err};
    const bool narrow = stored->dtype == TSR_BFLOAT16 || stored->dtype == TSR_FLOAT16;
    uint64_t elements, a = 0, b = 0;
    *does = true;
    if (!narrow || fp32->dtype != TSR_FLOAT32 || !ds_is_plain(fp32) || !ds_is_plain(stored) ||
        !tsr_entry_elements(fp32, &elements))
        return TSR_OK;
    if (elements > SAMPLE) elements = SAMPLE;
    TSR_TRY(digest_values(&m, fp32, stored->dtype, elements, &a));
    TSR_TRY(digest_values(&m, stored, stored->dtype, elements, &b));
    *does = a == b;
    return TSR_OK;
}

/* How many parameters and weights have a hash, and the last of each. */
typedef struct bucket {
    uint64_t hash;
    uint32_t parameters, weights, parameter, weight;
} bucket;

static tsr_status bucket_of(tsr_map *map, bucket *buckets, uint32_t *used, uint64_t hash, bucket **out, tsr_error *err)
{
    uint32_t *number;
    bool fresh;
    buckets[*used].hash = hash;
    TSR_TRY(tsr_map_put(map, (tsr_str){(const char *)&buckets[*used].hash, sizeof hash}, *used, &number, &fresh, err));
    *out = &buckets[*number];
    *used += fresh;
    return TSR_OK;
}

static tsr_status fill(const matching *m, depth how, tsr_dtype to, tsr_map *map, bucket *buckets, uint32_t *used)
{
    for (uint32_t i = 0; i < m->count; i++) {
        const tsr_ds_numbered *n = &m->numbered[i];
        uint64_t hash;
        bucket *b;
        if (n->candidate != UINT32_MAX || !(how == BY_SHAPE ? n->shaped : n->fp32)) continue;
        TSR_TRY(digest(m, how == BY_SHAPE ? n->shaped : n->fp32, to, how, &hash));
        TSR_TRY(bucket_of(map, buckets, used, hash + n->is_expert, &b, m->err));
        b->parameters++;
        b->parameter = i;
    }
    for (uint32_t i = 0; i < m->candidate_count; i++) {
        const tsr_ds_candidate *c = &m->candidates[i];
        uint64_t hash;
        bucket *b;
        if (c->taken || (how != BY_SHAPE && c->tensor->dtype != to)) continue;
        TSR_TRY(digest(m, c->tensor, to, how, &hash));
        TSR_TRY(bucket_of(map, buckets, used, hash + c->is_expert, &b, m->err));
        b->weights++;
        b->weight = i;
    }
    return TSR_OK;
}

/* One pass: matches each pair of one parameter and one weight that share a hash with no other. */
static tsr_status pass(const matching *m, depth how, tsr_dtype to)
{
    const tsr_allocator *allocator = m->checkpoint->host->allocator;
    const size_t most = (size_t)m->count + m->candidate_count + 1;
    uint32_t used = 0;
    bucket *buckets = tsr_alloc(allocator, most, sizeof *buckets, m->err);
    tsr_map *map = buckets ? tsr_map_new(allocator, 0, m->err) : NULL;
    if (buckets) memset(buckets, 0, most * sizeof *buckets);
    tsr_status status = map ? fill(m, how, to, map, buckets, &used) : TSR_E_NOMEM;
    for (uint32_t b = 0; b < used && status == TSR_OK; b++) {
        if (buckets[b].parameters != 1 || buckets[b].weights != 1) continue;
        m->numbered[buckets[b].parameter].candidate = buckets[b].weight;
        m->candidates[buckets[b].weight].taken = true;
    }
    tsr_map_free(map);
    tsr_free(allocator, buckets, most, sizeof *buckets);
    return status;
}

tsr_status tsr_ds_match(tsr_checkpoint *checkpoint, tsr_ds_numbered *numbered, uint32_t count, tsr_ds_candidate *candidates,
                        uint32_t candidate_count, tsr_error *err)
{
    static const tsr_dtype types[] = {TSR_BFLOAT16, TSR_FLOAT16};
    const matching m = {checkpoint, numbered, candidates, count, candidate_count, err};
    TSR_TRY(pass(&m, BY_SHAPE, TSR_DTYPE_NONE));
    for (depth how = BY_HEAD; how <= BY_ALL; how++)
        for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) TSR_TRY(pass(&m, how, types[t]));
    return TSR_OK;
}

/* ---- steps ---- */

const tsr_value *tsr_ds_step_in(const tsr_value *states)
{
    const bool pairs = states && states->kind == TSR_VALUE_DICT;
    for (size_t i = 0; i < tsr_ds_count(states); i++) {
        const tsr_value *step = tsr_ds_get(states->items[pairs ? 2 * i + 1 : i], "step");
        if (step) return step;
    }
    return NULL;
}

/* The first step that an optimizer file states, a number or a tensor. NULL if it counts no steps, like SGD's. */
static const tsr_value *ds_step_of(const tsr_ds_files *files, const tsr_ds_file *file)
{
    const tsr_value *elastic = tsr_ds_get(tsr_ds_optimizer(file), "base_optimizer_state_step");
    const tsr_value *base = tsr_ds_base_state(files, file);
    if (elastic) return elastic;
    const tsr_value *step = tsr_ds_step_in(tsr_ds_kind_or_null(base, TSR_VALUE_LIST));
    if (!step) step = tsr_ds_step_in(tsr_ds_dict(base, "state"));
    return step ? step : tsr_ds_step_in(tsr_ds_list(base, "param_groups")); /* where some fused optimizers store it */
}

/* Compares the CRC-32 of a tensor if one is stated, without reading the tensor. Fails only if reading fails. */
static tsr_status ds_compare_step(const tsr_ds_files *files, const tsr_value *step, uint64_t made, tsr_ds_steps *out,
                                  tsr_error *err)
{
    uint64_t number;
    uint32_t bits;
    uint8_t bytes[sizeof bits], stored[sizeof bits];
    tsr_stated_crc crc = {0};
    tsr_checkpoint *checkpoint = files->checkpoint;
    const float value = (float)made;
    const tsr_entry *tensor = tsr_ds_tensor(step);
    *out = !tsr_ds_number(step, &number) ? TSR_DS_STEPS_UNKNOWN : number == made ? TSR_DS_STEPS_SAME : TSR_DS_STEPS_OTHER;
    if (!tensor || tensor->ndim || tensor->dtype != TSR_FLOAT32 || tensor->chunk_count != 1 ||
        tensor->chunks[0].file == TSR_NO_FILE)
        return TSR_OK;
    memcpy(&bits, &value, sizeof bits);
    tsr_store_le(bytes, bits, sizeof bytes);
    TSR_TRY(tsr_torch_crc(checkpoint, tensor, &tensor->chunks[0], checkpoint->arena, &crc, err));
    if (!crc.is_stated)
        TSR_TRY(tsr_store_read(checkpoint->store, tensor->chunks[0].file, tensor->chunks[0].byte_offset, stored,
                               sizeof stored, err));
    const bool same = crc.is_stated ? crc.crc32 == tsr_crc32(checkpoint->host, 0, bytes, sizeof bytes)
                                    : memcmp(stored, bytes, sizeof bytes) == 0;
    *out = same ? TSR_DS_STEPS_SAME : TSR_DS_STEPS_OTHER;
    return TSR_OK;
}

/* ---- against the model states ---- */

static bool same_number(const tsr_value *a, const tsr_value *b)
{
    if (a->kind != b->kind) return true; /* an int and a float, or a tensor: not compared */
    return a->kind == TSR_VALUE_FLOAT ? a->as.real == b->as.real
                                      : a->kind != TSR_VALUE_INT || a->as.integer == b->as.integer;
}

/* Whether the optimizer's learning rates are those that the scheduler set last, if its state has them. */
static bool has_rates_of(const tsr_value *scheduler, const tsr_value *groups)
{
    const tsr_value *rates = tsr_ds_list(scheduler, "_last_lr");
    for (size_t g = 0; g < tsr_ds_count(groups) && g < tsr_ds_count(rates); g++) {
        const tsr_value *rate = tsr_ds_get(groups->items[g], "lr");
        if (rate && !same_number(rate, rates->items[g])) return false;
    }
    return true;
}

/* Sets *what to how a file differs from its model states, as the beginning of a sentence, or to NULL. Sets *counts if
 * something in the file counts steps. */
static tsr_status find_other(const tsr_ds_files *files, const tsr_value *model, const tsr_ds_file *file, const char **what,
                             bool *counts, tsr_error *err)
{
    uint64_t steps = 0, skipped = 0, iterations;
    tsr_ds_steps compared = TSR_DS_STEPS_UNKNOWN;
    const bool known = tsr_ds_number(tsr_ds_get(model, "global_steps"), &steps);
    const tsr_value *step = ds_step_of(files, file), *scaler = tsr_ds_get(tsr_ds_optimizer(file), "loss_scaler");
    tsr_ds_number(tsr_ds_get(model, "skipped_steps"), &skipped);
    if (known && step) TSR_TRY(ds_compare_step(files, step, skipped <= steps ? steps - skipped : 0, &compared, err));
    const bool scales = tsr_ds_number(tsr_ds_get(scaler ? tsr_ds_attributes(scaler) : NULL, "cur_iter"), &iterations);
    *counts = step || scales;
    *what = NULL;
    if (compared == TSR_DS_STEPS_OTHER) *what = "counts other steps than";
    else if (known && scales && iterations != steps) *what = "has a loss scaler that counts other steps than";
    else if (!has_rates_of(tsr_ds_get(model, "lr_scheduler"), tsr_ds_get(tsr_ds_base_state(files, file), "param_groups")))
        *what = "has other learning rates than the scheduler of";
    return TSR_OK;
}

static tsr_status report_uncounted(const tsr_ds_files *files, const tsr_ds_file *file, tsr_error *err)
{
    return tsr_finding_add_at(
        files->checkpoint->findings, (tsr_rated_rule){"parts/unchecked-save", TSR_NOTE},
        (tsr_place){tsr_ds_file_name(files, file), TSR_NO_POSITION, {NULL, 0}}, err,
        "the optimizer files agree in shapes, param groups and loss scaler, but they do not count steps, and ZeRO 3 "
        "stores no 16-bit weights to compare with: a rank's file from another step would not be noticed");
}

tsr_status tsr_ds_check_steps(const tsr_ds_files *files, const tsr_ds_column *column, tsr_error *err)
{
    const tsr_ds_file *file = NULL;
    const char *what;
    bool counts;
    if (files->zero != 3 || files->universal || !column->model || files->checkpoint->incomplete.size) return TSR_OK;
    for (uint32_t r = 0; r < column->world && !file; r++) file = column->optims[r];
    if (!file) return TSR_OK;
    TSR_TRY(find_other(files, column->model->root, file, &what, &counts, err));
    const tsr_str name = tsr_ds_file_name(files, file), model = tsr_ds_file_name(files, column->model);
    if (!counts && column == files->columns && column->world > 1) TSR_TRY(report_uncounted(files, file, err));
    if (!what) return TSR_OK;
    return tsr_finding_add_at(
        files->checkpoint->findings, (tsr_rated_rule){"parts/unchecked-save", TSR_WARNING},
        (tsr_place){name, TSR_NO_POSITION, {NULL, 0}}, err,
        "%.*s: %s %.*s: the optimizer was started again or changed, or the files are of different saves; ZeRO 3 "
        "stores no 16-bit weights that would show which",
        TSR_STR_ARG(name), what, TSR_STR_ARG(model));
}

/* ---- agree ---- */

enum { RUNS = 4, RUN = 512 }; /* RUNS are compared per file; RUN is the number of elements in each */

/* What was found out about one rank's optimizer file. */
typedef struct seen {
    uint32_t runs;
    bool differs;
} seen;

typedef struct agreement {
    const tsr_ds_files *files;
    const tsr_ds_column *column;
    seen *ranks;
    tsr_error *err;
} agreement;

/* ---- when to compare ---- */

/* Whether values must be compared. Only the first step is looked at, since optimizer files with different steps are reported
 * elsewhere. */
static tsr_status is_in_doubt(const agreement *a, bool *doubt)
{
    uint64_t steps = 0, skipped = 0;
    tsr_ds_steps compared;
    const tsr_value *step = NULL, *root = a->column->model->root;
    *doubt = false;
    if (!tsr_ds_number(tsr_ds_get(root, "global_steps"), &steps)) return TSR_OK;
    tsr_ds_number(tsr_ds_get(root, "skipped_steps"), &skipped);
    for (uint32_t r = 0; r < a->column->world && !step; r++) step = ds_step_of(a->files, a->column->optims[r]);
    *doubt = true;
    if (!step) return TSR_OK;
    TSR_TRY(ds_compare_step(a->files, step, skipped <= steps ? steps - skipped : 0, &compared, a->err));
    *doubt = compared != TSR_DS_STEPS_SAME;
    return TSR_OK;
}

/* ---- values ---- */

/* The row-major index of a chunk's first element in the whole tensor. */
static uint64_t start_of(const tsr_entry *tensor, const tsr_chunk *chunk)
{
    uint64_t at = 0;
    for (uint32_t d = 0; d < tensor->ndim; d++) at = at * tensor->shape[d] + chunk->offsets[d];
    return at;
}

static bool can_compare(const tsr_entry *fp32, const tsr_entry *stored)
{
    if (!stored || fp32->dtype != TSR_FLOAT32 || !tsr_entry_same_shape(fp32, stored)) return false;
    return (stored->dtype == TSR_FLOAT32 || stored->dtype == TSR_BFLOAT16 || stored->dtype == TSR_FLOAT16) &&
           ds_is_plain(stored);
}

/* Compares the beginning of a chunk's first row with the same elements of the stored weight. */
static tsr_status compare_run(const agreement *a, const tsr_entry *fp32, const tsr_chunk *chunk, const tsr_entry *stored,
                              bool *same)
{
    uint32_t wide[RUN], other[RUN];
    uint16_t narrow[RUN];
    tsr_store *store = a->files->checkpoint->store;
    const bool rounds = stored->dtype != TSR_FLOAT32;
    const uint64_t row = fp32->ndim ? chunk->sizes[fp32->ndim - 1] : 1, size = rounds ? sizeof *narrow : sizeof *wide;
    const size_t count = row < RUN ? (size_t)row : RUN;
    TSR_TRY(tsr_store_read(store, chunk->file, chunk->byte_offset, wide, count * sizeof *wide, a->err));
    TSR_TRY(tsr_store_read(store, stored->chunks[0].file, stored->chunks[0].byte_offset + start_of(fp32, chunk) * size,
                           rounds ? (void *)narrow : other, count * (size_t)size, a->err));
    *same = true;
    for (size_t i = 0; i < count && *same; i++)
        *same = rounds ? ds_round(wide[i], stored->dtype) == narrow[i] : wide[i] == other[i];
    return TSR_OK;
}

static seen *seen_of(const agreement *a, uint32_t file)
{
    for (uint32_t r = 0; r < a->column->world; r++)
        if (a->column->optims[r] && a->column->optims[r]->file == file) return &a->ranks[r];
    return NULL;
}

static tsr_status compare_weight(const agreement *a, const tsr_entry *fp32, const tsr_entry *stored)
{
    for (uint64_t c = 0; c < fp32->chunk_count; c++) {
        bool same;
        const tsr_chunk *chunk = &fp32->chunks[c];
        seen *of = chunk->file == TSR_NO_FILE ? NULL : seen_of(a, chunk->file);
        if (!of || of->runs == RUNS || !chunk->byte_length || (chunk->view && !tsr_view_is_plain(chunk->view))) continue;
        TSR_TRY(compare_run(a, fp32, chunk, stored, &same));
        of->runs++;
        of->differs = of->differs || !same;
    }
    return TSR_OK;
}

/* Compares the first trained weight of an expert's file with its float32 values. Files of experts state no step. An optimizer
 * file that is known to differ is not compared. */
static tsr_status check_expert(const agreement *a, const tsr_ds_file *file, const tsr_ds_rows *trained)
{
    for (size_t i = 0; i < tsr_ds_count(file->root); i++) {
        const tsr_value *name = file->root->items[2 * i];
        const tsr_entry *stored = tsr_ds_tensor(file->root->items[2 * i + 1]);
        const tsr_entry *fp32 =
            name->kind == TSR_VALUE_STR ? tsr_ds_tensor(tsr_ds_rows_get(trained, name->text, TSR_STR(""))) : NULL;
        const tsr_chunk *chunk = fp32 && fp32->chunk_count ? &fp32->chunks[0] : NULL;
        const seen *of = chunk && chunk->file != TSR_NO_FILE ? seen_of(a, chunk->file) : NULL;
        bool same;
        if (!of || of->differs || !can_compare(fp32, stored) || !chunk->byte_length ||
            (chunk->view && !tsr_view_is_plain(chunk->view)))
            continue;
        TSR_TRY(compare_run(a, fp32, chunk, stored, &same));
        if (same) return TSR_OK;
        const tsr_str expert = tsr_ds_file_name(a->files, file);
        return tsr_ds_report(a->files->checkpoint, expert, a->err,
                             "%.*s: its weights are not those of %.*s, rounded: the files do not belong to the same save",
                             TSR_STR_ARG(expert), TSR_STR_ARG(a->files->checkpoint->store->files[chunk->file].name));
    }
    return TSR_OK;
}

static tsr_status check_experts(const agreement *a, const tsr_ds_rows *trained)
{
    uint32_t count;
    const tsr_ds_file *experts = tsr_ds_first(a->files, TSR_DS_EXPERT, &count);
    for (uint32_t i = 0; i < count; i++) TSR_TRY(check_expert(a, &experts[i], trained));
    return TSR_OK;
}

static tsr_status compare_all(const agreement *a, const tsr_value *module, const tsr_ds_rows *trained)
{
    for (size_t i = 0; i < tsr_ds_count(module); i++) {
        const tsr_value *name = module->items[2 * i];
        const tsr_entry *stored = tsr_ds_tensor(module->items[2 * i + 1]);
        const tsr_entry *fp32 =
            name->kind == TSR_VALUE_STR ? tsr_ds_tensor(tsr_ds_rows_get(trained, name->text, TSR_STR(""))) : NULL;
        if (fp32 && can_compare(fp32, stored)) TSR_TRY(compare_weight(a, fp32, stored));
    }
    return TSR_OK;
}

/* ---- verdict ---- */

/* If all optimizer files that were compared differ, the model states are reported as the file from another save. */
static tsr_status report(const agreement *a)
{
    uint32_t compared = 0, differing = 0;
    const tsr_str model = tsr_ds_file_name(a->files, a->column->model);
    for (uint32_t r = 0; r < a->column->world; r++) {
        compared += a->ranks[r].runs > 0;
        differing += a->ranks[r].differs;
    }
    if (differing && differing == compared)
        return tsr_ds_report(
            a->files->checkpoint, model, a->err,
            "%.*s: its weights are not those of the optimizer files, rounded: the files do not belong to the same save",
            TSR_STR_ARG(model));
    for (uint32_t r = 0; r < a->column->world; r++) {
        if (!a->ranks[r].differs) continue;
        const tsr_str name = tsr_ds_file_name(a->files, a->column->optims[r]);
        TSR_TRY(tsr_ds_report(
            a->files->checkpoint, name, a->err,
            "%.*s: its float32 weights, rounded, are not those of %.*s: the files do not belong to the same save",
            TSR_STR_ARG(name), TSR_STR_ARG(model)));
    }
    return TSR_OK;
}

tsr_status tsr_ds_agree(const tsr_ds_files *files, const tsr_ds_column *column, const tsr_ds_rows *trained, tsr_error *err)
{
    bool doubt;
    agreement a = {.files = files, .column = column, .err = err};
    const tsr_value *module = column->model ? tsr_ds_dict(column->model->root, "module") : NULL;
    if ((files->zero != 1 && files->zero != 2) || files->universal || !module) return TSR_OK;
    a.ranks = tsr_arena_array(files->checkpoint->arena, column->world, sizeof *a.ranks, err);
    if (!a.ranks) return TSR_E_NOMEM;
    TSR_TRY(is_in_doubt(&a, &doubt));
    if (doubt) TSR_TRY(compare_all(&a, module, trained));
    TSR_TRY(report(&a));
    return check_experts(&a, trained);
}

enum { DEPTH = 64, NODES = 1 << 20, MOST_NAMED = 64, MOST_COLUMNS = 4096 };

/* ---- missing files ---- */

/* Whether the job trained in bfloat16. DeepSpeed then adds a prefix to the names of optimizer files. */
static bool is_bf16(const tsr_ds_file *model)
{
    const tsr_value *config = model ? tsr_ds_dict(model->root, "ds_config") : NULL;
    const tsr_value *bf16 = tsr_ds_dict(config, "bf16"), *older = tsr_ds_dict(config, "bfloat16");
    const tsr_value *enabled = tsr_ds_get(bf16 ? bf16 : older, "enabled");
    return enabled && enabled->kind == TSR_VALUE_BOOL && enabled->as.boolean;
}

/* What the names of a column's files of one kind have in common, except for the rank: taken from a file that exists, or
 * otherwise built like DeepSpeed's. */
static tsr_ds_name name_like(const tsr_ds_column *column, bool optims)
{
    const tsr_ds_file *const *ranks = optims ? column->optims : column->models;
    for (uint32_t r = 0; r < column->world; r++)
        if (ranks[r]) return ranks[r]->name;
    return (tsr_ds_name){.kind = optims ? TSR_DS_OPTIM : TSR_DS_MODEL,
                         .has_rank = true,
                         .model_rank = column->model_rank,
                         .prefix = optims && is_bf16(column->model) ? "bf16_" : NULL};
}

/* Reports the ranks of a column whose file of one kind is missing. */
static tsr_status check_ranks(const tsr_ds_files *files, const tsr_ds_column *column, bool optims, tsr_error *err)
{
    const tsr_ds_file *const *ranks = optims ? column->optims : column->models;
    tsr_shown_names missing = {.used = 0};
    tsr_str first = {NULL, 0};
    tsr_ds_name like = name_like(column, optims);
    for (uint32_t r = 0; r < column->world; r++) {
        if (ranks[r]) continue;
        like.rank = r;
        const tsr_str name = tsr_ds_name_text(files->checkpoint->arena, &like, err);
        if (!name.data) return TSR_E_NOMEM;
        if (!first.data) first = name;
        TSR_TRY(tsr_checkpoint_implies(files->checkpoint, name, err));
        if (missing.count >= MOST_NAMED) {
            tsr_shown_names_add(&missing, TSR_STR("…"));
            continue;
        }
        tsr_shown_names_add(&missing, name);
        if (tsr_store_find(files->checkpoint->store, name) == TSR_NO_FILE)
            TSR_TRY(tsr_checkpoint_lacks(files->checkpoint, name, err));
    }
    if (missing.count == 0) return TSR_OK;
    return tsr_ds_report(files->checkpoint, first, err,
                         "%llu of the %s files of %u ranks cannot be read or are missing: %s%s; copy them from where the "
                         "checkpoint was written",
                         (unsigned long long)missing.count, optims ? "optimizer" : "model states", column->world,
                         missing.text, tsr_shown_names_rest(&missing));
}

static tsr_status check_model(const tsr_ds_files *files, const tsr_ds_column *column, tsr_error *err)
{
    if (column->model) return TSR_OK;
    files->checkpoint->names_unknown = files->column_count == 1;
    const tsr_str name = tsr_ds_model_states_name(files, column->model_rank, 0, err);
    if (!name.data) return TSR_E_NOMEM;
    TSR_TRY(tsr_checkpoint_lacks(files->checkpoint, name, err));
    return tsr_ds_report(files->checkpoint, name, err,
                         "'%.*s', which has the names of the weights, is missing or cannot be read", TSR_STR_ARG(name));
}

/* Records the model states of model-parallel ranks that have no file, so that a server is asked for them. They show which
 * optimizer files exist. */
static tsr_status imply_columns(const tsr_ds_files *files, uint64_t count, tsr_error *err)
{
    for (uint32_t rank = 0, c = 0; rank < count && rank < MOST_COLUMNS; rank++) {
        while (c < files->column_count && files->columns[c].model_rank < rank) c++;
        if (c < files->column_count && files->columns[c].model_rank == rank) continue;
        const tsr_str name = tsr_ds_model_states_name(files, rank, 0, err);
        if (!name.data) return TSR_E_NOMEM;
        TSR_TRY(tsr_checkpoint_implies(files->checkpoint, name, err));
    }
    return TSR_OK;
}

/* Checks that there are as many model-parallel ranks as the model states imply. */
static tsr_status check_columns(const tsr_ds_files *files, tsr_error *err)
{
    const tsr_ds_file *model = files->column_count ? files->columns[0].model : NULL;
    const tsr_value *dims = model ? tsr_ds_dict(model->root, "checkpoint_parallel_dimensions") : NULL;
    uint64_t stages = 1, ranks = 1;
    if (!model) return TSR_OK;
    if (!tsr_ds_number(tsr_ds_get(dims, "pp_degree"), &stages) || !tsr_ds_number(tsr_ds_get(dims, "tp_degree"), &ranks))
        tsr_ds_number(tsr_ds_get(model->root, "mp_world_size"), &ranks);
    if (stages < 1 || stages > UINT16_MAX || ranks > UINT16_MAX || stages * ranks <= files->column_count) return TSR_OK;
    TSR_TRY(imply_columns(files, stages * ranks, err));
    uint32_t absent = 0;
    while (absent < files->column_count && files->columns[absent].model_rank == absent) absent++;
    const tsr_str name = tsr_ds_model_states_name(files, absent, 0, err);
    if (!name.data) return TSR_E_NOMEM;
    return tsr_ds_report(files->checkpoint, name, err,
                         "the files of model-parallel rank %u (…%.*s) are missing: the job had %llu such ranks, but there "
                         "are files of only %u",
                         absent, TSR_STR_ARG(name), (unsigned long long)(stages * ranks), files->column_count);
}

/* ---- files from other saves ---- */

/* Whether param groups are partitioned over different numbers of ranks. */
static bool is_uneven(const tsr_value *counts, uint64_t *a, uint64_t *b)
{
    if (!counts || counts->kind != TSR_VALUE_LIST) return false;
    for (size_t i = 0; i < counts->count; i++) {
        if (!tsr_ds_number(counts->items[i], b)) return false;
        if (i == 0) *a = *b;
        if (*a != *b) return true;
    }
    return false;
}

static tsr_status check_count(const tsr_ds_files *files, const tsr_ds_column *column, const tsr_ds_file *file,
                              tsr_error *err)
{
    const tsr_str name = tsr_ds_file_name(files, file);
    const tsr_value *optimizer = tsr_ds_optimizer(file);
    const uint64_t world = tsr_ds_world_of(optimizer);
    uint64_t a, b;
    if (file->name.rank >= column->world)
        TSR_TRY(tsr_ds_report(
            files->checkpoint, name, err,
            "%.*s: belongs to rank %u, but the checkpoint has %u ranks: the file is left over from another save",
            TSR_STR_ARG(name), file->name.rank, column->world));
    else if (column->optims && column->optims[file->name.rank] != file)
        TSR_TRY(tsr_ds_report(files->checkpoint, name, err,
                              "%.*s: belongs to rank %u, as '%.*s' does: one of the two is left over from another save",
                              TSR_STR_ARG(name), file->name.rank,
                              TSR_STR_ARG(tsr_ds_file_name(files, column->optims[file->name.rank]))));
    if (world && (files->has_experts ? column->world % world : world != column->world))
        return tsr_ds_report(files->checkpoint, name, err,
                             "%.*s: was saved by %llu ranks ('partition_count'), but the other files by %u: the files do "
                             "not belong to the same save",
                             TSR_STR_ARG(name), (unsigned long long)world, column->world);
    if (!files->has_experts && is_uneven(tsr_ds_get(optimizer, "partition_count"), &a, &b))
        return tsr_ds_report(
            files->checkpoint, name, err,
            "%.*s: one param group is split over %llu ranks and another over %llu ('partition_count'), as for experts, "
            "which is not supported; load the checkpoint with DeepSpeed's engine",
            TSR_STR_ARG(name), (unsigned long long)a, (unsigned long long)b);
    return TSR_OK;
}

tsr_status tsr_ds_same_scalar(const tsr_ds_files *files, const tsr_value *a, const tsr_value *b, bool *same, tsr_error *err)
{
    const tsr_entry *x = tsr_ds_tensor(a), *y = tsr_ds_tensor(b);
    *same = true;
    if (!a || !b) return TSR_OK;
    if (!x || !y) *same = tsr_value_match(a, b, DEPTH, NODES) == TSR_SAME;
    else if (x->ndim || y->ndim || x->chunk_count != 1 || y->chunk_count != 1) return TSR_OK;
    else if (x->dtype != y->dtype) *same = false;
    else if (!tsr_torch_decide(files->checkpoint, x, y, same))
        return tsr_rank_bytes_match(files->checkpoint, x, y, same, err);
    return TSR_OK;
}

static bool match(const tsr_value *a, const tsr_value *b)
{
    return !a == !b && (!a || tsr_value_match(a, b, DEPTH, NODES) == TSR_SAME);
}

/* Sets *differing to something that must be equal in two optimizer files of one save but is not, or to NULL. An adaptive
 * loss scaler counts steps too, which helps if the optimizer does not. */
static tsr_status compare_optimizers(const tsr_ds_files *files, const tsr_ds_file *a, const tsr_ds_file *b,
                                     const char **differing, tsr_error *err)
{
    bool same;
    const tsr_value *x = tsr_ds_optimizer(a), *y = tsr_ds_optimizer(b);
    TSR_TRY(tsr_ds_same_scalar(files, ds_step_of(files, a), ds_step_of(files, b), &same, err));
    *differing = NULL;
    if (!same) *differing = "a different step";
    else if (!match(tsr_ds_get(tsr_ds_base_state(files, a), "param_groups"),
                    tsr_ds_get(tsr_ds_base_state(files, b), "param_groups")))
        *differing = "different param groups ('param_groups')";
    else if (!match(tsr_ds_get(x, "loss_scaler"), tsr_ds_get(y, "loss_scaler")))
        *differing = "a different loss scaler ('loss_scaler')";
    else if (!match(tsr_ds_get(a->root, "ds_version"), tsr_ds_get(b->root, "ds_version")))
        *differing = "a different version of DeepSpeed ('ds_version')";
    return TSR_OK;
}

static const char *const agreed[] = {"global_steps", "dp_world_size", "mp_world_size", "ds_version", NULL};

/* The key that must be equal in all model states of one save but differs between these two, or NULL. */
static const char *compare_models(const tsr_ds_file *a, const tsr_ds_file *b)
{
    for (size_t i = 0; agreed[i]; i++) {
        const tsr_value *x = tsr_ds_get(a->root, agreed[i]), *y = tsr_ds_get(b->root, agreed[i]);
        if (x && y && tsr_value_match(x, y, DEPTH, NODES) != TSR_SAME) return agreed[i];
    }
    const tsr_value *x = tsr_ds_get(a->root, "param_shapes"), *y = tsr_ds_get(b->root, "param_shapes");
    if (a->name.model_rank != b->name.model_rank || !x || !y) return NULL;
    return tsr_value_match(x, y, DEPTH, NODES) == TSR_DIFFERENT ? "param_shapes" : NULL;
}

static tsr_status compare(const tsr_ds_files *files, const tsr_ds_file *a, const tsr_ds_file *b, const char **differing,
                          tsr_error *err)
{
    if (a->name.kind == TSR_DS_OPTIM) return compare_optimizers(files, a, b, differing, err);
    *differing = compare_models(a, b);
    return TSR_OK;
}

static tsr_status report_different(const tsr_ds_files *files, const tsr_ds_file *like, const tsr_ds_file *file,
                                   const char *what, tsr_error *err)
{
    char a[64], b[64];
    const tsr_str name = tsr_ds_file_name(files, file), other = tsr_ds_file_name(files, like);
    const tsr_value *x = tsr_ds_get(like->root, what), *y = tsr_ds_get(file->root, what);
    if (file->name.kind == TSR_DS_OPTIM)
        return tsr_ds_report(files->checkpoint, name, err,
                             "%.*s: has %s than %.*s: the files do not belong to the same save", TSR_STR_ARG(name), what,
                             TSR_STR_ARG(other));
    if (strcmp(what, "param_shapes") == 0)
        return tsr_ds_report(files->checkpoint, name, err,
                             "%.*s: has different 'param_shapes' than %.*s: the files do not belong to the same model",
                             TSR_STR_ARG(name), TSR_STR_ARG(other));
    return tsr_ds_report(
        files->checkpoint, name, err, "%.*s: '%s' is %s, but in %.*s it is %s: the files do not belong to the same save",
        TSR_STR_ARG(name), what, tsr_value_text(y, b, sizeof b), TSR_STR_ARG(other), tsr_value_text(x, a, sizeof a));
}

/* Compares all files with one that most of them agree with, so that a single file from another save is the one that gets
 * reported. */
static tsr_status check_alike(const tsr_ds_files *files, const tsr_ds_file *first, uint32_t count, tsr_error *err)
{
    const tsr_ds_file *like = first;
    const char *differing;
    uint32_t votes = 0;
    bool all_alike = true;
    for (uint32_t i = 0; i < count; i++) {
        TSR_TRY(compare(files, like, &first[i], &differing, err));
        all_alike = all_alike && !differing;
        if (!differing) votes++;
        else if (votes) votes--;
        else {
            like = &first[i];
            votes = 1;
        }
    }
    for (uint32_t i = 0; i < count && !all_alike; i++) {
        TSR_TRY(compare(files, like, &first[i], &differing, err));
        if (differing) TSR_TRY(report_different(files, like, &first[i], differing, err));
    }
    return TSR_OK;
}

static tsr_status check_world(const tsr_ds_files *files, const tsr_ds_column *column, tsr_error *err)
{
    uint64_t world;
    const tsr_value *stated = column->model ? tsr_ds_get(column->model->root, "dp_world_size") : NULL;
    if (files->zero == 0 || !tsr_ds_number(stated, &world) || world == column->world) return TSR_OK;
    const tsr_str name = tsr_ds_file_name(files, column->model);
    return tsr_ds_report(
        files->checkpoint, name, err,
        "%.*s: 'dp_world_size' is %llu, but there are optimizer files of %u ranks: the files do not belong to the same save",
        TSR_STR_ARG(name), (unsigned long long)world, column->world);
}

static tsr_status check_column(const tsr_ds_files *files, const tsr_ds_column *column, tsr_error *err)
{
    TSR_TRY(check_model(files, column, err));
    if (column->models) TSR_TRY(check_ranks(files, column, false, err));
    if (column->optims) TSR_TRY(check_ranks(files, column, true, err));
    return check_world(files, column, err);
}

static const tsr_ds_column *column_of(const tsr_ds_files *files, uint32_t model_rank)
{
    uint32_t c = 0;
    while (files->columns[c].model_rank != model_rank) c++;
    return &files->columns[c];
}

/* Whether two files must agree: the model states of all ranks must, and the optimizer files of one model-parallel rank. */
static bool is_alike(const tsr_ds_file *first, const tsr_ds_file *file)
{
    return first->name.kind == file->name.kind &&
           (first->name.kind == TSR_DS_MODEL || first->name.model_rank == file->name.model_rank);
}

tsr_status tsr_ds_check(const tsr_ds_files *files, tsr_error *err)
{
    for (uint32_t c = 0; c < files->column_count; c++) TSR_TRY(check_column(files, &files->columns[c], err));
    TSR_TRY(check_columns(files, err));
    for (uint32_t i = 0, end; i < files->count; i = end) {
        const tsr_ds_file *first = &files->files[i];
        for (end = i + 1; end < files->count && is_alike(first, &files->files[end]);) end++;
        if (first->name.kind == TSR_DS_MODEL || first->name.kind == TSR_DS_OPTIM)
            TSR_TRY(check_alike(files, first, end - i, err));
        for (uint32_t f = i; f < end && first->name.kind == TSR_DS_OPTIM; f++)
            TSR_TRY(check_count(files, column_of(files, first->name.model_rank), &files->files[f], err));
    }
    return TSR_OK;
}
