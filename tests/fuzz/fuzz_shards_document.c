/* Reads any bytes as a tessera.shards/1 document, and joins the files of four ranks by its map. Both must work or be
 * rejected with a reason, and the pieces that are joined must be inside the tensors. */
#include <stdlib.h>

#include "tessera/document_read.h"
#include "tessera/sys/document.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"
#include "tessera/validate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HEADER \
    "{\"layers.0.w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},\"n\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[24,28]}}       "
#define RANK(fill) "\x80\0\0\0\0\0\0\0" HEADER fill

static const char first[] = RANK("abcdefghijklmnopqrstuvwx1234");
static const char second[] = RANK("ABCDEFGHIJKLMNOPQRSTUVWX1234");

static void join(const tsr_shards *map, const tsr_host *host)
{
    const tsr_str a = {first, sizeof first - 1}, b = {second, sizeof second - 1};
    const tsr_memory_file files[] = {{TSR_STR("0/0.safetensors"), a},
                                     {TSR_STR("0/1.safetensors"), b},
                                     {TSR_STR("1/0.safetensors"), b},
                                     {TSR_STR("1/1.safetensors"), a}};
    const tsr_open_options options = {.shards = map, .purpose = TSR_FOR_NAMES};
    tsr_error err = {0};
    tsr_store *store;
    tsr_checkpoint *checkpoint = NULL;
    if (tsr_store_from_memory(host->allocator, files, 4, &store, &err) != TSR_OK) return;
    const tsr_status status = tsr_checkpoint_open(store, host, &options, &checkpoint, &err);
    if (status != TSR_OK && !err.message[0]) abort();
    if (status == TSR_OK &&
        tsr_validate_catalog(tsr_checkpoint_catalog(checkpoint), host, tsr_checkpoint_findings(checkpoint), &err) != TSR_OK)
        abort();
    tsr_checkpoint_close(checkpoint);
    store->close(store);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    tsr_error err = {0};
    tsr_shards map;
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, (size_t)64 << 20, &err);
    if (!arena) return 0;
    const tsr_status status = tsr_shards_read((tsr_str){(const char *)data, size}, &host, arena, &map, &err);
    if (status == TSR_OK) join(&map, &host);
    else if (!err.message[0]) abort();
    tsr_arena_free(arena);
    return 0;
}
