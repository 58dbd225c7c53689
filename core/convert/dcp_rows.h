/* Turns the rows of a conversion into the items of a DCP: what the writers for whole checkpoints and for meshes have in
 * common, and the files that a Megatron checkpoint has in addition to a DCP's. */
#ifndef TSR_CONVERT_DCP_ROWS_H
#define TSR_CONVERT_DCP_ROWS_H

#include "convert/convert_to.h"
#include "write/dcp_write.h"

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
