/* Writes boxes of tensors into safetensors files. */
#ifndef TSR_WRITE_SAFETENSORS_WRITE_H
#define TSR_WRITE_SAFETENSORS_WRITE_H

#include "formats/common/metadata.h"
#include "formats/safetensors/safetensors.h"
#include "write/write_item.h"

/* A box of a tensor that is written to a file under a name. */
typedef struct tsr_safetensors_output {
    const tsr_entry *entry;
    const uint64_t *offsets; /* in the gather's elements, like sizes; NULL for the whole tensor */
    const uint64_t *sizes;
    tsr_str name;
    tsr_dtype dtype;
    uint32_t file; /* index into the files */
} tsr_safetensors_output;

typedef struct tsr_safetensors_file {
    tsr_str name;
    const tsr_text_pair *pairs; /* the metadata (tsr_safetensors_carry); without any it is "format": "pt" */
    size_t pair_count;
    tsr_safetensors_plan plan; /* plan and size are set by tsr_safetensors_lay_out */
    uint64_t size;
} tsr_safetensors_file;

/* The files and their contents. */
typedef struct tsr_safetensors_layout {
    const tsr_safetensors_output *pieces; /* sorted by file */
    size_t piece_count;
    tsr_safetensors_file *files;
    uint32_t file_count;
    /* Out: one per piece in the order in which they are stored; write_items[i].file is an index into `files`. */
    tsr_write_item *write_items;
    bool unsummed;        /* do not state the files' checksums */
    const tsr_host *host; /* out */
} tsr_safetensors_layout;

/* Makes the metadata of a file: the pairs of the source that still hold, or "format": "pt" if it has none, followed by `more`,
 * which replace those with the same key. Allocates in `arena`. */
tsr_status tsr_safetensors_carry(tsr_text_pairs source, tsr_text_pairs more, tsr_arena *arena, tsr_safetensors_file *file,
                                 tsr_error *err);
/* Plans the files and makes the write items. Allocates in `arena`. */
tsr_status tsr_safetensors_lay_out(tsr_safetensors_layout *layout, const tsr_host *host, tsr_arena *arena, tsr_error *err);
/* The `stage` of a writer whose ctx is a layout. Its write items are those of the layout; the headers of the files are the rest. */
tsr_status tsr_safetensors_stage(void *ctx, uint32_t number, tsr_arena *arena, tsr_stage *out, tsr_error *err);

#endif
