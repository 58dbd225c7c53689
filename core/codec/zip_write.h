/* STORED zip archives as torch.save writes them: every member's data at a multiple of 64 bytes by an "FB" extra field, CRC
 * and sizes behind the data in a descriptor, zip64 where 4 GiB are exceeded, always a zip64 end record.
 *
 *   [local header | name | FB padding | data | descriptor]…  [central directory] [zip64 end, locator] [end]
 *
 * The layout depends on names and sizes alone: lay out first, then write the pieces in any order, those that hold CRCs
 * once they are known. Pure; thread-safe. Sources: APPNOTE.TXT 6.3.10 §4; files that torch 2.13 wrote. */
#ifndef TSR_CODEC_ZIP_WRITE_H
#define TSR_CODEC_ZIP_WRITE_H

#include "tessera/memory.h"
#include "tessera/sys/vec.h"

typedef struct tsr_zip_new_member {
    tsr_str name; /* whole, with the top folder; at most 65,535 bytes */
    uint64_t size;
    uint32_t crc32;         /* of the data; needed for descriptor and directory */
    uint64_t header_offset; /* from the archive's first byte; these two are set by tsr_zip_layout */
    uint64_t byte_offset;   /* of the data */
} tsr_zip_new_member;

/* Places the members one behind the other; `*directory_offset` is where the central directory will begin, `*size` the
 * whole archive's. False when it overflows. */
bool tsr_zip_layout(tsr_zip_new_member *members, size_t count, uint64_t *directory_offset, uint64_t *size);

/* Each appends to `out` (a vec of bytes) and nothing else: what lies before a member's data, behind it, and at the end. */
tsr_status tsr_zip_append_header(const tsr_zip_new_member *member, tsr_vec *out, tsr_error *err);
tsr_status tsr_zip_append_descriptor(const tsr_zip_new_member *member, tsr_vec *out, tsr_error *err);
tsr_status tsr_zip_append_directory(const tsr_zip_new_member *members, size_t count, tsr_vec *out, tsr_error *err);

#endif
