/* The bytes of an archive that its reader has fetched: the tail, which contains the directory of most archives, and the last
 * read outside it. The members of a small archive, and the first members of a larger one, then need no further read. */
#ifndef TSR_CODEC_ZIP_WINDOW_H
#define TSR_CODEC_ZIP_WINDOW_H

#include "tessera/sys/store_read.h"

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

#endif
