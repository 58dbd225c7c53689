/* Compares stripes, loads and server orders with byte-by-byte counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/storage_model.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/plan.h"

#define SERVERS 6u

static const uint32_t chosen[] = {4, 1, 5};

static void test_plan_storage__stripes_are_where_every_byte_is(void **state)
{
    (void)state;
    tsr_storage_server servers[SERVERS];
    for (uint32_t s = 0; s < SERVERS; s++) servers[s] = (tsr_storage_server){TSR_STR("s"), s == 1 ? 50 : 100, 0.5};
    for (uint64_t seed = 0; seed < 400; seed++) {
        const bool listed = seed % 2;
        const tsr_striping striping = {.stripe_size = 1 + seed % 7,
                                       .stripe_count = listed ? 3 : 1 + (uint32_t)(seed / 7 % SERVERS),
                                       .first = (uint32_t)(seed % SERVERS),
                                       .servers = listed ? chosen : NULL};
        const tsr_storage storage = {servers, SERVERS, 100, &striping, 1};
        const tsr_byte_range range = {0, seed * 13 % 50, seed * 31 % 90};
        double bytes[SERVERS] = {0}, expected[SERVERS] = {0}, cost = 0;
        for (uint64_t at = range.byte_offset; at < range.byte_offset + range.byte_length; at++) {
            const uint32_t turn = (uint32_t)(at / striping.stripe_size % striping.stripe_count);
            const uint32_t server = listed ? chosen[turn] : (striping.first + turn) % SERVERS;
            assert_int_equal(tsr_storage_server_at(&storage, 0, at), server);
            expected[server] += 3; /* three bytes per byte of the range */
            cost += server == 1 ? 2 : 1;
        }
        tsr_storage_spread(&storage, range, 3 * (double)range.byte_length, bytes);
        for (uint32_t s = 0; s < SERVERS; s++) assert_float_equal(bytes[s], expected[s], 1e-6);
        assert_int_equal(tsr_storage_cost(&storage, range),
                         (uint64_t)(cost + 50));                          /* half a second at 100 bytes per second */
        assert_int_equal(tsr_storage_server_at(&storage, 1, 0), SERVERS); /* a file that is on no server */
    }
}

static void test_plan_storage__readers_begin_apart_and_ask_everything_once(void **state)
{
    (void)state;
    const tsr_storage storage = {.server_count = SERVERS};
    tsr_storage_item items[60];
    for (uint64_t readers = 1; readers <= 20; readers++) {
        unsigned begun[SERVERS] = {0};
        for (uint64_t reader = 0; reader < readers; reader++) {
            bool there[60] = {false};
            unsigned changes = 0;
            for (size_t i = 0; i < 60; i++) items[i] = (tsr_storage_item){(uint32_t)(i * 7 % SERVERS), 10, i};
            tsr_storage_order(&storage, (tsr_storage_reader){reader, readers}, items, 60);
            begun[items[0].server]++;
            for (size_t i = 0; i < 60; i++) {
                assert_false(there[items[i].number]);
                there[items[i].number] = true;
                if (i && items[i].server != items[i - 1].server) changes++;
                if (i && items[i].server != items[i - 1].server)
                    assert_int_equal(items[i].server, (items[i - 1].server + 1) % SERVERS);
            }
            assert_in_range(changes, SERVERS - 1, SERVERS); /* goes around once, and may end with the first server */
        }
        for (uint32_t s = 0; s < SERVERS && readers >= SERVERS; s++)
            assert_in_range(begun[s], readers / SERVERS, (readers + SERVERS - 1) / SERVERS);
    }
}

/* The amount of work for a server counts, not the number of its items. */
static void test_plan_storage__the_busiest_server_is_begun_with_most(void **state)
{
    (void)state;
    const tsr_storage storage = {.server_count = 2};
    unsigned begun[2] = {0};
    for (uint64_t reader = 0; reader < 100; reader++) {
        tsr_storage_item items[10];
        for (size_t i = 0; i < 10; i++) items[i] = (tsr_storage_item){i == 9, i == 9 ? 27 : 1, i};
        tsr_storage_order(&storage, (tsr_storage_reader){reader, 100}, items, 10);
        begun[items[0].server]++;
    }
    assert_in_range(begun[1], 70, 80); /* 27 of 36 */
}

/* Rows in eight files, each on one server. Ranks read columns, so that every rank reads every file. */
static void test_plan_storage__ranks_of_a_plan_do_not_queue(void **state)
{
    (void)state;
    enum { FILES = 8, RANKS = 16, TENSORS = 20, SIZE = 64 };
    const uint64_t shape[] = {SIZE, SIZE}, ranks = RANKS;
    uint64_t boxes[FILES][4];
    static tsr_chunk chunks[TENSORS][FILES];
    static tsr_entry entries[TENSORS];
    static const char *const name = "abcdefghijklmnopqrst";
    tsr_storage_server servers[FILES];
    tsr_striping files[FILES];
    for (uint32_t f = 0; f < FILES; f++) {
        memcpy(boxes[f], (uint64_t[]){f * SIZE / FILES, 0, SIZE / FILES, SIZE}, sizeof boxes[f]);
        servers[f] = (tsr_storage_server){TSR_STR("s"), 1e6, 1e-6};
        files[f] = (tsr_striping){.stripe_size = 1 << 20, .stripe_count = 1, .first = FILES - 1 - f};
    }
    for (uint32_t t = 0; t < TENSORS; t++) {
        for (uint32_t f = 0; f < FILES; f++)
            chunks[t][f] = (tsr_chunk){
                .offsets = boxes[f], .sizes = boxes[f] + 2, .byte_offset = t * 2048, .byte_length = 2048, .file = f};
        entries[t] = (tsr_entry){.fqn = {name + t, 1},
                                 .kind = TSR_ENTRY_TENSOR,
                                 .dtype = TSR_FLOAT32,
                                 .ndim = 2,
                                 .shape = shape,
                                 .chunks = chunks[t],
                                 .chunk_count = FILES};
    }
    const tsr_catalog catalog = {.format = TSR_FORMAT_SAFETENSORS, .entries = entries, .entry_count = TENSORS};
    const tsr_placement columns = {.kind = TSR_SHARD, .dim = 1};
    const tsr_str no_name = {"", 0};
    const tsr_target target = {.mesh = {1, &ranks, &no_name}, .default_placements = &columns};
    const tsr_host host = {.allocator = &tsr_allocator_libc, .limits = tsr_limits_default()};
    const tsr_storage storage = {servers, FILES, 1e6, files, FILES};
    double seconds[2], bound = 0;
    for (int ordered = 0; ordered < 2; ordered++) {
        tsr_plan_options options = TSR_OPTIONS(tsr_plan_options);
        tsr_plan *plan;
        model_reader readers[RANKS];
        options.storage = ordered ? &storage : NULL;
        tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
        assert_int_equal(tsr_plan_new(&catalog, &target, &options, &host, &plan, NULL), TSR_OK);
        for (uint32_t r = 0; r < RANKS; r++) {
            const tsr_read_item *items;
            uint64_t count;
            bool there[TENSORS][FILES] = {{false}};
            assert_int_equal(tsr_plan_rank(plan, r, arena, &items, &count, NULL), TSR_OK);
            assert_int_equal(count, TENSORS * FILES);
            readers[r] = (model_reader){.reads = malloc(count * sizeof *readers[r].reads), .count = count};
            assert_non_null(readers[r].reads);
            for (uint64_t i = 0; i < count; i++) {
                readers[r].reads[i] = tsr_read_item_bytes(plan, &items[i]);
                assert_false(there[items[i].tensor][items[i].chunk->file]);
                there[items[i].tensor][items[i].chunk->file] = true;
            }
        }
        const tsr_server_load *loads;
        assert_int_equal(tsr_plan_count_servers(plan, &storage, arena, &loads, NULL), TSR_OK);
        for (uint32_t s = 0; s < FILES; s++) assert_int_equal(loads[s].bytes, TENSORS * 2048);
        seconds[ordered] = model_run(&storage, readers, RANKS);
        bound = model_bound(&storage, readers, RANKS);
        for (uint32_t r = 0; r < RANKS; r++) free(readers[r].reads);
        tsr_plan_free(plan);
        tsr_arena_free(arena);
    }
    print_message("by file %.4f s, by server %.4f s, bound %.4f s\n", seconds[0], seconds[1], bound);
    assert_true(seconds[0] > 5 * bound && seconds[1] < 1.05 * bound);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_storage__stripes_are_where_every_byte_is),
        cmocka_unit_test(test_plan_storage__readers_begin_apart_and_ask_everything_once),
        cmocka_unit_test(test_plan_storage__the_busiest_server_is_begun_with_most),
        cmocka_unit_test(test_plan_storage__ranks_of_a_plan_do_not_queue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
