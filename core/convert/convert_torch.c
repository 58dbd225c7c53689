/* Writes a checkpoint as one torch.save file. The nested structure is restored from the entries' paths, objects are written
 * with the data that was read, and tensors that shared a storage share one again. */
#include "convert/convert_to.h"
#include "formats/torch/torch_loadable.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/try.h"
#include "write/torch_plan.h"

const char *tsr_torch_refusal(const tsr_converted *row)
{
    if (tsr_is_object(row->entry)) return row->entry->value ? NULL : "is an object whose value was not read";
    if (tsr_entry_is_subclass(row->entry)) return row->entry->is_sharded ? "is sharded and cannot be joined" : NULL;
    if (row->entry->kind == TSR_ENTRY_OPAQUE) return tsr_opaque_refusal(row->entry);
    if (tsr_dtype_describe(row->dtype)->bits == 6) return "has a float6 type, which torch does not have";
    return tsr_dtype_describe(row->dtype)->kind == TSR_CLASS_QUANTIZED ? "is quantized, and its scale is unknown" : NULL;
}

/* Nests all written rows into one value. */
static tsr_status nest_rows(const tsr_conversion_job *job, const tsr_chosen *chosen, const tsr_value **root, tsr_error *err)
{
    const tsr_value **values = tsr_arena_array(job->arena, (size_t)chosen->count, sizeof *values, err);
    if (!values) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < chosen->count; i++) {
        tsr_converted *row = &chosen->rows[i];
        values[i] = row->entry->value;
        if (!row->written) continue;
        if (row->entry->kind != TSR_ENTRY_TENSOR) {
            row->weights_only = tsr_torch_weights_only(row->entry->value, tsr_checkpoint_host(job->checkpoint));
            continue;
        }
        values[i] = tsr_value_tensor(job->arena, row->entry, err);
        if (!values[i]) return TSR_E_NOMEM;
    }
    return tsr_nest_rows(chosen, values, job->arena, root, err);
}

static tsr_status report(const tsr_conversion_job *job, const tsr_chosen *chosen, const tsr_torch_plan *plan, tsr_error *err)
{
    tsr_conversion *out = job->out;
    tsr_str *name = TSR_ARENA_NEW(job->arena, tsr_str, err);
    uint64_t *size = TSR_ARENA_NEW(job->arena, uint64_t, err);
    if (!name || !size) return TSR_E_NOMEM;
    *name = tsr_single_file(job);
    *size = plan->archive.size;
    *out = (tsr_conversion){.rows = chosen->rows,
                            .row_count = chosen->count,
                            .files = name,
                            .file_sizes = size,
                            .file_count = 1,
                            .marker = TSR_NO_FILE};
    for (uint32_t i = 0; i < plan->storage_count; i++) out->byte_total += plan->blits[i].byte_length;
    for (uint64_t i = 0; i < chosen->count; i++) {
        tsr_converted *row = &chosen->rows[i];
        row->copied = false; /* shared storages are shared again */
        if (row->written && row->entry->kind == TSR_ENTRY_TENSOR)
            TSR_TRY(tsr_blit_measure(row->entry, NULL, row->dtype, &row->bytes, err));
    }
    return TSR_OK;
}

static tsr_status stage_of(void *ctx, uint32_t number, tsr_arena *arena, tsr_stage *out, tsr_error *err)
{
    (void)number, (void)arena, (void)err;
    *out = tsr_torch_plan_stage(ctx, 0);
    return TSR_OK;
}

tsr_status tsr_convert_to_torch(const tsr_conversion_job *job, tsr_writer *out, tsr_error *err)
{
    tsr_chosen chosen;
    const tsr_value *root;
    tsr_torch_plan *plan = TSR_ARENA_NEW(job->arena, tsr_torch_plan, err);
    if (!plan) return TSR_E_NOMEM;
    TSR_TRY(tsr_choose(job->checkpoint, job->options, tsr_torch_refusal, job->arena, &chosen, err));
    TSR_TRY(nest_rows(job, &chosen, &root, err));
    TSR_TRY(tsr_torch_plan_open(job->checkpoint, root, job->arena, plan, err));
    plan->unsummed = job->options->no_checksums;
    for (uint64_t i = 0; i < chosen.count; i++) {
        tsr_torch_tensor *source = chosen.rows[i].cast ? tsr_torch_plan_source(plan, chosen.rows[i].entry) : NULL;
        if (source) source->dtype = chosen.rows[i].dtype;
    }
    TSR_TRY(tsr_torch_plan_lay_out(plan, err));
    *out = (tsr_writer){.stage_count = 1, .crc = !plan->unsummed, .stage = stage_of, .ctx = plan};
    return report(job, &chosen, plan, err);
}
