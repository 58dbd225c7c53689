/* Chunks of a DCP that are located in advance: their positions and CRCs are those of the bytes in the file, and opening the
 * tensors afterwards reads nothing more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "stream/gather.h"
#include "support/faults.h"
#include "support/made.h"
#include "tessera/convert.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/plan.h"
#include "tessera/sys/store.h"

#define TENSORS 3u

static const char *const names[TENSORS] = {"a", "b.weight", "c"};
/* The items of the last one are too large to be read whole. */
static const uint64_t shapes[TENSORS][2] = {{6, 5}, {9, 128}, {6, 20000}};

/* Makes a DCP in memory, with the rows of the tensors divided among three ranks. */
static tsr_store *made_dcp(tsr_made *made, tsr_output **output)
{
    tsr_error err = {0};
    tsr_target target;
    tsr_plan *plan = NULL;
    tsr_conversion conversion;
    tsr_memory_file files[8];
    tsr_store *store;
    tsr_made_start(made, 7, TENSORS);
    for (unsigned i = 0; i < TENSORS; i++) tsr_made_tensor(made, names[i], TSR_FLOAT32, 2, shapes[i], 2, (tsr_made_how)0);
    tsr_made_open(made);
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    tsr_output_to_memory(&tsr_allocator_libc, output, NULL);
    if (tsr_target_parse(TSR_STR("dp=3"), TSR_STR("shard(0)"), arena, &target, &err) ||
        tsr_plan_new(tsr_checkpoint_catalog(&made->checkpoint), &target, NULL, &made->host, &plan, &err))
        fail_msg("%s", err.message);
    const tsr_convert_options options = {.to = TSR_TO_DCP, .plan = plan};
    if (tsr_convert(&made->checkpoint, *output, &options, arena, &conversion, &err)) fail_msg("%s", err.message);
    const uint32_t count = tsr_output_memory_count(*output);
    assert_true(count > 1 && count <= 8);
    for (uint32_t i = 0; i < count; i++) {
        const tsr_str name = tsr_output_memory_name(*output, i);
        files[i] = (tsr_memory_file){name, tsr_output_memory_file(*output, name)};
    }
    assert_int_equal(tsr_store_from_memory(&tsr_allocator_libc, files, count, &store, NULL), TSR_OK);
    tsr_plan_free(plan);
    tsr_arena_free(arena);
    return store;
}

static void check_chunk(tsr_checkpoint *checkpoint, const tsr_entry *entry, const tsr_chunk *chunk, const tsr_found *found)
{
    tsr_error err = {0};
    const size_t size = (size_t)(chunk->sizes[0] * chunk->sizes[1] * 4);
    uint8_t *bytes = malloc(size);
    tsr_view view;
    tsr_arena *scratch = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    assert_non_null(found);
    if (tsr_checkpoint_locate(checkpoint, entry, chunk, scratch, &view, &err)) fail_msg("%s", err.message);
    assert_int_equal(found->view.byte_offset, view.byte_offset);
    assert_int_equal(found->view.file, view.file);
    if (tsr_store_read(tsr_checkpoint_store(checkpoint), view.file, view.byte_offset, bytes, size, &err))
        fail_msg("%s", err.message);
    assert_true(found->crc.is_stated);
    assert_int_equal(found->crc.crc32, tsr_crc32(tsr_checkpoint_host(checkpoint), 0, bytes, size));
    tsr_arena_free(scratch);
    free(bytes);
}

static void test_convert_ahead__finds_once_what_gathers_need(void **state)
{
    (void)state;
    tsr_made made;
    tsr_output *output;
    tsr_store *memory = made_dcp(&made, &output);
    failing_store counted = failing_store_of(memory, SIZE_MAX);
    tsr_checkpoint *checkpoint;
    tsr_ahead *ahead;
    tsr_gather *gather;
    tsr_error err = {0};
    if (tsr_checkpoint_open(&counted.base, &made.host, NULL, &checkpoint, &err)) fail_msg("%s", err.message);
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    assert_int_equal(catalog->entry_count, TENSORS);
    assert_int_equal(tsr_ahead_new(checkpoint, &ahead, &err), TSR_OK);
    assert_non_null(ahead);
    assert_null(tsr_ahead_find(ahead, catalog->entries[0].chunks));
    for (unsigned i = 0; i < TENSORS; i++) assert_int_equal(tsr_ahead_want(ahead, &catalog->entries[i], NULL, &err), TSR_OK);
    assert_int_equal(tsr_ahead_waiting(ahead), 3 * TENSORS);
    const size_t before = counted.reads;
    tsr_ahead_seek(ahead);
    assert_int_equal(tsr_ahead_waiting(ahead), 0);
    const size_t reads = counted.reads;
    assert_int_equal(reads - before, 6 + 3 * 2); /* a small item is read at once, of a large one both ends */
    for (unsigned i = 0; i < TENSORS; i++) {
        if (tsr_gather_open_found(checkpoint, &catalog->entries[i], NULL, ahead, &gather, &err)) fail_msg("%s", err.message);
        assert_int_equal(gather->part_count, 3);
        tsr_gather_close(gather);
    }
    assert_int_equal(counted.reads, reads);
    for (unsigned i = 0; i < TENSORS; i++)
        for (uint64_t c = 0; c < catalog->entries[i].chunk_count; c++)
            check_chunk(checkpoint, &catalog->entries[i], &catalog->entries[i].chunks[c],
                        tsr_ahead_find(ahead, &catalog->entries[i].chunks[c]));
    tsr_ahead_free(ahead);
    tsr_checkpoint_close(checkpoint);
    memory->close(memory);
    output->close(output);
    tsr_made_end(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_convert_ahead__finds_once_what_gathers_need)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
