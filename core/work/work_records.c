/* The record of a finished unit, little-endian:
 *
 *   unit u64 | CRCs n u32 | n × u32 | CRC-32 of all this u32
 *
 * n is the number of blits of the unit, or 0 if the container needs no CRCs. If casts lost values, the highest bit of n is set,
 * and the CRCs are followed by
 *
 *   zeros u64 | overflows u64 | first blit with zeros u32 | first blit with overflows u32 */
#include "base/cursor.h"
#include "tessera/sys/try.h"
#include "tessera/sys/vec.h"
#include "work/work_parts.h"

#include "tessera/sys/host_calls.h"

enum { LOSSES = 24 }; /* bytes */
#define HAS_LOSSES UINT32_C(0x80000000)

static void store_losses(const tsr_unit *unit, uint8_t *out)
{
    tsr_store_le(out, unit->losses.zeros, 8);
    tsr_store_le(out + 8, unit->losses.overflows, 8);
    tsr_store_le(out + 16, unit->first_zero, 4);
    tsr_store_le(out + 20, unit->first_overflow, 4);
}

tsr_status tsr_work_put_record(const tsr_work *work, size_t number, tsr_vec *out, tsr_error *err)
{
    const tsr_unit *unit = tsr_work_unit(work, number);
    const bool lost = unit->losses.zeros || unit->losses.overflows;
    const uint32_t count = work->crc ? unit->count : 0;
    const size_t crcs = 12 + 4 * (size_t)count, size = crcs + (lost ? LOSSES : 0);
    TSR_TRY(tsr_vec_reserve(out, size + 4, err));
    uint8_t *bytes = (uint8_t *)out->items + out->count;
    tsr_store_le(bytes, number, 8);
    tsr_store_le(bytes + 8, count | (lost ? HAS_LOSSES : 0), 4);
    for (uint32_t i = 0; i < count; i++) tsr_store_le(bytes + 12 + 4 * (size_t)i, unit->crcs[i], 4);
    if (lost) store_losses(unit, bytes + crcs);
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

typedef struct record {
    uint64_t number;
    uint32_t count;
    const uint8_t *crcs;
    const uint8_t *losses; /* or NULL */
} record;

/* Reads the next record. Returns false if the rest is not a complete, undamaged record. */
static bool next_record(tsr_cursor *c, record *out)
{
    const uint8_t *start = c->data + c->at;
    const size_t at = c->at;
    out->number = tsr_cursor_u64(c);
    out->count = tsr_cursor_u32(c);
    const bool lost = out->count & HAS_LOSSES;
    out->count &= ~HAS_LOSSES;
    out->crcs = tsr_cursor_left(c) / 4 > out->count ? tsr_cursor_take(c, 4 * (size_t)out->count) : NULL;
    out->losses = lost && out->crcs ? tsr_cursor_take(c, LOSSES) : NULL;
    const size_t size = c->at - at;
    return out->crcs && tsr_cursor_u32(c) == tsr_crc32(NULL, 0, start, size) && !c->failed;
}

static void take_record(tsr_unit *unit, const record *r)
{
    for (uint32_t i = 0; i < r->count; i++) unit->crcs[i] = (uint32_t)tsr_load_le(r->crcs + 4 * (size_t)i, 4);
    unit->losses = (tsr_cast_losses){.zeros = r->losses ? tsr_load_le(r->losses, 8) : 0,
                                     .overflows = r->losses ? tsr_load_le(r->losses + 8, 8) : 0};
    unit->first_zero = r->losses ? (uint32_t)tsr_load_le(r->losses + 16, 4) : 0;
    unit->first_overflow = r->losses ? (uint32_t)tsr_load_le(r->losses + 20, 4) : 0;
    unit->done = true;
}

tsr_status tsr_work_take(tsr_work *work, tsr_str records, size_t *taken, tsr_error *err)
{
    tsr_cursor c = tsr_cursor_on(records);
    record r;
    size_t whole = 0;
    for (; next_record(&c, &r); whole = c.at) {
        tsr_unit *unit = r.number < work->units.count ? tsr_work_unit(work, (size_t)r.number) : NULL;
        const bool fits = unit && r.count == (work->crc ? unit->count : 0);
        const bool known =
            fits &&
            (!r.losses || (tsr_load_le(r.losses + 16, 4) < unit->count && tsr_load_le(r.losses + 20, 4) < unit->count));
        TSR_FAIL_AT(!known, err, TSR_E_FORMAT, whole,
                    "a record of unit %llu with %u checksums does not belong to this work of %zu units",
                    (unsigned long long)r.number, (unsigned)r.count, work->units.count);
        take_record(unit, &r);
    }
    if (taken) *taken = whole;
    return TSR_OK;
}
