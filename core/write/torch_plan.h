/* Plans the storages of a torch.save archive of a value tree, and the bytes that go into them. */
#ifndef TSR_WRITE_TORCH_PLAN_H
#define TSR_WRITE_TORCH_PLAN_H

#include "formats/torch/torch_writer.h"
#include "tessera/sys/write_tree.h"
#include "write/stage.h"

/* A tensor that is in the tree. */
typedef struct tsr_torch_tensor {
    const tsr_entry *entry;
    tsr_dtype dtype; /* dtype in the destination; the entry's dtype unless the caller changes it */
    size_t order;    /* its position in the tree, which is also the order of the storages */
    bool is_parameter;
    tsr_row_range rows; /* for a local tensor; set by the caller */
} tsr_torch_tensor;

typedef struct tsr_torch_plan {
    tsr_checkpoint *checkpoint;
    tsr_arena *arena;
    const tsr_value *root;
    const tsr_entry *literal_entry; /* a tensor whose bytes are in no file, but in `literal`; or NULL */
    const uint8_t *literal;
    tsr_torch_tensor *sources; /* sorted by the address of `entry`, without duplicates */
    size_t source_count;
    tsr_torch_new_tensor *tensors;
    tsr_torch_new_storage *storages;
    tsr_blit *blits; /* one per storage; byte_offset is relative to the archive's first byte */
    uint32_t storage_count;
    tsr_torch_archive archive;
    bool unsummed;  /* the archive states no checksums; set by the caller before it is laid out */
    uint64_t *room; /* bytes that the pickles of a job may still take; NULL if this is the only pickle */
    uint32_t file;  /* set by tsr_torch_plan_stage */
} tsr_torch_plan;

/* Finds the tensors of the tree. */
tsr_status tsr_torch_plan_open(tsr_checkpoint *checkpoint, const tsr_value *root, tsr_arena *arena, tsr_torch_plan *out,
                               tsr_error *err);
tsr_torch_tensor *tsr_torch_plan_source(const tsr_torch_plan *plan, const tsr_entry *entry); /* or NULL */

/* The bytes that the pickles of a job may take: as many as a checkpoint's shared parts may expand to. */
uint64_t tsr_torch_plan_room(const tsr_checkpoint *checkpoint);
/* Makes the storages, the pickle and the layout. Tensors whose bytes overlap or are adjacent on one storage of the source
 * share one again, with their strides; every other tensor gets its own contiguous storage. */
tsr_status tsr_torch_plan_lay_out(tsr_torch_plan *plan, tsr_error *err);

/* Writes piece `i` of the archive (tsr_torch_archive_piece) into file `file` of `sink`, where the archive begins at `base`.
 * The CRCs of the blits before it must be known. */
tsr_status tsr_torch_plan_write_piece(tsr_torch_plan *plan, uint32_t i, const tsr_sink *sink, uint32_t file, uint64_t base,
                                      tsr_error *err);

/* Makes a laid-out plan a stage with one file, and sets `file` of its blits. */
tsr_stage tsr_torch_plan_stage(tsr_torch_plan *plan, uint32_t file);

#endif
