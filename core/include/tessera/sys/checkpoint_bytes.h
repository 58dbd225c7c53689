/* Where the bytes of a checkpoint are, file by file, and the checksums that it states of them.
 *
 * Example:
 *
 *     tsr_stated_crc crc;
 *     status = tsr_checkpoint_crc(checkpoint, entry, &entry->chunks[0], arena, &crc, &err);
 *     if (status == TSR_OK && crc.is_stated) printf("%08x\n", (unsigned)crc.crc32); */
#ifndef TESSERA_SYS_CHECKPOINT_BYTES_H
#define TESSERA_SYS_CHECKPOINT_BYTES_H

#include "tessera/checkpoint.h"

TSR_API_BEGIN

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

/* Adds to *losses (tessera/sys/cast.h) what casts lost since the last call while elements of the tensor were computed, as those
 * of a mapped checkpoint are. */
struct tsr_cast_losses;
void tsr_checkpoint_take_losses(tsr_checkpoint *checkpoint, const tsr_entry *entry, struct tsr_cast_losses *losses);

TSR_API_END

#endif
