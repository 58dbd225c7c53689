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

/* ---- whole_objects.c ---- */

/* For PyTorch 2.3: makes one source of all objects in a dict or list without tensors. */
tsr_status tsr_join_objects(tsr_dcp_rows *rows, tsr_error *err);

/* ---- megatron_rows.c ---- */

const char *tsr_megatron_refusal(const tsr_converted *row); /* for tsr_choose */
/* Sets in_common: the rows of the part "common" that stay in it. */
tsr_status tsr_megatron_part_rows(tsr_dcp_rows *rows, tsr_error *err);
/* Appends the sources of a row that is written to the DCP to a vec of tsr_dcp_output_entry. */
tsr_status tsr_megatron_add_sources(const tsr_dcp_rows *rows, tsr_converted *row, tsr_vec *sources, tsr_error *err);
/* Adds common.pt and metadata.json to a laid-out DCP: extends the conversion and replaces the writer. */
tsr_status tsr_megatron_wrap(tsr_dcp_rows *rows, tsr_writer *writer, tsr_error *err);

#endif
