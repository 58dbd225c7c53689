/* Decompresses items of stream.zstd/1 with zstd's own decoder. */
#include <zstd.h>

#include "platform/lent.h"

static void *start(void)
{
    return ZSTD_createDStream();
}

static int step(void *state, tsr_str *in, void *out, size_t out_size, size_t *written)
{
    ZSTD_inBuffer input = {in->data, in->size, 0};
    ZSTD_outBuffer output = {out, out_size, 0};
    const size_t left = ZSTD_decompressStream(state, &output, &input);
    in->data += input.pos;
    in->size -= input.pos;
    *written = output.pos;
    return ZSTD_isError(left) ? -1 : left == 0;
}

static void end(void *state)
{
    ZSTD_freeDStream(state);
}

const tsr_zstd_ops tessera_zstd = {start, step, end};
