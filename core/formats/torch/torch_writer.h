/* torch.save archives: data.pkl out of a value tree, and the layout of the zip around the storages' bytes.
 *
 *   archive/data.pkl  .format_version  .storage_alignment  byteorder  data/0 … data/n-1  version  .data/serialization_id
 *
 * The writer moves no tensor bytes: it says where each storage lies, and gives the pieces between them once their CRCs are
 * known. What it writes is what PyTorch 2.13 writes (torch/serialization.py, torch/_tensor.py _reduce_ex_internal), but for
 * the serialization id, which is a function of the content. */
#ifndef TSR_FORMATS_TORCH_TORCH_WRITER_H
#define TSR_FORMATS_TORCH_TORCH_WRITER_H

#include "codec/pickle.h"
#include "codec/zip.h"
#include "tessera/catalog.h"
#include "tessera/host.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/store.h"

typedef struct tsr_torch_new_storage {
    tsr_dtype dtype; /* of the tensors on it */
    uint64_t byte_length;
} tsr_torch_new_storage;

/* How the tensor of an entry (which a TSR_VALUE_TENSOR node of the tree names) is to be rebuilt. */
typedef struct tsr_torch_new_tensor {
    const tsr_entry *entry;
    uint32_t storage;
    uint64_t storage_offset; /* elements */
    uint32_t ndim;
    const uint64_t *sizes;
    const uint64_t *strides; /* elements; NULL: contiguous */
    bool requires_grad;
    bool is_parameter;
} tsr_torch_new_tensor;

typedef struct tsr_torch_tree {
    const tsr_value *root;
    const tsr_torch_new_tensor *tensors; /* sorted by the address of `entry` (tsr_torch_sort_tensors) */
    size_t tensor_count;
    const tsr_torch_new_storage *storages;
    uint32_t storage_count;
    uint64_t *room; /* NULL, or what pickles may still take: TSR_E_LIMIT beyond it, otherwise less by the pickle's size */
    bool unsummed;  /* the archive states no checksums: every CRC in it is 0 */
} tsr_torch_tree;

/* A class inside a class: it is written as an attribute of that one. */
#define TSR_TORCH_GROUP_OF    "torch.distributed._shard.sharded_tensor.api.ShardedTensor"
#define TSR_TORCH_GROUP_STATE TSR_TORCH_GROUP_OF ".ProcessGroupState"

/* Whether a value is a tensor subclass (TSR_WRAPPER_PART) that can be written again. */
bool tsr_torch_is_subclass(const tsr_value *value);

void tsr_torch_sort_tensors(tsr_torch_new_tensor *tensors, size_t count);

typedef struct tsr_torch_archive {
    tsr_zip_new_member *members;
    size_t member_count;
    size_t first_storage; /* members[first_storage + i] is storage i; its crc32 is for the caller to set */
    uint32_t storage_count;
    tsr_str pickle;
    uint64_t size;
    bool unsummed; /* as in the tree; what is set as crc32 of storages does not count */
} tsr_torch_archive;

/* Pickles and lays out. Lives in `arena`. */
tsr_status tsr_torch_archive_plan(const tsr_torch_tree *tree, const tsr_host *host, tsr_arena *arena, tsr_torch_archive *out,
                                  tsr_error *err);

/* The same around a pickle that was made elsewhere, and is borrowed: of the tree, only the storages and `unsummed` are used. */
tsr_status tsr_torch_archive_around(tsr_str pickle, const tsr_torch_tree *tree, const tsr_host *host, tsr_arena *arena,
                                    tsr_torch_archive *out, tsr_error *err);

/* Where the bytes of storage i begin, from the archive's first byte. */
static inline uint64_t tsr_torch_storage_at(const tsr_torch_archive *archive, uint32_t storage)
{
    return archive->members[archive->first_storage + storage].byte_offset;
}

/* Appends the bytes between storage i − 1 and storage i to `out` and says where they begin: i = 0 is everything before the
 * first storage, i = storage_count everything behind the last (with no storage: the whole archive). Piece i needs the CRCs
 * of the storages before it. */
tsr_status tsr_torch_archive_piece(tsr_torch_archive *archive, uint32_t i, tsr_vec *out, uint64_t *byte_at, tsr_error *err);

/* An archive that was read, and what is between its members if Tessera or torch.save wrote it: that follows from their names, sizes and
 * CRCs. */
typedef struct tsr_torch_written {
    tsr_zip_new_member *members; /* NULL: another program wrote it, or a PyTorch before 2.1 */
    size_t count;
    tsr_range range; /* of the archive */
    tsr_vec bytes;   /* for a single gap */
} tsr_torch_written;

/* Finds out who wrote the archive in `range`, of whose members the caller sets name, size, crc32 and byte_offset (in the file), in file
 * order. An archive of Tessera or torch.save has the serialization id and the offsets that follow from its members; one that another
 * program packed again does not. Must be closed. */
tsr_status tsr_torch_written_open(tsr_range range, const tsr_host *host, tsr_zip_new_member *members, size_t count,
                                  tsr_torch_written *out, tsr_error *err);
/* The bytes before member i, from the end of the one before it, and with i = count those behind the last, as an extent with their CRC.
 * `member` is that member's name, or "the end". */
tsr_status tsr_torch_written_gap(tsr_torch_written *written, const tsr_host *host, size_t i, tsr_extent *out,
                                 tsr_error *err);
void tsr_torch_written_close(tsr_torch_written *written);

#endif
