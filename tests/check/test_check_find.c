/* What tsr_checkpoint_find says of a chunk, by reading once, is what tsr_checkpoint_locate and tsr_checkpoint_crc say: over all
 * samples, and over their mapped checkpoints. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tessera/native_host.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/mapping.h"

typedef struct tally {
    size_t chunks, with_crc, failures;
} tally;

static void check_chunk(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, tally *sum)
{
    tsr_found found, want = {0};
    tsr_error err = {0};
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    tsr_status located = tsr_checkpoint_locate(checkpoint, entry, chunk, arena, &want.view, &err);
    if (located == TSR_OK) located = tsr_checkpoint_crc(checkpoint, entry, chunk, arena, &want.crc, &err);
    assert_int_equal(tsr_checkpoint_find(checkpoint, entry, chunk, arena, &found, &err) == TSR_OK, located == TSR_OK);
    sum->chunks++;
    sum->failures += located != TSR_OK;
    if (located == TSR_OK) {
        assert_int_equal(found.view.file, want.view.file);
        assert_int_equal(found.view.byte_offset, want.view.byte_offset);
        assert_int_equal(found.view.strides != NULL, want.view.strides != NULL);
        for (uint32_t d = 0; want.view.strides && d < entry->ndim; d++)
            assert_int_equal(found.view.strides[d], want.view.strides[d]);
        assert_int_equal(found.crc.is_stated, want.crc.is_stated);
        assert_int_equal(found.crc.crc32, want.crc.crc32);
        sum->with_crc += found.crc.is_stated;
    }
    tsr_arena_free(arena);
}

static void check_checkpoint(tsr_checkpoint *checkpoint, tally *sum)
{
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    for (uint64_t i = 0; i < catalog->entry_count; i++) {
        const tsr_entry *entry = &catalog->entries[i];
        for (uint64_t c = 0; entry->kind == TSR_ENTRY_TENSOR && c < entry->chunk_count; c++)
            check_chunk(checkpoint, entry, &entry->chunks[c], sum);
    }
}

/* All names with a prefix. */
static void check_mapped(tsr_checkpoint *checkpoint, const tsr_host *host, tally *sum)
{
    static const char map[] =
        "{\"schema\":\"tessera.map/1\",\"rules\":[{\"from\":[\"{rest...}\"],\"to\":[\"mapped.{rest...}\"]}]}";
    tsr_checkpoint *mapped = NULL;
    const tsr_mapping_rules *rules;
    tsr_error err = {0};
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    if (tsr_mapping_parse(tsr_str_from(map), host, arena, &rules, &err)) fail_msg("%s", err.message);
    if (tsr_mapping_open(checkpoint, rules, &mapped, &err) == TSR_OK) check_checkpoint(mapped, sum);
    tsr_checkpoint_close(mapped);
    tsr_arena_free(arena);
}

static void check_sample(const char *name, const tsr_host *host, tally *plain, tally *mapped)
{
    char path[512];
    tsr_store *store = NULL;
    tsr_checkpoint *checkpoint = NULL;
    tsr_error err = {0};
    snprintf(path, sizeof path, "%s/samples/checkpoints/%s", TSR_TEST_DATA, name);
    if (tsr_directory_store_open(NULL, host->allocator, path, &store, &err) == TSR_OK &&
        tsr_checkpoint_open(store, host, NULL, &checkpoint, &err) == TSR_OK) {
        check_checkpoint(checkpoint, plain);
        check_mapped(checkpoint, host, mapped);
    }
    tsr_checkpoint_close(checkpoint);
    if (store) store->close(store);
}

static void test_check_find__says_what_locate_and_crc_say(void **state)
{
    (void)state;
    tally plain = {0}, mapped = {0};
    tsr_native_host native;
    tsr_native_host_open(&native, 0);
    DIR *dir = opendir(TSR_TEST_DATA "/samples/checkpoints");
    assert_non_null(dir);
    for (struct dirent *item; (item = readdir(dir));)
        if (item->d_name[0] != '.') check_sample(item->d_name, &native.host, &plain, &mapped);
    closedir(dir);
    tsr_native_host_close(&native);
    print_message("%zu chunks, %zu of them with CRCs, %zu not found; %zu mapped chunks, %zu of them with CRCs\n",
                  plain.chunks, plain.with_crc, plain.failures, mapped.chunks, mapped.with_crc);
    assert_true(plain.chunks > 1000 && plain.with_crc > 500 && plain.failures > 0);
    assert_true(mapped.chunks > 500 && mapped.with_crc > 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_check_find__says_what_locate_and_crc_say)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
