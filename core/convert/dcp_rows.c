/* See dcp_rows.h. */
#include "convert/dcp_rows.h"

#include "convert/reshard_to.h"
#include "formats/torch/torch_loadable.h"
#include "formats/torch/torch_writer.h"
#include "model/nest.h"
#include "tessera/sys/entries.h"
#include "tessera/sys/try.h"
#include "write/blit.h"

static tsr_status complete_row(const tsr_dcp_rows *rows, tsr_converted *row, tsr_error *err)
{
    if (row->entry->kind == TSR_ENTRY_TENSOR) return tsr_blit_measure(row->entry, NULL, row->dtype, &row->bytes, err);
    row->weights_only = tsr_torch_weights_only(row->entry->value, tsr_checkpoint_host(rows->job->checkpoint));
    return TSR_OK;
}

static tsr_status add_source(const tsr_dcp_rows *rows, const tsr_converted *row, tsr_vec *sources, tsr_error *err)
{
    tsr_dcp_output_entry *source = tsr_vec_push(sources, err);
    if (!source) return TSR_E_NOMEM;
    *source = (tsr_dcp_output_entry){.entry = row->entry, .name = row->name, .dtype = row->dtype};
    return tsr_renamed_path(row->entry, row->name, rows->job->arena, &source->path, &source->path_length, err);
}

static tsr_status add_sources(tsr_dcp_rows *rows, tsr_vec *sources, tsr_error *err)
{
    for (uint64_t i = 0; i < rows->chosen.count; i++) {
        tsr_converted *row = &rows->chosen.rows[i];
        rows->first_source[i] = sources->count;
        if (!row->written) continue;
        TSR_TRY(complete_row(rows, row, err));
        if (!rows->in_common) TSR_TRY(add_source(rows, row, sources, err));
        else if (!rows->in_common[i]) TSR_TRY(tsr_megatron_add_sources(rows, row, sources, err));
    }
    rows->first_source[rows->chosen.count] = sources->count;
    return TSR_OK;
}

static tsr_status make_sources(tsr_dcp_rows *rows, tsr_error *err)
{
    tsr_arena *arena = rows->job->arena;
    tsr_vec sources = tsr_vec_of(tsr_checkpoint_host(rows->job->checkpoint)->allocator, sizeof(tsr_dcp_output_entry));
    tsr_status status = add_sources(rows, &sources, err);
    rows->source_count = sources.count;
    rows->sources = status == TSR_OK ? tsr_arena_array(arena, sources.count, sizeof *rows->sources, err) : NULL;
    if (status == TSR_OK && !rows->sources) status = TSR_E_NOMEM;
    if (status == TSR_OK && sources.count) memcpy(rows->sources, sources.items, sources.count * sizeof *rows->sources);
    tsr_vec_free(&sources);
    return status;
}

/* A DCP keeps the items of a sharded tensor subclass. The plan of a reshard refuses it. */
static const char *dcp_refusal(const tsr_converted *row)
{
    return tsr_entry_is_subclass(row->entry) ? NULL : tsr_torch_refusal(row);
}

tsr_status tsr_dcp_rows_of(const tsr_conversion_job *job, const tsr_plan *plan, tsr_dcp_rows *out, tsr_error *err)
{
    const bool megatron = job->options->to == TSR_TO_MEGATRON;
    *out = (tsr_dcp_rows){.job = job};
    TSR_TRY(tsr_choose(job->checkpoint, job->options, megatron ? tsr_megatron_refusal : dcp_refusal, job->arena,
                       &out->chosen, err));
    if (plan) TSR_TRY(tsr_leave_unplanned(&out->chosen, plan, err));
    if (megatron) TSR_TRY(tsr_megatron_part_rows(out, err));
    out->first_source = tsr_arena_array(job->arena, (size_t)out->chosen.count + 1, sizeof *out->first_source, err);
    if (!out->first_source) return TSR_E_NOMEM;
    TSR_TRY(make_sources(out, err));
    const bool joins = job->options->for_torch && job->options->for_torch < TSR_TORCH_WITH_SPLIT_OBJECTS && !megatron;
    return joins ? tsr_join_objects(out, err) : TSR_OK;
}

tsr_status tsr_dcp_rows_lay_out(tsr_dcp_rows *rows, const tsr_dcp_contents *contents, tsr_writer *out, tsr_error *err)
{
    const tsr_conversion_job *job = rows->job;
    tsr_dcp_job dcp = {.checkpoint = job->checkpoint,
                       .arena = job->arena,
                       .sources = rows->sources,
                       .source_count = rows->source_count,
                       .pieces = contents->pieces,
                       .piece_count = contents->piece_count,
                       .files = contents->files,
                       .file_count = contents->file_count,
                       .for_torch = job->options->for_torch};
    TSR_TRY(tsr_dcp_lay_out(&dcp, out, err));
    *job->out = (tsr_conversion){.rows = rows->chosen.rows,
                                 .row_count = rows->chosen.count,
                                 .files = dcp.files,
                                 .file_sizes = dcp.file_sizes,
                                 .file_count = dcp.file_count,
                                 .marker = TSR_NO_FILE,
                                 .byte_total = dcp.byte_total};
    return rows->in_common ? tsr_megatron_wrap(rows, out, err) : TSR_OK;
}
