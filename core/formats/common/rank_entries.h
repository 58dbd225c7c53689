/* Finds out which entries of a checkpoint with one or more files per rank are equal on all ranks.
 *
 * Plain tensors, which belong to no mesh, are replicas only if every rank has the same one. If they differ, nothing in the
 * files says how to join them, so the entry lists what each rank holds (tsr_entry.per_rank) and is never read.
 *
 * With a map of shards (tsr_open_options.shards), nothing is compared or marked here: every entry, including objects, gets
 * the table of what each rank holds, and formats/shards joins them.
 *
 * A tensor also differs if some rank does not have it. The exception is pipeline stages and experts in checkpoints with
 * sharded tensors: a plain tensor may be missing from some ranks if some sharded tensor is held by exactly the same
 * ranks. */
#ifndef TSR_FORMATS_COMMON_RANK_ENTRIES_H
#define TSR_FORMATS_COMMON_RANK_ENTRIES_H

#include "formats/common/reader.h"
#include "tessera/box.h"
#include "tessera/catalog.h"

typedef struct tsr_rank_entries {
    tsr_checkpoint *checkpoint;
    tsr_vec holders;      /* which rank holds which entry; zeroed at first */
    const tsr_str *names; /* the file of each rank, for messages */
    uint32_t ranks;
    bool sharded; /* some tensors are DTensors or ShardedTensors, so plain tensors are expected to be equal */
    /* Whether checksums show that two plain tensors are equal or different; NULL when there are no checksums. */
    bool (*decide)(const tsr_checkpoint *checkpoint, const tsr_entry *a, const tsr_entry *b, bool *same);
} tsr_rank_entries;

/* Records that `rank` holds `entry`, which will be number `number` in the catalog. `entry` must live as long as the
 * checkpoint. */
tsr_status tsr_rank_entries_add(tsr_rank_entries *ranks, uint32_t number, uint32_t rank, const tsr_entry *entry,
                                tsr_error *err);
/* Marks the entries of the filled catalog that are not equal on all ranks, and adds `torch/rank-differs` findings: one error
 * per entry if some tensors are sharded, otherwise one note for all entries. If nothing is sharded and entries differ, the
 * checkpoint's format becomes `shards`. Objects that differ are reported as `torch/rank-object`. Reads the tensors when no
 * checksum decides. */
tsr_status tsr_rank_entries_settle(tsr_rank_entries *ranks, tsr_error *err);
void tsr_rank_entries_close(tsr_rank_entries *ranks); /* accepts a zeroed one */

/* ---- Compares what two ranks stored for one tensor, when no checksum decides whether it is the same. ---- */

/* Compares the elements of two tensors of the same dtype and shape, each stored as one chunk that covers it. The comparison
 * is bitwise, so NaNs are equal only if their payloads are. Reads at most a few times the stored bytes: strided views that
 * repeat or overlap stored elements far more often than that count as different without a comparison. So do a conjugated or
 * negated view and a plain one. Fails only if reading fails (TSR_E_IO) or with TSR_E_NOMEM. */
tsr_status tsr_rank_bytes_match(const tsr_checkpoint *checkpoint, const tsr_entry *a, const tsr_entry *b, bool *same,
                                tsr_error *err);

/* How many bytes may be read to compare what the ranks stored: a few times what the files have. */
enum { TSR_RANK_MAX_READS = 16 };
uint64_t tsr_rank_bytes_allowed(const tsr_store *store);

/* ---- For readers that find one name in the files of several ranks. ---- */

/* Whether an entry is a dense tensor that is stored as a single chunk, which covers it. */
bool tsr_entry_is_one_chunk(const tsr_entry *entry);
/* Whether an entry is a tensor of any kind. */
static inline bool tsr_entry_is_any_tensor(const tsr_entry *entry)
{
    return entry->kind == TSR_ENTRY_TENSOR || entry->dtype != TSR_DTYPE_NONE;
}

/* Adds the chunks and replicas of `copy`, a tensor with the same elements, to the replicas of `entry`. */
tsr_status tsr_entry_add_replicas(tsr_entry *entry, const tsr_entry *copy, tsr_arena *arena, tsr_error *err);

/* Turns `entry` into an opaque entry that lists what each of `count` ranks stores under its name. Its name and path stay.
 * Its dtype is the one that all the tensors share, or NONE. `tensors` has one element per rank (NULL when that rank has no
 * such tensor), belongs to the arena, and must not contain `entry` itself. */
tsr_status tsr_entry_list_per_rank(tsr_entry *entry, const tsr_entry **tensors, uint32_t count, tsr_arena *arena,
                                   tsr_error *err);

/* ---- Cuts a box out of a chunk, whose bytes stay where they are. ---- */

/* Sets *out to the part of a chunk that is in `box`, a box of the chunk's tensor that the chunk contains. The elements have
 * `item` bytes, which must not be 0. The sizes of *out are in `arena`, and its offsets are those of the chunk: the caller sets
 * them. Errors: TSR_E_NOMEM. */
tsr_status tsr_chunk_cut(const tsr_chunk *chunk, tsr_box box, uint32_t item, tsr_arena *arena, tsr_chunk *out,
                         tsr_error *err);

/* Tensor subclasses (torchao's quantized tensors, say) of which several boxes are stored: catalog.h describes how an entry lists
 * them. */

/* Gives an opaque entry its `count` boxes and what each of them holds; both arrays are sorted, and kept. A single box that
 * covers the tensor makes it a whole one, whose value is what the box holds. */
tsr_status tsr_entry_set_pieces(tsr_entry *entry, tsr_chunk *chunks, const tsr_value **values, uint64_t count,
                                tsr_arena *arena, tsr_error *err);

#endif
