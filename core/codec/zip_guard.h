/* Checks local headers only when the data after them is read. Where every read is a request to a server, listing an archive
 * of a thousand members must not cost a thousand requests. */
#ifndef TSR_CODEC_ZIP_GUARD_H
#define TSR_CODEC_ZIP_GUARD_H

#include "codec/zip.h"

typedef struct tsr_zip_locals {
    const tsr_zip *zip;
    tsr_zip_member *const *order; /* the archive's members, by header_offset */
    uint32_t file;                /* the number of the file in the store that has guards */
    uint64_t end;                 /* the end of the last member with its descriptor, absolute in the file */
} tsr_zip_locals;

/* Computes byte_offset of all members from the central directory alone, and registers a guard for each: before the store
 * returns bytes of a member, it checks the member's local header and the descriptor in front of it. The caller checks the
 * last descriptor, because no header follows it. `store->guard` must not be NULL.
 *
 * Without a descriptor the directory determines where data begins. With one, data is assumed to begin at a multiple of 64
 * bytes, as torch.save writes it. If no such position fits, *is_guarded is false, and the caller must set byte_offset of all
 * members itself. Errors: those of the store's guard; TSR_E_NOMEM. */
tsr_status tsr_zip_guard_locals(tsr_store *store, const tsr_allocator *allocator, const tsr_zip_locals *locals,
                                bool *is_guarded, tsr_error *err);

#endif
