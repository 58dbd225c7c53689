/* The writers that tsr_convert uses with a plan, one per container, like those in convert_to.h. */
#ifndef TSR_CONVERT_RESHARD_TO_H
#define TSR_CONVERT_RESHARD_TO_H

#include "convert/convert_to.h"
#include "tessera/plan.h"
#include "write/dcp_write.h"

/* Also Megatron's. */
tsr_status tsr_reshard_to_dcp(const tsr_conversion_job *job, const tsr_plan *plan, tsr_writer *out, tsr_error *err);
tsr_status tsr_reshard_to_safetensors(const tsr_conversion_job *job, const tsr_plan *plan, tsr_writer *out, tsr_error *err);
tsr_status tsr_reshard_to_torch(const tsr_conversion_job *job, const tsr_plan *plan, tsr_writer *out, tsr_error *err);

/* The row of an entry if it is written; otherwise NULL. */
tsr_converted *tsr_row_of(const tsr_chosen *chosen, const tsr_entry *entry);
/* Marks tensors that the plan does not have as not written. */
tsr_status tsr_leave_unplanned(const tsr_chosen *chosen, const tsr_plan *plan, tsr_error *err);

/* Turns the rows of a conversion into the items of a DCP: what the writers for whole checkpoints and for meshes have in
 * common, and the files that a Megatron checkpoint has in addition to a DCP's. */

typedef struct tsr_dcp_rows {
    const tsr_conversion_job *job;
    tsr_chosen chosen;
    tsr_dcp_output_entry *sources;
    size_t source_count;
    size_t *first_source; /* by row, plus one: a row's sources are those up to the next row's first */
    bool *in_common;      /* by row: written to common.pt instead of the DCP; NULL if there is no common.pt */
} tsr_dcp_rows;

/* Chooses rows, sets their bytes and flags, and makes their sources. `plan` may be NULL; tensors that it lacks are not
 * written. Fails like tsr_choose. */
tsr_status tsr_dcp_rows_of(const tsr_conversion_job *job, const tsr_plan *plan, tsr_dcp_rows *out, tsr_error *err);
/* The pieces of the sources and the data files that contain them, as in tsr_dcp_job. */
typedef struct tsr_dcp_contents {
    const tsr_dcp_piece *pieces;
    size_t piece_count;
    const tsr_str *files;
    uint32_t file_count;
} tsr_dcp_contents;

/* Lays out the data files (and the other files of the format), and fills the conversion. */
tsr_status tsr_dcp_rows_lay_out(tsr_dcp_rows *rows, const tsr_dcp_contents *contents, tsr_writer *out, tsr_error *err);

#endif
