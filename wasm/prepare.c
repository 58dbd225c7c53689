#include "handles.h"
#include "lent.h"

/* Called once when the second file is loaded. */
TSR_EXPORT(tessera_prepare) void tessera_prepare(void)
{
    tessera_lent = (tsr_host){.sha256 = &tessera_sha256, .xxh3 = &tessera_xxh3, .zstd = &tessera_zstd};
}
