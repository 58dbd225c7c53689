/* A checkpoint that is open, its files and its bytes. */
#ifndef TESSERA_SYS_CHECKPOINT_H
#define TESSERA_SYS_CHECKPOINT_H

#include "tessera/checkpoint.h"

TSR_API_BEGIN

/* How a checkpoint (tessera/checkpoint.h) was opened: what for, from which directory, and joined from how many ranks.
 *
 * Example:
 *
 *     status = tsr_checkpoint_require(checkpoint, TSR_FOR_VALUES, &err);
 *     if (status == TSR_OK && tsr_checkpoint_joined_ranks(checkpoint)) printf("its ranks were joined\n"); */

/* Checks that a checkpoint that was opened for a lesser purpose can also serve `purpose`. Fails with TSR_E_UNSUPPORTED; the
 * message names the missing files or maps, or the tensors that differ between ranks. tsr_checkpoint_open makes this check
 * for the purpose in its options. */
tsr_status tsr_checkpoint_require(const tsr_checkpoint *checkpoint, tsr_purpose purpose, tsr_error *err);
/* The same for the values of the entry with this name alone. A name that is not there is not an error here. */
tsr_status tsr_checkpoint_require_entry(const tsr_checkpoint *checkpoint, tsr_str fqn, tsr_error *err);

/* The number of ranks that the map in the open options joined, over all pipeline stages. 0 without a map, and for a
 * checkpoint whose files are not those of ranks with plain tensors. */
uint32_t tsr_checkpoint_joined_ranks(const tsr_checkpoint *checkpoint);
/* What documents state if --shards was given and there were no ranks to join. */
#define TSR_SHARDS_UNUSED "--shards is not used for this checkpoint: its tensors are not plain tensors of several ranks"

/* What an entry or a mapping of a checkpoint becomes. */
typedef struct tsr_new_name {
    tsr_str fqn;            /* NULL data: it is left out */
    const tsr_value *value; /* of an entry */
} tsr_new_name;
/* Gives the entries and mappings of an open checkpoint other names and values, as if they were stored like this; `entries` and
 * `mappings` have one element for each, which live in tsr_checkpoint_arena or as long. Paths follow the names. If entries are left out,
 * what is left has no parts, and is of the format of the one part that it was in. Called at most once, before anything
 * keeps an entry of the checkpoint. Errors: TSR_E_USAGE with the old names of two entries that would have one name;
 * TSR_E_NOMEM. */
tsr_status tsr_checkpoint_rename(tsr_checkpoint *checkpoint, const tsr_new_name *entries, const tsr_new_name *mappings,
                                 tsr_error *err);

/* The directory below the root that was opened, and in *marker the file that named it; NULL data and NULL where it was the
 * root itself, or if the caller chose the step. */
tsr_str tsr_checkpoint_step(const tsr_checkpoint *checkpoint, const char **marker);

/* Where the bytes of a checkpoint are, file by file, and the checksums that it states of them.
 *
 * Example:
 *
 *     tsr_stated_crc crc;
 *     status = tsr_checkpoint_crc(checkpoint, entry, &entry->chunks[0], arena, &crc, &err);
 *     if (status == TSR_OK && crc.is_stated) printf("%08x\n", (unsigned)crc.crc32); */

/* Whether the container can state CRCs of tensors at all. */
bool tsr_checkpoint_has_crcs(const tsr_checkpoint *checkpoint);
typedef struct tsr_stated_crc {
    bool is_stated;
    uint32_t crc32; /* 0 where none is stated */
} tsr_stated_crc;
/* The CRC-32 that the source states of a chunk's elements just as they are in the tensor, contiguous row-major; is_stated
 * is false where it states none of exactly these bytes: safetensors, views, a part of a storage, archives without CRCs
 * (torch.serialization.set_crc32_options(False)). It is what was written down, nothing is read and summed up. Otherwise as
 * tsr_checkpoint_locate. */
tsr_status tsr_checkpoint_crc(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                              tsr_stated_crc *out, tsr_error *err);

/* A chunk's place, and its CRC as tsr_checkpoint_crc has it. */
typedef struct tsr_found {
    tsr_view view;
    tsr_stated_crc crc;
} tsr_found;

/* The checksum that a file states of itself: of everything before `byte_offset` and the bytes from there on. */
typedef struct tsr_file_sum {
    uint32_t file;
    uint64_t byte_offset, byte_length; /* what extents cover */
    uint32_t before;                   /* CRC of the bytes before them */
    uint32_t crc32;                    /* stated of both together */
    uint8_t is_misspelt;               /* the statement is damaged if it is right, and otherwise is not a statement */
    uint64_t position;                 /* of the statement, in the file */
} tsr_file_sum;

/* What the bytes of an extent with a CRC are. */
typedef enum tsr_extent_covers {
    TSR_COVERS_MEMBER, /* of a zip archive */
    TSR_COVERS_AROUND, /* what is before `member` in an archive that Tessera or torch.save wrote, where only these bytes can be */
    TSR_COVERS_FILE /* a file, or all of it but the CRC at its end */
} tsr_extent_covers;

/* One run of bytes that a full check must read: a zip member, a tensor of a safetensors file, … */
typedef struct tsr_extent {
    uint32_t file;
    uint64_t byte_offset;
    uint64_t byte_length;
    bool has_crc;
    tsr_extent_covers covers;
    uint32_t crc32;         /* of the bytes as stored */
    const tsr_entry *entry; /* whose elements these are, or NULL (pickles, padding) */
    const tsr_chunk *chunk;
    tsr_view view;  /* with entry */
    tsr_str member; /* name of the zip member, or empty */
    /* NULL, or the sum that covers this extent. The extents of a sum have the same pointer, cover its bytes in order and without
     * gaps, and the last of them `ends` it. */
    const tsr_file_sum *sum;
    bool ends;
    uint64_t before; /* where it begins in its item; 0 where it is one by itself */
    bool *skips;     /* NULL, except between items, where it is not an extent: `each` may set it to true to leave out the
                              * item that begins at byte_offset, if one follows, and the checks of its structure */
} tsr_extent;

/* Calls `each` for every extent in order of (file, byte_offset), checking the structure of every item on the way (zip
 * and pickle structure, dtype and shape of every blob against the metadata); faults become findings. A non-zero
 * status of `each` stops and is returned. */
tsr_status tsr_checkpoint_extents(tsr_checkpoint *checkpoint,
                                  tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                                  tsr_error *err);

/* Finds the bytes of one chunk of `entry`. For DCP this reads the head and the end of the item's blob and checks its
 * dtype, sizes and member structure against the metadata. `scratch` holds the strides. Thread-safe for different
 * scratch arenas. Errors as open, plus TSR_E_NOT_FOUND for a missing data file. */
tsr_status tsr_checkpoint_locate(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk,
                                 tsr_arena *scratch, tsr_view *out, tsr_error *err);
/* Both at once, with one opening of a DCP's item. Otherwise as tsr_checkpoint_locate. */
tsr_status tsr_checkpoint_find(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk,
                               tsr_arena *scratch, tsr_found *out, tsr_error *err);

/* Adds to *losses (tessera/sys/read.h) what casts lost since the last call while elements of the tensor were computed, as those
 * of a mapped checkpoint are. */
struct tsr_cast_losses;
void tsr_checkpoint_take_losses(tsr_checkpoint *checkpoint, const tsr_entry *entry, struct tsr_cast_losses *losses);

/* The files of a checkpoint: those that it needs, owns or was read from, and those that are missing.
 *
 * Example:
 *
 *     tsr_file_role role;
 *     status = tsr_store_file_role(store, 0, &role, &err);
 *     if (status == TSR_OK && role == TSR_ROLE_MARKER) printf("the first file says what the directory is\n"); */

/* The files it is read from: those of the store that was given, or of the directory below it that a step chose. */
tsr_store *tsr_checkpoint_store(tsr_checkpoint *checkpoint);
/* The store that was given to tsr_checkpoint_open, also where a step below its root was opened. */
tsr_store *tsr_checkpoint_given_store(tsr_checkpoint *checkpoint);
/* The arena that lives as long as the checkpoint. Not thread-safe. */
tsr_arena *tsr_checkpoint_arena(tsr_checkpoint *checkpoint);
/* Raises TSR_E_NOT_FOUND with the reason why bytes of the entry `fqn` are missing: the names of missing files, or of a
 * truncated file. */
tsr_status tsr_checkpoint_raise_missing(const tsr_checkpoint *checkpoint, tsr_str fqn, tsr_error *err);
/* Raises the same for a tensor with a chunk whose data file is missing. */
tsr_status tsr_checkpoint_check_present(const tsr_checkpoint *checkpoint, const tsr_entry *entry, tsr_error *err);
/* Raises TSR_E_NOT_FOUND for a name that no entry has. If exactly one entry ends in ".fqn", the message suggests it. */
tsr_status tsr_checkpoint_raise_no_entry(const tsr_checkpoint *checkpoint, tsr_str fqn, tsr_error *err);
/* The names, relative to the store's root, of files that the metadata needs but the store does not have. Each is also a
 * finding. */
const tsr_str *tsr_checkpoint_missing(const tsr_checkpoint *checkpoint, size_t *count);
/* Names of files that the format of the checkpoint implies and the store does not have, except those that
 * tsr_checkpoint_missing lists. A server that cannot list files may still have them. Borrowed until close. */
const tsr_str *tsr_checkpoint_implied(const tsr_checkpoint *checkpoint, size_t *count);
/* Finds the files of the store that belong to the checkpoint by its own lists: its metadata or index and the files that
 * these name. For a format without a list (torch-ranks, dcp-safetensors) these are the files that were opened. A single
 * safetensors or torch file in a directory is not in any list, so it does not belong to the checkpoint. Fills `owned`, one
 * value for each file of the store. Errors: TSR_E_NOMEM, and those of opening. */
tsr_status tsr_checkpoint_own_files(tsr_checkpoint *checkpoint, bool *owned, tsr_error *err);

/* What a file of a directory means to recognition, whichever checkpoint it belongs to. */
typedef enum tsr_file_role {
    TSR_ROLE_NONE,    /* nothing: notes, configurations, files in subdirectories */
    TSR_ROLE_TENSORS, /* safetensors, torch.save, `.distcp`: may be read as a checkpoint or as a part of one */
    TSR_ROLE_MARKER   /* metadata or an index: decides what the directory is */
} tsr_file_role;
/* Decided by name and first bytes. Errors as reading. */
tsr_status tsr_store_file_role(tsr_store *store, uint32_t file, tsr_file_role *role, tsr_error *err);

/* Sets used[f] for every file f of the store (`used` has store->file_count places) that the checkpoint was read from, that its
 * metadata or index names, or that holds bytes of an entry. */
void tsr_checkpoint_used_files(const tsr_checkpoint *checkpoint, bool *used);

/* The directory of a part that is a DCP of its own: "pytorch_model_fsdp_0" for the part `model` of what accelerate saved. It
 * is borrowed from the store's names. Nothing is read, so its .metadata may be missing. TSR_E_NOT_FOUND if no directory of
 * `store` is that part. */
tsr_status tsr_part_directory(const tsr_store *store, tsr_str part, tsr_str *out, tsr_error *err);

TSR_API_END

#endif
