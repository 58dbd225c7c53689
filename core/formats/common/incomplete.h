/* Detects saves that were interrupted or only partly copied, by the names of the files that exist. */
#ifndef TSR_FORMATS_COMMON_INCOMPLETE_H
#define TSR_FORMATS_COMMON_INCOMPLETE_H

#include "formats/common/reader.h"
#include "formats/common/shown_names.h"

/* A name such as "model-00001-of-00003.bin": its number, and the total number of files. `count` is 0 when the name states no
 * total. */
typedef struct tsr_counted_name {
    tsr_str before, after; /* the text around the number; `after` includes the total if that comes after the number */
    uint64_t number, count;
    uint64_t first; /* the lowest number: 1 for shards, 0 for ranks ("model_world_size_3_rank_0.pt") */
    int width;      /* digits of the number */
} tsr_counted_name;
tsr_counted_name tsr_counted_name_of(tsr_str name);

/* Parses the rank and the part from "model-rank-0-part-1.safetensors". Returns false for any other name. */
bool tsr_rank_part_of(tsr_str name, uint64_t *rank, uint64_t *part);

/* What the name of an index adds to that of the file which it replaces. */
#define TSR_INDEX_ENDING ".index.json"

/* Reports files of ranks or shards that must exist, judging by the names of those that do. The checkpoint must have been
 * opened by its reader. A single file that the user opened gets only a warning if it is one of several. */
tsr_status tsr_check_files_complete(tsr_checkpoint *checkpoint, tsr_error *err);

/* Makes the checkpoint incomplete because of missing files: `names` of the `of` files that it should have. `place` may be empty. */
tsr_status tsr_report_missing_files(tsr_checkpoint *checkpoint, tsr_str place, const tsr_shown_names *names, uint64_t of,
                                    tsr_error *err);

#endif
