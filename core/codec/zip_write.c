/* Writes the bytes of zip archives around the members' data.
 *
 *   local header   50 4b 03 04 | need 2 | flags 2 | method 2 | time 4 | crc 4 | packed 4 | size 4 | name n 2 | extra x 2
 *   descriptor     50 4b 07 08 | crc 4 | packed 4 or 8 | size 4 or 8
 *   central entry  50 4b 01 02 | made 2 | need 2 | flags 2 | method 2 | time 4 | crc 4 | packed 4 | size 4 | name n 2
 *                  | extra x 2 | comment 2 | disk 2 | internal 2 | external 4 | header offset 4
 *
 * The flags 0x0808 mean that the descriptor has the sizes and the CRC, and that names are UTF-8. Empty members have 0x0800
 * and no descriptor. Times are 0, as in torch's files. */
#include "codec/zip.h"

#include "base/cursor.h"
#include "tessera/sys/little_endian.h"
#include "tessera/sys/try.h"

#define LOCAL_SIZE      30u
#define CENTRAL_SIZE    46u
#define END_SIZE        22u
#define ZIP64_END_SIZE  56u
#define LOCATOR_SIZE    20u
#define EXTRA_SIZE      4u /* the id and the size of an extra field */
#define FLAG_DESCRIPTOR 0x0008u
#define FLAG_UTF8       0x0800u
#define ALIGNMENT       64u
#define NEED_ZIP64      45u
#define NARROW_LIMIT    UINT64_C(0xffffffff)
#define NARROW_COUNT    0xffffu

static bool is_wide(const tsr_zip_new_member *member)
{
    return member->size >= NARROW_LIMIT;
}

static unsigned flags_of(const tsr_zip_new_member *member)
{
    return FLAG_UTF8 | (member->size ? FLAG_DESCRIPTOR : 0);
}

static uint64_t descriptor_size(const tsr_zip_new_member *member)
{
    return member->size == 0 ? 0 : is_wide(member) ? 24 : 16;
}

/* The size of the zip64 extra field in the central directory, which has the values that do not fit in 32 bits. */
static uint64_t wide_extra(const tsr_zip_new_member *member)
{
    const uint64_t fields = (is_wide(member) ? 16u : 0u) + (member->header_offset >= NARROW_LIMIT ? 8u : 0u);
    return fields ? EXTRA_SIZE + fields : 0;
}

bool tsr_zip_layout(tsr_zip_new_member *members, size_t count, uint64_t *directory_offset, uint64_t *size)
{
    uint64_t at = 0, directory = ZIP64_END_SIZE + LOCATOR_SIZE + END_SIZE;
    for (size_t i = 0; i < count; i++) {
        tsr_zip_new_member *m = &members[i];
        if (m->size > UINT64_MAX / 4 || at > UINT64_MAX / 4 || m->name.size > 0xffff) return false;
        m->header_offset = at;
        m->byte_offset = (at + LOCAL_SIZE + m->name.size + EXTRA_SIZE + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        at = m->byte_offset + m->size + descriptor_size(m);
        directory += CENTRAL_SIZE + m->name.size + wide_extra(m);
    }
    *directory_offset = at;
    return tsr_add_u64(at, directory, size);
}

/* ---- bytes ---- */

static tsr_status room(tsr_vec *out, size_t size, uint8_t **at, tsr_error *err)
{
    TSR_TRY(tsr_vec_reserve(out, size, err));
    *at = (uint8_t *)out->items + out->count;
    memset(*at, 0, size);
    out->count += size;
    return TSR_OK;
}

static void put(uint8_t **at, uint64_t value, unsigned bytes)
{
    tsr_store_le(*at, value, bytes);
    *at += bytes;
}

static void put_str(uint8_t **at, tsr_str text)
{
    if (text.size) memcpy(*at, text.data, text.size);
    *at += text.size;
}

tsr_status tsr_zip_append_header(const tsr_zip_new_member *member, tsr_vec *out, tsr_error *err)
{
    const size_t size = (size_t)(member->byte_offset - member->header_offset);
    const size_t extra = size - LOCAL_SIZE - member->name.size;
    uint8_t *p;
    TSR_TRY(room(out, size, &p, err));
    put(&p, 0x04034b50, 4);
    put(&p, is_wide(member) ? NEED_ZIP64 : 0, 2);
    put(&p, flags_of(member), 2);
    p += 18; /* method (stored), time, CRC and sizes are 0; the descriptor has them */
    put(&p, member->name.size, 2);
    put(&p, extra, 2);
    put_str(&p, member->name);
    put_str(&p, TSR_STR("FB"));
    put(&p, extra - EXTRA_SIZE, 2);
    memset(p, 'Z', extra - EXTRA_SIZE);
    return TSR_OK;
}

tsr_status tsr_zip_append_descriptor(const tsr_zip_new_member *member, tsr_vec *out, tsr_error *err)
{
    const unsigned width = is_wide(member) ? 8 : 4;
    uint8_t *p;
    if (member->size == 0) return TSR_OK;
    TSR_TRY(room(out, (size_t)descriptor_size(member), &p, err));
    put(&p, 0x08074b50, 4);
    put(&p, member->crc32, 4);
    put(&p, member->size, width);
    put(&p, member->size, width);
    return TSR_OK;
}

static tsr_status append_central(const tsr_zip_new_member *member, tsr_vec *out, tsr_error *err)
{
    const uint64_t extra = wide_extra(member);
    const bool far = member->header_offset >= NARROW_LIMIT;
    uint8_t *p;
    TSR_TRY(room(out, (size_t)(CENTRAL_SIZE + member->name.size + extra), &p, err));
    put(&p, 0x02014b50, 4);
    put(&p, 0, 2);
    put(&p, extra ? NEED_ZIP64 : 0, 2);
    put(&p, flags_of(member), 2);
    put(&p, 0, 6); /* method, time */
    put(&p, member->crc32, 4);
    put(&p, is_wide(member) ? NARROW_LIMIT : member->size, 4);
    put(&p, is_wide(member) ? NARROW_LIMIT : member->size, 4);
    put(&p, member->name.size, 2);
    put(&p, extra, 2);
    p += 10; /* comment, disk, attributes */
    put(&p, far ? NARROW_LIMIT : member->header_offset, 4);
    put_str(&p, member->name);
    if (!extra) return TSR_OK;
    put(&p, 1, 2);
    put(&p, extra - EXTRA_SIZE, 2);
    if (is_wide(member)) put(&p, member->size, 8);
    if (is_wide(member)) put(&p, member->size, 8);
    if (far) put(&p, member->header_offset, 8);
    return TSR_OK;
}

static tsr_status append_ends(size_t count, uint64_t offset, uint64_t size, tsr_vec *out, tsr_error *err)
{
    const bool wide = count >= NARROW_COUNT;
    uint8_t *p;
    TSR_TRY(room(out, ZIP64_END_SIZE + LOCATOR_SIZE + END_SIZE, &p, err));
    put(&p, 0x06064b50, 4);
    put(&p, ZIP64_END_SIZE - 12, 8);
    put(&p, 0x031e, 2);
    put(&p, NEED_ZIP64, 2);
    put(&p, 0, 8); /* disks */
    put(&p, count, 8);
    put(&p, count, 8);
    put(&p, size, 8);
    put(&p, offset, 8);
    put(&p, 0x07064b50, 4);
    put(&p, 0, 4);
    put(&p, offset + size, 8);
    put(&p, 1, 4);
    put(&p, 0x06054b50, 4);
    put(&p, 0, 4);
    put(&p, wide ? NARROW_COUNT : count, 2);
    put(&p, wide ? NARROW_COUNT : count, 2);
    put(&p, size >= NARROW_LIMIT ? NARROW_LIMIT : size, 4);
    put(&p, offset >= NARROW_LIMIT ? NARROW_LIMIT : offset, 4);
    return TSR_OK;
}

tsr_status tsr_zip_append_directory(const tsr_zip_new_member *members, size_t count, tsr_vec *out, tsr_error *err)
{
    const size_t before = out->count;
    const tsr_zip_new_member *last = count ? &members[count - 1] : NULL;
    const uint64_t offset = last ? last->byte_offset + last->size + descriptor_size(last) : 0;
    for (size_t i = 0; i < count; i++) TSR_TRY(append_central(&members[i], out, err));
    return append_ends(count, offset, out->count - before, out, err);
}
