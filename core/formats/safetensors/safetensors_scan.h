/* The scanner of safetensors headers: bytes → tensors, in one pass. */
#ifndef TSR_FORMATS_SAFETENSORS_SAFETENSORS_SCAN_H
#define TSR_FORMATS_SAFETENSORS_SAFETENSORS_SCAN_H

#include "formats/safetensors/safetensors.h"

typedef struct tsr_safetensors_scan {
    tsr_str header;
    uint64_t byte_base; /* position of the header in the file, for error messages */
    tsr_str file_name;
    tsr_arena *arena;
    tsr_findings *findings;
    uint64_t max_entries;
    tsr_vec tensors;  /* of tsr_safetensors_tensor; the caller sets the allocator and frees it */
    tsr_vec metadata; /* of tsr_text_pair; likewise */
    bool has_metadata;
    tsr_safetensors_sum sum; /* out */
} tsr_safetensors_scan;

/* Checks the syntax, the fields, and that each tensor's bytes match its shape and dtype; does not compare the names or the
 * offsets of different tensors. Names, shapes and pairs are copied into the arena. */
tsr_status tsr_safetensors_scan_header(tsr_safetensors_scan *scan, tsr_error *err);

#endif
