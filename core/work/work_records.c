/* The record of a finished unit, little-endian:
 *
 *   unit u64 | CRCs n u32 | n × u32 | CRC-32 of all this u32
 *
 * n is the number of blits of the unit, or 0 if the container needs no CRCs. */
#include "base/cursor.h"
#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"
#include "work/work_parts.h"

#include "tessera/sys/host_calls.h"

tsr_status tsr_work_put_record(const tsr_work *work, size_t number, tsr_vec *out, tsr_error *err)
{
    const tsr_unit *unit = tsr_work_unit(work, number);
    const uint32_t count = work->crc ? unit->count : 0;
    const size_t size = 12 + 4 * (size_t)count;
    TSR_TRY(tsr_vec_reserve(out, size + 4, err));
    uint8_t *bytes = (uint8_t *)out->items + out->count;
    tsr_store_le(bytes, number, 8);
    tsr_store_le(bytes + 8, count, 4);
    for (uint32_t i = 0; i < count; i++) tsr_store_le(bytes + 12 + 4 * (size_t)i, unit->crcs[i], 4);
    tsr_store_le(bytes + size, tsr_crc32(NULL, 0, bytes, size), 4);
    out->count += size + 4;
    return TSR_OK;
}

tsr_status tsr_work_records(const tsr_work *work, tsr_vec *out, tsr_error *err)
{
    for (size_t u = 0; u < work->units.count; u++) {
        if (tsr_work_unit(work, u)->done) TSR_TRY(tsr_work_put_record(work, u, out, err));
    }
    return TSR_OK;
}

/* Reads the next record. Returns false if the rest is not a complete, undamaged record. */
static bool next_record(tsr_cursor *c, uint64_t *number, uint32_t *count, const uint8_t **crcs)
{
    const uint8_t *start = c->data + c->at;
    *number = tsr_cursor_u64(c);
    *count = tsr_cursor_u32(c);
    *crcs = tsr_cursor_left(c) / 4 > *count ? tsr_cursor_take(c, 4 * (size_t)*count) : NULL;
    return *crcs && tsr_crc32(NULL, 0, start, 12 + 4 * (size_t)*count) == tsr_cursor_u32(c) && !c->failed;
}

tsr_status tsr_work_take(tsr_work *work, tsr_str records, size_t *taken, tsr_error *err)
{
    tsr_cursor c = tsr_cursor_on(records);
    uint64_t number;
    uint32_t count;
    const uint8_t *crcs;
    size_t whole = 0;
    for (; next_record(&c, &number, &count, &crcs); whole = c.at) {
        tsr_unit *unit = number < work->units.count ? tsr_work_unit(work, (size_t)number) : NULL;
        TSR_FAIL_AT(!unit || count != (work->crc ? unit->count : 0), err, TSR_E_FORMAT, whole,
                    "a record of unit %llu with %u checksums does not belong to this work of %zu units",
                    (unsigned long long)number, (unsigned)count, work->units.count);
        for (uint32_t i = 0; i < count; i++) unit->crcs[i] = (uint32_t)tsr_load_le(crcs + 4 * (size_t)i, 4);
        unit->done = true;
    }
    if (taken) *taken = whole;
    return TSR_OK;
}
