/* Reads a compressed item forwards.
 *
 *   file:   … | zstd frame ················ | …
 *               └ input (64 KiB) ─▶ decoder ─▶ the caller's buffer, or `dump` while skipping */
#include "stream/unzstd.h"

#include "tessera/sys/try.h"

#include "tessera/sys/alloc.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store_read.h"

#define INPUT_BYTES ((size_t)64 << 10)
#define DUMP_BYTES  ((size_t)32 << 10) /* for decompressed bytes that nobody needs: a zstd stream cannot be skipped */

struct tsr_unzstd {
    tsr_range in;
    const tsr_host *host;
    void *decoder;
    uint64_t fetched;  /* compressed bytes read so far */
    uint64_t position; /* decompressed bytes produced so far */
    tsr_str input;     /* the part of `buffer` that was not consumed yet */
    bool ended;
    char buffer[INPUT_BYTES];
    char dump[DUMP_BYTES];
};

tsr_status tsr_unzstd_open(tsr_range in, const tsr_host *host, tsr_unzstd **out, tsr_error *err)
{
    TSR_FAIL_IF(!host->zstd, err, TSR_E_NOT_BUILT, TSR_ZSTD_NOT_BUILT);
    tsr_unzstd *stream = tsr_alloc(host->allocator, 1, sizeof *stream, err);
    if (!stream) return TSR_E_NOMEM;
    stream->in = in;
    stream->host = host;
    stream->decoder = NULL;
    stream->position = 0;
    *out = stream;
    return TSR_OK;
}

void tsr_unzstd_close(tsr_unzstd *stream)
{
    if (!stream) return;
    if (stream->decoder) stream->host->zstd->end(stream->decoder);
    tsr_free(stream->host->allocator, stream, 1, sizeof *stream);
}

static tsr_status start_over(tsr_unzstd *stream, tsr_error *err)
{
    if (stream->decoder) stream->host->zstd->end(stream->decoder);
    stream->decoder = stream->host->zstd->start();
    TSR_FAIL_IF(!stream->decoder, err, TSR_E_NOMEM, "out of memory for a zstd decoder");
    stream->fetched = stream->position = 0;
    stream->input = (tsr_str){stream->buffer, 0};
    stream->ended = false;
    return TSR_OK;
}

static tsr_status fetch(tsr_unzstd *stream, tsr_error *err)
{
    uint64_t left = stream->in.byte_length - stream->fetched;
    size_t size = left < INPUT_BYTES ? (size_t)left : INPUT_BYTES;
    TSR_TRY(tsr_store_read(stream->in.store, stream->in.file, stream->in.byte_offset + stream->fetched, stream->buffer, size,
                           err));
    stream->fetched += size;
    stream->input = (tsr_str){stream->buffer, size};
    return TSR_OK;
}

/* Produces up to `size` decompressed bytes, at least one unless the stream has ended. */
static tsr_status produce(tsr_unzstd *stream, void *out, size_t size, size_t *written, tsr_error *err)
{
    *written = 0;
    while (!stream->ended && *written == 0) {
        if (stream->input.size == 0 && stream->fetched < stream->in.byte_length) TSR_TRY(fetch(stream, err));
        const size_t waiting = stream->input.size;
        int step = stream->host->zstd->step(stream->decoder, &stream->input, out, size, written);
        const uint64_t at = stream->in.byte_offset + stream->fetched - stream->input.size;
        TSR_FAIL_AT(step < 0, err, TSR_E_FORMAT, at, "the zstd stream in %.*s is damaged",
                    TSR_STR_ARG(stream->in.store->files[stream->in.file].name));
        const bool no_more = stream->input.size == 0 && stream->fetched == stream->in.byte_length;
        TSR_FAIL_AT(step == 0 && *written == 0 && stream->input.size == waiting, err, TSR_E_FORMAT, at,
                    "the zstd stream in %.*s ends early", TSR_STR_ARG(stream->in.store->files[stream->in.file].name));
        stream->ended = step == 1 && no_more;
    }
    stream->position += *written;
    return TSR_OK;
}

tsr_status tsr_unzstd_read(tsr_unzstd *stream, uint64_t position, void *buffer, size_t size, tsr_error *err)
{
    if (!stream->decoder || position < stream->position) TSR_TRY(start_over(stream, err));
    uint8_t *out = buffer;
    while (size) {
        const uint64_t ahead = position - stream->position;
        const size_t skip = ahead < DUMP_BYTES ? (size_t)ahead : DUMP_BYTES;
        size_t written;
        TSR_TRY(produce(stream, ahead ? (void *)stream->dump : out, ahead ? skip : size, &written, err));
        TSR_FAIL_AT(written == 0, err, TSR_E_FORMAT, stream->in.byte_offset,
                    "the zstd stream in %.*s contains %llu bytes, but %llu are needed at byte %llu",
                    TSR_STR_ARG(stream->in.store->files[stream->in.file].name), (unsigned long long)stream->position,
                    (unsigned long long)size, (unsigned long long)position);
        if (ahead) continue;
        out += written;
        size -= written;
        position += written;
    }
    return TSR_OK;
}
