/* Plans the storages of a torch.save archive of a value tree, and the bytes that go into them. */
#ifndef TSR_WRITE_TORCH_PLAN_H
#define TSR_WRITE_TORCH_PLAN_H

#include "formats/torch/torch_writer.h"
#include "stream/gather.h"
#include "tessera/box.h"
#include "tessera/catalog.h"
#include "tessera/mesh.h"
#include "tessera/sys/write_tree.h"
#include "tessera/value.h"
#include "write/write_item.h"

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
    tsr_write_item *write_items; /* one per storage; byte_offset is relative to the archive's first byte */
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

/* Writes piece `i` of the archive (tsr_torch_archive_piece) into its file (tsr_torch_plan_stage). The CRCs of the write items before it must
 * be known. */
tsr_status tsr_torch_plan_write_piece(tsr_torch_plan *plan, uint32_t i, const tsr_sink *sink, tsr_error *err);

/* Makes a laid-out plan a stage with one file, and sets `file` of its write items. */
tsr_stage tsr_torch_plan_stage(tsr_torch_plan *plan, uint32_t file);

/* ---- Builds DTensors and ShardedTensors as value trees, for torch.save archives of single ranks. ---- */

/* Makes an int32 tensor with the mesh's ranks in order: the entry, whose bytes are in no file, and the bytes. */
tsr_status tsr_mesh_rank_map(const tsr_mesh *mesh, tsr_arena *arena, struct tsr_entry **entry, const uint8_t **bytes,
                             tsr_error *err);

/* A DeviceMesh as seen by one rank. All DTensors of a file share this value. `rank_map` is the entry of an int32 tensor with
 * all of the mesh's ranks in order. This and the functions below return NULL, with TSR_E_NOMEM, on failure. */
const tsr_value *tsr_mesh_value(const tsr_mesh *mesh, uint64_t rank, const struct tsr_entry *rank_map, tsr_arena *arena,
                                tsr_error *err);

/* A DTensor: its dtype, size and flags, the entry of the rank's local tensor, and one placement per dim of the mesh of
 * `mesh_value`. */
typedef struct tsr_dtensor {
    const tsr_mesh *mesh;
    const tsr_value *mesh_value;
    const tsr_placement *placements;
    tsr_dtype dtype;
    uint32_t ndim;
    const uint64_t *shape;
    bool requires_grad;
    bool is_parameter;
    const struct tsr_entry *local;
} tsr_dtensor;

const tsr_value *tsr_dtensor_value(const tsr_dtensor *dtensor, tsr_arena *arena, tsr_error *err);

/* A flat parameter in the form of FSDP1's LOCAL_STATE_DICT: a 1-d ShardedTensor without the padding of slices, in equal
 * slices, the last of which may be shorter or missing. `local` is the rank's own slice, or NULL. */
typedef struct tsr_sharded {
    tsr_dtype dtype;
    uint64_t numel, slice_numel;
    uint64_t ranks, rank;
    bool requires_grad;
    const struct tsr_entry *local;
} tsr_sharded;

/* The number of elements in a rank's slice; 0 beyond the end. */
uint64_t tsr_sharded_size(const tsr_sharded *sharded, uint64_t rank);
const tsr_value *tsr_sharded_value(const tsr_sharded *sharded, tsr_arena *arena, tsr_error *err);

/* Makes a rank's local tensor an entry of its own, whose chunks are the source's, restricted to the rank's boxes. */

/* `out` gets the local shape, the packed dtype and located chunks; the caller sets name and flags. Locates only chunks that
 * intersect the shard. Allocates in `arena`. Fails with TSR_E_UNSUPPORTED for float6 tensors, which a gather treats as
 * bytes. */
tsr_status tsr_localize(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_shard *shard, tsr_arena *arena,
                        tsr_entry *out, tsr_error *err);

/* Tensors in the form in which Megatron-Core up to 0.14 stores the state of a distributed optimizer: divided into equal
 * fragments, each of which is flattened. A tensor [4, 6] in fragments [2, 1] is stored as [2, 1, 12]. Only boxes are written
 * whose elements, in row-major order, are those of consecutive whole fragments, so that a box's bytes can be copied
 * unchanged. */

#endif
