/* Reads STORED zip and zip64 archives as torch.save writes them, in any range of a file. The central directory decides.
 * Archives that two readers could understand differently are refused with TSR_E_FORMAT or TSR_E_UNSUPPORTED and the
 * position: local headers that disagree with the directory, names that are duplicates or differ only in case, overlapping
 * members, several end records, compression, encryption, and bytes that belong to no member. Up to 69,562 bytes may follow the end record,
 * where PyTorch finds it, too; the browser's module has no room for that.
 *
 *   [local header | name | extra (FB padding) | data | descriptor]… [central directory] [zip64 end + locator] [end record]
 *
 * Source of the behavior: APPNOTE.TXT 6.3.10 §4, and files that torch 1.x to 2.13 wrote. */
#ifndef TSR_CODEC_ZIP_H
#define TSR_CODEC_ZIP_H

#include "tessera/memory.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/store.h"

/* The bytes of an archive that its reader has fetched: the tail, which contains the directory of most archives, and the last
 * read outside it. The members of a small archive, and the first members of a larger one, then need no further read. */

typedef struct tsr_zip_piece {
    uint8_t *bytes;
    size_t capacity;
    uint64_t start; /* in the archive; it holds [start, start + held) */
    size_t held;
} tsr_zip_piece;

/* The fetched bytes; offsets count from the beginning of the archive. Owns the bytes, and borrows the allocator and the
 * store. */
typedef struct tsr_zip_window {
    const tsr_allocator *allocator;
    tsr_range archive;
    tsr_zip_piece tail, other;
    bool is_guarded; /* read members from the store, which checks their local headers (tsr_store_guard) */
} tsr_zip_window;

static inline tsr_zip_window tsr_zip_window_of(tsr_range archive, const tsr_allocator *allocator)
{
    return (tsr_zip_window){.allocator = allocator, .archive = archive};
}
void tsr_zip_window_free(tsr_zip_window *window);

/* Reads bytes of a member into `buffer`, from the store unless they are held. `byte_offset` counts from the beginning of the
 * file. Errors: those of tsr_store_read. */
tsr_status tsr_zip_window_read(const tsr_zip_window *window, uint64_t byte_offset, void *buffer, size_t size,
                               tsr_error *err);

typedef struct tsr_zip_member {
    tsr_str name;           /* with the top directory */
    uint64_t byte_offset;   /* of the data, absolute in the file */
    uint64_t size;          /* in bytes; members are not compressed */
    uint32_t crc32;         /* as the central directory states it; 0 may mean that it was not computed */
    uint16_t flags;         /* general purpose bits */
    uint64_t header_offset; /* of the local header, absolute in the file */
} tsr_zip_member;

typedef struct tsr_zip {
    uint32_t file;
    uint64_t byte_offset;                 /* of the archive in the file */
    uint64_t size;                        /* up to the end of its end record; what follows is not part of the archive */
    const tsr_zip_member *members;        /* in order of the central directory */
    const tsr_zip_member *const *by_name; /* by name, ignoring ASCII case; for tsr_zip_find */
    uint32_t count;
    tsr_str top;     /* the top directory that all members share, without '/'; empty if there is none */
    bool crc_absent; /* some member has bytes, and no member has a CRC other than 0 */
} tsr_zip;

/* Reads the end records, the central directory and the local headers of the archive that fills the window's range of a file.
 * A small archive takes a single read. If the store has guards, local headers are checked when members are read
 * (codec/zip.c). *out is allocated in `arena`. Errors: TSR_E_FORMAT and TSR_E_UNSUPPORTED with the byte position in
 * the file; TSR_E_LIMIT for a central directory larger than limits.metadata_bytes; TSR_E_IO; TSR_E_NOMEM. Thread-safe for
 * different windows and arenas. */
tsr_status tsr_zip_open(tsr_zip_window *window, const tsr_host *host, tsr_arena *arena, tsr_zip *out, tsr_error *err);
/* The same for an archive that has lost its end, and with it the directory: finds the members that are whole, one after the other,
 * by their local headers and data descriptors. A member counts as whole if its bytes have the CRC-32 that is stated of them,
 * or if none is stated (0). Reads all bytes. Errors: TSR_E_FORMAT if no member is whole; otherwise as tsr_zip_open. */
tsr_status tsr_zip_salvage(tsr_zip_window *window, const tsr_host *host, tsr_arena *arena, tsr_zip *out, tsr_error *err);
/* Finds the member <top>/<name>; returns NULL if there is none. O(log n). */
const tsr_zip_member *tsr_zip_find(const tsr_zip *zip, tsr_str name);
/* Whether the bytes begin with the signature of a local header, as every archive with members does. */
bool tsr_zip_looks_like(tsr_str first_bytes);

/* Writes STORED zip archives as torch.save does: an "FB" extra field aligns the data of every member to 64 bytes, the CRC
 * and the sizes follow the data in a descriptor, zip64 fields are used if 32 bits are too few, and there is always a zip64
 * end record.
 *
 *   [local header | name | FB padding | data | descriptor]…  [central directory] [zip64 end, locator] [end]
 *
 * The layout depends only on names and sizes. Lay out first, then write the pieces in any order; those with a CRC can be
 * written once it is known. The functions have no state and are thread-safe. Sources: APPNOTE.TXT 6.3.10 §4, and files that
 * torch 2.13 wrote. */

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
