/* The scanner of safetensors headers: bytes → tensors, in one pass. */
#ifndef TSR_FORMATS_SAFETENSORS_SAFETENSORS_SCAN_H
#define TSR_FORMATS_SAFETENSORS_SAFETENSORS_SCAN_H

#include "formats/safetensors/safetensors.h"

typedef struct tsr_safetensors_scan {
    tsr_str header;
    uint64_t byte_base; /* of the header in the file, for positions */
    tsr_str file_name;
    tsr_arena *arena;
    tsr_findings *findings;
    uint64_t max_entries;
    tsr_vec tensors;  /* of tsr_safetensors_tensor; the caller sets the allocator and frees it */
    tsr_vec metadata; /* of tsr_safetensors_pair; likewise */
    bool has_metadata;
} tsr_safetensors_scan;

/* Checks the grammar, the fields and bytes = shape × dtype of each tensor; not the names against each other, nor the
 * offsets. Names, shapes and pairs are copied into the arena. */
tsr_status tsr_safetensors_scan_header(tsr_safetensors_scan *scan, tsr_error *err);

#endif
