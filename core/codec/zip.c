/* Reads the directory of a STORED zip archive. torch.save files and the items of a DCP data file are such archives. This
 * reader accepts what torch writes, and refuses every file that two zip readers could understand differently.
 *
 *   local header   50 4b 03 04 | need 2 | flags 2 | method 2 | time 4 | crc 4 | packed 4 | size 4 | name n 2 | extra x 2
 *   descriptor    [50 4b 07 08]| crc 4 | packed 4 or 8 | size 4 or 8                       (flag bit 3, after the data)
 *   central entry  50 4b 01 02 | made 2 | need 2 | flags 2 | method 2 | time 4 | crc 4 | packed 4 | size 4 | name n 2
 *                              | extra x 2 | comment c 2 | disk 2 | attributes 6 | header offset 4 | name | extra | comment
 *   zip64 end      50 4b 06 06 | record 8 | made 2 | need 2 | disk 4 | start disk 4 | here 8 | total 8 | size 8 | offset 8
 *   zip64 locator  50 4b 06 07 | disk 4 | zip64 end offset 8 | disks 4
 *   end record     50 4b 05 06 | disk 2 | start disk 2 | here 2 | total 2 | size 4 | offset 4 | comment 2
 *
 * The members, the directory and the end records must fill the range without gaps, so that nothing can be hidden between
 * them. */
#include "codec/zip.h"

#include <stdlib.h>

#include "base/cursor.h"
#include "codec/zip_guard.h"
#include "codec/zip_local.h"
#include "tessera/sys/number_text.h"
#include "tessera/sys/try.h"

#include "tessera/sys/alloc.h"
#include "tessera/sys/store_read.h"

enum {
    CENTRAL_SIGNATURE = 0x02014b50,
    END_SIGNATURE = 0x06054b50,
    ZIP64_END_SIGNATURE = 0x06064b50,
    ZIP64_LOCATOR_SIGNATURE = 0x07064b50,
    CENTRAL_SIZE = 46,
    END_SIZE = 22,
    ZIP64_END_SIZE = 56,
    ZIP64_LOCATOR_SIZE = 20,
    FLAGS_ENCRYPTED = 0x2041, /* encrypted, strong encryption, masked headers */
    WHOLE_READ = 64 * 1024,   /* archives up to this size are read completely */
    TAIL_READ = 16 * 1024,    /* includes the end records and the central directory of most checkpoints */
    AHEAD_READ = 4 * 1024     /* a local header and the padding after it, which aligns the member's data */
};

typedef struct end_records {
    uint64_t entries;
    uint64_t directory_offset;
    uint64_t directory_size;
} end_records;

static tsr_status zip64_end(tsr_zip_window *w, uint64_t locator, end_records *end, uint64_t *end_offset, tsr_error *err)
{
    const uint8_t *p;
    TSR_FAIL_AT(locator < ZIP64_END_SIZE, err, TSR_E_FORMAT, w->archive.byte_offset,
                "zip: the archive is too short for its zip64 end record");
    *end_offset = locator - ZIP64_END_SIZE;
    TSR_TRY(tsr_zip_window_need(w, *end_offset, ZIP64_END_SIZE + ZIP64_LOCATOR_SIZE, 0, &p, err));
    uint64_t position = w->archive.byte_offset + *end_offset;
    uint64_t claimed = tsr_load_le(p + ZIP64_END_SIZE + 8, 8);
    TSR_FAIL_AT(claimed != *end_offset, err, TSR_E_FORMAT, w->archive.byte_offset + locator,
                "zip: the zip64 end record is expected at byte %llu of the archive, but its locator follows byte %llu "
                "(prepended data, or a second end record)",
                (unsigned long long)claimed, (unsigned long long)*end_offset);
    TSR_FAIL_AT(tsr_load_le(p, 4) != ZIP64_END_SIGNATURE || tsr_load_le(p + 4, 8) != ZIP64_END_SIZE - 12, err, TSR_E_FORMAT,
                position, "zip: the zip64 end record is damaged");
    uint64_t disks = tsr_load_le(p + ZIP64_END_SIZE + 16, 4);
    TSR_FAIL_AT(tsr_load_le(p + 16, 8) != 0 || disks != 1, err, TSR_E_UNSUPPORTED, position,
                "zip: the archive spans several disks");
    uint64_t here = tsr_load_le(p + 24, 8);
    end_records wide = {tsr_load_le(p + 32, 8), tsr_load_le(p + 48, 8), tsr_load_le(p + 40, 8)};
    bool agree = here == wide.entries && (end->entries == UINT16_MAX || end->entries == wide.entries) &&
                 (end->directory_size == UINT32_MAX || end->directory_size == wide.directory_size) &&
                 (end->directory_offset == UINT32_MAX || end->directory_offset == wide.directory_offset);
    TSR_FAIL_AT(!agree, err, TSR_E_FORMAT, position, "zip: the zip64 end record and the end record disagree");
    *end = wide;
    return TSR_OK;
}

static tsr_status read_end(tsr_zip_window *w, end_records *end, tsr_error *err)
{
    const uint8_t *p;
    TSR_FAIL_AT(w->archive.byte_length < END_SIZE, err, TSR_E_FORMAT, w->archive.byte_offset,
                "zip: %llu bytes are too few for an archive; at least 22 are needed",
                (unsigned long long)w->archive.byte_length);
    uint64_t at = w->archive.byte_length - END_SIZE;
    uint64_t first = w->archive.byte_length <= WHOLE_READ ? 0 : w->archive.byte_length - TAIL_READ;
    TSR_TRY(tsr_zip_window_need(w, first, (size_t)(w->archive.byte_length - first), 0, &p, err));
    p += at - first;
    TSR_FAIL_AT(
        tsr_load_le(p, 4) != END_SIGNATURE || tsr_load_le(p + 20, 2) != 0, err, TSR_E_FORMAT, w->archive.byte_offset + at,
        "zip: the archive does not end with an end record (it was truncated, or has trailing data or an archive comment)");
    TSR_FAIL_AT(tsr_load_le(p + 4, 2) != 0 || tsr_load_le(p + 6, 2) != 0 || tsr_load_le(p + 8, 2) != tsr_load_le(p + 10, 2),
                err, TSR_E_UNSUPPORTED, w->archive.byte_offset + at, "zip: the archive spans several disks");
    *end = (end_records){tsr_load_le(p + 10, 2), tsr_load_le(p + 16, 4), tsr_load_le(p + 12, 4)};
    uint64_t directory_end = at;
    if (at >= ZIP64_LOCATOR_SIZE && tsr_load_le(p - ZIP64_LOCATOR_SIZE, 4) == ZIP64_LOCATOR_SIGNATURE)
        TSR_TRY(zip64_end(w, at - ZIP64_LOCATOR_SIZE, end, &directory_end, err));
    uint64_t claimed_end;
    TSR_FAIL_AT(!tsr_add_u64(end->directory_offset, end->directory_size, &claimed_end) || claimed_end != directory_end, err,
                TSR_E_FORMAT, w->archive.byte_offset + at,
                "zip: the central directory should begin at byte %llu and have %llu bytes, but the end records begin at "
                "byte %llu (prepended data, or a second end record)",
                (unsigned long long)end->directory_offset, (unsigned long long)end->directory_size,
                (unsigned long long)directory_end);
    TSR_FAIL_AT(end->entries > end->directory_size / CENTRAL_SIZE, err, TSR_E_FORMAT, w->archive.byte_offset + at,
                "zip: %llu members cannot be listed in %llu bytes", (unsigned long long)end->entries,
                (unsigned long long)end->directory_size);
    return TSR_OK;
}

static tsr_status check_name(tsr_str name, uint64_t position, tsr_error *err)
{
    TSR_FAIL_AT(name.size == 0 || memchr(name.data, 0, name.size), err, TSR_E_FORMAT, position,
                "zip: a member's name is empty or contains a NUL");
    return TSR_OK;
}

static tsr_status read_entry(tsr_cursor *directory, uint64_t base, uint64_t position, tsr_zip_member *out, tsr_error *err)
{
    const uint8_t *p = tsr_cursor_take(directory, CENTRAL_SIZE);
    TSR_FAIL_AT(!p || tsr_load_le(p, 4) != CENTRAL_SIGNATURE, err, TSR_E_FORMAT, position,
                "zip: expected another entry of the central directory");
    size_t name_size = (size_t)tsr_load_le(p + 28, 2), extra_size = (size_t)tsr_load_le(p + 30, 2);
    const uint8_t *name = tsr_cursor_take(directory, name_size);
    const uint8_t *extra = tsr_cursor_take(directory, extra_size);
    tsr_cursor_take(directory, (size_t)tsr_load_le(p + 32, 2));
    TSR_FAIL_AT(directory->failed, err, TSR_E_FORMAT, position,
                "zip: an entry of the central directory reaches beyond its end");
    out->name = (tsr_str){(const char *)name, name_size};
    TSR_TRY(check_name(out->name, position, err));
    out->flags = (uint16_t)tsr_load_le(p + 8, 2);
    out->crc32 = (uint32_t)tsr_load_le(p + 16, 4);
    unsigned method = (unsigned)tsr_load_le(p + 10, 2);
    TSR_FAIL_AT(out->flags & FLAGS_ENCRYPTED, err, TSR_E_UNSUPPORTED, position, "zip: member '%.*s' is encrypted",
                TSR_STR_ARG(out->name));
    TSR_FAIL_AT(method != 0, err, TSR_E_UNSUPPORTED, position,
                "zip: member '%.*s' is compressed (%s, method %u); torch.save stores members uncompressed",
                TSR_STR_ARG(out->name), method == 8 ? "deflate" : "unknown", method);
    tsr_cursor wide = {NULL, 0, 0, false};
    tsr_zip64_extra((tsr_cursor){extra, extra_size, 0, false}, &wide);
    uint64_t packed;
    bool whole = tsr_zip_widen((uint32_t)tsr_load_le(p + 24, 4), &wide, &out->size) &&
                 tsr_zip_widen((uint32_t)tsr_load_le(p + 20, 4), &wide, &packed) &&
                 tsr_zip_widen((uint32_t)tsr_load_le(p + 42, 4), &wide, &out->header_offset);
    TSR_FAIL_AT(!whole, err, TSR_E_FORMAT, position, "zip: member '%.*s' lacks its zip64 sizes", TSR_STR_ARG(out->name));
    TSR_FAIL_AT(packed != out->size, err, TSR_E_FORMAT, position,
                "zip: member '%.*s' is stored uncompressed, but has %llu bytes compressed and %llu uncompressed",
                TSR_STR_ARG(out->name), (unsigned long long)packed, (unsigned long long)out->size);
    TSR_FAIL_AT(tsr_load_le(p + 34, 2) != 0, err, TSR_E_UNSUPPORTED, position, "zip: the archive spans several disks");
    TSR_FAIL_AT(!tsr_add_u64(out->header_offset, base, &out->header_offset), err, TSR_E_FORMAT, position,
                "zip: member '%.*s' begins beyond the end of the archive", TSR_STR_ARG(out->name));
    return TSR_OK;
}

static tsr_status read_directory(tsr_zip_window *w, const tsr_host *host, const end_records *end, tsr_arena *arena,
                                 tsr_zip *zip, tsr_error *err)
{
    const uint64_t position = w->archive.byte_offset + end->directory_offset;
    TSR_FAIL_AT(end->directory_size > host->limits.metadata_bytes, err, TSR_E_LIMIT, position,
                "zip: a central directory of %llu bytes exceeds the limit of %llu (metadata_bytes)",
                (unsigned long long)end->directory_size, (unsigned long long)host->limits.metadata_bytes);
    TSR_FAIL_AT(end->entries >= UINT32_MAX, err, TSR_E_LIMIT, position, "zip: too many members");
    size_t size = (size_t)end->directory_size;
    const uint8_t *seen;
    TSR_TRY(tsr_zip_window_need(w, end->directory_offset, size, 0, &seen, err));
    uint8_t *directory = tsr_arena_array(arena, size, 1, err);
    tsr_zip_member *members = tsr_arena_array(arena, (size_t)end->entries, sizeof *members, err);
    if (!directory || !members) return TSR_E_NOMEM;
    memcpy(directory, seen, size);
    tsr_cursor cursor = {directory, size, 0, false};
    for (uint32_t i = 0; i < end->entries; i++)
        TSR_TRY(read_entry(&cursor, w->archive.byte_offset, position + cursor.at, &members[i], err));
    TSR_FAIL_AT(tsr_cursor_left(&cursor) != 0, err, TSR_E_FORMAT, position + cursor.at,
                "zip: %llu byte%s of the central directory follow its last entry",
                (unsigned long long)tsr_cursor_left(&cursor), TSR_PLURAL(tsr_cursor_left(&cursor)));
    zip->members = members;
    zip->count = (uint32_t)end->entries;
    return TSR_OK;
}

/* Compares names ignoring ASCII case: of two names that differ only in case, readers may find either. */
static int fold_compare(tsr_str a, tsr_str b)
{
    size_t n = a.size < b.size ? a.size : b.size;
    for (size_t i = 0; i < n; i++) {
        unsigned char x = (unsigned char)a.data[i], y = (unsigned char)b.data[i];
        if (x >= 'A' && x <= 'Z') x = (unsigned char)(x + 32);
        if (y >= 'A' && y <= 'Z') y = (unsigned char)(y + 32);
        if (x != y) return x < y ? -1 : 1;
    }
    return (a.size > b.size) - (a.size < b.size);
}

static int by_folded_name(const void *a, const void *b)
{
    const tsr_zip_member *x = *(const tsr_zip_member *const *)a, *y = *(const tsr_zip_member *const *)b;
    return fold_compare(x->name, y->name);
}

static int by_header(const void *a, const void *b)
{
    const tsr_zip_member *x = *(const tsr_zip_member *const *)a, *y = *(const tsr_zip_member *const *)b;
    return (x->header_offset > y->header_offset) - (x->header_offset < y->header_offset);
}

static const tsr_zip_member **sorted(const tsr_zip *zip, int (*compare)(const void *, const void *), tsr_arena *arena,
                                     tsr_error *err)
{
    const tsr_zip_member **order = tsr_arena_array(arena, zip->count, sizeof *order, err);
    if (!order) return NULL;
    for (uint32_t i = 0; i < zip->count; i++) order[i] = &zip->members[i];
    qsort(order, zip->count, sizeof *order, compare);
    return order;
}

static tsr_status index_names(tsr_zip *zip, tsr_arena *arena, tsr_error *err)
{
    const tsr_zip_member **order = sorted(zip, by_folded_name, arena, err);
    if (!order) return TSR_E_NOMEM;
    for (uint32_t i = 1; i < zip->count; i++) {
        tsr_str a = order[i - 1]->name, b = order[i]->name;
        if (fold_compare(a, b) != 0) continue;
        return tsr_raise(err, TSR_E_FORMAT, order[i]->header_offset,
                         tsr_str_equal(a, b) ? "zip: member '%.*s' is listed twice"
                                             : "zip: members '%.*s' and '%.*s' differ only in case",
                         TSR_STR_ARG(a), TSR_STR_ARG(b));
    }
    zip->by_name = order;
    return TSR_OK;
}

static void find_top(tsr_zip *zip)
{
    for (uint32_t i = 0; i < zip->count; i++) {
        tsr_str name = zip->members[i].name;
        const char *slash = memchr(name.data, '/', name.size);
        tsr_str top = {name.data, slash ? (size_t)(slash - name.data) : 0};
        if (i == 0) zip->top = top;
        if (!slash || !tsr_str_equal(top, zip->top)) {
            zip->top = (tsr_str){NULL, 0};
            return;
        }
    }
}

/* Checks a member's local header and finds its data. `limit` is the offset of the central directory. */
static tsr_status read_local(tsr_zip_window *w, uint64_t limit, tsr_zip_member *member, tsr_error *err)
{
    const uint8_t *p;
    uint64_t at = member->header_offset - w->archive.byte_offset;
    TSR_FAIL_AT(at >= limit || limit - at < TSR_ZIP_LOCAL_SIZE, err, TSR_E_FORMAT, member->header_offset,
                "zip: the local header of '%.*s' is beyond the end of the members (byte %llu of %llu)",
                TSR_STR_ARG(member->name), (unsigned long long)at, (unsigned long long)limit);
    TSR_TRY(tsr_zip_window_need(w, at, TSR_ZIP_LOCAL_SIZE, AHEAD_READ, &p, err));
    size_t name_size = (size_t)tsr_load_le(p + 26, 2), extra_size = (size_t)tsr_load_le(p + 28, 2);
    uint64_t head = TSR_ZIP_LOCAL_SIZE + name_size + extra_size;
    TSR_FAIL_AT(tsr_load_le(p, 4) != TSR_ZIP_LOCAL_SIGNATURE || head > limit - at, err, TSR_E_FORMAT, member->header_offset,
                "zip: the central directory points to no local header of '%.*s'", TSR_STR_ARG(member->name));
    TSR_TRY(tsr_zip_window_need(w, at, (size_t)head, AHEAD_READ, &p, err));
    TSR_TRY(tsr_zip_check_local(member, p, err));
    TSR_FAIL_AT(member->size > limit - at - head, err, TSR_E_FORMAT, member->header_offset,
                "zip: member '%.*s' has %llu bytes, but only %llu are left before the central directory",
                TSR_STR_ARG(member->name), (unsigned long long)member->size, (unsigned long long)(limit - at - head));
    member->byte_offset = member->header_offset + head;
    return TSR_OK;
}

/* Checks the bytes between a member's data and the next header: none, or the descriptor, which repeats the CRC and the
 * sizes. */
static tsr_status check_gap(tsr_zip_window *w, const tsr_zip_member *member, uint64_t next, tsr_error *err)
{
    uint64_t at = member->byte_offset - w->archive.byte_offset + member->size;
    TSR_FAIL_AT(next < at, err, TSR_E_FORMAT, member->header_offset, "zip: member '%.*s' overlaps the next one",
                TSR_STR_ARG(member->name));
    uint64_t gap = next - at;
    bool described = member->flags & TSR_ZIP_FLAG_DESCRIPTOR;
    bool fits = gap >= TSR_ZIP_DESCRIPTOR_LEAST && gap <= TSR_ZIP_DESCRIPTOR_MOST && gap % 4 == 0;
    TSR_FAIL_AT(described ? !fits : gap != 0, err, TSR_E_FORMAT, w->archive.byte_offset + at,
                "zip: %llu byte%s after member '%.*s' belong to no member", (unsigned long long)gap, TSR_PLURAL(gap),
                TSR_STR_ARG(member->name));
    if (gap == 0) return TSR_OK;
    const uint8_t *p;
    TSR_TRY(tsr_zip_window_need(w, at, (size_t)gap, AHEAD_READ, &p, err));
    return tsr_zip_check_descriptor(member, p, (size_t)gap, err);
}

static tsr_status read_locals(tsr_zip_window *w, uint64_t limit, tsr_zip *zip, tsr_arena *arena, tsr_error *err)
{
    const tsr_zip_member **order = sorted(zip, by_header, arena, err);
    if (!order) return TSR_E_NOMEM;
    uint64_t first = zip->count ? order[0]->header_offset - w->archive.byte_offset : limit;
    TSR_FAIL_AT(first != 0, err, TSR_E_FORMAT, w->archive.byte_offset,
                "zip: %llu byte%s before the first member belong to no member", (unsigned long long)first,
                TSR_PLURAL(first));
    uint32_t file = zip->file;
    tsr_store *origin = w->archive.store;
    while (origin->origin) origin = origin->origin(origin, &file);
    if (zip->count && w->archive.byte_length > WHOLE_READ && origin->guard) {
        const tsr_zip_locals locals = {zip, (tsr_zip_member *const *)order, file, w->archive.byte_offset + limit};
        TSR_TRY(tsr_zip_guard_locals(origin, w->allocator, &locals, &w->is_guarded, err));
        if (w->is_guarded) return check_gap(w, order[zip->count - 1], limit, err);
    }
    for (uint32_t i = 0; i < zip->count; i++) {
        uint64_t next = i + 1 < zip->count ? order[i + 1]->header_offset - w->archive.byte_offset : limit;
        TSR_TRY(read_local(w, limit, (tsr_zip_member *)order[i], err));
        TSR_TRY(check_gap(w, order[i], next, err));
    }
    return TSR_OK;
}

static bool crc_absent(const tsr_zip *zip)
{
    bool bytes = false;
    for (uint32_t i = 0; i < zip->count; i++) {
        if (zip->members[i].crc32 != 0) return false;
        bytes |= zip->members[i].size > 0;
    }
    return bytes;
}

tsr_status tsr_zip_open(tsr_zip_window *window, const tsr_host *host, tsr_arena *arena, tsr_zip *out, tsr_error *err)
{
    end_records end = {0};
    const tsr_range *in = &window->archive;
    *out = (tsr_zip){.file = in->file, .byte_offset = in->byte_offset, .size = in->byte_length};
    TSR_TRY(read_end(window, &end, err));
    TSR_TRY(read_directory(window, host, &end, arena, out, err));
    TSR_TRY(index_names(out, arena, err));
    TSR_TRY(read_locals(window, end.directory_offset, out, arena, err));
    find_top(out);
    out->crc_absent = crc_absent(out);
    return TSR_OK;
}

const tsr_zip_member *tsr_zip_find(const tsr_zip *zip, tsr_str name)
{
    size_t skip = zip->top.size ? zip->top.size + 1 : 0;
    uint32_t low = 0, high = zip->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const tsr_zip_member *member = zip->by_name[middle];
        tsr_str rest = {member->name.data + skip, member->name.size - skip};
        int order = fold_compare(name, rest);
        if (order == 0) return tsr_str_equal(name, rest) ? member : NULL;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

bool tsr_zip_looks_like(tsr_str first_bytes)
{
    return first_bytes.size >= 4 && tsr_load_le((const uint8_t *)first_bytes.data, 4) == TSR_ZIP_LOCAL_SIGNATURE;
}
