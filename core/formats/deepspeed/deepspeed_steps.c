/* See deepspeed_steps.h. */
#include "formats/deepspeed/deepspeed_steps.h"

#include "formats/deepspeed/deepspeed_engine.h"
#include "formats/deepspeed/deepspeed_values.h"
#include "formats/torch/torch_file.h"
#include "tessera/sys/finding_add.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/little_endian.h"
#include "tessera/sys/try.h"

#include <string.h>

/* ---- steps ---- */

static const tsr_value *base_of(const tsr_ds_files *files, const tsr_ds_file *file)
{
    return tsr_ds_get(tsr_ds_optimizer(file), files->zero == 3 ? "optimizer_state_dict" : "base_optimizer_state");
}

const tsr_value *tsr_ds_step_in(const tsr_value *states)
{
    const bool pairs = states && states->kind == TSR_VALUE_DICT;
    for (size_t i = 0; i < tsr_ds_count(states); i++) {
        const tsr_value *step = tsr_ds_get(states->items[pairs ? 2 * i + 1 : i], "step");
        if (step) return step;
    }
    return NULL;
}

const tsr_value *tsr_ds_step_of(const tsr_ds_files *files, const tsr_ds_file *file)
{
    const tsr_value *elastic = tsr_ds_get(tsr_ds_optimizer(file), "base_optimizer_state_step");
    const tsr_value *base = base_of(files, file);
    if (elastic) return elastic;
    const tsr_value *step = tsr_ds_step_in(tsr_ds_kind_or_null(base, TSR_VALUE_LIST));
    if (!step) step = tsr_ds_step_in(tsr_ds_dict(base, "state"));
    return step ? step : tsr_ds_step_in(tsr_ds_list(base, "param_groups")); /* where some fused optimizers store it */
}

tsr_status tsr_ds_compare_step(const tsr_ds_files *files, const tsr_value *step, uint64_t made, tsr_ds_steps *out,
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
    const tsr_value *step = tsr_ds_step_of(files, file), *scaler = tsr_ds_get(tsr_ds_optimizer(file), "loss_scaler");
    tsr_ds_number(tsr_ds_get(model, "skipped_steps"), &skipped);
    if (known && step) TSR_TRY(tsr_ds_compare_step(files, step, skipped <= steps ? steps - skipped : 0, &compared, err));
    const bool scales = tsr_ds_number(tsr_ds_get(scaler ? tsr_ds_attributes(scaler) : NULL, "cur_iter"), &iterations);
    *counts = step || scales;
    *what = NULL;
    if (compared == TSR_DS_STEPS_OTHER) *what = "counts other steps than";
    else if (known && scales && iterations != steps) *what = "has a loss scaler that counts other steps than";
    else if (!has_rates_of(tsr_ds_get(model, "lr_scheduler"), tsr_ds_get(base_of(files, file), "param_groups")))
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
