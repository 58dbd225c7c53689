/* The files of ranks with plain tensors: their names, and what each rank holds of every row. */
#ifndef TSR_CONVERT_RANK_FILES_H
#define TSR_CONVERT_RANK_FILES_H

#include "convert/convert_to.h"
#include "formats/shards/shards_stages.h"

typedef struct tsr_rank_files {
    const tsr_conversion_job *job;
    tsr_chosen chosen;
    tsr_shards_stages stages;
    uint32_t tensor_ranks, count; /* the files are numbered stage by stage */
    tsr_str *names;
    uint64_t *sizes;
    bool is_safetensors;
} tsr_rank_files;

/* One row in the file of a rank. */
typedef struct tsr_rank_row {
    bool held;
    tsr_entry named; /* the row's entry, with the name that it has in the file */
    tsr_entry local; /* for tensors: what the rank holds */
} tsr_rank_row;

/* Checks the map and the number of ranks, and names the files, after the rows were chosen. TSR_E_USAGE. */
tsr_status tsr_rank_files_open(const tsr_conversion_job *job, tsr_rank_files *out, tsr_error *err);
/* Row `row`, which must be written, in the file `file`. Allocates in `arena`. */
tsr_status tsr_rank_row_of(const tsr_rank_files *files, uint64_t row, uint32_t file, tsr_arena *arena, tsr_rank_row *out,
                           tsr_error *err);

#endif
