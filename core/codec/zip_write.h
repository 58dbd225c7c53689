/* Writes STORED zip archives as torch.save does: an "FB" extra field aligns the data of every member to 64 bytes, the CRC
 * and the sizes follow the data in a descriptor, zip64 fields are used if 32 bits are too few, and there is always a zip64
 * end record.
 *
 *   [local header | name | FB padding | data | descriptor]…  [central directory] [zip64 end, locator] [end]
 *
 * The layout depends only on names and sizes. Lay out first, then write the pieces in any order; those with a CRC can be
 * written once it is known. The functions have no state and are thread-safe. Sources: APPNOTE.TXT 6.3.10 §4, and files that
 * torch 2.13 wrote. */
#ifndef TSR_CODEC_ZIP_WRITE_H
#define TSR_CODEC_ZIP_WRITE_H

#include "tessera/memory.h"
#include "tessera/sys/containers.h"

typedef struct tsr_zip_new_member {
    tsr_str name; /* with the top directory; at most 65,535 bytes */
    uint64_t size;
    uint32_t crc32;         /* of the data; needed for the descriptor and the directory */
    uint64_t header_offset; /* from the beginning of the archive; tsr_zip_layout sets this and byte_offset */
    uint64_t byte_offset;   /* of the data */
} tsr_zip_new_member;

/* Sets the offsets of the members, one after the other. *directory_offset is where the central directory begins, and *size
 * is the size of the archive. Returns false if that overflows or a name is too long. */
bool tsr_zip_layout(tsr_zip_new_member *members, size_t count, uint64_t *directory_offset, uint64_t *size);

/* Append to `out`, a vec of bytes, what precedes a member's data, what follows it, and the end of the archive. Errors:
 * TSR_E_NOMEM. */
tsr_status tsr_zip_append_header(const tsr_zip_new_member *member, tsr_vec *out, tsr_error *err);
tsr_status tsr_zip_append_descriptor(const tsr_zip_new_member *member, tsr_vec *out, tsr_error *err);
tsr_status tsr_zip_append_directory(const tsr_zip_new_member *members, size_t count, tsr_vec *out, tsr_error *err);

#endif
