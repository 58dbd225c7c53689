/* Counts what a state dict expands to before it is expanded. A pickle names a dict a second time in two bytes, so a few
 * kilobytes can stand for any number of entries: each container is counted once, and its sum is used wherever it occurs.
 *
 *     d0 = {"w": t}      1 entry
 *     d1 = {"a": d0, "b": d0}      2 entries, and "a." and "b." in front of their names
 *     d2 = {"a": d1, "b": d1}      4 entries … 40 levels: 2^40 from 600 bytes, counted in 41 steps */
#ifndef TSR_FORMATS_TORCH_TORCH_SURVEY_H
#define TSR_FORMATS_TORCH_TORCH_SURVEY_H

#include "formats/torch/torch_containers.h"

#include "tessera/sys/vec.h"

typedef struct tsr_torch_survey {
    const tsr_host *host;
    tsr_map *lists; /* lists that were looked through, for torch_walks_into */
    tsr_map *known; /* container → its number in `counts` */
    tsr_vec counts;
    uint64_t bytes; /* of all entries, their names and paths; UINT64_MAX: more than that */
} tsr_torch_survey;

/* Counts the tree under `root`. Linear in the pickle. Errors: TSR_E_LIMIT for a container that holds itself or nests deeper
 * than limits.depth, TSR_E_NOMEM. Close it in any case. */
tsr_status tsr_torch_survey_open(tsr_torch_survey *survey, const tsr_value *root, const tsr_host *host, tsr_error *err);
void tsr_torch_survey_close(tsr_torch_survey *survey);

#endif
