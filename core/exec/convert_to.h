/* The writers behind tsr_convert, one a container. */
#ifndef TSR_EXEC_CONVERT_TO_H
#define TSR_EXEC_CONVERT_TO_H

#include "exec/dcp_write.h"
#include "exec/ring.h"
#include "exec/selection.h"

typedef struct tsr_conversion_job {
    tsr_checkpoint *checkpoint;
    tsr_output *output;
    const tsr_convert_options *options;
    tsr_ring *ring;
    tsr_arena *arena;
    tsr_conversion *out;
} tsr_conversion_job;

tsr_status tsr_convert_to_safetensors(const tsr_conversion_job *job, tsr_error *err);
tsr_status tsr_convert_to_torch(const tsr_conversion_job *job, tsr_error *err);
tsr_status tsr_convert_to_dcp(const tsr_conversion_job *job, tsr_error *err);

/* Fills job->out->sidecar from the rows, if the options ask for one. */
tsr_status tsr_put_objects_aside(const tsr_conversion_job *job, tsr_error *err);

/* A written row as a source for tsr_dcp_write; completes the row's bytes and flags. */
tsr_status tsr_dcp_source_of(const tsr_conversion_job *job, tsr_converted *row, tsr_dcp_source *out, tsr_error *err);

/* Of the output's data files (tsr_output.generation). */
static inline uint32_t tsr_generation(const tsr_conversion_job *job)
{
    return job->output ? job->output->generation : 0;
}

/* NULL, or why a container cannot have a row (for tsr_choose). */
const char *tsr_safetensors_refusal(const tsr_converted *row);
const char *tsr_torch_refusal(const tsr_converted *row); /* DCP too */

#endif
