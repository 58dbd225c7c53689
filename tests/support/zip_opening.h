/* A zip archive opened without keeping what was read. */
#ifndef TESTS_SUPPORT_ZIP_OPENING_H
#define TESTS_SUPPORT_ZIP_OPENING_H

#include "codec/zip.h"

static inline tsr_status zip_opened(tsr_range range, const tsr_host *host, tsr_arena *arena, tsr_zip *out, tsr_error *err)
{
    tsr_zip_window window = tsr_zip_window_of(range, host->allocator);
    const tsr_status status = tsr_zip_open(&window, host, arena, out, err);
    tsr_zip_window_free(&window);
    return status;
}

#endif
