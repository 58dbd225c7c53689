/* The writer's half of safetensors: tensors → header bytes and data offsets.
 *
 *   u64 length | {"__metadata__":{"format":"pt",…},"w":{…},…} | spaces up to a multiple of 64 | data section
 *
 * Tensors are ordered as the reference library orders them (dtype, widest first, then name), so that each begins at a
 * multiple of its element's size. Equal input gives equal bytes. Source: serialize() of safetensors 0.8 and its output. */
#ifndef TSR_FORMATS_SAFETENSORS_SAFETENSORS_HEADER_H
#define TSR_FORMATS_SAFETENSORS_SAFETENSORS_HEADER_H

#include "formats/safetensors/safetensors.h"
#include "tessera/sys/json.h"

typedef struct tsr_safetensors_item {
    tsr_str name;
    tsr_dtype dtype; /* torch's float4 pairs are written as F4 with twice the last dimension */
    uint32_t ndim;
    const uint64_t *shape; /* elements */
    uint64_t tag;          /* the caller's own */
    uint64_t begin, end;   /* set by the plan: bytes in the data section */
} tsr_safetensors_item;

/* Of one file. The caller sets what goes into it, and tsr_safetensors_plan_file the sizes. */
typedef struct tsr_safetensors_plan {
    tsr_safetensors_item *items;
    uint64_t count;
    const tsr_safetensors_pair *pairs; /* next to "format": "pt"; written in this order */
    size_t pair_count;
    uint64_t header_size; /* bytes in front of the data section: a multiple of 64 */
    uint64_t data_size;   /* bytes */
} tsr_safetensors_plan;

/* Sorts the items and lays out the file. Borrows items and pairs. Errors name the tensor: TSR_E_UNSUPPORTED for a dtype or
 * a name that the format cannot hold (empty, NUL, invalid UTF-8, "__metadata__", a duplicate), TSR_E_LIMIT for a header
 * beyond 100,000,000 bytes. `allocator` serves while it runs. */
tsr_status tsr_safetensors_plan_file(tsr_safetensors_plan *plan, const tsr_allocator *allocator, tsr_error *err);
/* Writes exactly plan->header_size bytes. */
tsr_status tsr_safetensors_write_header(const tsr_safetensors_plan *plan, tsr_write_fn *write, void *ctx, tsr_error *err);

#endif
