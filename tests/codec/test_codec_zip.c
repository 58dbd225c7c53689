/* What the zip reader accepts and rejects. Good archives are built here, or were written by PyTorch 2.13 (with positions
 * from Python's zipfile). Hostile archives are good ones with one field changed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "codec/zip.h"
#include "support/faults.h"
#include "support/zip_image.h"
#include "support/zip_opening.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/store.h"

static zip_image image;
static unsigned reads;
static tsr_status (*plain_read)(tsr_store *, uint32_t, uint64_t, void *, size_t, tsr_error *);

static tsr_status counted_read(tsr_store *store, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    reads++;
    return plain_read(store, file, offset, buffer, size, err);
}

static void make_image(bool zip64)
{
    zip_start(&image, 0);
    zip_add(&image, "a/data.pkl", "pickle", 6, ZIP_DESCRIPTOR);
    zip_add(&image, "a/data/0", "0123456789", 10, ZIP_PLAIN);
    zip_add(&image, "a/data/1", "", 0, ZIP_PLAIN);
    zip_add(&image, "a/version", "3\n", 2, ZIP_DESCRIPTOR64);
    zip_finish(&image, zip64);
}

typedef struct opened {
    tsr_host host;
    tsr_store *store;
    tsr_arena *arena;
    tsr_zip zip;
    tsr_error err;
    tsr_status status;
} opened;

static void open_bytes(opened *o, const void *bytes, size_t size, size_t offset)
{
    tsr_memory_file file = {TSR_STR("x.pt"), {bytes, size}};
    *o = (opened){.host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()}};
    assert_int_equal(tsr_store_from_memory(o->host.allocator, &file, 1, &o->store, NULL), TSR_OK);
    plain_read = o->store->read_at;
    o->store->read_at = counted_read;
    reads = 0;
    o->arena = tsr_arena_new(o->host.allocator, 0, NULL);
    o->status = zip_opened((tsr_range){o->store, 0, offset, size - offset}, &o->host, o->arena, &o->zip, &o->err);
}

static void drop(opened *o)
{
    tsr_arena_free(o->arena);
    o->store->close(o->store);
}

static void check_members(const opened *o)
{
    assert_int_equal(o->status, TSR_OK);
    assert_int_equal(o->zip.count, image.count);
    assert_int_equal(o->zip.top.size, 1);
    for (size_t i = 0; i < image.count; i++) {
        const tsr_zip_member *m = &o->zip.members[i];
        assert_true(tsr_str_equal(m->name, tsr_str_from(image.member[i].name)));
        assert_int_equal(m->byte_offset, image.member[i].data);
        assert_int_equal(m->size, image.member[i].size);
        assert_int_equal(m->crc32, image.member[i].crc);
        assert_int_equal(m->header_offset, image.member[i].local);
        assert_ptr_equal(tsr_zip_find(&o->zip, tsr_str_from(image.member[i].name + 2)), m);
    }
    assert_null(tsr_zip_find(&o->zip, TSR_STR("DATA.pkl")));
    assert_null(tsr_zip_find(&o->zip, TSR_STR("data/2")));
    assert_null(tsr_zip_find(&o->zip, TSR_STR("")));
}

static void test_codec_zip__members_are_where_they_were_put(void **state)
{
    (void)state;
    for (int zip64 = 0; zip64 < 2; zip64++) {
        opened o;
        make_image(zip64);
        open_bytes(&o, image.bytes, image.size, 0);
        check_members(&o);
        assert_int_equal(reads, 1);
        assert_false(o.zip.crc_absent);
        drop(&o);
    }
}

static void test_codec_zip__an_archive_may_begin_anywhere_in_a_file(void **state)
{
    (void)state;
    opened o;
    zip_start(&image, 77);
    zip_add(&image, "a/x", "abc", 3, ZIP_DESCRIPTOR);
    zip_finish(&image, true);
    open_bytes(&o, image.bytes, image.size, 77);
    check_members(&o);
    drop(&o);
    open_bytes(&o, image.bytes, image.size, 0); /* together with the bytes before it, it is an archive with prepended data */
    assert_int_equal(o.status, TSR_E_FORMAT);
    assert_non_null(strstr(o.err.message, "prepended data"));
    drop(&o);
}

static void test_codec_zip__zip64_sizes_are_read_from_extra_fields(void **state)
{
    (void)state;
    opened o;
    zip_start(&image, 0);
    zip_add(&image, "a/x", "abc", 3, ZIP_LARGE);
    zip_add(&image, "a/y", "defgh", 5, ZIP_LARGE | ZIP_DESCRIPTOR64);
    zip_finish(&image, true);
    open_bytes(&o, image.bytes, image.size, 0);
    check_members(&o);
    drop(&o);
}

static void test_codec_zip__large_archives_take_few_reads(void **state)
{
    (void)state;
    static char large[100 * 1024];
    opened o;
    zip_start(&image, 0);
    zip_add(&image, "a/data.pkl", "pickle", 6, ZIP_DESCRIPTOR);
    for (size_t i = 0; i < 3; i++)
        zip_add(&image, (const char *[]){"a/0", "a/1", "a/2"}[i], large, sizeof large, ZIP_DESCRIPTOR);
    for (size_t i = 0; i < 8; i++)
        zip_add(&image, (const char *[]){"a/3", "a/4", "a/5", "a/6", "a/7", "a/8", "a/9", "a/z"}[i], "x", 1, ZIP_DESCRIPTOR);
    zip_finish(&image, true);
    open_bytes(&o, image.bytes, image.size, 0);
    check_members(&o);
    assert_in_range(reads, 1, 6); /* at most the tail, the head, and one at the end of each large member */
    drop(&o);
}

static void test_codec_zip__crc_absent_says_that_none_was_computed(void **state)
{
    (void)state;
    opened o;
    make_image(true);
    for (size_t i = 0; i < image.count; i++) {
        zip_poke(&image, image.member[i].central + ZIP_CENTRAL_CRC, 4, 0);
        zip_poke(&image, image.member[i].local + ZIP_LOCAL_CRC, 4, 0);
        if (image.member[i].how) zip_poke(&image, image.member[i].descriptor + 4, 4, 0);
        image.member[i].crc = 0;
    }
    open_bytes(&o, image.bytes, image.size, 0);
    check_members(&o);
    assert_true(o.zip.crc_absent);
    drop(&o);
    zip_start(&image, 0);
    zip_finish(&image, false);
    open_bytes(&o, image.bytes, image.size, 0);
    assert_int_equal(o.status, TSR_OK);
    assert_int_equal(o.zip.count, 0);
    assert_false(o.zip.crc_absent);
    drop(&o);
}

/* The records of make_image(true), for the table below. */
typedef enum place {
    LOCAL_0,
    LOCAL_1,
    DESCRIPTOR_0,
    DESCRIPTOR_3,
    CENTRAL_0,
    CENTRAL_1,
    CENTRAL_2,
    ZIP64,
    LOCATOR,
    END,
    NOWHERE
} place;

static size_t offset_of(place at)
{
    switch (at) {
    case LOCAL_0: return image.member[0].local;
    case LOCAL_1: return image.member[1].local;
    case DESCRIPTOR_0: return image.member[0].descriptor;
    case DESCRIPTOR_3: return image.member[3].descriptor;
    case CENTRAL_0: return image.member[0].central;
    case CENTRAL_1: return image.member[1].central;
    case CENTRAL_2: return image.member[2].central;
    case ZIP64: return image.zip64;
    case LOCATOR: return image.locator;
    case END: return image.end;
    default: return 0;
    }
}

typedef struct poke {
    place at;
    size_t field;
    unsigned width;
    uint64_t value;
    tsr_status status;
    place where; /* position of the error */
    const char *message;
} poke;

static const poke pokes[] = {
    {CENTRAL_1, ZIP_CENTRAL_METHOD, 2, 8, TSR_E_UNSUPPORTED, CENTRAL_1, "member 'a/data/0' is compressed (deflate"},
    {CENTRAL_1, ZIP_CENTRAL_METHOD, 2, 93, TSR_E_UNSUPPORTED, CENTRAL_1, "method 93"},
    {LOCAL_1, ZIP_LOCAL_METHOD, 2, 8, TSR_E_FORMAT, LOCAL_1, "disagree"},
    {CENTRAL_1, ZIP_CENTRAL_FLAGS, 2, 0x0001, TSR_E_UNSUPPORTED, CENTRAL_1, "encrypted"},
    {CENTRAL_1, ZIP_CENTRAL_FLAGS, 2, 0x0040, TSR_E_UNSUPPORTED, CENTRAL_1, "encrypted"},
    {CENTRAL_1, ZIP_CENTRAL_FLAGS, 2, 0x2000, TSR_E_UNSUPPORTED, CENTRAL_1, "encrypted"},
    {LOCAL_1, ZIP_LOCAL_FLAGS, 2, 0x0001, TSR_E_FORMAT, LOCAL_1, "disagree on flags"},
    {CENTRAL_1, ZIP_CENTRAL_DISK, 2, 1, TSR_E_UNSUPPORTED, CENTRAL_1, "several disks"},
    {CENTRAL_1, ZIP_CENTRAL_EXTERNAL, 4, 0x10, TSR_E_FORMAT, CENTRAL_1,
     "marked as a directory, so PyTorch reads none of its 10"},
    {CENTRAL_1, ZIP_CENTRAL_SIZE, 4, 11, TSR_E_FORMAT, CENTRAL_1, "10 bytes compressed and 11 uncompressed"},
    {CENTRAL_1, ZIP_CENTRAL_SIZE, 4, UINT32_MAX, TSR_E_FORMAT, CENTRAL_1, "lacks its zip64 sizes"},
    {CENTRAL_1, ZIP_CENTRAL_PACKED, 4, UINT32_MAX, TSR_E_FORMAT, CENTRAL_1, "lacks its zip64 sizes"},
    {CENTRAL_1, ZIP_CENTRAL_OFFSET, 4, UINT32_MAX, TSR_E_FORMAT, CENTRAL_1, "lacks its zip64 sizes"},
    {CENTRAL_1, ZIP_CENTRAL_OFFSET, 4, 0xfffffff0, TSR_E_FORMAT, NOWHERE, "belong to no member"},
    {CENTRAL_1, ZIP_CENTRAL_OFFSET, 4, 0, TSR_E_FORMAT, LOCAL_0, "member 'a/data.pkl' overlaps the next one"},
    {CENTRAL_1, ZIP_CENTRAL_CRC, 4, 1, TSR_E_FORMAT, LOCAL_1, "disagree"},
    {LOCAL_1, ZIP_LOCAL_CRC, 4, 1, TSR_E_FORMAT, LOCAL_1, "disagree"},
    {LOCAL_1, ZIP_LOCAL_SIZE, 4, 9, TSR_E_FORMAT, LOCAL_1, "disagree"},
    {LOCAL_1, ZIP_LOCAL_PACKED, 4, 9, TSR_E_FORMAT, LOCAL_1, "disagree"},
    {LOCAL_1, ZIP_LOCAL_SIZE, 4, UINT32_MAX, TSR_E_FORMAT, LOCAL_1, "disagree"},
    {LOCAL_1, ZIP_LOCAL_PACKED, 4, UINT32_MAX, TSR_E_FORMAT, LOCAL_1, "disagree"},
    {LOCAL_0, ZIP_LOCAL_CRC, 4, 1, TSR_E_FORMAT, LOCAL_0, "disagree"},
    {LOCAL_0, ZIP_LOCAL_PACKED, 4, 5, TSR_E_FORMAT, LOCAL_0, "disagree"},
    {LOCAL_0, ZIP_LOCAL_SIZE, 4, 5, TSR_E_FORMAT, LOCAL_0, "disagree"},
    {LOCAL_1, 0, 4, 0, TSR_E_FORMAT, LOCAL_1, "no local header of 'a/data/0'"},
    {LOCAL_1, 28, 2, 0xffff, TSR_E_FORMAT, LOCAL_1, "no local header of 'a/data/0'"},
    {LOCAL_1, ZIP_LOCAL_NAME, 1, 'b', TSR_E_FORMAT, LOCAL_1, "calls a member 'a/data/0', its local header 'b/data/0'"},
    {LOCAL_1, 28, 2, 1, TSR_E_FORMAT, NOWHERE, "overlaps the next one"},
    {DESCRIPTOR_0, 0, 4, 0, TSR_E_FORMAT, DESCRIPTOR_0, "data descriptor of 'a/data.pkl'"},
    {DESCRIPTOR_0, 4, 4, 1, TSR_E_FORMAT, DESCRIPTOR_0, "data descriptor of 'a/data.pkl'"},
    {DESCRIPTOR_0, 12, 4, 7, TSR_E_FORMAT, DESCRIPTOR_0, "data descriptor of 'a/data.pkl'"},
    {DESCRIPTOR_0, 8, 4, 7, TSR_E_FORMAT, DESCRIPTOR_0, "data descriptor of 'a/data.pkl'"},
    {DESCRIPTOR_3, 16, 8, 3, TSR_E_FORMAT, DESCRIPTOR_3, "data descriptor of 'a/version'"},
    {CENTRAL_0, 0, 4, 0, TSR_E_FORMAT, CENTRAL_0, "expected another entry of the central directory"},
    {CENTRAL_0, ZIP_CENTRAL_NAME_SIZE, 2, 0xffff, TSR_E_FORMAT, CENTRAL_0, "reaches beyond its end"},
    {CENTRAL_0, ZIP_CENTRAL_NAME_SIZE, 2, 0, TSR_E_FORMAT, CENTRAL_0, "empty or contains a NUL"},
    {CENTRAL_0, ZIP_CENTRAL_NAME, 1, 0, TSR_E_FORMAT, CENTRAL_0, "empty or contains a NUL"},
    {CENTRAL_2, ZIP_CENTRAL_NAME + 7, 1, '0', TSR_E_FORMAT, NOWHERE, "member 'a/data/0' is listed twice"},
    {CENTRAL_2, ZIP_CENTRAL_NAME + 2, 6, 0x302f41544144, TSR_E_FORMAT, NOWHERE, "differ only in case"},
    {ZIP64, 0, 4, 0, TSR_E_FORMAT, ZIP64, "zip64 end record is damaged"},
    {ZIP64, 4, 8, 45, TSR_E_FORMAT, ZIP64, "zip64 end record is damaged"},
    {ZIP64, ZIP_64_DISK, 4, 1, TSR_E_UNSUPPORTED, ZIP64, "several disks"},
    {ZIP64, ZIP_64_DISK + 4, 4, 1, TSR_E_UNSUPPORTED, ZIP64, "several disks"},
    {ZIP64, ZIP_64_HERE, 8, 3, TSR_E_FORMAT, ZIP64, "disagree"},
    {ZIP64, ZIP_64_TOTAL, 8, 5, TSR_E_FORMAT, ZIP64, "disagree"},
    {ZIP64, ZIP_64_SIZE, 8, 5, TSR_E_FORMAT, ZIP64, "disagree"},
    {ZIP64, ZIP_64_OFFSET, 8, 5, TSR_E_FORMAT, ZIP64, "disagree"},
    {LOCATOR, ZIP_LOCATOR_OFFSET, 8, 0, TSR_E_FORMAT, LOCATOR, "a second end record"},
    {LOCATOR, ZIP_LOCATOR_OFFSET + 8, 4, 0, TSR_E_UNSUPPORTED, ZIP64, "several disks"},
    {LOCATOR, ZIP_LOCATOR_OFFSET + 8, 4, 0xff01, TSR_E_UNSUPPORTED, ZIP64, "several disks"}, /* PyTorch refuses it, too */
    {LOCATOR, 0, 4, 0, TSR_E_FORMAT, END, "the end records begin at byte"},
    {END, 0, 4, 0, TSR_E_FORMAT, END, "does not end with an end record"},
    {END, ZIP_END_COMMENT, 2, 1, TSR_E_FORMAT, END, "does not end with an end record"},
    {END, ZIP_END_DISK, 2, 1, TSR_E_UNSUPPORTED, END, "several disks"},
    {END, ZIP_END_DISK + 2, 2, 1, TSR_E_UNSUPPORTED, END, "several disks"},
    {END, ZIP_END_HERE, 2, 1, TSR_E_UNSUPPORTED, END, "several disks"},
    {END, ZIP_END_HERE, 4, 0x00030003, TSR_E_FORMAT, ZIP64, "disagree"},
    {END, ZIP_END_SIZE, 4, 7, TSR_E_FORMAT, ZIP64, "disagree"},
    {END, ZIP_END_OFFSET, 4, 7, TSR_E_FORMAT, ZIP64, "disagree"},
    {END, ZIP_END_HERE, 4, UINT32_MAX, TSR_OK, NOWHERE, ""}, /* all ones: the value is in the zip64 record */
    {END, ZIP_END_SIZE, 4, UINT32_MAX, TSR_OK, NOWHERE, ""},
    {END, ZIP_END_OFFSET, 4, UINT32_MAX, TSR_OK, NOWHERE, ""},
};

static void test_codec_zip__every_difference_is_refused_with_its_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof pokes / sizeof pokes[0]; i++) {
        const poke *p = &pokes[i];
        opened o;
        make_image(true);
        zip_poke(&image, offset_of(p->at) + p->field, p->width, p->value);
        open_bytes(&o, image.bytes, image.size, 0);
        if (o.status != p->status || !strstr(o.err.message, p->message) ||
            (p->where != NOWHERE && o.err.byte_position != offset_of(p->where)))
            fail_msg("row %zu: status %d at %llu: %s", i, (int)o.status, (unsigned long long)o.err.byte_position,
                     o.err.message);
        drop(&o);
    }
}

static void test_codec_zip__counts_and_sizes_without_zip64_are_held_against_the_bytes(void **state)
{
    (void)state;
    static const poke plain[] = {
        {END, ZIP_END_SIZE, 4, 5, TSR_E_FORMAT, END, "the end records begin at byte"},
        {END, ZIP_END_OFFSET, 4, 5, TSR_E_FORMAT, END, "the end records begin at byte"},
        {END, ZIP_END_OFFSET, 4, UINT32_MAX, TSR_E_FORMAT, END, "the end records begin at byte"},
        {END, ZIP_END_HERE, 4, 0x00030003, TSR_E_FORMAT, NOWHERE, "follow its last entry"},
        {END, ZIP_END_HERE, 4, 0x00050005, TSR_E_FORMAT, END, "5 members cannot be listed in 219 bytes"},
        {END, ZIP_END_HERE, 4, 0xfffffffe, TSR_E_UNSUPPORTED, END, "several disks"},
        {END, ZIP_END_HERE, 4, 0xfffefffe, TSR_E_FORMAT, END, "65534 members cannot be listed"},
    };
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        opened o;
        make_image(false);
        zip_poke(&image, image.end + plain[i].field, plain[i].width, plain[i].value);
        open_bytes(&o, image.bytes, image.size, 0);
        if (o.status != plain[i].status || !strstr(o.err.message, plain[i].message))
            fail_msg("row %zu: status %d: %s", i, (int)o.status, o.err.message);
        drop(&o);
    }
}

/* PyTorch 2.13 loads a file with 69,562 more bytes, and refuses one with 69,563. It finds the end of an archive that is smaller than 4,093 bytes
 * only where one of its blocks begins before it. */
static void test_codec_zip__what_follows_an_archive_is_not_part_of_it(void **state)
{
    (void)state;
    static unsigned char bytes[sizeof image.bytes + 69563];
    for (int zip64 = 0; zip64 < 2; zip64++) {
        make_image(zip64);
        const size_t end = image.size - 22;
        const struct {
            size_t size;
            bool is_found;
        } rows[] = {{image.size + 1, true},  {image.size + 22, true}, {4096, true},        {4096 + end, true},
                    {4097 + end, false},     {4096 + 4092, false},    {4096 + 4093, true}, {4096 + 15 * 4093 + end, true},
                    {69584 + end - 1, true}, {69584 + end, true},     {69585 + end, false}};
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            opened o;
            memset(bytes, zip64 ? 0 : 'P', sizeof bytes);
            memcpy(bytes, image.bytes, image.size);
            open_bytes(&o, bytes, rows[i].size, 0);
            if (rows[i].is_found) check_members(&o);
            else assert_int_equal(o.status, TSR_E_FORMAT);
            if (rows[i].is_found) assert_int_equal(o.zip.size, image.size);
            drop(&o);
        }
    }
}

/* ---- archives that are built wrong ---- */

static void with_extra(uint16_t id, uint16_t size)
{
    zip_start(&image, 0);
    zip_add(&image, "a/x", "abc", 3, ZIP_LARGE);
    zip_finish(&image, true);
    const size_t extra = image.member[0].central + ZIP_CENTRAL_NAME + 3;
    zip_poke(&image, extra, 2, id);
    zip_poke(&image, extra + 2, 2, size);
}
static void unknown_extra(void)
{
    with_extra(7, 16);
}
static void long_extra(void)
{
    with_extra(1, 17);
}
static void short_extra(void)
{
    with_extra(1, 8);
}

/* A locator so near to the start that no zip64 record fits before it. */
static void locator_only(void)
{
    zip_start(&image, 0);
    zip_put(&image, 4, 0x07064b50);
    zip_put(&image, 8, 0);
    zip_put(&image, 8, 0);
    zip_finish(&image, false);
}

static void endless_directory(void)
{
    make_image(true);
    zip_poke(&image, image.zip64 + ZIP_64_OFFSET, 8, UINT64_MAX);
    zip_poke(&image, image.end + ZIP_END_OFFSET, 4, UINT32_MAX);
}

/* The end record announces two members. There are enough bytes for two entries, but the first entry takes all of them. */
static void missing_entry(void)
{
    zip_start(&image, 0);
    zip_add(&image, "a/a name that is as long as an entry without a name", "abc", 3, ZIP_PLAIN);
    zip_finish(&image, false);
    zip_poke(&image, image.end + ZIP_END_HERE, 4, 0x00020002);
}

/* A header offset in the extra field that overflows when the archive's own offset is added to it. */
static void wrapped_offset(void)
{
    zip_start(&image, 77);
    zip_add(&image, "a/x", "abc", 3, ZIP_LARGE);
    zip_finish(&image, true);
    const size_t central = image.member[0].central;
    zip_poke(&image, central + ZIP_CENTRAL_SIZE, 4, 3);
    zip_poke(&image, central + ZIP_CENTRAL_PACKED, 4, 3);
    zip_poke(&image, central + ZIP_CENTRAL_OFFSET, 4, UINT32_MAX);
    zip_poke(&image, central + ZIP_CENTRAL_NAME + 3 + 4, 8, UINT64_MAX - 5);
}

static void junk_first(void)
{
    zip_start(&image, 0);
    zip_put(&image, 4, 0);
    zip_add(&image, "a/x", "abc", 3, ZIP_PLAIN);
    zip_finish(&image, false);
}
static void junk_only(void)
{
    zip_start(&image, 0);
    zip_put(&image, 4, 0);
    zip_finish(&image, false);
}

/* The second header is said to begin where the directory begins, or too close before it. */
static void header_at(size_t before)
{
    zip_start(&image, 0);
    zip_add(&image, "a/x", "abc", 3, ZIP_PLAIN);
    image.member[image.count++] = (zip_image_member){.name = "a/y", .size = 3, .local = image.size};
    for (size_t i = 0; i < before; i++) zip_put(&image, 1, 0);
    zip_finish(&image, false);
}
static void header_in_directory(void)
{
    header_at(0);
}
static void header_cut_short(void)
{
    header_at(20);
}

/* A local header that leaves its sizes to the descriptor, and whose extra field says so. */
static void later_in_extra(uint32_t crc)
{
    zip_start(&image, 0);
    zip_add(&image, "a/x", "abc", 3, ZIP_LARGE | ZIP_DESCRIPTOR64);
    zip_finish(&image, true);
    const size_t local = image.member[0].local;
    zip_poke(&image, local + ZIP_LOCAL_CRC, 4, crc);
    zip_poke(&image, local + ZIP_LOCAL_SIZE, 4, UINT32_MAX);
    zip_poke(&image, local + ZIP_LOCAL_PACKED, 4, UINT32_MAX);
    for (size_t i = 0; i < 2; i++) zip_poke(&image, local + ZIP_LOCAL_NAME + 3 + 4 + 8 * i, 8, 0);
}
static void later_without_crc(void)
{
    later_in_extra(0);
}
static void later_with_crc(void)
{
    later_in_extra(tsr_crc32(NULL, 0, "abc", 3));
}
static void later_with_wrong_crc(void)
{
    later_in_extra(1);
}

static void descriptor(uint32_t how)
{
    zip_start(&image, 0);
    zip_add(&image, "a/x", "abc", 3, how);
    zip_finish(&image, false);
}
static void unmarked(void)
{
    descriptor(ZIP_DESCRIPTOR | ZIP_UNMARKED);
}
static void unmarked64(void)
{
    descriptor(ZIP_DESCRIPTOR64 | ZIP_UNMARKED);
}
static void after_descriptor(size_t size)
{
    zip_start(&image, 0);
    zip_add(&image, "a/x", "abc", 3, ZIP_DESCRIPTOR64);
    for (size_t i = 0; i < size; i++) zip_put(&image, 1, 0);
    zip_finish(&image, false);
}
static void long_descriptor(void)
{
    after_descriptor(4);
}
static void no_descriptor(void)
{
    descriptor(ZIP_PLAIN);
    zip_poke(&image, image.member[0].local + ZIP_LOCAL_FLAGS, 2, 8);
    zip_poke(&image, image.member[0].central + ZIP_CENTRAL_FLAGS, 2, 8);
}
static void odd_descriptor(void)
{
    zip_start(&image, 0);
    zip_add(&image, "a/x", "abc", 3, ZIP_DESCRIPTOR);
    zip_put(&image, 2, 0);
    zip_finish(&image, false);
}

static const struct {
    void (*build)(void);
    tsr_status status;
    const char *message;
} built[] = {
    {unknown_extra, TSR_E_FORMAT, "member 'a/x' lacks its zip64 sizes"},
    {long_extra, TSR_E_FORMAT, "member 'a/x' lacks its zip64 sizes"},
    {short_extra, TSR_E_FORMAT, "member 'a/x' lacks its zip64 sizes"},
    {locator_only, TSR_E_FORMAT, "too short for its zip64 end record"},
    {endless_directory, TSR_E_FORMAT, "the central directory should begin at byte 18446744073709551615 and have 219"},
    {missing_entry, TSR_E_FORMAT, "expected another entry of the central directory"},
    {wrapped_offset, TSR_E_FORMAT, "member 'a/x' begins beyond the end of the archive"},
    {junk_first, TSR_E_FORMAT, "4 bytes before the first member belong to no member"},
    {junk_only, TSR_E_FORMAT, "4 bytes before the first member belong to no member"},
    {header_in_directory, TSR_E_FORMAT, "the local header of 'a/y' is beyond the end of the members (byte 36 of 36)"},
    {header_cut_short, TSR_E_FORMAT, "the local header of 'a/y' is beyond the end of the members (byte 36 of 56)"},
    {later_without_crc, TSR_OK, ""},
    {later_with_crc, TSR_OK, ""},
    {later_with_wrong_crc, TSR_E_FORMAT, "disagree on flags, method, CRC or size"},
    {unmarked, TSR_OK, ""},
    {unmarked64, TSR_OK, ""},
    {long_descriptor, TSR_E_FORMAT, "28 bytes after member 'a/x' belong to no member"},
    {no_descriptor, TSR_E_FORMAT, "0 bytes after member 'a/x' belong to no member"},
    {odd_descriptor, TSR_E_FORMAT, "18 bytes after member 'a/x' belong to no member"},
};

static void test_codec_zip__archives_built_wrong_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof built / sizeof built[0]; i++) {
        opened o;
        built[i].build();
        open_bytes(&o, image.bytes, image.size, image.base);
        if (o.status != built[i].status || !strstr(o.err.message, built[i].message))
            fail_msg("row %zu: status %d: %s", i, (int)o.status, o.err.message);
        drop(&o);
    }
}

static void test_codec_zip__members_need_no_common_directory(void **state)
{
    (void)state;
    static const char *const names[][2] = {{"x", "y"}, {"a/x", "b/y"}, {"a/x", "y"}};
    for (size_t i = 0; i < 3; i++) {
        opened o;
        zip_start(&image, 0);
        for (size_t k = 0; k < 2; k++) zip_add(&image, names[i][k], "abc", 3, ZIP_PLAIN);
        zip_finish(&image, false);
        open_bytes(&o, image.bytes, image.size, 0);
        assert_int_equal(o.status, TSR_OK);
        assert_int_equal(o.zip.top.size, 0);
        for (size_t k = 0; k < 2; k++) assert_ptr_equal(tsr_zip_find(&o.zip, tsr_str_from(names[i][k])), &o.zip.members[k]);
        drop(&o);
    }
}

static void test_codec_zip__looks_like_an_archive_by_its_first_bytes(void **state)
{
    (void)state;
    assert_true(tsr_zip_looks_like(TSR_STR("PK\3\4")));
    assert_false(tsr_zip_looks_like(TSR_STR("PK\3")));
    assert_false(tsr_zip_looks_like(TSR_STR("PK\5\6")));
}

static void test_codec_zip__bytes_between_members_are_refused(void **state)
{
    (void)state;
    opened o;
    zip_start(&image, 0);
    zip_add(&image, "a/x", "abc", 3, ZIP_PLAIN);
    zip_put(&image, 8, 0);
    zip_add(&image, "a/y", "abc", 3, ZIP_PLAIN);
    zip_finish(&image, false);
    open_bytes(&o, image.bytes, image.size, 0);
    assert_int_equal(o.status, TSR_E_FORMAT);
    assert_non_null(strstr(o.err.message, "8 bytes after member 'a/x' belong to no member"));
    drop(&o);
}

static void test_codec_zip__a_size_beyond_the_members_is_refused(void **state)
{
    (void)state;
    opened o;
    make_image(true);
    zip_poke(&image, image.member[1].central + ZIP_CENTRAL_PACKED, 4, 5000);
    zip_poke(&image, image.member[1].central + ZIP_CENTRAL_SIZE, 4, 5000);
    zip_poke(&image, image.member[1].local + ZIP_LOCAL_PACKED, 4, 5000);
    zip_poke(&image, image.member[1].local + ZIP_LOCAL_SIZE, 4, 5000);
    open_bytes(&o, image.bytes, image.size, 0);
    assert_int_equal(o.status, TSR_E_FORMAT);
    assert_non_null(strstr(o.err.message, "member 'a/data/0' has 5000 bytes"));
    drop(&o);
}

static void test_codec_zip__every_truncation_is_refused(void **state)
{
    (void)state;
    make_image(true);
    for (size_t size = 0; size < image.size; size++) {
        opened o;
        open_bytes(&o, image.bytes, size, 0);
        assert_int_not_equal(o.status, TSR_OK);
        drop(&o);
    }
}

static void test_codec_zip__the_directory_is_bounded_by_limits(void **state)
{
    (void)state;
    opened o;
    make_image(true);
    open_bytes(&o, image.bytes, image.size, 0);
    o.host.limits.metadata_bytes = 10;
    assert_int_equal(zip_opened((tsr_range){o.store, 0, 0, image.size}, &o.host, o.arena, &o.zip, &o.err), TSR_E_LIMIT);
    drop(&o);
}

static tsr_status open_and_drop(void *ctx, tsr_store *store, const tsr_host *host, tsr_error *err)
{
    tsr_zip zip;
    (void)ctx;
    tsr_arena *arena = tsr_arena_new(host->allocator, 0, err);
    tsr_status status = arena ? zip_opened(tsr_whole_file(store, 0), host, arena, &zip, err) : TSR_E_NOMEM;
    tsr_arena_free(arena);
    return status;
}

static void bear_failures(void)
{
    opened o;
    open_bytes(&o, image.bytes, image.size, 0);
    assert_int_equal(must_bear_failures(open_and_drop, NULL, o.store, &o.host), TSR_OK);
    drop(&o);
}

static void test_codec_zip__failing_allocations_and_reads_end_cleanly(void **state)
{
    (void)state;
    static char large[100 * 1024];
    static const char *const names[] = {"a/data.pkl", "a/0", "a/1", "a/2"};
    make_image(true);
    bear_failures();
    zip_start(&image, 0); /* read in several parts */
    for (size_t i = 0; i < 4; i++) zip_add(&image, names[i], large, i ? sizeof large : 6, ZIP_DESCRIPTOR);
    zip_finish(&image, true);
    bear_failures();
    static char name[8000]; /* a name larger than what is read ahead, and a directory larger than what is read from the
                             * end */
    memset(name, 'n', sizeof name - 1);
    zip_start(&image, 0);
    for (size_t i = 0; i < 4; i++) zip_add(&image, i ? name + i : "a", large, sizeof large, ZIP_DESCRIPTOR);
    zip_finish(&image, true);
    bear_failures();
}

static void test_codec_zip__archives_of_pytorch_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t byte_offset, size, header_offset;
        uint32_t crc32;
    } members[] = {
        {"data.pkl", 64, 712, 0, 0x4df98386},
        {".format_version", 896, 1, 792, 0x83dcefb7},
        {".storage_alignment", 1024, 2, 913, 0xe971773f},
        {"byteorder", 1152, 6, 1042, 0x19e33d85},
        {"data/0", 1280, 264, 1174, 0x9ae87cc0},
        {"data/1", 1664, 24, 1560, 0x29dd1225},
        {"data/2", 1792, 24, 1704, 0xa3c1ca20},
        {"data/3", 1920, 24, 1832, 0xa3c1ca20},
        {"data/4", 2048, 24, 1960, 0x29dd1225},
        {"data/5", 2176, 8, 2088, 0x6522df69},
        {"version", 2304, 2, 2200, 0x55679ed1},
        {".data/serialization_id", 2432, 40, 2322, 0x67f2865a},
    };
    static char bytes[8192];
    FILE *file = fopen(TSR_TEST_DATA "/samples/checkpoints/torch_plain/model.pt", "rb");
    assert_non_null(file);
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    opened o;
    open_bytes(&o, bytes, size, 0);
    assert_int_equal(o.status, TSR_OK);
    assert_true(tsr_zip_looks_like((tsr_str){bytes, size}));
    assert_int_equal(o.zip.count, sizeof members / sizeof members[0]);
    for (uint32_t i = 0; i < o.zip.count; i++) {
        const tsr_zip_member *m = tsr_zip_find(&o.zip, tsr_str_from(members[i].name));
        assert_ptr_equal(m, &o.zip.members[i]);
        assert_int_equal(m->byte_offset, members[i].byte_offset);
        assert_int_equal(m->size, members[i].size);
        assert_int_equal(m->header_offset, members[i].header_offset);
        assert_int_equal(m->crc32, members[i].crc32);
        assert_int_equal(m->crc32, tsr_crc32(NULL, 0, bytes + m->byte_offset, (size_t)m->size));
    }
    drop(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codec_zip__members_are_where_they_were_put),
        cmocka_unit_test(test_codec_zip__an_archive_may_begin_anywhere_in_a_file),
        cmocka_unit_test(test_codec_zip__zip64_sizes_are_read_from_extra_fields),
        cmocka_unit_test(test_codec_zip__large_archives_take_few_reads),
        cmocka_unit_test(test_codec_zip__crc_absent_says_that_none_was_computed),
        cmocka_unit_test(test_codec_zip__every_difference_is_refused_with_its_place),
        cmocka_unit_test(test_codec_zip__counts_and_sizes_without_zip64_are_held_against_the_bytes),
        cmocka_unit_test(test_codec_zip__what_follows_an_archive_is_not_part_of_it),
        cmocka_unit_test(test_codec_zip__archives_built_wrong_are_refused),
        cmocka_unit_test(test_codec_zip__members_need_no_common_directory),
        cmocka_unit_test(test_codec_zip__looks_like_an_archive_by_its_first_bytes),
        cmocka_unit_test(test_codec_zip__bytes_between_members_are_refused),
        cmocka_unit_test(test_codec_zip__a_size_beyond_the_members_is_refused),
        cmocka_unit_test(test_codec_zip__every_truncation_is_refused),
        cmocka_unit_test(test_codec_zip__the_directory_is_bounded_by_limits),
        cmocka_unit_test(test_codec_zip__failing_allocations_and_reads_end_cleanly),
        cmocka_unit_test(test_codec_zip__archives_of_pytorch_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
