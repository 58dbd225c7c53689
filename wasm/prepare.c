/* Connects the second file to the first when it is loaded. */
#include "platform/lent.h"
#include "shim.h"
#include "tessera/document_read.h"
#include "tessera/sys/document.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/try.h"

/* Reads the value of --shards: a document, which begins with a brace, or the name of a built-in map. */
static tsr_status read_shards(tsr_str given, const tsr_host *host, tsr_arena *arena, const tsr_shards **out, tsr_error *err)
{
    tsr_shards *read;
    if (!tessera_is_document(given)) {
        *out = tsr_shards_built_in(given);
        if (*out) return TSR_OK;
        return tsr_fail(
            err, TSR_E_NOT_FOUND,
            "--shards takes a tessera.shards/1 document, or one of meta-llama, megatron-gpt and vllm, not '%.*s'",
            TSR_STR_ARG(given));
    }
    *out = read = TSR_ARENA_NEW(arena, tsr_shards, err);
    return read ? tsr_shards_read(given, host, arena, read, err) : TSR_E_NOMEM;
}

/* JavaScript calls this once after loading the second file. */
TSR_EXPORT(tessera_prepare) void tessera_prepare(void)
{
    tessera_lent =
        (tsr_host){.crc32 = tessera_crc32, .sha256 = &tsr_sha256_portable, .xxh3 = &tessera_xxh3, .zstd = &tessera_zstd};
    tessera_read_shards = read_shards;
    tessera_is_prepared = true;
}
