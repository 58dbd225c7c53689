/* See zip_local.h. */
#include "codec/zip_local.h"

#include "tessera/sys/try.h"

enum { DESCRIPTOR_SIGNATURE = 0x08074b50, ZIP64_EXTRA_ID = 1 };

bool tsr_zip64_extra(tsr_cursor extra, tsr_cursor *fields)
{
    while (!extra.failed && tsr_cursor_left(&extra) >= 4) {
        unsigned id = tsr_cursor_u16(&extra);
        size_t size = tsr_cursor_u16(&extra);
        const uint8_t *data = tsr_cursor_take(&extra, size);
        if (data && id == ZIP64_EXTRA_ID) {
            *fields = (tsr_cursor){data, size, 0, false};
            return true;
        }
    }
    return false;
}

bool tsr_zip_widen(uint32_t field, tsr_cursor *zip64, uint64_t *out)
{
    *out = field == UINT32_MAX ? tsr_cursor_u64(zip64) : field;
    return !zip64->failed;
}

/* Whether the sizes and the CRC of a local header are those of the central directory, or 0 if a descriptor follows the
 * data. */
static bool local_agrees(const uint8_t *p, tsr_cursor extra, const tsr_zip_member *member)
{
    uint32_t crc = (uint32_t)tsr_load_le(p + 14, 4);
    uint32_t packed = (uint32_t)tsr_load_le(p + 18, 4), size = (uint32_t)tsr_load_le(p + 22, 4);
    bool later = member->flags & TSR_ZIP_FLAG_DESCRIPTOR;
    if (later && crc == 0 && packed == 0 && size == 0) return true;
    tsr_cursor wide = {NULL, 0, 0, false};
    tsr_zip64_extra(extra, &wide);
    uint64_t wide_size, wide_packed;
    if (!tsr_zip_widen(size, &wide, &wide_size) || !tsr_zip_widen(packed, &wide, &wide_packed)) return false;
    if (later && wide_size == 0 && wide_packed == 0) return crc == 0 || crc == member->crc32;
    return crc == member->crc32 && wide_size == member->size && wide_packed == member->size;
}

tsr_status tsr_zip_check_local(const tsr_zip_member *member, const uint8_t *p, tsr_error *err)
{
    const size_t name_size = (size_t)tsr_load_le(p + 26, 2), extra_size = (size_t)tsr_load_le(p + 28, 2);
    const tsr_str name = {(const char *)p + TSR_ZIP_LOCAL_SIZE, name_size};
    TSR_FAIL_AT(!tsr_str_equal(name, member->name), err, TSR_E_FORMAT, member->header_offset,
                "zip: the central directory calls a member '%.*s', its local header '%.*s'", TSR_STR_ARG(member->name),
                TSR_STR_ARG(name));
    const tsr_cursor extra = {p + TSR_ZIP_LOCAL_SIZE + name_size, extra_size, 0, false};
    TSR_FAIL_AT(tsr_load_le(p + 6, 2) != member->flags || tsr_load_le(p + 8, 2) != 0 || !local_agrees(p, extra, member), err,
                TSR_E_FORMAT, member->header_offset,
                "zip: the local header of '%.*s' and the central directory disagree on flags, method, CRC or size",
                TSR_STR_ARG(name));
    return TSR_OK;
}

tsr_status tsr_zip_check_descriptor(const tsr_zip_member *member, const uint8_t *p, size_t size, tsr_error *err)
{
    const bool marked = size == 16 || size == 24;
    const unsigned width = size >= 20 ? 8 : 4;
    const uint8_t *fields = p + (marked ? 4 : 0);
    const bool agrees = (!marked || tsr_load_le(p, 4) == DESCRIPTOR_SIGNATURE) && tsr_load_le(fields, 4) == member->crc32 &&
                        tsr_load_le(fields + 4, width) == member->size &&
                        tsr_load_le(fields + 4 + width, width) == member->size;
    TSR_FAIL_AT(!agrees, err, TSR_E_FORMAT, member->byte_offset + member->size,
                "zip: the data descriptor of '%.*s' and the central directory disagree", TSR_STR_ARG(member->name));
    return TSR_OK;
}
