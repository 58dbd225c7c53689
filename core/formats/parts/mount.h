/* Checkpoints that consist of others. Each of those is opened separately, and its entries are listed under the name of its
 * part. Chunks, values and findings still belong to the mounted checkpoint, which sees the files of the directory with the
 * same numbers.
 *
 *     directory                       parts
 *     model.safetensors               model.embed.weight, …        mounted file
 *     optimizer_0/ (a DCP)            optimizer.state.…            mounted directory
 *     rng_state_0.pth, rng_state_1…   rng_state.rank_0.cpu, …      several mounted files of one part
 *
 * The reader of such a directory calls tsr_mounts_fill with a function that begins parts and mounts checkpoints into them.
 * It uses the functions below for everything else. */
#ifndef TSR_FORMATS_PARTS_MOUNT_H
#define TSR_FORMATS_PARTS_MOUNT_H

#include "formats/common/reader.h"

typedef struct tsr_mount {
    tsr_checkpoint *mounted;
    uint64_t first_entry, entry_count; /* in the catalog of the whole checkpoint */
    tsr_str directory;                 /* the directory that its file names are relative to; may be empty */
} tsr_mount;

/* The state of a reader that mounts: checkpoint->state. */
typedef struct tsr_mounts {
    tsr_vec list;           /* of tsr_mount, in the order of their entries */
    tsr_vec entries;        /* of tsr_entry, while filling; this vec and the next three move into the arena */
    tsr_vec mappings;       /* of tsr_mapping */
    tsr_vec parts;          /* of tsr_part */
    tsr_vec files;          /* of uint32_t: the files that were read */
    tsr_vec metadata;       /* of tsr_text_pairs: of each mounted checkpoint that can have some; only while filling */
    const tsr_entry *first; /* the first entry of the catalog as it was filled */
    uint32_t storages;      /* number of storage ids in use */
    bool skipped;           /* options.part asks for a different part than the current one */
} tsr_mounts;

/* Fills the catalog by calling `mount`. Cleans up if that fails. */
tsr_status tsr_mounts_fill(tsr_checkpoint *checkpoint,
                           tsr_status (*mount)(tsr_checkpoint *checkpoint, const void *ctx, tsr_error *err), const void *ctx,
                           tsr_error *err);

/* Begins a part, to which everything belongs that is mounted after this. With `own_names`, the names of the mounted entries
 * already begin with the part's name. The name "" is for entries that belong to no part. `name` is not copied. */
tsr_status tsr_part_begin(tsr_checkpoint *checkpoint, tsr_str name, bool own_names, tsr_error *err);

/* The location of a checkpoint to mount: */
typedef struct tsr_mount_place {
    tsr_str below;        /* inserted in front of its names, such as "rank_0"; may be empty */
    uint32_t file;        /* a single file, or an index; otherwise TSR_NO_FILE */
    tsr_str directory;    /* a directory; may be empty */
    const tsr_form *form; /* if neither is set: files of the root with a known reader */
} tsr_mount_place;

/* Mounts a checkpoint into the current part. If it cannot be read, this is a finding, and the whole checkpoint becomes
 * incomplete. Does nothing if options.part asks for another part. Other errors: TSR_E_NOMEM, TSR_E_IO, TSR_E_CANCELLED. */
tsr_status tsr_part_mount(tsr_checkpoint *checkpoint, const tsr_mount_place *place, tsr_error *err);
/* The same for a document without tensors, in TSR_FORMAT_JSON or TSR_FORMAT_PICKLE. Its members are named like those of a
 * torch.save file. */
tsr_status tsr_part_mount_value(tsr_checkpoint *checkpoint, uint32_t file, tsr_format format, tsr_error *err);

/* Checks that Python's json.loads returns a dict for a file. Errors, which name the file: TSR_E_FORMAT, TSR_E_LIMIT, those of
 * reading, and TSR_E_NOMEM. */
tsr_status tsr_part_check_dict(tsr_checkpoint *checkpoint, uint32_t file, tsr_error *err);

/* The functions in the table of a reader that mounts checkpoints. */
tsr_status tsr_mounts_locate(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                             tsr_view *out, tsr_error *err);
tsr_status tsr_mounts_extents(tsr_checkpoint *checkpoint,
                              tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                              tsr_error *err);
tsr_status tsr_mounts_crc(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                          tsr_stated_crc *out, tsr_error *err);
tsr_status tsr_mounts_find(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                           tsr_found *out, tsr_error *err);
void tsr_mounts_close(tsr_checkpoint *checkpoint);

/* Fields of the tsr_reader of a format that mounts checkpoints. */
#define TSR_MOUNTS_READER \
    .locate = tsr_mounts_locate, .extents = tsr_mounts_extents, .crc = tsr_mounts_crc, .find = tsr_mounts_find, \
    .close = tsr_mounts_close

#endif
