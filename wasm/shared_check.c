/* A deep check that several modules share, each with the same files: parts are bytes, which JavaScript passes on. */
#include <stdlib.h>

#include "shim.h"
#include "tessera/sys/check.h"

static tsr_status open_ring(opened *item, tsr_ring **out, tsr_error *err)
{
    *out = NULL;
    const tsr_status status = tessera_validate_once(item, err);
    return status == TSR_OK ? tsr_ring_new(&item->host, 0, out, err) : status;
}

/* Checks part `number` of `count`. Returns what it found, `*size` bytes, to be freed with tessera_release. */
TSR_EXPORT(tessera_check_part)
void *tessera_check_part(uint32_t handle, uint32_t number, uint32_t count, uint32_t *size, tsr_error *err)
{
    opened *item = tessera_checkpoint_of(handle, err);
    tsr_vec found = tsr_vec_of(&tsr_allocator_libc, 1);
    tsr_ring *ring;
    if (!item || open_ring(item, &ring, err) != TSR_OK) return NULL;
    const tsr_status status = tsr_check_deep_part(item->checkpoint, (tsr_check_part){number, count}, ring, &found, err);
    tsr_ring_free(ring);
    *size = (uint32_t)found.count;
    if (status == TSR_OK) return found.items;
    tsr_vec_free(&found);
    return NULL;
}

/* Adds to the checkpoint's findings what all parts found, one behind the other, and what is checked when all of them are known. Returns 1. */
TSR_EXPORT(tessera_check_join)
uint32_t tessera_check_join(uint32_t handle, const char *parts, uint32_t size, uint32_t count, tsr_error *err)
{
    opened *item = tessera_checkpoint_of(handle, err);
    tsr_ring *ring;
    if (!item || open_ring(item, &ring, err) != TSR_OK) return 0;
    const tsr_status status = tsr_check_deep_join(item->checkpoint, (tsr_str){parts, size}, count, ring, err);
    tsr_ring_free(ring);
    return status == TSR_OK;
}
