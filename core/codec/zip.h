/* STORED zip and zip64 archives as torch.save writes them, inside any range of a file. The central directory is the
 * truth; hostile differences (local and central disagree, duplicate or case-fold-twin names, overlapping members, several
 * end records, compression, encryption, bytes that belong to nothing) are refused with TSR_E_FORMAT or TSR_E_UNSUPPORTED
 * and a located message.
 *
 *   [local header | name | extra (FB padding) | data | descriptor]… [central directory] [zip64 end + locator] [end record]
 *
 * Source of the facts: APPNOTE.TXT 6.3.10 §4, files that torch 1.x–2.13 wrote. */
#ifndef TSR_CODEC_ZIP_H
#define TSR_CODEC_ZIP_H

#include "codec/zip_window.h"

typedef struct tsr_zip_member {
    tsr_str name;         /* whole, with the top folder */
    uint64_t byte_offset; /* of the data, absolute in the file */
    uint64_t size;        /* bytes; stored = plain */
    uint32_t crc32;       /* as the central directory has it; 0 may mean "not computed" */
    uint16_t flags;       /* general purpose bits */
    uint64_t header_offset; /* of the local header, absolute in the file */
} tsr_zip_member;

typedef struct tsr_zip {
    uint32_t file;
    uint64_t byte_offset; /* of the archive in the file */
    uint64_t size;
    const tsr_zip_member *members; /* in order of the central directory */
    const tsr_zip_member *const *by_name; /* sorted by name, ASCII letters folded: see tsr_zip_find */
    uint32_t count;
    tsr_str top;          /* the common top folder of all members, without '/', or empty */
    bool crc_absent;      /* there are bytes, and every member that has some carries CRC 0 */
} tsr_zip;

/* Reads the end records, the central directory and the local headers (batched into few reads; a small archive is one
 * read) of the archive that fills the window's range of a file. Lives in `arena`. Errors: TSR_E_FORMAT and
 * TSR_E_UNSUPPORTED with the byte position in the file, TSR_E_LIMIT for a central directory beyond
 * limits.metadata_bytes, TSR_E_IO, TSR_E_NOMEM. Thread-safe for different windows and arenas. */
tsr_status tsr_zip_open(tsr_zip_window *window, const tsr_host *host, tsr_arena *arena, tsr_zip *out, tsr_error *err);
/* The member <top>/<name>, or NULL. O(log n). */
const tsr_zip_member *tsr_zip_find(const tsr_zip *zip, tsr_str name);
/* Whether the range begins like a zip archive (local header signature). */
bool tsr_zip_looks_like(tsr_str first_bytes);

#endif
