/* Reads boxes into live memory. Data for a device passes through the halves of a buffer: the next tile is read while the
 * previous one is copied. */
#include "statedict/saveload/piece_reads.h"

#include "statedict/tensor/pack.h"
#include "tessera/read.h"
#include "tessera/sys/box.h"
#include "tessera/sys/folder.h"
#include "tessera/sys/path_store.h"
#include "tessera/sys/try.h"

#define BUFFER_BYTES_DEFAULT ((size_t)16 << 20)
#define BUFFER_BYTES_LEAST   ((size_t)128) /* so that each half has room for one element of any type */

tsr_status tsr_piece_reader_open(tsr_piece_reader *r, const char *path, size_t buffer_bytes, const tsr_host *host,
                                 tsr_error *err)
{
    *r = (tsr_piece_reader){.host = host};
    if (buffer_bytes == 0) buffer_bytes = BUFFER_BYTES_DEFAULT;
    if (buffer_bytes < BUFFER_BYTES_LEAST) buffer_bytes = BUFFER_BYTES_LEAST;
    r->halves = (tsr_halves){.memory = tsr_alloc(host->allocator, buffer_bytes, 1, err), .bytes = buffer_bytes};
    if (!r->halves.memory) return TSR_E_NOMEM;
    TSR_TRY(tsr_path_store_open(host, path, &r->store, err));
    return tsr_checkpoint_open(r->store, host, NULL, &r->checkpoint, err);
}

tsr_status tsr_piece_reader_end(tsr_piece_reader *r, tsr_error *err)
{
    TSR_TRY(tsr_halves_end(&r->halves, err));
    return tsr_folder_store_unchanged(r->store, err);
}

void tsr_piece_reader_close(tsr_piece_reader *r)
{
    if (!r->host) return;
    tsr_halves_end(&r->halves, NULL);
    tsr_checkpoint_close(r->checkpoint);
    if (r->store) r->store->close(r->store);
    tsr_free(r->host->allocator, r->halves.memory, r->halves.bytes, 1);
}

/* Chooses the size of a tile at `at` that fits into the buffer: as many whole inner dims as possible, and a part of the next
 * one. */
static void size_tile(const tsr_piece *piece, uint32_t ndim, uint32_t itemsize, size_t room, const uint64_t *at,
                      uint64_t *sizes)
{
    uint64_t inner = itemsize;
    uint32_t d = ndim;
    for (; d > 0 && inner <= room / piece->sizes[d - 1]; d--) inner *= sizes[d - 1] = piece->sizes[d - 1];
    for (uint32_t i = 0; i < d; i++) sizes[i] = 1;
    if (d == 0) return;
    const uint64_t left = piece->sizes[d - 1] - at[d - 1];
    sizes[d - 1] = left < room / inner ? left : room / inner;
}

static bool next_tile(const tsr_piece *piece, uint32_t ndim, const uint64_t *sizes, uint64_t *at)
{
    for (uint32_t d = ndim; d-- > 0; at[d] = 0) {
        at[d] += sizes[d];
        if (at[d] < piece->sizes[d]) return true;
    }
    return false;
}

static tsr_status read_tile(tsr_piece_reader *r, const tsr_entry *entry, const tsr_tensor *tensor, const tsr_piece *piece,
                            tsr_box tile, tsr_error *err)
{
    const uint32_t ndim = tile.ndim;
    uint64_t offsets[TSR_MAX_NDIM], local[TSR_MAX_NDIM], elements;
    for (uint32_t d = 0; d < ndim; d++) {
        offsets[d] = piece->offsets[d] + tile.offsets[d];
        local[d] = piece->local_offsets[d] + tile.offsets[d];
    }
    tsr_box_volume((tsr_box){ndim, NULL, tile.sizes}, &elements);
    tsr_link link = {.ndim = ndim,
                     .itemsize = tsr_dtype_size(tensor->entry.dtype),
                     .offsets = local,
                     .sizes = tile.sizes,
                     .buffer_sizes = piece->buffer_sizes,
                     .data = piece->data,
                     .device = tensor->device};
    link.bytes = elements * link.itemsize;
    tsr_stream stream = tsr_stream_of(&link, 1);
    uint8_t *there = tsr_stream_peek(&stream, false, link.bytes);
    if (there)
        return tsr_read_box(r->checkpoint, entry, (tsr_box){entry->ndim, offsets, tile.sizes}, there, (size_t)link.bytes,
                            err);
    uint8_t *taken = tensor->device ? tsr_halves_take(&r->halves, (size_t)link.bytes) : r->halves.memory;
    TSR_TRY(tsr_read_box(r->checkpoint, entry, (tsr_box){entry->ndim, offsets, tile.sizes}, taken, (size_t)link.bytes, err));
    if (tensor->device) TSR_TRY(tsr_halves_filled(&r->halves, err));
    return tsr_stream_unpack(&stream, taken, NULL, link.bytes, err);
}

/* Reads a piece directly if it is contiguous in host memory, otherwise tile by tile. */
tsr_status tsr_piece_read(tsr_piece_reader *r, const tsr_entry *entry, const tsr_tensor *tensor, const tsr_piece *piece,
                          tsr_error *err)
{
    const uint32_t ndim = tensor->entry.ndim, itemsize = tsr_dtype_size(tensor->entry.dtype);
    const size_t room = tensor->device ? tsr_halves_room(&r->halves) : r->halves.bytes;
    uint64_t at[TSR_MAX_NDIM] = {0}, sizes[TSR_MAX_NDIM];
    const bool direct = !tensor->device && tsr_box_is_contiguous((tsr_box){ndim, NULL, piece->buffer_sizes},
                                                                 (tsr_box){ndim, piece->local_offsets, piece->sizes});
    if (direct) return read_tile(r, entry, tensor, piece, (tsr_box){ndim, at, piece->sizes}, err);
    if (tensor->device) TSR_TRY(tsr_halves_use(&r->halves, tensor->device, err));
    do {
        size_tile(piece, ndim, itemsize, room, at, sizes);
        TSR_TRY(read_tile(r, entry, tensor, piece, (tsr_box){ndim, at, sizes}, err));
    } while (next_tile(piece, ndim, sizes, at));
    return TSR_OK;
}
