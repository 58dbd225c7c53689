/* The `.metadata` of a DCP folder, as torch.distributed.checkpoint 2.13 pickles it. */
#ifndef TSR_FORMATS_DCP_WRITER_H
#define TSR_FORMATS_DCP_WRITER_H

#include "tessera/catalog.h"
#include "tessera/host.h"

/* Where one item's archive lies. */
typedef struct tsr_dcp_new_item {
    const uint64_t *offsets; /* tensors: the chunk's box */
    const uint64_t *sizes;
    tsr_str file; /* relative path */
    uint64_t byte_offset;
    uint64_t byte_length;
} tsr_dcp_new_item;

typedef struct tsr_dcp_new_entry {
    tsr_str fqn;
    const tsr_path_item *path; /* planner_data; dict keys become strings, as PyTorch makes them */
    uint32_t path_length;
    bool tensor; /* else a byte item */
    bool requires_grad;
    tsr_dtype dtype;
    uint32_t rank;
    const uint64_t *shape;
    const tsr_dcp_new_item *items; /* one a chunk; exactly one for byte items */
    uint64_t item_count;
} tsr_dcp_new_entry;

/* Appends the pickle (protocol 4, without frames) to `out`. `save_id` is 36 characters of hexadecimal digits and dashes.
 * Entries without items (an empty tensor that no rank holds) get no storage data. */
tsr_status tsr_dcp_metadata_write(const tsr_dcp_new_entry *entries, uint64_t count, tsr_str save_id, const tsr_host *host,
                                  tsr_vec *out, tsr_error *err);

#endif
