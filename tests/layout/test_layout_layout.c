#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/arena_job.h"
#include "support/random.h"
#include "tessera/sys/layout.h"

static tsr_arena *new_arena(void)
{
    return tsr_arena_new(&tsr_allocator_libc, 0, NULL);
}

static void assert_same_shard(const tsr_shard *a, const tsr_shard *b)
{
    size_t bytes = a->ndim * sizeof(uint64_t);
    assert_true(a->ndim == b->ndim && a->box_count == b->box_count);
    assert_memory_equal(a->local_shape, b->local_shape, bytes);
    assert_memory_equal(a->global_offsets, b->global_offsets, bytes);
    for (uint64_t i = 0; i < a->box_count; i++) {
        assert_memory_equal(a->boxes[i].offsets, b->boxes[i].offsets, bytes);
        assert_memory_equal(a->boxes[i].sizes, b->boxes[i].sizes, bytes);
        assert_memory_equal(a->boxes[i].local_offsets, b->boxes[i].local_offsets, bytes);
    }
}

/* Checks the holders of each shard: the first one and its copies, in ascending order, have equal shards, and every rank is
 * exactly one of them. */
static void check_copies(const tsr_layout *layout, tsr_arena *arena)
{
    uint64_t met = 0;
    for (uint64_t r = 0; r < layout->ranks; r++) {
        tsr_shard shard, copy;
        if (!tsr_layout_is_first(layout, r)) continue;
        assert_int_equal(tsr_layout_shard(layout, r, arena, &shard, NULL), TSR_OK);
        uint64_t before = r;
        for (uint64_t k = 0; k < layout->copies; k++, met++) {
            uint64_t holder = tsr_layout_copy(layout, r, k);
            assert_true(k == 0 ? holder == r : holder > before);
            assert_int_equal(tsr_layout_shard(layout, holder, arena, &copy, NULL), TSR_OK);
            assert_same_shard(&shard, &copy);
            before = holder;
        }
    }
    assert_int_equal(met, layout->ranks);
}

static void test_layout_layout__tables_say_what_each_rank_alone_says(void **state)
{
    (void)state;
    random_source random = {21};
    for (int i = 0; i < 2000; i++) {
        tsr_arena *arena = new_arena();
        uint64_t mesh_shape[3], shape[3];
        tsr_placement placements[3] = {{TSR_REPLICATE, 0, 0}};
        uint32_t dims = (uint32_t)random_in(&random, 1, 3), ndim = (uint32_t)random_in(&random, 0, 3);
        for (uint32_t d = 0; d < ndim; d++) shape[d] = random_in(&random, 0, 9);
        for (uint32_t m = 0; m < dims; m++) {
            mesh_shape[m] = random_in(&random, 1, 4);
            placements[m].kind = ndim ? (tsr_placement_kind)random_in(&random, 0, 3) : TSR_REPLICATE;
            placements[m].dim = ndim ? (int32_t)random_in(&random, 0, 2 * ndim - 1) - (int32_t)ndim : 0;
            placements[m].split_factor = random_in(&random, 1, 4);
        }
        tsr_mesh mesh = {dims, mesh_shape, NULL};
        tsr_strided strided = i % 2 ? TSR_STRIDED_FSDP : TSR_STRIDED_DTENSOR;
        tsr_layout layout;
        assert_int_equal(tsr_layout_over_mesh(&(tsr_sharding){&mesh, placements, strided}, (tsr_shape){ndim, shape}, arena,
                                              &layout, NULL),
                         TSR_OK);
        for (uint64_t r = 0; r < layout.ranks; r++) {
            tsr_shard from_table, alone;
            uint64_t elements;
            assert_int_equal(tsr_layout_shard(&layout, r, arena, &from_table, NULL), TSR_OK);
            assert_int_equal(tsr_mesh_shard(&(tsr_sharding){&mesh, placements, strided}, (tsr_shape){ndim, shape}, r, arena,
                                            &alone, NULL),
                             TSR_OK);
            assert_same_shard(&from_table, &alone);
            assert_true(tsr_box_volume((tsr_box){ndim, NULL, alone.local_shape}, &elements));
            assert_int_equal(tsr_layout_elements(&layout, r), elements);
        }
        check_copies(&layout, arena);
        tsr_arena_free(arena);
    }
}

static void test_layout_layout__explicit_lists_are_given_back(void **state)
{
    (void)state;
    const uint64_t shape[] = {5}, two[] = {2}, three[] = {3}, zero[] = {0};
    const tsr_shard_box boxes[] = {{zero, three, zero}, {three, two, zero}};
    const tsr_shard shards[] = {{1, three, zero, &boxes[0], 1}, {1, two, three, &boxes[1], 1}};
    const tsr_layout layout = tsr_layout_explicit(2, shards, 1, shape);
    tsr_shard shard;
    assert_int_equal(tsr_layout_shard(&layout, 1, NULL, &shard, NULL), TSR_OK);
    assert_same_shard(&shard, &shards[1]);
    assert_int_equal(tsr_layout_elements(&layout, 0), 3);
    assert_true(tsr_layout_is_first(&layout, 1));
    assert_int_equal(tsr_layout_copy(&layout, 1, 0), 1);
}

static uint64_t read_list(const char *text, uint64_t *out)
{
    uint64_t count = 0;
    for (char *end;; text = end + 1) {
        out[count++] = strtoull(text, &end, 10);
        if (*end != ',') return count;
    }
}

static void test_layout_layout__flat_slices_have_what_fsdp1_gives_them(void **state)
{
    (void)state;
    char line[4096];
    unsigned cases = 0;
    FILE *file = fopen(TSR_TEST_DATA "/tests/golden/flat_ranges.txt", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        if (line[0] == '#') continue;
        uint64_t numels[16];
        uint64_t world = strtoull(strtok(line, " "), NULL, 10), alignment = strtoull(strtok(NULL, " "), NULL, 10);
        uint64_t slice = strtoull(strtok(NULL, " "), NULL, 10), count = read_list(strtok(NULL, " "), numels);
        tsr_arena *arena = new_arena();
        tsr_flat_layout flat;
        assert_int_equal(tsr_flat_layout_make((tsr_flat_numels){numels, count, alignment}, world, arena, &flat, NULL),
                         TSR_OK);
        assert_int_equal(flat.slice_numel, slice);
        for (uint64_t r = 0; r < world; r++) {
            char text[256] = "";
            for (uint64_t i = 0; i < count; i++) {
                tsr_span range = tsr_flat_layout_range(&flat, i, r);
                size_t used = strlen(text);
                if (range.size) {
                    snprintf(text + used, sizeof text - used, "%s%d-%d", i ? "," : "", (int)range.offset,
                             (int)(range.offset + range.size));
                } else {
                    snprintf(text + used, sizeof text - used, "%s-", i ? "," : "");
                }
            }
            assert_string_equal(text, strtok(NULL, " \n"));
        }
        tsr_arena_free(arena);
        cases++;
    }
    fclose(file);
    assert_int_equal(cases, 200);
}

static void test_layout_layout__flat_sizes_are_checked(void **state)
{
    (void)state;
    tsr_arena *arena = new_arena();
    tsr_flat_layout flat;
    const uint64_t huge[] = {UINT64_MAX - 2, 2}, most[] = {UINT64_MAX - 3};
    assert_int_equal(tsr_flat_layout_make((tsr_flat_numels){huge, 2, 4}, 2, arena, &flat, NULL), TSR_E_LIMIT);
    assert_int_equal(tsr_flat_layout_make((tsr_flat_numels){most, 1, 0}, 4, arena, &flat, NULL), TSR_E_LIMIT);
    assert_int_equal(tsr_flat_layout_make((tsr_flat_numels){NULL, 0, 4}, 2, arena, &flat, NULL), TSR_OK);
    assert_int_equal(flat.slice_numel, 0);
    tsr_arena_free(arena);
}

static void test_layout_layout__a_flat_range_is_a_few_boxes_in_order(void **state)
{
    (void)state;
    random_source random = {22};
    for (int i = 0; i < 20000; i++) {
        uint64_t shape[4], elements, offsets[7 * 4], sizes[7 * 4], next;
        uint32_t ndim = (uint32_t)random_in(&random, 0, 4);
        for (uint32_t d = 0; d < ndim; d++) shape[d] = random_in(&random, i % 50 ? 1 : 0, 5);
        tsr_box tensor = {ndim, NULL, shape};
        assert_true(tsr_box_volume(tensor, &elements));
        uint64_t begin = random_in(&random, 0, elements), end = random_in(&random, begin, elements);
        uint32_t count = tsr_range_boxes(ndim, shape, (tsr_span){begin, end - begin}, offsets, sizes);
        assert_true(count <= (ndim ? 2 * ndim - 1 : 1));
        next = begin;
        for (uint32_t b = 0; b < count; b++) { /* each is contiguous and begins where the previous one ended */
            tsr_box box = {ndim, offsets + b * ndim, sizes + b * ndim};
            assert_true(tsr_box_contains(tensor, box) && tsr_box_is_contiguous(tensor, box));
            assert_int_equal(tsr_box_index(tensor, box.offsets), next);
            uint64_t volume;
            assert_true(tsr_box_volume(box, &volume) && volume > 0);
            next += volume;
        }
        assert_int_equal(next, end);
    }
}

static tsr_status make_all(const void *ctx, const tsr_host *host, tsr_arena *arena, tsr_error *err)
{
    const uint64_t mesh_shape[] = {3, 2}, shape[] = {7, 4};
    const tsr_mesh mesh = {2, mesh_shape, NULL};
    const tsr_placement placements[] = {{TSR_STRIDED_SHARD, 0, 4}, {TSR_SHARD, 1, 0}};
    tsr_layout layout;
    tsr_shard shard;
    tsr_flat_layout flat;
    (void)ctx;
    (void)host;
    tsr_status status = tsr_layout_over_mesh(&(tsr_sharding){&mesh, placements, TSR_STRIDED_FSDP}, (tsr_shape){2, shape},
                                             arena, &layout, err);
    if (status == TSR_OK) status = tsr_layout_shard(&layout, 5, arena, &shard, err);
    return status == TSR_OK ? tsr_flat_layout_make((tsr_flat_numels){shape, 2, 0}, 2, arena, &flat, err) : status;
}

static void test_layout_layout__survives_every_allocation_failure(void **state)
{
    (void)state;
    must_bear_failed_allocations(make_all, NULL, TSR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout_layout__tables_say_what_each_rank_alone_says),
        cmocka_unit_test(test_layout_layout__explicit_lists_are_given_back),
        cmocka_unit_test(test_layout_layout__flat_slices_have_what_fsdp1_gives_them),
        cmocka_unit_test(test_layout_layout__flat_sizes_are_checked),
        cmocka_unit_test(test_layout_layout__a_flat_range_is_a_few_boxes_in_order),
        cmocka_unit_test(test_layout_layout__survives_every_allocation_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
