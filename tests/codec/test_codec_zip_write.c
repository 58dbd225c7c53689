/* Compares archives byte for byte with those that torch.save wrote, and checks the fields of archives that are too large to
 * make. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/cursor.h"
#include "codec/zip.h"
#include "support/sample.h"
#include "support/zip_opening.h"

static const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = {1000, 1000000, 1u << 30, 1u << 30, 1000000}};

static void append(tsr_vec *out, const char *data, uint64_t size)
{
    assert_int_equal(tsr_vec_reserve(out, size, NULL), TSR_OK);
    if (size) memcpy((char *)out->items + out->count, data, size);
    out->count += size;
}

/* Reads an archive and writes it again. */
static void write_again(const sample *s, tsr_vec *out)
{
    tsr_zip zip;
    tsr_error err = {0};
    uint64_t directory, size;
    const tsr_str file = s->files[0].content;
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    if (zip_opened((tsr_range){s->store, 0, 0, file.size}, &host, arena, &zip, &err)) fail_msg("%s", err.message);
    tsr_zip_new_member *members = tsr_arena_array(arena, zip.count, sizeof *members, NULL);
    for (uint32_t i = 0; i < zip.count; i++) {
        members[i] =
            (tsr_zip_new_member){.name = zip.members[i].name, .size = zip.members[i].size, .crc32 = zip.members[i].crc32};
    }
    assert_true(tsr_zip_layout(members, zip.count, &directory, &size));
    for (uint32_t i = 0; i < zip.count; i++) {
        assert_int_equal(tsr_zip_append_header(&members[i], out, NULL), TSR_OK);
        assert_int_equal(out->count, members[i].byte_offset);
        append(out, file.data + zip.members[i].byte_offset, members[i].size);
        assert_int_equal(tsr_zip_append_descriptor(&members[i], out, NULL), TSR_OK);
    }
    assert_int_equal(out->count, directory);
    assert_int_equal(tsr_zip_append_directory(members, zip.count, out, NULL), TSR_OK);
    assert_int_equal(out->count, size);
    tsr_arena_free(arena);
}

static void test_codec_zip_write__archives_are_torchs_byte_for_byte(void **state)
{
    (void)state;
    static const char *const files[][2] = {{"torch_plain", "model.pt"},
                                           {"torch_nested", "nested.pt"},
                                           {"torch_sizes", "sizes.pt"},
                                           {"torch_train_state", "train.pt"},
                                           {"torch_views", "views.pt"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        sample s = {.count = 0};
        sample_add_file(&s, files[i][0], files[i][1]);
        assert_int_equal(sample_open(&s, &tsr_allocator_libc), TSR_OK);
        tsr_vec out = tsr_vec_of(&tsr_allocator_libc, 1);
        write_again(&s, &out);
        assert_int_equal(out.count, s.files[0].content.size);
        assert_memory_equal(out.items, s.files[0].content.data, out.count);
        tsr_vec_free(&out);
        sample_close(&s);
    }
}

static uint64_t field(const tsr_vec *bytes, size_t at, unsigned size)
{
    return tsr_load_le((const uint8_t *)bytes->items + at, size);
}

/* A member of 5 GiB and one after it: sizes and offset move into zip64 fields (APPNOTE 4.5.3, 4.3.9.2). */
static void test_codec_zip_write__what_exceeds_4_gib_moves_into_zip64_fields(void **state)
{
    (void)state;
    const uint64_t large = UINT64_C(5) << 30;
    tsr_zip_new_member members[] = {{.name = TSR_STR("a"), .size = large, .crc32 = 0x11223344},
                                    {.name = TSR_STR("bc"), .size = 7}};
    uint64_t directory, size;
    assert_true(tsr_zip_layout(members, 2, &directory, &size));
    assert_int_equal(members[0].byte_offset, 64);
    assert_int_equal(members[1].header_offset, 64 + large + 24);
    assert_int_equal(members[1].byte_offset % 64, 0);
    tsr_vec out = tsr_vec_of(&tsr_allocator_libc, 1);
    tsr_zip_append_descriptor(&members[0], &out, NULL);
    assert_int_equal(out.count, 24);
    assert_int_equal(field(&out, 4, 4), 0x11223344);
    assert_int_equal(field(&out, 8, 8), large);
    assert_int_equal(field(&out, 16, 8), large);
    out.count = 0;
    tsr_zip_append_directory(members, 2, &out, NULL);
    assert_int_equal(out.count, size - directory);
    assert_int_equal(field(&out, 20, 4), 0xffffffff); /* first entry: packed size, size, length of the extra field, then
                                                       * both sizes */
    assert_int_equal(field(&out, 24, 4), 0xffffffff);
    assert_int_equal(field(&out, 30, 2), 20);
    assert_int_equal(field(&out, 42, 4), 0);
    assert_int_equal(field(&out, 47, 2), 1);
    assert_int_equal(field(&out, 49, 2), 16);
    assert_int_equal(field(&out, 51, 8), large);
    assert_int_equal(field(&out, 59, 8), large);
    const size_t second = 46 + 1 + 20; /* second entry: only its offset */
    assert_int_equal(field(&out, second + 24, 4), 7);
    assert_int_equal(field(&out, second + 42, 4), 0xffffffff);
    assert_int_equal(field(&out, second + 48 + 4, 8), members[1].header_offset);
    const size_t ends = second + 46 + 2 + 12; /* zip64 end record, locator, end record */
    assert_int_equal(field(&out, ends, 4), 0x06064b50);
    assert_int_equal(field(&out, ends + 40, 8), ends);
    assert_int_equal(field(&out, ends + 48, 8), directory);
    assert_int_equal(field(&out, ends + 56 + 8, 8), directory + ends);
    assert_int_equal(field(&out, ends + 76 + 16, 4), 0xffffffff);
    tsr_vec_free(&out);
}

static void test_codec_zip_write__impossible_sizes_are_refused(void **state)
{
    (void)state;
    tsr_zip_new_member members[] = {{.name = TSR_STR("a"), .size = UINT64_MAX / 2},
                                    {.name = TSR_STR("b"), .size = UINT64_MAX / 2}};
    uint64_t directory, size;
    assert_false(tsr_zip_layout(members, 2, &directory, &size));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codec_zip_write__archives_are_torchs_byte_for_byte),
        cmocka_unit_test(test_codec_zip_write__what_exceeds_4_gib_moves_into_zip64_fields),
        cmocka_unit_test(test_codec_zip_write__impossible_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
