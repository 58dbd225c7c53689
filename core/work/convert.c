/* A complete conversion or reshard: a work with a single part. */
#include "tessera/sys/try.h"
#include "tessera/sys/work.h"

tsr_container tsr_container_for(tsr_format format)
{
    switch (format) {
    case TSR_FORMAT_DCP: return TSR_TO_DCP;
    case TSR_FORMAT_MEGATRON_DIST: return TSR_TO_MEGATRON;
    case TSR_FORMAT_DCP_SAFETENSORS:
    case TSR_FORMAT_SAFETENSORS:
    case TSR_FORMAT_SAFETENSORS_INDEX: return TSR_TO_SAFETENSORS;
    default: return TSR_TO_TORCH;
    }
}

static tsr_status carry_out(tsr_work *work, tsr_output *output, tsr_error *err)
{
    TSR_TRY(tsr_work_open(work, output, err));
    TSR_TRY(tsr_work_run(work, 0, 1, NULL, err));
    return tsr_work_finish(work, err);
}

tsr_status tsr_convert(tsr_checkpoint *checkpoint, tsr_output *output, const tsr_convert_options *options, tsr_arena *arena,
                       tsr_conversion *out, tsr_error *err)
{
    tsr_work *work;
    *out = (tsr_conversion){.marker = TSR_NO_FILE};
    TSR_TRY(tsr_work_new(checkpoint, options, output ? output->generation : 0, arena, &work, err));
    const tsr_status status = options->dry_run ? TSR_OK : carry_out(work, output, err);
    *out = *tsr_work_conversion(work);
    tsr_work_free(work);
    return status;
}
