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
#include "tessera/sys/containers.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"
#include "tessera/sys/text.h"
#include "tessera/sys/try.h"

typedef struct tsr_zip_locals {
    const tsr_zip *zip;
    tsr_zip_member *const *order; /* the archive's members, by header_offset */
    uint32_t file;                /* the number of the file in the store that has guards */
    uint64_t end;                 /* the end of the last member with its descriptor, absolute in the file */
} tsr_zip_locals;

/* Computes byte_offset of all members from the central directory alone, and registers a guard for each: before the store
 * returns bytes of a member, it checks the member's local header and the descriptor in front of it. The caller checks the
 * last descriptor, because no header follows it. `store->guard` must not be NULL.
 *
 * Without a descriptor the directory determines where data begins. With one, data is assumed to begin at a multiple of 64
 * bytes, as torch.save writes it. If no such position fits, *is_guarded is false, and the caller must set byte_offset of all
 * members itself. Errors: those of the store's guard; TSR_E_NOMEM. */
tsr_status tsr_zip_guard_locals(tsr_store *store, const tsr_allocator *allocator, const tsr_zip_locals *locals,
                                bool *is_guarded, tsr_error *err);

enum {
    TSR_ZIP_LOCAL_SIGNATURE = 0x04034b50,
    TSR_ZIP_LOCAL_SIZE = 30, /* without the name and the extra field */
    TSR_ZIP_FLAG_DESCRIPTOR = 0x0008,
    TSR_ZIP_DESCRIPTOR_LEAST = 12,
    TSR_ZIP_DESCRIPTOR_MOST = 24
};

/* ---- zip window ---- */

static bool holds(const tsr_zip_piece *piece, uint64_t at, size_t size)
{
    return at >= piece->start && at - piece->start <= piece->held && size <= piece->held - (at - piece->start);
}

static const uint8_t *held_bytes(const tsr_zip_window *window, uint64_t at, size_t size)
{
    const tsr_zip_piece *tail = &window->tail, *other = &window->other;
    return holds(tail, at, size)    ? tail->bytes + (at - tail->start)
           : holds(other, at, size) ? other->bytes + (at - other->start)
                                    : NULL;
}

static tsr_status fetch(tsr_zip_window *window, tsr_zip_piece *piece, uint64_t at, size_t size, tsr_error *err)
{
    const tsr_range *archive = &window->archive;
    if (size > piece->capacity) {
        uint8_t *grown = tsr_alloc(window->allocator, size, 1, err);
        if (!grown) return TSR_E_NOMEM;
        tsr_free(window->allocator, piece->bytes, piece->capacity, 1);
        piece->bytes = grown;
        piece->capacity = size;
    }
    piece->held = 0;
    TSR_TRY(tsr_store_read(archive->store, archive->file, archive->byte_offset + at, piece->bytes, size, err));
    piece->start = at;
    piece->held = size;
    return TSR_OK;
}

/* Sets *out to the bytes [at, at + size); the caller must have checked that the archive contains them. If they are not held,
 * reads at least `ahead` bytes, or up to the end of the archive. *out is valid until the next such read. Errors: TSR_E_IO,
 * TSR_E_NOMEM. */
static tsr_status zip_window_need(tsr_zip_window *window, uint64_t at, size_t size, size_t ahead, const uint8_t **out,
                                  tsr_error *err)
{
    *out = held_bytes(window, at, size);
    if (*out) return TSR_OK;
    const uint64_t left = window->archive.byte_length - at;
    size_t wanted = ahead > size ? ahead : size;
    if (wanted > left) wanted = (size_t)left;
    TSR_TRY(fetch(window, window->tail.held ? &window->other : &window->tail, at, wanted, err));
    *out = held_bytes(window, at, size);
    return TSR_OK;
}

tsr_status tsr_zip_window_read(const tsr_zip_window *window, uint64_t byte_offset, void *buffer, size_t size, tsr_error *err)
{
    const tsr_range *archive = &window->archive;
    const bool is_inside = byte_offset >= archive->byte_offset && !window->is_guarded;
    const uint8_t *held = is_inside ? held_bytes(window, byte_offset - archive->byte_offset, size) : NULL;
    if (!held) return tsr_store_read(archive->store, archive->file, byte_offset, buffer, size, err);
    memcpy(buffer, held, size);
    return TSR_OK;
}

void tsr_zip_window_free(tsr_zip_window *window)
{
    tsr_free(window->allocator, window->tail.bytes, window->tail.capacity, 1);
    tsr_free(window->allocator, window->other.bytes, window->other.capacity, 1);
}

/* ---- zip local ---- */

/* Checks the structures around a member's data in a zip archive: its local header and its data descriptor. */

enum { DESCRIPTOR_SIGNATURE = 0x08074b50, ZIP64_EXTRA_ID = 1 };

/* Finds the zip64 field in the extra fields, and sets *fields to its content. Returns whether there is one. */
static bool zip64_extra(tsr_cursor extra, tsr_cursor *fields)
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

/* Reads a 32-bit field; if all its bits are set, the value is the next one of the zip64 field. Returns false if that has no
 * more values. */
static bool zip_widen(uint32_t field, tsr_cursor *zip64, uint64_t *out)
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
    zip64_extra(extra, &wide);
    uint64_t wide_size, wide_packed;
    if (!zip_widen(size, &wide, &wide_size) || !zip_widen(packed, &wide, &wide_packed)) return false;
    if (later && wide_size == 0 && wide_packed == 0) return crc == 0 || crc == member->crc32;
    return crc == member->crc32 && wide_size == member->size && wide_packed == member->size;
}

/* Checks a local header at `p`, with its name and extra field. Fails with TSR_E_FORMAT if it disagrees with the central
 * directory. */
static tsr_status zip_check_local(const tsr_zip_member *member, const uint8_t *p, tsr_error *err)
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

/* Checks the data descriptor at `p`: the `size` bytes (12, 16, 20 or 24) between the member's data and the next header.
 * Fails in the same way. */
static tsr_status zip_check_descriptor(const tsr_zip_member *member, const uint8_t *p, size_t size, tsr_error *err)
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

/* ---- zip guard ---- */

/* Checks local headers only when the data after them is read. Where every read is a request to a server, listing an archive
 * of a thousand members must not cost a thousand requests. */

enum { ALIGNMENT = 64 };

/* What a local header is compared with when the store reads it. */
typedef struct facts {
    tsr_zip_member member, before; /* the bytes of their names follow this struct */
    size_t descriptor;             /* size of the descriptor that follows the data of `before` */
} facts;

static tsr_status check(const tsr_store_guard *guard, const uint8_t *bytes, tsr_error *err)
{
    facts known;
    memcpy(&known, guard->facts.data, sizeof known);
    known.member.name.data = guard->facts.data + sizeof known;
    known.before.name.data = known.member.name.data + known.member.name.size;
    const tsr_zip_member *member = &known.member;
    if (known.descriptor) TSR_TRY(zip_check_descriptor(&known.before, bytes, known.descriptor, err));
    const uint8_t *p = bytes + known.descriptor;
    const uint64_t head = member->byte_offset - member->header_offset;
    TSR_FAIL_AT(tsr_load_le(p, 4) != TSR_ZIP_LOCAL_SIGNATURE, err, TSR_E_FORMAT, member->header_offset,
                "zip: the central directory points to no local header of '%.*s'", TSR_STR_ARG(member->name));
    const uint64_t stated = TSR_ZIP_LOCAL_SIZE + tsr_load_le(p + 26, 2) + tsr_load_le(p + 28, 2);
    TSR_FAIL_AT(stated != head, err, TSR_E_FORMAT, member->header_offset,
                "zip: the local header of '%.*s' has %llu bytes, where the central directory leaves %llu",
                TSR_STR_ARG(member->name), (unsigned long long)stated, (unsigned long long)head);
    return zip_check_local(member, p, err);
}

/* The size of a member's local header, computed from the distance to the next header. Returns 0 if it cannot be
 * determined. */
static uint64_t head_of(const tsr_zip_member *member, uint64_t base, uint64_t next)
{
    const uint64_t least = TSR_ZIP_LOCAL_SIZE + member->name.size, most = least + UINT16_MAX;
    if (next < member->header_offset || next - member->header_offset < member->size) return 0;
    const uint64_t room = next - member->header_offset - member->size;
    if (!(member->flags & TSR_ZIP_FLAG_DESCRIPTOR)) return room >= least && room <= most ? room : 0;
    for (uint64_t gap = TSR_ZIP_DESCRIPTOR_LEAST; gap <= TSR_ZIP_DESCRIPTOR_MOST && gap + least <= room; gap += 4) {
        const uint64_t head = room - gap;
        if (head <= most && (member->header_offset - base + head) % ALIGNMENT == 0) return head;
    }
    return 0;
}

static uint64_t head_at(const tsr_zip_locals *locals, uint32_t i)
{
    const uint64_t next = i + 1 < locals->zip->count ? locals->order[i + 1]->header_offset : locals->end;
    return head_of(locals->order[i], locals->zip->byte_offset, next);
}

static void append(tsr_vec *text, const void *bytes, size_t size)
{
    if (size) memcpy((char *)text->items + text->count, bytes, size);
    text->count += size;
}

/* Registers the guard of member `i`. byte_offset must be known for it and for the member before it. */
static tsr_status guard(tsr_store *store, const tsr_zip_locals *locals, uint32_t i, tsr_vec *text, tsr_error *err)
{
    const tsr_zip_member *member = locals->order[i], *before = i ? locals->order[i - 1] : NULL;
    const uint64_t from = before ? before->byte_offset + before->size : member->header_offset;
    facts known = {.member = *member, .descriptor = (size_t)(member->header_offset - from)};
    if (before) known.before = *before;
    text->count = 0;
    TSR_TRY(tsr_vec_reserve(text, sizeof known + known.member.name.size + known.before.name.size, err));
    append(text, &known, sizeof known);
    append(text, known.member.name.data, known.member.name.size);
    append(text, known.before.name.data, known.before.name.size);
    return store->guard(
        store, &(tsr_store_guard){locals->file, from, member->byte_offset, member->size, {text->items, text->count}, check},
        err);
}

tsr_status tsr_zip_guard_locals(tsr_store *store, const tsr_allocator *allocator, const tsr_zip_locals *locals,
                                bool *is_guarded, tsr_error *err)
{
    *is_guarded = false;
    for (uint32_t i = 0; i < locals->zip->count; i++) {
        const uint64_t head = head_at(locals, i);
        if (!head) return TSR_OK;
        locals->order[i]->byte_offset = locals->order[i]->header_offset + head;
    }
    tsr_vec text = tsr_vec_of(allocator, 1);
    tsr_status status = TSR_OK;
    for (uint32_t i = 0; i < locals->zip->count && status == TSR_OK; i++) status = guard(store, locals, i, &text, err);
    tsr_vec_free(&text);
    *is_guarded = status == TSR_OK;
    return status;
}

/* ---- zip ---- */

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
    IS_DIRECTORY = 0x10,      /* in the external attributes, as DOS has it */
    WHOLE_READ = 64 * 1024,   /* archives up to this size are read completely */
    TAIL_READ = 16 * 1024,    /* includes the end records and the central directory of most checkpoints */
    SEARCHED = 4096,          /* the block of a file in which PyTorch (miniz) searches the end record */
    SEARCH_STEP = 4093,       /* from one to the block before it */
    MOST_SEARCHED = SEARCHED + 16 * SEARCH_STEP,
    AHEAD_READ = 4 * 1024 /* a local header and the padding after it, which aligns the member's data */
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
    TSR_TRY(zip_window_need(w, *end_offset, ZIP64_END_SIZE + ZIP64_LOCATOR_SIZE, 0, &p, err));
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

/* Finds the last end record before *at, as PyTorch does in a file that something was appended to, and sets *at and *p to it. PyTorch fails
 * where a block would begin before the file. What may be a locator before the end record is held, too. */
static tsr_status search_end(tsr_zip_window *w, uint64_t *at, const uint8_t **p, tsr_error *err)
{
    const uint64_t size = w->archive.byte_length, last = *at;
    const uint64_t first = size > MOST_SEARCHED ? size - MOST_SEARCHED
                           : size > SEARCHED    ? (size - SEARCHED) % SEARCH_STEP
                                                : 0;
    const uint64_t from = first < ZIP64_LOCATOR_SIZE ? 0 : first - ZIP64_LOCATOR_SIZE;
    TSR_TRY(zip_window_need(w, from, (size_t)(size - from), 0, p, err));
    for (*p += last - from; tsr_load_le(*p, 4) != END_SIGNATURE && *at > first; --*at) --*p;
    return TSR_OK;
}

/* Leaves bytes that follow the end record out of the window's archive. */
static tsr_status read_end(tsr_zip_window *w, end_records *end, tsr_error *err)
{
    const uint8_t *p;
    TSR_FAIL_AT(w->archive.byte_length < END_SIZE, err, TSR_E_FORMAT, w->archive.byte_offset,
                "zip: %llu bytes are too few for an archive; at least 22 are needed",
                (unsigned long long)w->archive.byte_length);
    uint64_t at = w->archive.byte_length - END_SIZE;
    uint64_t first = w->archive.byte_length <= WHOLE_READ ? 0 : w->archive.byte_length - TAIL_READ;
    TSR_TRY(zip_window_need(w, first, (size_t)(w->archive.byte_length - first), 0, &p, err));
    p += at - first;
    const bool follows = !TSR_IS_SMALL && tsr_load_le(p, 4) != END_SIGNATURE;
    if (follows) TSR_TRY(search_end(w, &at, &p, err));
    TSR_FAIL_AT(
        tsr_load_le(p, 4) != END_SIGNATURE || (!follows && tsr_load_le(p + 20, 2) != 0), err, TSR_E_FORMAT,
        w->archive.byte_offset + w->archive.byte_length - END_SIZE,
        "zip: the archive does not end with an end record (it was truncated, or has trailing data or an archive comment)");
    if (follows) w->archive.byte_length = at + END_SIZE;
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
    TSR_FAIL_AT(method != 0 && tsr_str_contains(out->name, TSR_STR("/code/")), err, TSR_E_UNSUPPORTED, position,
                "zip: member '%.*s' is code of a TorchScript archive: a program, not a checkpoint; torch.jit.load loads it",
                TSR_STR_ARG(out->name));
    TSR_FAIL_AT(method != 0, err, TSR_E_UNSUPPORTED, position,
                "zip: member '%.*s' is compressed (%s, method %u); torch.save stores members uncompressed",
                TSR_STR_ARG(out->name), method == 8 ? "deflate" : "unknown", method);
    tsr_cursor wide = {NULL, 0, 0, false};
    zip64_extra((tsr_cursor){extra, extra_size, 0, false}, &wide);
    uint64_t packed;
    bool whole = zip_widen((uint32_t)tsr_load_le(p + 24, 4), &wide, &out->size) &&
                 zip_widen((uint32_t)tsr_load_le(p + 20, 4), &wide, &packed) &&
                 zip_widen((uint32_t)tsr_load_le(p + 42, 4), &wide, &out->header_offset);
    TSR_FAIL_AT(!whole, err, TSR_E_FORMAT, position, "zip: member '%.*s' lacks its zip64 sizes", TSR_STR_ARG(out->name));
    TSR_FAIL_AT(packed != out->size, err, TSR_E_FORMAT, position,
                "zip: member '%.*s' is stored uncompressed, but has %llu bytes compressed and %llu uncompressed",
                TSR_STR_ARG(out->name), (unsigned long long)packed, (unsigned long long)out->size);
    TSR_FAIL_AT(tsr_load_le(p + 34, 2) != 0, err, TSR_E_UNSUPPORTED, position, "zip: the archive spans several disks");
    TSR_FAIL_AT(out->size && (tsr_load_le(p + 38, 4) & IS_DIRECTORY), err, TSR_E_FORMAT, position,
                "zip: member '%.*s' is marked as a directory, so PyTorch reads none of its %llu bytes",
                TSR_STR_ARG(out->name), (unsigned long long)out->size);
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
    TSR_TRY(zip_window_need(w, end->directory_offset, size, 0, &seen, err));
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
    TSR_TRY(zip_window_need(w, at, TSR_ZIP_LOCAL_SIZE, AHEAD_READ, &p, err));
    size_t name_size = (size_t)tsr_load_le(p + 26, 2), extra_size = (size_t)tsr_load_le(p + 28, 2);
    uint64_t head = TSR_ZIP_LOCAL_SIZE + name_size + extra_size;
    TSR_FAIL_AT(tsr_load_le(p, 4) != TSR_ZIP_LOCAL_SIGNATURE || head > limit - at, err, TSR_E_FORMAT, member->header_offset,
                "zip: the central directory points to no local header of '%.*s'", TSR_STR_ARG(member->name));
    TSR_TRY(zip_window_need(w, at, (size_t)head, AHEAD_READ, &p, err));
    TSR_TRY(zip_check_local(member, p, err));
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
    TSR_TRY(zip_window_need(w, at, (size_t)gap, AHEAD_READ, &p, err));
    return zip_check_descriptor(member, p, (size_t)gap, err);
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
    TSR_TRY(read_end(window, &end, err));
    *out = (tsr_zip){.file = in->file, .byte_offset = in->byte_offset, .size = in->byte_length};
    TSR_TRY(read_directory(window, host, &end, arena, out, err));
    TSR_TRY(index_names(out, arena, err));
    TSR_TRY(read_locals(window, end.directory_offset, out, arena, err));
    find_top(out);
    out->crc_absent = crc_absent(out);
    return TSR_OK;
}

/* ---- salvage ---- */

enum { SALVAGE_STEP = 1 << 20, DESCRIPTOR_LEAST = 16, DESCRIPTOR_LONG = 24 };

typedef struct salvage {
    tsr_zip_window *window;
    const tsr_host *host;
    tsr_arena *arena;
    tsr_vec members;
    uint8_t *buffer; /* SALVAGE_STEP */
    uint64_t at;     /* where the next member begins, counted from the archive's beginning */
    tsr_error *err;
} salvage;

/* A member that a local header describes. */
typedef struct described {
    tsr_zip_member member;
    uint64_t begin, end; /* of its data */
    uint64_t next;       /* where the next header is */
    bool whole;
} described;

static tsr_status sum_data(const salvage *s, uint64_t begin, uint64_t end, uint32_t *crc)
{
    const tsr_range *in = &s->window->archive;
    *crc = 0;
    for (uint64_t at = begin, size; at < end; at += size) {
        size = end - at < SALVAGE_STEP ? end - at : SALVAGE_STEP;
        TSR_TRY(tsr_store_read(in->store, in->file, in->byte_offset + at, s->buffer, (size_t)size, s->err));
        *crc = tsr_crc32(s->host, *crc, s->buffer, (size_t)size);
    }
    return TSR_OK;
}

/* Sets *is to whether a header begins at `at`, of which the archive may have lost the end, or the archive ends there. */
static tsr_status is_next(const salvage *s, uint64_t at, bool *is)
{
    static const uint8_t local[] = {'P', 'K', 3, 4}, central[] = {'P', 'K', 1, 2};
    const uint64_t length = s->window->archive.byte_length;
    const size_t left = at > length ? 0 : length - at < sizeof local ? (size_t)(length - at) : sizeof local;
    const uint8_t *p;
    *is = at == length;
    if (!left) return TSR_OK;
    TSR_TRY(zip_window_need(s->window, at, left, AHEAD_READ, &p, s->err));
    *is = memcmp(p, local, left) == 0 || memcmp(p, central, left) == 0;
    return TSR_OK;
}

/* The size of the descriptor at `p`, of which `left` bytes are there, if it states `size` bytes; otherwise 0. */
static unsigned descriptor_of(const uint8_t *p, uint64_t left, uint64_t size, unsigned longest)
{
    if (left >= DESCRIPTOR_LONG && longest >= DESCRIPTOR_LONG && tsr_load_le(p + 8, 8) == size &&
        tsr_load_le(p + 16, 8) == size)
        return DESCRIPTOR_LONG;
    if (left >= DESCRIPTOR_LEAST && tsr_load_le(p + 8, 4) == size && tsr_load_le(p + 12, 4) == size) return DESCRIPTOR_LEAST;
    return 0;
}

/* Whether the descriptor at `p` ends the data [d->begin, at), after which the next header follows. */
static tsr_status try_descriptor(const salvage *s, const uint8_t *p, uint64_t at, described *d, bool *ends)
{
    const uint64_t left = s->window->archive.byte_length - at;
    unsigned size = descriptor_of(p, left, at - d->begin, DESCRIPTOR_LONG);
    *ends = false;
    if (!size) return TSR_OK;
    TSR_TRY(is_next(s, at + size, ends));
    if (!*ends && size == DESCRIPTOR_LONG && (size = descriptor_of(p, left, at - d->begin, DESCRIPTOR_LEAST)))
        TSR_TRY(is_next(s, at + size, ends));
    if (!*ends) return TSR_OK;
    d->member.crc32 = (uint32_t)tsr_load_le(p + 4, 4);
    d->end = at;
    d->next = at + size;
    return TSR_OK;
}

/* Looks for the descriptor that ends the data of a member whose header states no size. The bytes of a tensor may look like one,
 * but not one that states their number and is followed by a header. */
static tsr_status find_end(const salvage *s, described *d, bool *found)
{
    const tsr_range *in = &s->window->archive;
    *found = false;
    for (uint64_t at = d->begin, size; at < in->byte_length && !*found; at += size - (DESCRIPTOR_LONG - 1)) {
        size = in->byte_length - at < SALVAGE_STEP ? in->byte_length - at : SALVAGE_STEP;
        TSR_TRY(tsr_store_read(in->store, in->file, in->byte_offset + at, s->buffer, (size_t)size, s->err));
        for (size_t i = 0; i + DESCRIPTOR_LEAST <= size && !*found; i++) {
            const uint8_t *p = memchr(s->buffer + i, 'P', (size_t)size - i);
            if (!p || (i = (size_t)(p - s->buffer)) + DESCRIPTOR_LEAST > size) break;
            if (tsr_load_le(p, 4) == DESCRIPTOR_SIGNATURE) TSR_TRY(try_descriptor(s, p, at + i, d, found));
        }
        if (size < SALVAGE_STEP) break;
    }
    return TSR_OK;
}

/* The sizes that a local header states: 0 and *later if a descriptor has them. */
static bool stated_size(const uint8_t *p, tsr_cursor extra, uint64_t *size, bool *later)
{
    uint64_t packed;
    tsr_cursor wide = {NULL, 0, 0, false};
    zip64_extra(extra, &wide);
    if (!zip_widen((uint32_t)tsr_load_le(p + 22, 4), &wide, size) ||
        !zip_widen((uint32_t)tsr_load_le(p + 18, 4), &wide, &packed))
        return false;
    *later = (tsr_load_le(p + 6, 2) & TSR_ZIP_FLAG_DESCRIPTOR) && *size == 0;
    return *size == packed;
}

/* Finds the end of a member's data, and whether they are whole; *found is false if the archive ends before them. */
static tsr_status measure(const salvage *s, const uint8_t *p, tsr_cursor extra, described *d, bool *found)
{
    const uint64_t length = s->window->archive.byte_length;
    uint64_t size;
    uint32_t crc;
    bool later;
    *found = stated_size(p, extra, &size, &later);
    if (!*found) return TSR_OK;
    d->member.crc32 = (uint32_t)tsr_load_le(p + 14, 4);
    if (later) {
        TSR_TRY(find_end(s, d, found));
    } else {
        *found = size <= length - d->begin;
        d->end = d->next = d->begin + size;
    }
    if (!*found) return TSR_OK;
    if (!later && d->member.flags & TSR_ZIP_FLAG_DESCRIPTOR && length - d->end >= DESCRIPTOR_LONG) {
        const uint8_t *q;
        bool ends;
        TSR_TRY(zip_window_need(s->window, d->end, DESCRIPTOR_LONG, AHEAD_READ, &q, s->err));
        if (tsr_load_le(q, 4) == DESCRIPTOR_SIGNATURE) TSR_TRY(try_descriptor(s, q, d->end, d, &ends));
    }
    TSR_TRY(sum_data(s, d->begin, d->end, &crc));
    d->whole = d->member.crc32 == 0 || d->member.crc32 == crc;
    return TSR_OK;
}

/* Reads the member at s->at; *found is false if there is none that has an end. */
static tsr_status salvage_member(salvage *s, bool *found)
{
    const tsr_range *in = &s->window->archive;
    const uint64_t left = in->byte_length - s->at;
    const uint8_t *p;
    described d = {.member.header_offset = in->byte_offset + s->at};
    *found = false;
    if (left < TSR_ZIP_LOCAL_SIZE) return TSR_OK;
    TSR_TRY(zip_window_need(s->window, s->at, TSR_ZIP_LOCAL_SIZE, AHEAD_READ, &p, s->err));
    const size_t name_size = (size_t)tsr_load_le(p + 26, 2), extra_size = (size_t)tsr_load_le(p + 28, 2);
    const size_t head = TSR_ZIP_LOCAL_SIZE + name_size + extra_size;
    if (tsr_load_le(p, 4) != TSR_ZIP_LOCAL_SIGNATURE || head > left) return TSR_OK;
    TSR_TRY(zip_window_need(s->window, s->at, head, AHEAD_READ, &p, s->err));
    uint8_t *kept = tsr_arena_array(s->arena, head, 1, s->err); /* reading the data moves the window */
    if (!kept) return TSR_E_NOMEM;
    memcpy(kept, p, head);
    d.member.name = (tsr_str){(const char *)kept + TSR_ZIP_LOCAL_SIZE, name_size};
    d.member.flags = (uint16_t)tsr_load_le(kept + 6, 2);
    TSR_TRY(check_name(d.member.name, d.member.header_offset, s->err));
    TSR_FAIL_AT(d.member.flags & FLAGS_ENCRYPTED || tsr_load_le(kept + 8, 2) != 0, s->err, TSR_E_UNSUPPORTED,
                d.member.header_offset, "zip: member '%.*s' is encrypted or compressed", TSR_STR_ARG(d.member.name));
    d.begin = s->at + head;
    TSR_TRY(measure(s, kept, (tsr_cursor){kept + TSR_ZIP_LOCAL_SIZE + name_size, extra_size, 0, false}, &d, found));
    if (!*found) return TSR_OK;
    s->at = d.next;
    if (!d.whole) return TSR_OK;
    d.member.byte_offset = in->byte_offset + d.begin;
    d.member.size = d.end - d.begin;
    tsr_zip_member *added = tsr_vec_push(&s->members, s->err);
    if (!added) return TSR_E_NOMEM;
    *added = d.member;
    return TSR_OK;
}

static tsr_status salvage_members(salvage *s, tsr_zip *out)
{
    bool found = true;
    s->buffer = tsr_arena_array(s->arena, SALVAGE_STEP, 1, s->err);
    if (!s->buffer) return TSR_E_NOMEM;
    while (found) TSR_TRY(salvage_member(s, &found));
    tsr_zip_member *members = tsr_arena_array(s->arena, s->members.count, sizeof *members, s->err);
    if (!members) return TSR_E_NOMEM;
    TSR_FAIL_AT(!s->members.count || s->members.count >= UINT32_MAX, s->err, TSR_E_FORMAT, out->byte_offset,
                "zip: no member of the archive is whole");
    memcpy(members, s->members.items, s->members.count * sizeof *members);
    out->members = members;
    out->count = (uint32_t)s->members.count;
    return TSR_OK;
}

tsr_status tsr_zip_salvage(tsr_zip_window *window, const tsr_host *host, tsr_arena *arena, tsr_zip *out, tsr_error *err)
{
    const tsr_range *in = &window->archive;
    salvage s = {.window = window,
                 .host = host,
                 .arena = arena,
                 .members = tsr_vec_of(host->allocator, sizeof(tsr_zip_member)),
                 .err = err};
    *out = (tsr_zip){.file = in->file, .byte_offset = in->byte_offset, .size = in->byte_length};
    const tsr_status status = salvage_members(&s, out);
    tsr_vec_free(&s.members);
    TSR_TRY(status);
    TSR_TRY(index_names(out, arena, err));
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
