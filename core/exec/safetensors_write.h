/* Writing tensors as safetensors: one file, or shards with an index. */
#ifndef TSR_EXEC_SAFETENSORS_WRITE_H
#define TSR_EXEC_SAFETENSORS_WRITE_H

#include "exec/blit.h"
#include "tessera/convert.h"

/* A box of a tensor that goes into a file under a name. */
typedef struct tsr_piece {
    const tsr_entry *entry;
    const uint64_t *offsets; /* NULL: the whole tensor */
    const uint64_t *sizes;
    tsr_str name;
    tsr_dtype dtype;
    uint32_t file; /* of the plan */
} tsr_piece;

/* One file: which pieces, and its header once planned. */
typedef struct tsr_safetensors_file {
    tsr_str name;
    tsr_str header;  /* the length in front included: the data section begins behind it */
    uint64_t size;
    uint32_t output; /* its number there, once created */
} tsr_safetensors_file;

/* Whether the format has the type (float4 counts, packed or not). */
bool tsr_safetensors_holds(tsr_dtype dtype);
/* NULL, or why the format cannot have a tensor of this name ("… has an empty name"). */
const char *tsr_safetensors_name_refusal(tsr_str name);

/* Lays out `count` pieces, which must be sorted by file and come in the order they should have within each: fills headers
 * and sizes of `files` and one blit a piece (blits[i].file is the number of the plan's file until tsr_safetensors_write).
 * `metadata` adds pairs behind format:pt, key and value alternating. Pieces move within their file so that each lies at a
 * multiple of its element size: larger elements first. Everything lives in `arena`. */
tsr_status tsr_safetensors_plan(tsr_piece *pieces, size_t count, tsr_safetensors_file *files, uint32_t file_count,
                                const tsr_str *metadata, size_t pairs, const tsr_host *host, tsr_arena *arena,
                                tsr_blit **blits, tsr_error *err);
/* Creates the files, writes their headers and runs the blits. */
tsr_status tsr_safetensors_write(tsr_blit_run *run, tsr_safetensors_file *files, uint32_t file_count, tsr_error *err);

#endif
