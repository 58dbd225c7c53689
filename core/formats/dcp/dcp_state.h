/* Data of the DCP reader that its source files share: dcp.c (catalog), dcp_place.c (where chunks are), dcp_metadata.c
 * (Megatron-Core's additions), dcp_item.c (one archive), dcp_item.c (an archive in a zstd stream), dcp_images.c (safetensors
 * data files), dcp.c (every item in file order). */
#ifndef TSR_FORMATS_DCP_DCP_STATE_H
#define TSR_FORMATS_DCP_DCP_STATE_H

#include "formats/common/reader.h"
#include "formats/dcp/dcp_metadata.h"
#include "formats/torch/torch_item.h"
#include "tessera/sys/map.h"

/* One metadata file: `.metadata`, or the `__R.metadata` of a rank. */
typedef struct tsr_dcp_metadata_file {
    tsr_dcp_metadata metadata;
    uint32_t file;
    tsr_chunk *chunks; /* of all its tensors and objects, those of one entry contiguous; owned by the source */
    uint64_t chunk_count, chunk_room;
    tsr_vec parts; /* tsr_dcp_part */
} tsr_dcp_metadata_file;

/* The chunks that one source has for one entry. */
typedef struct tsr_dcp_part {
    uint64_t first; /* index in source.chunks */
    uint64_t count;
    uint32_t entry;
} tsr_dcp_part;

/* The shape of a tensor before Megatron-Core stored it as flat ranges of fragments. */
typedef struct tsr_dcp_original {
    uint64_t entry; /* index in the catalog */
    const uint64_t *shape;
    uint32_t ndim;
} tsr_dcp_original;

typedef struct tsr_dcp_state {
    tsr_dcp_metadata_file *sources;
    uint32_t source_count;
    tsr_map *names;      /* FQN → entry; only while opening */
    tsr_vec entries;     /* tsr_entry; only while opening */
    tsr_map *transforms; /* key of (file, byte_offset) → tsr_dcp_transform, of items that are not plain; NULL if all are */
    tsr_str extension;   /* the user's own stream extension that items went through; empty if there is none */
    uint64_t extended_count;           /* of such items */
    uint8_t *file_uses;                /* a tsr_dcp_use per file of the store */
    const tsr_dcp_original *originals; /* in the order of mcore_data */
    uint64_t original_count;
    bool has_mcore_data;
    bool is_megatron; /* the metadata has attributes that only Megatron-Core writes */
    void *form;       /* data of a format that is a DCP with additions; in the arena */
} tsr_dcp_state;

typedef enum tsr_dcp_use {
    TSR_DCP_UNUSED,
    TSR_DCP_OBJECTS,    /* no tensor seen yet */
    TSR_DCP_TORCH,      /* contains torch.save archives */
    TSR_DCP_SAFETENSORS /* is a safetensors file, possibly after some blobs */
} tsr_dcp_use;

static inline tsr_dcp_state *tsr_dcp_state_of(const tsr_checkpoint *checkpoint)
{
    return checkpoint->state;
}

/* No entry of that FQN among those collected so far. */
#define TSR_DCP_NO_ENTRY UINT32_MAX

/* Stores the original shapes in `mcore_data`. Fails with TSR_E_FORMAT if one is not made of sizes. */
tsr_status tsr_dcp_keep_originals(tsr_checkpoint *checkpoint, const tsr_dcp_metadata_file *source, tsr_error *err);
/* Sets the file, offset and length of a source's chunks. `entries` and their parts must be complete for this source. */
tsr_status tsr_dcp_place(tsr_checkpoint *checkpoint, tsr_dcp_metadata_file *source, tsr_error *err);
/* Opens the safetensors files among the data files and gives their chunks a view. */
tsr_status tsr_dcp_place_safetensors(tsr_checkpoint *checkpoint, tsr_error *err);

tsr_dcp_transform tsr_dcp_transform_of(const tsr_dcp_state *state, const tsr_chunk *chunk);
static inline bool tsr_dcp_is_zstd(const tsr_dcp_state *state, const tsr_chunk *chunk)
{
    return tsr_dcp_transform_of(state, chunk) == TSR_DCP_ZSTD;
}
/* An item of a data file: what torch.save wrote for one chunk or object. */
typedef struct tsr_dcp_item {
    tsr_checkpoint *checkpoint;
    const tsr_entry *entry;
    const tsr_chunk *chunk;
} tsr_dcp_item;

/* Opens an item in `arena`. For zstd items, positions refer to the decompressed bytes. */
tsr_status tsr_dcp_open_item(tsr_dcp_item item, tsr_arena *arena, tsr_findings *findings, tsr_torch_item *out,
                             tsr_error *err);
/* Reads a zstd item to its end, and adds a finding for each member whose bytes do not match its CRC. `members` are the
 * archive's, sorted by byte_offset. */
tsr_status tsr_dcp_check_zstd(tsr_dcp_item item, const tsr_zip_member *members, uint32_t count, tsr_arena *scratch,
                              tsr_error *err);
/* Checks that an opened item is the tensor described in the metadata, and sets *out to its view in the file. */
tsr_status tsr_dcp_view_of(const tsr_entry *entry, const tsr_chunk *chunk, const tsr_torch_item *item, tsr_arena *arena,
                           tsr_view *out, tsr_error *err);
/* Adds a finding for an error in an item. Errors that are not the item's fault are passed on. */
tsr_status tsr_dcp_bad_item(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, const tsr_error *why,
                            tsr_error *err);
tsr_status tsr_dcp_crc(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                       tsr_stated_crc *out, tsr_error *err);
tsr_status tsr_dcp_find(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                        tsr_found *out, tsr_error *err);
tsr_status tsr_dcp_locate(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                          tsr_view *out, tsr_error *err);
/* The items of `entries`, which need not be those of the catalog. */
tsr_status tsr_dcp_extents_of(tsr_checkpoint *checkpoint, const tsr_entry *entries, uint64_t count,
                              tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                              tsr_error *err);
/* Turns tensors whose items store a tensor subclass into opaque entries with its inner tensors, if the items' lengths reveal
 * them. */
tsr_status tsr_dcp_find_subclasses(tsr_checkpoint *checkpoint, tsr_entry *entries, uint64_t count, tsr_error *err);
/* Reads the values of byte items. */
tsr_status tsr_dcp_read_objects(tsr_checkpoint *checkpoint, tsr_entry *entries, uint64_t count, tsr_error *err);

#endif
