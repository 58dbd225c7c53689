/* See zip_window.h. */
#include "codec/zip_window.h"

#include "tessera/sys/alloc.h"
#include "tessera/sys/try.h"

static bool holds(const tsr_zip_piece *piece, uint64_t at, size_t size)
{
    return at >= piece->start && at - piece->start <= piece->held && size <= piece->held - (at - piece->start);
}

static const uint8_t *held_bytes(const tsr_zip_window *window, uint64_t at, size_t size)
{
    const tsr_zip_piece *tail = &window->tail, *other = &window->other;
    return holds(tail, at, size)    ? tail->bytes + (at - tail->start)
           : holds(other, at, size) ? other->bytes + (at - other->start)
                                    : NULL;
}

static tsr_status fetch(tsr_zip_window *window, tsr_zip_piece *piece, uint64_t at, size_t size, tsr_error *err)
{
    const tsr_range *archive = &window->archive;
    if (size > piece->capacity) {
        uint8_t *grown = tsr_alloc(window->allocator, size, 1, err);
        if (!grown) return TSR_E_NOMEM;
        tsr_free(window->allocator, piece->bytes, piece->capacity, 1);
        piece->bytes = grown;
        piece->capacity = size;
    }
    piece->held = 0;
    TSR_TRY(tsr_store_read(archive->store, archive->file, archive->byte_offset + at, piece->bytes, size, err));
    piece->start = at;
    piece->held = size;
    return TSR_OK;
}

tsr_status tsr_zip_window_need(tsr_zip_window *window, uint64_t at, size_t size, size_t ahead, const uint8_t **out,
                               tsr_error *err)
{
    *out = held_bytes(window, at, size);
    if (*out) return TSR_OK;
    const uint64_t left = window->archive.byte_length - at;
    size_t wanted = ahead > size ? ahead : size;
    if (wanted > left) wanted = (size_t)left;
    TSR_TRY(fetch(window, window->tail.held ? &window->other : &window->tail, at, wanted, err));
    *out = held_bytes(window, at, size);
    return TSR_OK;
}

tsr_status tsr_zip_window_read(const tsr_zip_window *window, uint64_t byte_offset, void *buffer, size_t size, tsr_error *err)
{
    const tsr_range *archive = &window->archive;
    const bool is_inside = byte_offset >= archive->byte_offset && !window->is_guarded;
    const uint8_t *held = is_inside ? held_bytes(window, byte_offset - archive->byte_offset, size) : NULL;
    if (!held) return tsr_store_read(archive->store, archive->file, byte_offset, buffer, size, err);
    memcpy(buffer, held, size);
    return TSR_OK;
}

void tsr_zip_window_free(tsr_zip_window *window)
{
    tsr_free(window->allocator, window->tail.bytes, window->tail.capacity, 1);
    tsr_free(window->allocator, window->other.bytes, window->other.capacity, 1);
}
