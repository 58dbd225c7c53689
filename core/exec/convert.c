/* From a checkpoint to another container: selection, then the writer of that container. */
#include "tessera/convert.h"

#include "base/try.h"
#include "exec/convert_to.h"

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
    tsr_ring_free(ring);
    return status;
}
