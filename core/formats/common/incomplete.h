/* Detects saves that were interrupted or only partly copied, by the names of the files that exist. */
#ifndef TSR_FORMATS_COMMON_INCOMPLETE_H
#define TSR_FORMATS_COMMON_INCOMPLETE_H

#include "formats/common/file_names.h"
#include "formats/common/reader.h"

#include <stdint.h>

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

/* Whether the directory has only one file; `recognizes` of a tsr_directory for what is left of a save. */
static inline tsr_status tsr_has_one_file(tsr_checkpoint *checkpoint, bool *is, tsr_error *err)
{
    (void)err;
    *is = checkpoint->store->file_count == 1;
    return TSR_OK;
}

/* Opens a directory in which '.metadata' and all data files are missing, as `message` states: an incomplete checkpoint. */
static inline tsr_status tsr_open_without_data(tsr_checkpoint *checkpoint, tsr_str message, tsr_error *err)
{
    checkpoint->names_unknown = true;
    return tsr_checkpoint_is_incomplete(checkpoint, TSR_STR(".metadata"), message, err);
}

/* The marker files of training frameworks, such as DeepSpeed's `latest`: one line that names the newest checkpoint. */

/* Reads a small file that has only one line, if that line may name a directory; otherwise *line is empty. The line is allocated in
 * the checkpoint's arena. Errors: those of reading, TSR_E_NOMEM. */
tsr_status tsr_marker_read(tsr_checkpoint *checkpoint, uint32_t file, tsr_str *line, tsr_error *err);

/* Finds the value that most files of a checkpoint state, so that a single file from another save is the one that gets
 * reported. Boyer–Moore majority vote, which needs one pass and no memory: if some value has more than half of the votes, it
 * wins; otherwise the winner is one of the values that were voted for. */

typedef struct tsr_majority {
    uint64_t value; /* 0 before the first vote */
    uint32_t votes;
} tsr_majority;

/* A `value` of 0 is not counted as a vote. */
static inline void tsr_majority_vote(tsr_majority *m, uint64_t value)
{
    if (value && m->value == value) m->votes++;
    else if (value && m->votes) m->votes--;
    else if (value) *m = (tsr_majority){value, 1};
}

/* ---- Entries of a damaged file whose bytes are lost (tsr_open_options.salvage). ---- */

/* Whether a chunk of the entry is in no file. */
bool tsr_entry_lacks_bytes(const tsr_entry *entry);
/* Adds the finding `repair/lost`, for an entry that a reader leaves out of the catalog. */
tsr_status tsr_entry_report_lost(tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_error *err);

/* What a repository has in place of a large file until that is fetched, and what such a file is called. It has at most 1,023 bytes.
 *
 * Source: docs/spec.md of git-lfs. */
#define TSR_LFS_POINTER "version https://git-lfs.github.com/spec/v1"
#define TSR_LFS_IS      "a Git LFS pointer, not the file itself (git lfs pull fetches it)"

/* Sets *is to whether a file, of which items of `fqn` are missing, is one; then adds dcp/missing-file, and the checkpoint lacks the file. The
 * browser's module has no room for it. Errors: those of reading; TSR_E_NOMEM. */
tsr_status tsr_report_lfs_pointer(tsr_checkpoint *checkpoint, uint32_t file, tsr_str fqn, bool *is, tsr_error *err);

#endif
