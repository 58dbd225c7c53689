/* Writes safetensors files: computes the header and the data offsets from a list of tensors.
 *
 *   u64 length | {"w":{…},…,"__metadata__":{"format":"pt",…,"tessera.crc32":"…"}} | spaces up to a multiple of 64 | data section
 *
 * Tensors are in the same order as in the reference library's files (widest dtype first, then by name), so each begins at a
 * multiple of its element size. The output depends only on the input. Source: serialize() of safetensors 0.8 and its
 * output. */
#ifndef TSR_FORMATS_SAFETENSORS_SAFETENSORS_HEADER_H
#define TSR_FORMATS_SAFETENSORS_SAFETENSORS_HEADER_H

#include "formats/safetensors/safetensors.h"
#include "tessera/sys/json.h"

typedef struct tsr_safetensors_item {
    tsr_str name;
    tsr_dtype dtype; /* PyTorch's float4 pairs are written as F4 with twice the last dimension */
    uint32_t ndim;
    const uint64_t *shape; /* in elements */
    uint64_t tag;          /* for the caller's own use */
    uint64_t begin, end;   /* set by the plan: bytes in the data section */
} tsr_safetensors_item;

/* One file. The caller sets its contents, and tsr_safetensors_plan_file computes the sizes. */
typedef struct tsr_safetensors_plan {
    tsr_safetensors_item *items;
    uint64_t count;
    const tsr_text_pair *pairs; /* of the metadata, in this order; without any it is "format": "pt" */
    size_t pair_count;
    bool unsummed;        /* leave out "tessera.crc32", which is otherwise added after the pairs */
    uint64_t header_size; /* bytes before the data section; a multiple of 64 */
    uint64_t data_size;   /* bytes */
} tsr_safetensors_plan;

/* Sorts the items and lays out the file. Borrows items and pairs. Errors name the tensor: TSR_E_UNSUPPORTED for a dtype or a
 * name that the format cannot represent (empty, NUL, invalid UTF-8, "__metadata__", a duplicate), TSR_E_LIMIT for a header
 * beyond 100,000,000 bytes. `allocator` is used for temporary memory. */
tsr_status tsr_safetensors_plan_file(tsr_safetensors_plan *plan, const tsr_allocator *allocator, tsr_error *err);
/* Writes exactly plan->header_size bytes. `crc32` is that of the file's bytes with TSR_SAFETENSORS_NO_SUM for the digits; the header
 * does not state it if the plan is unsummed. With a `crc32` of 0 the digits are TSR_SAFETENSORS_NO_SUM. */
tsr_status tsr_safetensors_write_header(const tsr_safetensors_plan *plan, uint32_t crc32, tsr_write_fn *write, void *ctx,
                                        tsr_error *err);

#endif
