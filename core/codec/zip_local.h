/* Checks the structures around a member's data in a zip archive: its local header and its data descriptor. */
#ifndef TSR_CODEC_ZIP_LOCAL_H
#define TSR_CODEC_ZIP_LOCAL_H

#include "base/cursor.h"
#include "codec/zip.h"

enum {
    TSR_ZIP_LOCAL_SIGNATURE = 0x04034b50,
    TSR_ZIP_LOCAL_SIZE = 30, /* without the name and the extra field */
    TSR_ZIP_FLAG_DESCRIPTOR = 0x0008,
    TSR_ZIP_DESCRIPTOR_LEAST = 12,
    TSR_ZIP_DESCRIPTOR_MOST = 24
};

/* Checks a local header at `p`, with its name and extra field. Fails with TSR_E_FORMAT if it disagrees with the central
 * directory. */
tsr_status tsr_zip_check_local(const tsr_zip_member *member, const uint8_t *p, tsr_error *err);
/* Checks the data descriptor at `p`: the `size` bytes (12, 16, 20 or 24) between the member's data and the next header.
 * Fails in the same way. */
tsr_status tsr_zip_check_descriptor(const tsr_zip_member *member, const uint8_t *p, size_t size, tsr_error *err);

/* Finds the zip64 field in the extra fields, and sets *fields to its content. Returns whether there is one. */
bool tsr_zip64_extra(tsr_cursor extra, tsr_cursor *fields);
/* Reads a 32-bit field; if all its bits are set, the value is the next one of the zip64 field. Returns false if that has no
 * more values. */
bool tsr_zip_widen(uint32_t field, tsr_cursor *zip64, uint64_t *out);

#endif
