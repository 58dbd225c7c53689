/* Checkpoints made of others: each is opened on its own, and its entries are listed under the name of its part. Their chunks,
 * values and findings stay those of the checkpoint that was mounted, which sees the files of the directory under the numbers
 * that they have there.
 *
 *     directory                       parts
 *     model.safetensors               model.embed.weight, …        mounted file
 *     optimizer_0/ (a DCP)            optimizer.state.…            mounted directory
 *     rng_state_0.pth, rng_state_1…   rng_state.rank_0.cpu, …      several mounted files of one part
 *
 * A reader of such a directory calls tsr_mounts_fill with a function that begins parts and mounts into them, and takes its
 * other functions from here. */
#ifndef TSR_FORMATS_PARTS_MOUNT_H
#define TSR_FORMATS_PARTS_MOUNT_H

#include "formats/common/reader.h"

typedef struct tsr_mount {
    tsr_checkpoint *mounted;
    uint64_t first_entry, entry_count; /* of the catalog that it is mounted into */
    tsr_str directory;                 /* that its file names are below; may be empty */
} tsr_mount;

/* The state of a reader that mounts: checkpoint->state. */
typedef struct tsr_mounts {
    tsr_vec list;     /* of tsr_mount, in the order of their entries */
    tsr_vec entries;  /* of tsr_entry, while filling; this and the next three move into the arena */
    tsr_vec mappings; /* of tsr_mapping */
    tsr_vec parts;    /* of tsr_part */
    tsr_vec files;    /* of uint32_t: what was read */
    const tsr_entry *first; /* the catalog's entries as they were filled in */
    uint32_t storages;      /* storage ids that are taken */
    bool skipped;           /* the part that is being filled is not asked for */
} tsr_mounts;

/* Fills the catalog by `mount`. Cleans up when it fails. */
tsr_status tsr_mounts_fill(tsr_checkpoint *checkpoint, tsr_status (*mount)(tsr_checkpoint *checkpoint, tsr_error *err),
                           tsr_error *err);

/* Begins a part; what is mounted from now on belongs to it. `own_names`: the names of what is mounted begin with the part's
 * already. The name "" stands for names without one. `name` is kept. */
tsr_status tsr_part_begin(tsr_checkpoint *checkpoint, tsr_str name, bool own_names, tsr_error *err);

/* Where a mounted checkpoint is: */
typedef struct tsr_mount_place {
    tsr_str below;       /* one more name in front of its own: "rank_0"; may be empty */
    uint32_t file;       /* one file, or an index; TSR_NO_FILE: not so */
    tsr_str directory;   /* a directory; may be empty */
    const tsr_form *form; /* with neither: files of the root whose reader is known */
} tsr_mount_place;

/* Mounts a checkpoint into the part. One that cannot be read is a finding, and makes the whole incomplete. Nothing happens
 * where options.part asks for another part. Other errors: TSR_E_NOMEM, TSR_E_IO, TSR_E_CANCELLED. */
tsr_status tsr_part_mount(tsr_checkpoint *checkpoint, const tsr_mount_place *place, tsr_error *err);
/* The same for a document without tensors, TSR_FORMAT_JSON or TSR_FORMAT_PICKLE, whose members are named as those of a torch.save
 * file are. */
tsr_status tsr_part_mount_value(tsr_checkpoint *checkpoint, uint32_t file, tsr_format format, tsr_error *err);

/* mount_add.c: appends entries under the name of the part and `below`. */
typedef struct tsr_mount_entries {
    const tsr_entry *entries;
    uint64_t entry_count;
    const tsr_mapping *mappings;
    uint64_t mapping_count;
} tsr_mount_entries;
tsr_status tsr_mounts_add(tsr_checkpoint *checkpoint, tsr_str below, const tsr_mount_entries *added, tsr_error *err);

/* json_value.c: the value of a JSON document, as Python's json.loads gives it: NaN and Infinity are numbers, and 1.0 is not an
 * integer. Lives in the checkpoint's arena. Errors name the file. */
tsr_status tsr_json_file_value(tsr_checkpoint *checkpoint, uint32_t file, const tsr_value **out, tsr_error *err);
/* pickle_value.c: the value of a file that is a pickle. What loading it would call is a finding. Otherwise the same. */
tsr_status tsr_pickle_file_value(tsr_checkpoint *checkpoint, uint32_t file, const tsr_value **out, tsr_error *err);

/* mount_read.c: what a reader that mounts has in its table. */
tsr_status tsr_mounts_locate(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                             tsr_view *out, tsr_error *err);
tsr_status tsr_mounts_extents(tsr_checkpoint *checkpoint, tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err),
                              void *ctx, tsr_error *err);
tsr_status tsr_mounts_crc(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                          tsr_stated_crc *out, tsr_error *err);
tsr_status tsr_mounts_find(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                           tsr_found *out, tsr_error *err);
void tsr_mounts_close(tsr_checkpoint *checkpoint);
/* Takes over what a mounted checkpoint has found since the last time. */
tsr_status tsr_mounts_take_findings(tsr_checkpoint *checkpoint, const tsr_mount *mount, tsr_error *err);

/* The rows of a reader that mounts. */
#define TSR_MOUNTS_READER                                                                                                      \
    .locate = tsr_mounts_locate, .extents = tsr_mounts_extents, .crc = tsr_mounts_crc, .find = tsr_mounts_find,                \
    .close = tsr_mounts_close

#endif
