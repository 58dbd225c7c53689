/* The order of write items and the lanes made from it: lanes that are processed at the same time share no files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "work/work_parts.h"

#define TENSORS 8u
#define FILES   200u
#define MOST    (TENSORS * FILES)

/* Tensors for several files each, split by rows or by columns, in the order in which writers list them: tensor by tensor, in
 * ascending order of files. */
typedef struct listed {
    tsr_entry entries[TENSORS];
    bool columns[TENSORS];
    uint64_t shape[2];
    uint64_t boxes[MOST][4];
    tsr_write_item write_items[MOST];
    size_t count;
    uint32_t files;
    tsr_catalog catalog;
    tsr_arena *arena;
    tsr_stage stage;
} listed;

static uint64_t next(uint64_t *seed, uint64_t below)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*seed >> 33) % below;
}

static void add_tensor(listed *l, unsigned t, uint64_t *seed)
{
    l->entries[t] =
        (tsr_entry){.fqn = TSR_STR("w"), .kind = TSR_ENTRY_TENSOR, .dtype = TSR_UINT8, .ndim = 2, .shape = l->shape};
    l->columns[t] = next(seed, 3) == 0;
    const unsigned cut = l->columns[t];
    for (uint32_t f = 0; f < l->files; f++) {
        if (next(seed, 4) == 0) continue; /* this rank holds nothing of the tensor */
        uint64_t *box = l->boxes[l->count];
        box[cut] = f;
        box[1 - cut] = 0;
        box[2 + cut] = 1;
        box[3 - cut] = FILES;
        l->write_items[l->count++] = (tsr_write_item){
            .entry = &l->entries[t], .offsets = box, .sizes = box + 2, .dtype = TSR_UINT8, .file = f, .byte_length = FILES};
    }
}

static void start(listed *l, uint64_t seed)
{
    *l = (listed){.shape = {FILES, FILES}, .arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL)};
    l->files = 1 + (uint32_t)next(&seed, FILES);
    l->catalog.compressed = seed % 16 == 0;
    for (unsigned t = 0; t < TENSORS; t++) add_tensor(l, t, &seed);
    l->stage = (tsr_stage){.write_items = l->write_items, .count = l->count};
    assert_int_equal(tsr_order_write_items(&l->catalog, l->write_items, l->count, l->arena, &l->stage.order, NULL), TSR_OK);
}

static void test_convert_lanes__rows_go_by_groups_of_files_and_the_rest_tensor_by_tensor(void **state)
{
    (void)state;
    static listed l;
    for (uint64_t seed = 0; seed < 300; seed++) {
        start(&l, seed);
        const tsr_write_order *order = &l.stage.order;
        bool seen[MOST] = {false};
        for (size_t i = 0; i < l.count; i++) {
            const uint32_t number = order->numbers[i];
            const tsr_write_item *write_item = &l.write_items[number], *before = i ? tsr_stage_item(&l.stage, i - 1) : NULL;
            assert_false(seen[number]);
            seen[number] = true;
            assert_int_equal(i < order->grouped, l.catalog.compressed || l.columns[write_item->entry - l.entries]);
            if (i == 0 || i == order->grouped) continue;
            const uint32_t group = write_item->file / order->group_files, last = before->file / order->group_files;
            if (i > order->grouped && group != last) {
                assert_true(group > last);
            } else {
                assert_true(write_item > before); /* in the writer's order, so that each tensor is located once */
            }
        }
        tsr_arena_free(l.arena);
    }
}

static void test_convert_lanes__views_that_are_no_rows_stay_together(void **state)
{
    (void)state;
    static listed l;
    const uint64_t strides[] = {1, FILES};
    const tsr_view turned = {.strides = strides}, stream = {.zstd = true}, plain = {.byte_offset = 8};
    const tsr_view *views[] = {&turned, &stream, &plain};
    for (size_t i = 0; i < 3; i++) {
        start(&l, 1);
        const tsr_chunk chunk = {.view = views[i]};
        tsr_write_order order;
        for (unsigned t = 0; t < TENSORS; t++) {
            l.entries[t].chunks = &chunk;
            l.entries[t].chunk_count = 1;
        }
        assert_int_equal(tsr_order_write_items(&l.catalog, l.write_items, l.count, l.arena, &order, NULL), TSR_OK);
        assert_int_equal(order.grouped, i < 2 ? l.count : l.stage.order.grouped);
        tsr_arena_free(l.arena);
    }
}

static uint32_t group_of(const listed *l, const tsr_unit *unit)
{
    return tsr_stage_item(&l->stage, unit->first)->file / l->stage.order.group_files;
}

static void test_convert_lanes__no_two_share_a_group_of_files(void **state)
{
    (void)state;
    static listed l;
    size_t several = 0;
    for (uint64_t seed = 0; seed < 300; seed++) {
        start(&l, seed);
        tsr_lane lanes[16];
        tsr_vec units = tsr_vec_of(&tsr_allocator_libc, sizeof(tsr_unit));
        assert_int_equal(tsr_units_cut(&l.stage, 0, 1 + seed % 3 * 4000, &units, NULL), TSR_OK);
        tsr_unit **list = tsr_arena_array(l.arena, units.count, sizeof *list, NULL);
        assert_non_null(list);
        for (size_t u = 0; u < units.count; u++) list[u] = (tsr_unit *)units.items + u;
        for (size_t first = 0, count; first < units.count; first = lanes[count - 1].end) {
            const size_t most = 1 + seed % 16;
            count = tsr_lanes_cut(&l.stage, list, first, units.count, most, lanes);
            assert_in_range(count, 1, most);
            for (size_t i = 0; i < count; i++) {
                assert_true(lanes[i].first < lanes[i].end);
                assert_int_equal(lanes[i].first, i ? lanes[i - 1].end : first);
                if (i) assert_true(group_of(&l, list[lanes[i].first]) > group_of(&l, list[lanes[i].first - 1]));
            }
            several += count > 1;
            if (count > 1) assert_true(list[first]->first >= l.stage.order.grouped);
        }
        tsr_vec_free(&units);
        tsr_arena_free(l.arena);
    }
    assert_true(several > 100);
}

static void test_convert_lanes__files_of_one_size_get_a_lane_each_or_even_shares(void **state)
{
    (void)state;
    static listed l;
    l = (listed){.shape = {FILES, FILES}, .arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL)};
    tsr_unit units[12] = {{0}}, *list[12];
    tsr_lane lanes[12];
    for (uint32_t f = 0; f < 12; f++) {
        l.write_items[f] = (tsr_write_item){.literal = (const uint8_t *)"", .file = f};
        units[f] = (tsr_unit){.bytes = 1000, .first = f, .count = 1};
        list[f] = &units[f];
    }
    l.stage = (tsr_stage){.write_items = l.write_items, .count = 12};
    assert_int_equal(tsr_order_write_items(&l.catalog, l.write_items, 12, l.arena, &l.stage.order, NULL), TSR_OK);
    for (size_t most = 1; most <= 12; most++) {
        const size_t count = tsr_lanes_cut(&l.stage, list, 0, 12, most, lanes);
        assert_int_equal(count, most);
        for (size_t i = 0; i < count; i++) assert_in_range(lanes[i].end - lanes[i].first, 12 / most, (12 + most - 1) / most);
    }
    tsr_arena_free(l.arena);
}

static void test_convert_lanes__what_is_done_is_passed_over(void **state)
{
    (void)state;
    tsr_unit units[10] = {{0}}, *list[10];
    for (size_t u = 0; u < 10; u++) list[u] = &units[u];
    units[0].done = units[4].done = units[9].done = true;
    tsr_lane lane = {0, 10};
    const size_t expected[][2] = {{1, 4}, {5, 8}, {8, 9}};
    for (size_t i = 0; i < 3; i++) {
        const tsr_lane taken = tsr_lane_take(&lane, list, 3);
        assert_int_equal(taken.first, expected[i][0]);
        assert_int_equal(taken.end, expected[i][1]);
    }
    const tsr_lane none = tsr_lane_take(&lane, list, 3);
    assert_int_equal(none.first, none.end);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convert_lanes__rows_go_by_groups_of_files_and_the_rest_tensor_by_tensor),
        cmocka_unit_test(test_convert_lanes__views_that_are_no_rows_stay_together),
        cmocka_unit_test(test_convert_lanes__no_two_share_a_group_of_files),
        cmocka_unit_test(test_convert_lanes__files_of_one_size_get_a_lane_each_or_even_shares),
        cmocka_unit_test(test_convert_lanes__what_is_done_is_passed_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
