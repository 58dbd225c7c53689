/* A checkpoint as a DCP folder of one data file: byte items first, then tensors, each whole, in the order of the source. */
#include "base/try.h"
#include "convert/convert_to.h"
#include "formats/torch/torch_writer.h"
#include "model/nest.h"
#include "write/blit.h"
#include "write/dcp_write.h"

tsr_status tsr_dcp_source_of(const tsr_conversion_job *job, tsr_converted *row, tsr_dcp_source *source, tsr_error *err)
{
    *source = (tsr_dcp_source){.entry = row->entry, .name = row->name, .dtype = row->dtype};
    if (row->entry->kind == TSR_ENTRY_TENSOR) {
        TSR_TRY(tsr_blit_measure(row->entry, NULL, row->dtype, &row->bytes, err));
    } else {
        row->weights_only = tsr_torch_weights_only(row->entry->value, tsr_checkpoint_host(job->checkpoint));
    }
    return tsr_renamed_path(row->entry, row->name, job->arena, &source->path, &source->path_length, err);
}

tsr_status tsr_convert_to_dcp(const tsr_conversion_job *job, tsr_writer *out, tsr_error *err)
{
    tsr_str *file = TSR_ARENA_NEW(job->arena, tsr_str, err);
    if (!file) return TSR_E_NOMEM;
    *file = tsr_arena_format(job->arena, err, "__0_%u.distcp", (unsigned)job->generation);
    tsr_chosen chosen;
    if (!file->data) return TSR_E_NOMEM;
    TSR_TRY(tsr_choose(job->checkpoint, job->options, tsr_torch_refusal, job->arena, &chosen, err));
    tsr_dcp_source *sources = tsr_arena_array(job->arena, (size_t)chosen.count, sizeof *sources, err);
    tsr_dcp_piece *pieces = tsr_arena_array(job->arena, (size_t)chosen.count, sizeof *pieces, err);
    if (!sources || !pieces) return TSR_E_NOMEM;
    size_t count = 0, placed = 0;
    for (uint64_t i = 0; i < chosen.count; i++) {
        if (chosen.rows[i].written) TSR_TRY(tsr_dcp_source_of(job, &chosen.rows[i], &sources[count++], err));
    }
    for (unsigned tensors = 0; tensors < 2; tensors++) {
        for (size_t s = 0; s < count; s++) {
            if ((sources[s].entry->kind == TSR_ENTRY_TENSOR) == (tensors == 1))
                pieces[placed++] = (tsr_dcp_piece){.source = s};
        }
    }
    tsr_dcp_job dcp = {.checkpoint = job->checkpoint,
                       .arena = job->arena,
                       .sources = sources,
                       .source_count = count,
                       .pieces = pieces,
                       .piece_count = placed,
                       .files = file,
                       .file_count = 1};
    TSR_TRY(tsr_dcp_lay_out(&dcp, out, err));
    *job->out = (tsr_conversion){.rows = chosen.rows,
                                 .row_count = chosen.count,
                                 .files = dcp.files,
                                 .file_sizes = dcp.file_sizes,
                                 .file_count = dcp.file_count,
                                 .marker = TSR_NO_FILE,
                                 .byte_total = dcp.byte_total};
    return TSR_OK;
}
