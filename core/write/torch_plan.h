/* Which storages a torch.save archive of a value tree has, and what bytes go into them. */
#ifndef TSR_WRITE_TORCH_PLAN_H
#define TSR_WRITE_TORCH_PLAN_H

#include "formats/torch/torch_writer.h"
#include "tessera/sys/write_tree.h"
#include "write/stage.h"

/* A tensor that the tree names. */
typedef struct tsr_torch_source {
    const tsr_entry *entry;
    tsr_dtype dtype; /* at the destination; the entry's own until the caller changes it */
    size_t order;    /* in which the tree names them: that of the storages */
    bool is_parameter;
    tsr_rows rows; /* the caller's; of a local tensor */
} tsr_torch_source;

typedef struct tsr_torch_plan {
    tsr_checkpoint *checkpoint;
    tsr_arena *arena;
    const tsr_value *root;
    const tsr_entry *literal_entry; /* NULL, or a tensor whose bytes are no file's: they are `literal` */
    const uint8_t *literal;
    tsr_torch_source *sources; /* sorted by the address of entry, each once */
    size_t source_count;
    tsr_torch_new_tensor *tensors;
    tsr_torch_new_storage *storages;
    tsr_blit *blits; /* one a storage; byte_offset counts from the archive's first byte */
    uint32_t storage_count;
    tsr_torch_archive archive;
    uint64_t *room; /* what the pickles of a job may still take; NULL: this one is the only one */
    uint32_t file; /* set by tsr_torch_plan_stage */
} tsr_torch_plan;

/* Finds the tensors of the tree. */
tsr_status tsr_torch_plan_open(tsr_checkpoint *checkpoint, const tsr_value *root, tsr_arena *arena, tsr_torch_plan *out,
                               tsr_error *err);
tsr_torch_source *tsr_torch_plan_source(const tsr_torch_plan *plan, const tsr_entry *entry); /* or NULL */

/* What the pickles of a job may take: as much as a checkpoint's shared parts may expand to. */
uint64_t tsr_torch_plan_room(const tsr_checkpoint *checkpoint);
/* Storages, pickle and layout. Tensors whose bytes overlap or touch on one storage of the source share one again, with
 * their strides; every other tensor gets its own, contiguous. */
tsr_status tsr_torch_plan_lay_out(tsr_torch_plan *plan, tsr_error *err);

/* Writes piece `i` of the archive (tsr_torch_archive_piece) into file `file` of `sink`, in which the archive begins at
 * `base`. The CRCs of the blits before it must be known. */
tsr_status tsr_torch_plan_write_piece(tsr_torch_plan *plan, uint32_t i, const tsr_sink *sink, uint32_t file, uint64_t base,
                                      tsr_error *err);

/* A laid out plan as a stage of one file: sets `file` of its blits. */
tsr_stage tsr_torch_plan_stage(tsr_torch_plan *plan, uint32_t file);

/* Creates the file, writes all of the archive into it, and sets the file's number and size. */
tsr_status tsr_torch_plan_write(tsr_torch_plan *plan, tsr_tree_file *file, tsr_error *err);

#endif
