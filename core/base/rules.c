/* The table of all rules, sorted by id: what `validate --list-rules` and `explain` print. */
#include "tessera/findings.h"

#include <string.h>

static const tsr_rule rules[] = {
    {"layout/bytes-shared", TSR_ERROR, "two tensors claim the same bytes of a file",
     "Every item of this format has its own bytes: the metadata was edited, or belongs to other data files."},
    {"layout/chunks", TSR_ERROR, "a tensor is cut into other chunks than the layout says",
     "The sharding changed (mesh, placements, world size). Write a new layout if the change is meant."},
    {"layout/dtype", TSR_ERROR, "a tensor has another dtype than the layout says",
     "Write a new layout if the change is meant."},
    {"layout/empty-chunk", TSR_NOTE, "a chunk without elements lies where no rank's empty share would",
     "Ranks that get nothing of a tensor normally have an empty chunk at its end. Harmless by itself."},
    {"layout/hole", TSR_ERROR, "elements of a tensor are in no chunk",
     "A rank's part was lost or never saved; torch would load uninitialized memory there. Save again, or restore the "
     "missing file."},
    {"layout/kind", TSR_ERROR, "an entry is a tensor where the layout says object, or the other way round",
     "Write a new layout if the change is meant."},
    {"layout/missing-entry", TSR_ERROR, "an entry of the layout is not in the checkpoint",
     "It was renamed or not saved. Write a new layout if the change is meant."},
    {"layout/out-of-range", TSR_ERROR, "a chunk reaches beyond its tensor",
     "The metadata is damaged, or the tensor's size and its chunks come from different saves."},
    {"layout/overlap", TSR_ERROR, "two chunks of a tensor hold the same elements",
     "Which of them counts would depend on the reader. Two jobs may have saved into one folder."},
    {"layout/shape", TSR_ERROR, "a tensor has another shape than the layout says",
     "Write a new layout if the change is meant."},
    {"layout/too-large", TSR_ERROR, "a tensor's size is beyond anything that can exist",
     "More than 64 dimensions or 2^64 elements: the metadata is damaged."},
    {"layout/unexpected-entry", TSR_ERROR, "an entry of the checkpoint is not in the layout",
     "It is new or was renamed. Write a new layout if the change is meant."},
    {"zip/crc", TSR_ERROR, "a member's bytes do not match its CRC-32",
     "The bytes changed after they were written, or the writer stored a wrong checksum. Restore the file from a copy."},
    {"zip/crc-absent", TSR_NOTE, "an archive was written without checksums",
     "torch.serialization.set_crc32_options(False) writes 0 for every CRC; damage to such files cannot be seen."},
};

const tsr_rule *tsr_rules(size_t *count)
{
    *count = sizeof rules / sizeof rules[0];
    return rules;
}

const tsr_rule *tsr_rule_find(const char *id)
{
    size_t low = 0, high = sizeof rules / sizeof rules[0];
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(rules[middle].id, id);
        if (order == 0) return &rules[middle];
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return NULL;
}
