/* Writes a checkpoint as a DeepSpeed universal checkpoint: one small torch.save file per weight and per state, each a stage
 * that is laid out when it is needed, and the marker that names their directory. */
#include "convert/universal.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/try.h"
#include "tessera/sys/value_walk.h"
#include "write/torch_plan.h"

typedef struct universal {
    const tsr_conversion_job *job;
    tsr_chosen chosen;
    tsr_universal files;
    tsr_str *names;
    uint64_t *sizes;
} universal;

static tsr_status nest(universal *u, const tsr_value **root, tsr_error *err)
{
    const tsr_value **values = tsr_arena_array(u->job->arena, (size_t)u->chosen.count, sizeof *values, err);
    if (!values) return TSR_E_NOMEM;
    for (uint64_t i = 0; i < u->chosen.count; i++) {
        tsr_converted *row = &u->chosen.rows[i];
        values[i] = row->entry->value;
        if (!row->written || row->entry->kind != TSR_ENTRY_TENSOR) continue;
        values[i] = tsr_value_tensor(u->job->arena, row->entry, err);
        if (!values[i]) return TSR_E_NOMEM;
    }
    return tsr_nest_rows(&u->chosen, values, u->job->arena, root, err);
}

static tsr_status stage_of(void *ctx, uint32_t number, tsr_arena *arena, tsr_stage *out, tsr_error *err)
{
    universal *u = ctx;
    tsr_torch_plan *plan = TSR_ARENA_NEW(arena, tsr_torch_plan, err);
    if (!plan) return TSR_E_NOMEM;
    TSR_TRY(tsr_torch_plan_open(u->job->checkpoint, u->files.files[number].root, arena, plan, err));
    for (size_t i = 0; i < plan->source_count; i++) {
        const tsr_entry *first = tsr_checkpoint_catalog(u->job->checkpoint)->entries, *entry = plan->sources[i].entry;
        if (!tsr_catalog_has(tsr_checkpoint_catalog(u->job->checkpoint), entry)) continue;
        if (u->chosen.rows[entry - first].cast) plan->sources[i].dtype = u->chosen.rows[entry - first].dtype;
    }
    TSR_TRY(tsr_torch_plan_lay_out(plan, err));
    const bool known = u->sizes[number] != 0;
    for (uint32_t i = 0; i < plan->storage_count && !known; i++) u->job->out->byte_total += plan->blits[i].byte_length;
    u->sizes[number] = plan->archive.size;
    *out = tsr_torch_plan_stage(plan, number);
    return TSR_OK;
}

static tsr_status write_marker(void *ctx, tsr_output *output, uint32_t *marker, tsr_error *err)
{
    const universal *u = ctx;
    TSR_TRY(output->create(output, TSR_STR(TSR_UNIVERSAL_MARKER), u->files.tag.size, marker, err));
    return output->write_at(output, *marker, 0, u->files.tag.data, u->files.tag.size, err);
}

static tsr_status describe(universal *u, tsr_error *err)
{
    tsr_arena *arena = u->job->arena;
    u->names = tsr_arena_array(arena, u->files.count, sizeof *u->names, err);
    u->sizes = tsr_arena_array(arena, u->files.count, sizeof *u->sizes, err);
    if (!u->names || !u->sizes) return TSR_E_NOMEM;
    for (uint32_t f = 0; f < u->files.count; f++) u->names[f] = u->files.files[f].name;
    for (uint64_t i = 0; i < u->chosen.count; i++) {
        tsr_converted *row = &u->chosen.rows[i];
        row->copied = false; /* second names remain second names */
        if (!row->written) continue;
        if (row->entry->kind == TSR_ENTRY_TENSOR) TSR_TRY(tsr_blit_measure(row->entry, NULL, row->dtype, &row->bytes, err));
        else row->weights_only = true; /* DeepSpeed does not load these files with weights_only */
    }
    *u->job->out = (tsr_conversion){.rows = u->chosen.rows,
                                    .row_count = u->chosen.count,
                                    .files = u->names,
                                    .file_sizes = u->sizes,
                                    .file_count = u->files.count,
                                    .marker = TSR_NO_FILE};
    return TSR_OK;
}

tsr_status tsr_convert_to_universal(const tsr_conversion_job *job, tsr_writer *out, tsr_error *err)
{
    const tsr_value *root;
    universal *u = TSR_ARENA_NEW(job->arena, universal, err);
    if (!u) return TSR_E_NOMEM;
    u->job = job;
    TSR_TRY(tsr_choose(job->checkpoint, job->options, tsr_torch_refusal, job->arena, &u->chosen, err));
    TSR_TRY(nest(u, &root, err));
    TSR_TRY(tsr_universal_files(&u->chosen, root, job->arena, &u->files, err));
    TSR_TRY(describe(u, err));
    *out = (tsr_writer){.stage_count = u->files.count,
                        .crc = true,
                        .marker = TSR_NO_FILE,
                        .stage = stage_of,
                        .finish = write_marker,
                        .ctx = u};
    return TSR_OK;
}
