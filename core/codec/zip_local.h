/* What lies before and after the data of a zip's member: its local header, and its data descriptor. */
#ifndef TSR_CODEC_ZIP_LOCAL_H
#define TSR_CODEC_ZIP_LOCAL_H

#include "base/cursor.h"
#include "codec/zip.h"

enum {
    TSR_ZIP_LOCAL_SIGNATURE = 0x04034b50,
    TSR_ZIP_LOCAL_SIZE = 30, /* without name and extra field */
    TSR_ZIP_FLAG_DESCRIPTOR = 0x0008,
    TSR_ZIP_DESCRIPTOR_LEAST = 12,
    TSR_ZIP_DESCRIPTOR_MOST = 24
};

/* `p`: a local header, whole, with its name and extra field. TSR_E_FORMAT where it disagrees with the central directory. */
tsr_status tsr_zip_check_local(const tsr_zip_member *member, const uint8_t *p, tsr_error *err);
/* `p`: the `size` bytes between the member's data and the next header (12, 16, 20 or 24). TSR_E_FORMAT: as above. */
tsr_status tsr_zip_check_descriptor(const tsr_zip_member *member, const uint8_t *p, size_t size, tsr_error *err);

/* Whether there is a zip64 extra field; its content. */
bool tsr_zip64_extra(tsr_cursor extra, tsr_cursor *fields);
/* A 32-bit field whose all-ones value means: see the zip64 extra field. false: that has no such field. */
bool tsr_zip_widen(uint32_t field, tsr_cursor *zip64, uint64_t *out);

#endif
