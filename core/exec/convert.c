/* From a checkpoint to another container: selection, then the writer of that container. */
#include "tessera/convert.h"

#include "base/try.h"
#include "exec/convert_to.h"
#include "exec/document_parts.h"
#include "exec/text.h"

static tsr_status emit_sidecar(const tsr_conversion_job *job, tsr_vec *text, tsr_error *err)
{
    tsr_json json;
    tsr_json_start(&json, tsr_text_append, text, 1, err);
    tsr_json_object(&json);
    tsr_json_key(&json, "schema");
    tsr_json_text(&json, "tessera.objects/1");
    tsr_json_key(&json, "objects");
    tsr_json_array(&json);
    for (uint64_t i = 0; i < job->out->row_count; i++) {
        const tsr_converted *row = &job->out->rows[i];
        if (row->left_out != tsr_put_aside) continue;
        tsr_json_object(&json);
        tsr_json_key(&json, "fqn");
        tsr_json_str(&json, row->entry->fqn);
        tsr_document_put_object(&json, row->entry, tsr_checkpoint_host(job->checkpoint));
        tsr_json_object_end(&json);
    }
    tsr_json_array_end(&json);
    tsr_json_object_end(&json);
    return tsr_json_finish(&json);
}

tsr_status tsr_put_objects_aside(const tsr_conversion_job *job, tsr_error *err)
{
    if (job->options->objects != TSR_OBJECTS_SIDECAR) return TSR_OK;
    tsr_vec text = tsr_vec_of(tsr_checkpoint_host(job->checkpoint)->allocator, 1);
    tsr_status status = emit_sidecar(job, &text, err);
    if (status == TSR_OK) {
        job->out->sidecar = tsr_arena_str(job->arena, (tsr_str){text.items, text.count}, err);
        if (!job->out->sidecar.data) status = TSR_E_NOMEM;
    }
    tsr_vec_free(&text);
    return status;
}

tsr_status tsr_convert(tsr_checkpoint *checkpoint, tsr_output *output, const tsr_convert_options *options, tsr_arena *arena,
                       tsr_conversion *out, tsr_error *err)
{
    *out = (tsr_conversion){.marker = TSR_NO_FILE};
    tsr_ring *ring;
    TSR_TRY(tsr_ring_new(tsr_checkpoint_host(checkpoint), options->max_memory, &ring, err));
    tsr_conversion_job job = {checkpoint, output, options, ring, arena, out};
    tsr_status status = TSR_OK;
    switch (options->to) {
    case TSR_TO_SAFETENSORS: status = tsr_convert_to_safetensors(&job, err); break;
    case TSR_TO_TORCH: status = tsr_convert_to_torch(&job, err); break;
    case TSR_TO_DCP: status = tsr_convert_to_dcp(&job, err); break;
    }
    if (status == TSR_OK) status = tsr_put_objects_aside(&job, err);
    tsr_ring_free(ring);
    return status;
}
