/* The sound safetensors file inside a damaged one.
 *
 * Example:
 *
 *     tsr_salvaged_file found;
 *     status = tsr_salvage_safetensors(store, 0, host, arena, &found, &err);
 *     if (status == TSR_OK) printf("%llu bytes are left out\n", (unsigned long long)found.trailing); */
#ifndef TESSERA_SYS_SALVAGED_FILE_H
#define TESSERA_SYS_SALVAGED_FILE_H

#include "tessera/checkpoint.h"

TSR_API_BEGIN

/* A sound file inside a damaged one, as the only file of a store. */
typedef struct tsr_salvaged_file {
    tsr_store *store;     /* in the arena; reads from the damaged one's */
    uint64_t size;        /* of the sound file */
    uint64_t entries;     /* tensors in it */
    uint64_t header_nuls; /* bytes in the padding of the header that became spaces */
    uint64_t trailing;    /* bytes behind the last tensor that are left out */
} tsr_salvaged_file;

/* Finds the safetensors file inside one whose header is padded with NULs, which no reader accepts, or with bytes behind its last
 * tensor. The bytes of the tensors stay as they are. Errors: TSR_E_USAGE if it is sound; TSR_E_UNSUPPORTED if something is missing;
 * those of opening. */
tsr_status tsr_salvage_safetensors(tsr_store *store, uint32_t file, const tsr_host *host, tsr_arena *arena,
                                   tsr_salvaged_file *out, tsr_error *err);

TSR_API_END

#endif
