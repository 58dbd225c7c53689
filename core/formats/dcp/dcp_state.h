/* The DCP reader's own state, shared by its parts: dcp.c (catalog), dcp_place.c (where chunks lie), dcp_originals.c (what
 * Megatron-Core adds), dcp_item.c (one blob), dcp_zstd.c (one in a stream), dcp_images.c (safetensors data files), dcp_extents.c (every blob in file order). */
#ifndef TSR_FORMATS_DCP_DCP_STATE_H
#define TSR_FORMATS_DCP_DCP_STATE_H

#include "formats/common/reader.h"
#include "formats/dcp/dcp_metadata.h"
#include "formats/torch/torch_item.h"
#include "tessera/sys/map.h"

/* One metadata file: `.metadata`, or a rank's `__R.metadata`. */
typedef struct tsr_dcp_output_entry {
    tsr_dcp_metadata metadata;
    uint32_t file;
    tsr_chunk *chunks; /* of all its tensors and objects; chunks of one entry lie together; the source's own memory */
    uint64_t chunk_count, chunk_room;
    tsr_vec parts; /* tsr_dcp_part */
} tsr_dcp_output_entry;

/* The chunks that one source has of one entry. */
typedef struct tsr_dcp_part {
    uint64_t first; /* of source.chunks */
    uint64_t count;
    uint32_t entry;
} tsr_dcp_part;

/* The shape that a tensor had before Megatron-Core stored it as flat ranges of fragments. */
typedef struct tsr_dcp_original {
    uint64_t entry; /* of the catalog */
    const uint64_t *shape;
    uint32_t ndim;
} tsr_dcp_original;

typedef struct tsr_dcp_state {
    tsr_dcp_output_entry *sources;
    uint32_t source_count;
    tsr_map *names;     /* FQN → entry, while opening */
    tsr_vec entries;    /* tsr_entry, while opening */
    tsr_map *zstd;      /* key of (file, byte_offset) → 1 for items that went through zstd; NULL: none did */
    uint8_t *file_uses; /* a tsr_dcp_use for each file of the store */
    const tsr_dcp_original *originals; /* in the order of the entries' names in mcore_data */
    uint64_t original_count;
    bool has_mcore_data;
    bool is_megatron;   /* the metadata has what only Megatron-Core adds */
    void *form;         /* what a form that is a DCP with more around it keeps, in the arena */
} tsr_dcp_state;

typedef enum tsr_dcp_use {
    TSR_DCP_UNUSED,
    TSR_DCP_OBJECTS,    /* no tensor met yet */
    TSR_DCP_TORCH,      /* holds torch.save blobs */
    TSR_DCP_SAFETENSORS /* is a safetensors file, perhaps behind some blobs */
} tsr_dcp_use;

static inline tsr_dcp_state *tsr_dcp_state_of(const tsr_checkpoint *checkpoint)
{
    return checkpoint->state;
}

/* Entry by FQN among those collected so far. */
#define TSR_DCP_NO_ENTRY UINT32_MAX

/* Keeps the shapes of `mcore_data`. TSR_E_FORMAT for one that is not made of sizes. */
tsr_status tsr_dcp_keep_originals(tsr_checkpoint *checkpoint, const tsr_dcp_output_entry *source, tsr_error *err);
/* Gives the chunks of a source their place in the files. `entries` and their parts must be complete for this source. */
tsr_status tsr_dcp_place(tsr_checkpoint *checkpoint, tsr_dcp_output_entry *source, tsr_error *err);
/* Opens the safetensors files among the data files and gives their chunks a view. */
tsr_status tsr_dcp_place_safetensors(tsr_checkpoint *checkpoint, tsr_error *err);

bool tsr_dcp_is_zstd(const tsr_dcp_state *state, const tsr_chunk *chunk);
/* An item of a data file: what torch.save made of one chunk, or of an object. */
typedef struct tsr_dcp_item {
    tsr_checkpoint *checkpoint;
    const tsr_entry *entry;
    const tsr_chunk *chunk;
} tsr_dcp_item;

/* Opens an item in `arena`. Positions of a zstd item are those of the decompressed bytes. */
tsr_status tsr_dcp_open_item(tsr_dcp_item item, tsr_arena *arena, tsr_findings *findings, tsr_torch_item *out,
                             tsr_error *err);
/* The same for an item that went through zstd. */
tsr_status tsr_dcp_open_zstd(tsr_dcp_item item, tsr_arena *arena, tsr_findings *findings, tsr_torch_item *out,
                             tsr_error *err);
/* Reads a zstd item to its end; members whose bytes do not have their CRC are findings. `members` are the archive's,
 * sorted by byte_offset. */
tsr_status tsr_dcp_check_zstd(tsr_dcp_item item, const tsr_zip_member *members, uint32_t count, tsr_arena *scratch,
                              tsr_error *err);
/* The tensor that an opened item must be, checked against the metadata; its view in the file. */
tsr_status tsr_dcp_view_of(const tsr_entry *entry, const tsr_chunk *chunk, const tsr_torch_item *item, tsr_arena *arena,
                           tsr_view *out, tsr_error *err);
/* Makes a finding of what is wrong with an item; passes on what is no fault of the item. */
tsr_status tsr_dcp_bad_item(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, const tsr_error *why,
                            tsr_error *err);
tsr_status tsr_dcp_crc(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                       tsr_stated_crc *out, tsr_error *err);
tsr_status tsr_dcp_find(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                        tsr_found *out, tsr_error *err);
tsr_status tsr_dcp_locate(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tsr_arena *scratch,
                          tsr_view *out, tsr_error *err);
/* Items of `entries`, which need not be the checkpoint's catalog. */
tsr_status tsr_dcp_extents_of(tsr_checkpoint *checkpoint, const tsr_entry *entries, uint64_t count,
                              tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                              tsr_error *err);
tsr_status tsr_dcp_extents(tsr_checkpoint *checkpoint,
                           tsr_status (*each)(void *ctx, const tsr_extent *extent, tsr_error *err), void *ctx,
                           tsr_error *err);
/* Tensors whose items hold a tensor subclass become opaque entries with its parts, where their lengths show it. */
tsr_status tsr_dcp_find_subclasses(tsr_checkpoint *checkpoint, tsr_entry *entries, uint64_t count, tsr_error *err);
/* The values of byte items. */
tsr_status tsr_dcp_read_objects(tsr_checkpoint *checkpoint, tsr_entry *entries, uint64_t count, tsr_error *err);

#endif
