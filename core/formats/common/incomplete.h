/* Saves that were interrupted, or copied in part: what the names of the files tell about files that are not there. */
#ifndef TSR_FORMATS_COMMON_INCOMPLETE_H
#define TSR_FORMATS_COMMON_INCOMPLETE_H

#include "formats/common/reader.h"

/* Whether the root holds DCP data files and nothing of what describes them: .metadata or __R.metadata with any bytes. */
bool tsr_lacks_dcp_metadata(const tsr_store *store);

/* "model-00001-of-00003.bin": the number, and how many files there are in all. `count` 0: the name does not tell. */
typedef struct tsr_counted_name {
    tsr_str before, after; /* the text around the number; `after` includes the total where it comes later */
    uint64_t number, count;
    uint64_t first; /* the lowest number: 1, or 0 for ranks ("model_world_size_3_rank_0.pt") */
    int width;      /* digits of the number */
} tsr_counted_name;
tsr_counted_name tsr_counted_name_of(tsr_str name);

/* The rank and the number of "model-rank-0-part-1.safetensors"; false for another name. */
bool tsr_rank_part_of(tsr_str name, uint64_t *rank, uint64_t *part);

/* For a checkpoint that its reader has opened: reports files of ranks or shards that must exist by the names of those that
 * do. Only where a directory was opened: a single file says nothing about its neighbours. */
tsr_status tsr_check_files_complete(tsr_checkpoint *checkpoint, tsr_error *err);

/* Readers of directories that cannot be listed: every name is in the missing file. */
extern const tsr_reader tsr_reader_dcp_without_metadata;
extern const tsr_reader tsr_reader_torch_without_index;

#endif
