/* The writers that tsr_convert uses, one per container. Each chooses the rows, lays out the files, and returns how to write
 * them. */
#ifndef TSR_CONVERT_CONVERT_TO_H
#define TSR_CONVERT_CONVERT_TO_H

#include "convert/selection.h"
#include "write/stage.h"

typedef struct tsr_conversion_job {
    tsr_checkpoint *checkpoint;
    const tsr_convert_options *options;
    uint32_t generation; /* that of the output's data files (tsr_output.generation) */
    tsr_arena *arena;
    tsr_conversion *out; /* filled except for the marker */
} tsr_conversion_job;

/* The name of the file of a container that consists of one. */
static inline tsr_str tsr_single_file(const tsr_conversion_job *job)
{
    return job->options->file_name.size ? job->options->file_name : TSR_STR("");
}

/* `job` must outlive the writer. */
tsr_status tsr_convert_to_safetensors(const tsr_conversion_job *job, tsr_writer *out, tsr_error *err);
tsr_status tsr_convert_to_torch(const tsr_conversion_job *job, tsr_writer *out, tsr_error *err);
tsr_status tsr_convert_to_dcp(const tsr_conversion_job *job, tsr_writer *out, tsr_error *err); /* also Megatron's */
tsr_status tsr_convert_to_universal(const tsr_conversion_job *job, tsr_writer *out, tsr_error *err);
tsr_status tsr_convert_to_ranks(const tsr_conversion_job *job, tsr_writer *out, tsr_error *err);

/* Why a container cannot contain a row, or NULL (for tsr_choose). */
const char *tsr_safetensors_refusal(const tsr_converted *row);
const char *tsr_torch_refusal(const tsr_converted *row); /* one file; also for ranks */

#endif
