/* The pairs of texts that the files of one checkpoint have in common (tsr_catalog.metadata). */
#ifndef TSR_FORMATS_COMMON_METADATA_H
#define TSR_FORMATS_COMMON_METADATA_H

#include "formats/common/reader.h"

/* The pairs of one file; each key occurs once. */
typedef struct tsr_text_pairs {
    const tsr_text_pair *pairs;
    size_t count;
} tsr_text_pairs;

/* Whether two lists have the same pairs in the same order. */
bool tsr_text_pairs_equal(tsr_text_pairs a, tsr_text_pairs b);
/* Keeps the pairs that are equal in all lists, in the order of the first one, as the catalog's metadata, and reports each of
 * the other keys as safetensors/metadata-differs. `what` names where the lists are from, such as "files". */
tsr_status tsr_metadata_join(tsr_checkpoint *checkpoint, const tsr_text_pairs *lists, uint32_t count, const char *what,
                             tsr_error *err);

#endif
