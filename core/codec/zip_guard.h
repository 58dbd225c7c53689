/* Local headers that are read when their data is: where every read is a request, an archive of a thousand members must not cost
 * a thousand of them before it is listed. */
#ifndef TSR_CODEC_ZIP_GUARD_H
#define TSR_CODEC_ZIP_GUARD_H

#include "codec/zip.h"

typedef struct tsr_zip_locals {
    const tsr_zip *zip;
    tsr_zip_member *const *order; /* its members by header_offset */
    uint32_t file;                /* its number in the store that has guards */
    uint64_t end;                 /* of the last one, absolute in the file */
} tsr_zip_locals;

/* Sets byte_offset of all members from the central directory alone, and lets the store check each local header, with the
 * descriptor in front of it, before it gives out bytes behind it. The last descriptor, which no header follows, is left to the
 * caller.
 *
 * *is_guarded false: the directory leaves open where data begins; byte_offset of all members is still to be set. That is certain where no descriptor
 * follows; otherwise data is taken to begin at a multiple of 64 bytes, as torch.save writes it. `store->guard` is not NULL. */
tsr_status tsr_zip_guard_locals(tsr_store *store, const tsr_allocator *allocator, const tsr_zip_locals *locals, bool *is_guarded,
                                tsr_error *err);

#endif
