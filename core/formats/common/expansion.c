/* See expansion.h. */
#include "formats/common/expansion.h"

#include "tessera/sys/catalog.h"
#include "tessera/sys/containers.h"
#include "tessera/sys/try.h"

tsr_status tsr_expansion_take(uint64_t *room, uint64_t bytes, const tsr_host *host, tsr_error *err)
{
    TSR_FAIL_IF(bytes > *room, err, TSR_E_LIMIT,
                "shared values would expand to %llu bytes%s of names and entries, but only %llu are left of the limit (%u "
                "for each byte of metadata, plus %llu). No training job writes this; do not trust the file",
                (unsigned long long)bytes, bytes == UINT64_MAX ? " or more" : "", (unsigned long long)*room,
                TSR_EXPANSION_PER_BYTE, (unsigned long long)host->limits.expansion);
    *room -= bytes;
    return TSR_OK;
}

void tsr_expansion_add(uint64_t *room, uint64_t input)
{
    const uint64_t more = input > UINT64_MAX / TSR_EXPANSION_PER_BYTE ? UINT64_MAX : input * TSR_EXPANSION_PER_BYTE;
    *room = *room > UINT64_MAX - more ? UINT64_MAX : *room + more;
}

tsr_status tsr_expansion_take_value(uint64_t *room, const tsr_value **value, tsr_arena *arena, tsr_error *err)
{
    if (*value && (*value)->expanded <= *room) {
        *room -= (*value)->expanded;
        return TSR_OK;
    }
    if (!*value || (*value)->expanded == TSR_VALUE_ENDLESS) return TSR_OK;
    tsr_value *copy = tsr_value_new(arena, (*value)->kind, err);
    if (!copy) return TSR_E_NOMEM;
    *copy = **value;
    copy->expanded = TSR_VALUE_ENDLESS;
    *value = copy;
    return TSR_OK;
}
