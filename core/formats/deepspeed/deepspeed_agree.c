/* See deepspeed_agree.h. */
#include "formats/deepspeed/deepspeed_agree.h"

#include "formats/deepspeed/deepspeed_plain.h"
#include "formats/deepspeed/deepspeed_steps.h"
#include "formats/deepspeed/deepspeed_values.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/try.h"

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
    for (uint32_t r = 0; r < a->column->world && !step; r++) step = tsr_ds_step_of(a->files, a->column->optims[r]);
    *doubt = true;
    if (!step) return TSR_OK;
    TSR_TRY(tsr_ds_compare_step(a->files, step, skipped <= steps ? steps - skipped : 0, &compared, a->err));
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
           tsr_ds_is_plain(stored);
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
        *same = rounds ? tsr_ds_round(wide[i], stored->dtype) == narrow[i] : wide[i] == other[i];
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
