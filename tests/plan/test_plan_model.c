/* The plan of one small model: the order of its items, which reads are joined, how much each rank writes and reads, and
 * errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/failing_allocator.h"
#include "tessera/glob.h"
#include "tessera/plan.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/plan.h"

static const tsr_placement shard_0[] = {{TSR_SHARD, 0, 0}}, partial[] = {{TSR_PARTIAL, 0, 0}};

static tsr_host host_with(const tsr_allocator *allocator)
{
    return (tsr_host){.allocator = allocator, .limits = tsr_limits_default()};
}

/* A catalog with several tensors in two files, and a target with rules. */
typedef struct model {
    tsr_chunk rows[2], cols[2], same[2], scalar[1], none[1], big[1], copies[1];
    tsr_entry entries[7];
    tsr_catalog catalog;
    tsr_arena *arena;
    tsr_target target;
    tsr_target_rule rules[1];
} model;

static void make_model(model *m, const char *mesh, const char *placements)
{
    static const uint64_t shape[] = {4, 6}, empty[] = {0, 6}, five[] = {5}, zeros[] = {0, 0}, third_row[] = {2, 0},
                          two_rows[] = {2, 6};
    memset(m, 0, sizeof *m);
    m->rows[0] = (tsr_chunk){zeros, two_rows, 100, 48, NULL, 0};
    m->rows[1] = (tsr_chunk){third_row, two_rows, 0, 48, NULL, 1};
    m->same[0] = (tsr_chunk){zeros, two_rows, 148, 48, NULL, 0};
    m->same[1] = (tsr_chunk){third_row, two_rows, 48, 48, NULL, 1};
    m->scalar[0] = (tsr_chunk){zeros, zeros, 0, 4, NULL, 0};
    m->none[0] = (tsr_chunk){zeros, empty, 300, 0, NULL, 0};
    m->big[0] = (tsr_chunk){zeros, five, 400, 20, NULL, 0};
    m->copies[0] = (tsr_chunk){zeros, five, 96, 20, NULL, 1};
    const tsr_entry entries[] = {
        {.fqn = {"a.w", 3}, .ndim = 2, .shape = shape, .chunks = m->rows, .chunk_count = 2},
        {.fqn = {"b.w", 3}, .ndim = 2, .shape = shape, .chunks = m->same, .chunk_count = 2},
        {.fqn = {"step", 4}, .kind = TSR_ENTRY_OBJECT},
        {.fqn = {"t", 1}, .ndim = 0, .chunks = m->scalar, .chunk_count = 1},
        {.fqn = {"none", 4}, .ndim = 2, .shape = empty, .chunks = m->none, .chunk_count = 1},
        {.fqn = {"bias", 4},
         .ndim = 1,
         .shape = five,
         .chunks = m->big,
         .chunk_count = 1,
         .replicas = m->copies,
         .replica_count = 1},
    };
    memcpy(m->entries, entries, sizeof entries);
    for (int i = 0; i < 6; i++) m->entries[i].dtype = TSR_FLOAT32;
    m->catalog = (tsr_catalog){.format = TSR_FORMAT_SAFETENSORS_INDEX, .entries = m->entries, .entry_count = 6};
    m->arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    assert_int_equal(tsr_target_parse(tsr_str_from(mesh), tsr_str_from(placements), m->arena, &m->target, NULL), TSR_OK);
    m->target.match = tsr_glob_match;
    m->target.rules = m->rules;
}

static tsr_plan *plan_model(const model *m)
{
    static tsr_host host;
    tsr_plan *plan;
    tsr_error err = {0};
    host = host_with(&tsr_allocator_libc);
    if (tsr_plan_new(&m->catalog, &m->target, NULL, &host, &plan, &err) != TSR_OK) fail_msg("%s", err.message);
    return plan;
}

static void item_text(const tsr_read_item *item, char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "%.*s f%u", TSR_STR_ARG(item->entry->fqn), item->chunk->file);
    for (uint32_t d = 0; d < item->entry->ndim; d++) {
        used += (size_t)snprintf(out + used, size - used, " %d<%d+%d", (int)item->dest_offsets[d],
                                 (int)item->storage_offsets[d], (int)item->lengths[d]);
    }
}

static void test_plan_model__items_come_rank_by_rank_in_file_order(void **state)
{
    (void)state;
    static const char *const want[] = {
        "t f0", "a.w f0 0<0+2 0<0+6", "b.w f0 0<0+2 0<0+6", "bias f1 0<0+3",
        "t f0", "a.w f1 0<0+2 0<0+6", "b.w f1 0<0+2 0<0+6", "bias f1 0<3+2",
    };
    model m;
    make_model(&m, "dp=2", "shard(0)");
    tsr_plan *plan = plan_model(&m);
    tsr_plan_cursor *cursor;
    const tsr_read_item *item;
    size_t i = 0;
    assert_int_equal(tsr_plan_cursor_new(plan, 0, 2, &cursor, NULL), TSR_OK);
    for (;; i++) {
        char text[128];
        assert_int_equal(tsr_plan_cursor_next(cursor, &item, NULL), TSR_OK);
        if (!item) break;
        assert_true(i < 8);
        item_text(item, text, sizeof text);
        assert_string_equal(text, want[i]);
        assert_int_equal(item->dest_rank, i / 4);
    }
    assert_int_equal(i, 8);
    tsr_plan_cursor_free(cursor);
    assert_int_equal(tsr_plan_cursor_new(plan, 1, 2, &cursor, NULL), TSR_E_USAGE);
    assert_true(tsr_plan_tensor_at(plan, 2).replicated); /* a 0-d tensor with the default shard(0) */
    assert_false(tsr_plan_tensor_at(plan, 0).replicated);
    tsr_plan_free(plan);
    tsr_arena_free(m.arena);
}

static void test_plan_model__a_column_is_a_span_of_its_chunk(void **state)
{
    (void)state;
    model m;
    make_model(&m, "3", "shard(1)");
    m.catalog.entry_count = 1;
    tsr_plan *plan = plan_model(&m);
    const tsr_read_item *items;
    uint64_t count;
    tsr_plan_totals totals;
    assert_int_equal(tsr_plan_rank(plan, 1, m.arena, &items, &count, NULL), TSR_OK);
    assert_int_equal(count, 2);
    tsr_byte_range range = tsr_read_item_bytes(plan, &items[0]);
    assert_true(range.byte_offset == 100 + 2 * 4 && range.byte_length == (6 + 2) * 4);
    assert_int_equal(tsr_plan_count_totals(plan, m.arena, &totals, NULL), TSR_OK);
    assert_int_equal(totals.reads, 6);
    assert_int_equal(totals.span_bytes, 6 * 8 * 4);
    assert_int_equal(totals.bytes, 96);
    tsr_plan_free(plan);
    m.catalog.format = TSR_FORMAT_DCP; /* items of which only the extent is known */
    plan = plan_model(&m);
    assert_int_equal(tsr_plan_rank(plan, 1, m.arena, &items, &count, NULL), TSR_OK);
    range = tsr_read_item_bytes(plan, &items[0]);
    assert_true(range.byte_offset == 100 && range.byte_length == 48);
    tsr_plan_free(plan);
    tsr_arena_free(m.arena);
}

static tsr_status list_write(void *ctx, uint64_t tensor, uint64_t owner, const tsr_shard *shard, tsr_error *err)
{
    char *out = ctx;
    (void)err;
    sprintf(out + strlen(out), "%d:%d:%d ", (int)tensor, (int)owner, (int)shard->box_count);
    return TSR_OK;
}

static void test_plan_model__shared_shards_go_to_the_least_loaded(void **state)
{
    (void)state;
    char text[256] = "";
    model m;
    make_model(&m, "3", "replicate");
    m.rules[0] = (tsr_target_rule){.match = TSR_STR("a.w"), .placements = shard_0};
    m.target.rule_count = 1; /* a.w: ranks 0 and 1 hold two rows each (48 bytes), rank 2 holds nothing */
    tsr_plan *plan = plan_model(&m);
    assert_int_equal(tsr_plan_each_write(plan, list_write, text, NULL), TSR_OK);
    assert_string_equal(text, "0:0:1 0:1:1 1:2:1 2:0:1 3:0:1 4:1:1 ");
    tsr_plan_totals totals;
    assert_int_equal(tsr_plan_count_totals(plan, m.arena, &totals, NULL), TSR_OK);
    assert_int_equal(totals.per_rank[0].held, 48 + 96 + 4 + 20);
    assert_int_equal(totals.per_rank[0].read, 48 + 4);
    assert_int_equal(totals.per_rank[1].read, 48 + 20);
    assert_int_equal(totals.per_rank[2].read, 96);
    assert_int_equal(totals.per_rank[2].received, 4 + 20);
    assert_int_equal(totals.held_max, 168);
    tsr_plan_free(plan);
    tsr_arena_free(m.arena);
}

static void test_plan_model__equal_geometry_is_planned_once(void **state)
{
    (void)state;
    model m;
    make_model(&m, "2", "shard(0)");
    tsr_plan *plan = plan_model(&m);
    tsr_plan_totals totals;
    assert_int_equal(tsr_plan_count_totals(plan, m.arena, &totals, NULL), TSR_OK);
    assert_int_equal(totals.classes, 4); /* a.w and b.w; t; none; bias */
    assert_int_equal(tsr_plan_count(plan), 5);
    assert_int_equal(totals.file_count, 2);
    assert_int_equal(totals.per_file[1].bytes, 48 + 48 + 20); /* bias is read from the copy in the file with fewer bytes
                                                               * to read */
    tsr_plan_free(plan);
    tsr_arena_free(m.arena);
}

static void test_plan_model__a_copy_stands_in_for_a_missing_file(void **state)
{
    (void)state;
    model m;
    make_model(&m, "1", "replicate");
    m.big[0].file = TSR_NO_FILE;
    m.rows[1].byte_length = 0; /* so that the bytes of file 1 cannot decide */
    m.same[1].file = TSR_NO_FILE;
    tsr_plan *plan = plan_model(&m);
    const tsr_read_item *items;
    uint64_t count, bias = 0, lost = 0;
    assert_int_equal(tsr_plan_rank(plan, 0, m.arena, &items, &count, NULL), TSR_OK);
    for (uint64_t i = 0; i < count; i++) {
        if (items[i].chunk == &m.copies[0]) bias++;
        if (items[i].chunk == &m.same[1]) lost++;
    }
    assert_true(count == 6 && bias == 1 && lost == 1); /* a chunk without a copy stays an item without a file */
    assert_int_equal(items[count - 1].chunk->file, TSR_NO_FILE);
    tsr_plan_free(plan);
    tsr_arena_free(m.arena);
}

static void test_plan_model__refuses_what_cannot_be_done(void **state)
{
    (void)state;
    tsr_host host = host_with(&tsr_allocator_libc);
    for (int i = 0; i < 7; i++) {
        model m;
        tsr_plan *plan = NULL;
        tsr_error err = {0};
        tsr_status want = TSR_E_USAGE;
        const char *part = "";
        make_model(&m, "2", "shard(0)");
        if (i == 0) {
            m.entries[0].chunk_count = 1;
            want = TSR_E_FORMAT;
            part = "'a.w' do not tile it: there is a gap (elements not covered: 12)";
        } else if (i == 1) {
            m.rules[0] = (tsr_target_rule){.match = TSR_STR("t"), .placements = shard_0};
            m.target.rule_count = 1;
            part = "the rule 't' splits dim 0 of 't', which has 0 dims";
        } else if (i == 2) {
            m.rules[0] = (tsr_target_rule){.match = TSR_STR("**"), .placements = partial};
            m.target.rule_count = 1;
            part = "partial";
        } else if (i == 3) {
            m.entries[0].dtype = TSR_FLOAT6_E2M3;
            want = TSR_E_UNSUPPORTED;
            part = "'a.w' is float6_e2m3";
        } else if (i == 4) {
            m.entries[1].dtype = TSR_FLOAT6_E2M3; /* its class is already known */
            want = TSR_E_UNSUPPORTED;
            part = "'b.w' is float6_e2m3";
        } else if (i == 5) {
            tsr_arena_free(m.arena);
            make_model(&m, "1024,1025", "shard(0),replicate");
            want = TSR_E_LIMIT;
            part = "the mesh has 1049600 ranks; a plan can have at most 1048576";
        } else {
            m.entries[5].dtype = TSR_FLOAT4_E2M1FN;
            want = TSR_E_LIMIT; /* five half bytes */
            part = "'bias'";
        }
        tsr_status status = tsr_plan_new(&m.catalog, &m.target, NULL, &host, &plan, &err);
        if (status != want || !strstr(err.message, part)) fail_msg("case %d: %d %s", i, (int)status, err.message);
        tsr_arena_free(m.arena);
    }
}

static void test_plan_model__float4_is_counted_in_pairs(void **state)
{
    (void)state;
    model m;
    make_model(&m, "3", "shard(1)");
    m.catalog.entry_count = 1;
    m.entries[0].dtype = TSR_FLOAT4_E2M1FN; /* [4, 6] single elements are [4, 3] pairs */
    tsr_plan *plan = plan_model(&m);
    const tsr_read_item *items;
    uint64_t count;
    assert_int_equal(tsr_plan_tensor_at(plan, 0).shape[1], 3);
    assert_int_equal(tsr_plan_rank(plan, 2, m.arena, &items, &count, NULL), TSR_OK);
    assert_int_equal(count, 2);
    assert_true(items[0].storage_offsets[1] == 2 && items[0].lengths[1] == 1);
    tsr_byte_range range = tsr_read_item_bytes(plan, &items[0]);
    assert_true(range.byte_offset == 102 && range.byte_length == 4);
    tsr_plan_free(plan);
    tsr_arena_free(m.arena);
}

static bool want_b(void *ctx, tsr_str fqn)
{
    (void)ctx;
    return fqn.data[0] == 'b';
}

static void test_plan_model__survives_every_allocation_failure(void **state)
{
    (void)state;
    for (size_t n = 0;; n++) {
        failing_allocator failing;
        model m;
        tsr_plan *plan = NULL;
        tsr_plan_cursor *cursor = NULL;
        const tsr_plan_options options = {.want = want_b};
        const tsr_read_item *item;
        tsr_plan_totals totals;
        make_model(&m, "2,2", "replicate,shard(0)");
        failing_start(&failing, n);
        tsr_host host = host_with(&failing.allocator);
        tsr_arena *arena = tsr_arena_new(&failing.allocator, 0, NULL);
        tsr_status status = arena ? tsr_plan_new(&m.catalog, &m.target, &options, &host, &plan, NULL) : TSR_E_NOMEM;
        if (status == TSR_OK) status = tsr_plan_count_totals(plan, arena, &totals, NULL);
        if (status == TSR_OK) status = tsr_plan_cursor_new(plan, 0, 2, &cursor, NULL);
        do {
            if (status == TSR_OK) status = tsr_plan_cursor_next(cursor, &item, NULL);
        } while (status == TSR_OK && item);
        char text[256] = "";
        if (status == TSR_OK) status = tsr_plan_each_write(plan, list_write, text, NULL);
        tsr_plan_cursor_free(cursor);
        tsr_plan_free(plan);
        tsr_arena_free(arena);
        tsr_arena_free(m.arena);
        assert_int_equal(failing.live, 0);
        assert_int_equal(status, failing.failed ? TSR_E_NOMEM : TSR_OK);
        if (!failing.failed) break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_model__items_come_rank_by_rank_in_file_order),
        cmocka_unit_test(test_plan_model__a_column_is_a_span_of_its_chunk),
        cmocka_unit_test(test_plan_model__shared_shards_go_to_the_least_loaded),
        cmocka_unit_test(test_plan_model__equal_geometry_is_planned_once),
        cmocka_unit_test(test_plan_model__a_copy_stands_in_for_a_missing_file),
        cmocka_unit_test(test_plan_model__refuses_what_cannot_be_done),
        cmocka_unit_test(test_plan_model__float4_is_counted_in_pairs),
        cmocka_unit_test(test_plan_model__survives_every_allocation_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
