/* Text, or any bytes, growing in a tsr_vec of bytes. */
#ifndef TSR_STREAM_TEXT_H
#define TSR_STREAM_TEXT_H

#include "tessera/memory.h"
#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"

/* A tsr_write_fn whose `ctx` is the vec. */
static inline tsr_status tsr_text_append(void *ctx, const char *data, size_t size, tsr_error *err)
{
    tsr_vec *text = (tsr_vec *)ctx;
    TSR_TRY(tsr_vec_reserve(text, size, err));
    if (size) memcpy((char *)text->items + text->count, data, size);
    text->count += size;
    return TSR_OK;
}

#endif
