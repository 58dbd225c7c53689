/* Columns of one tensor are read together: every source byte is read once, whatever the number of columns.
 * test_convert_round_trips and test_convert_work check that the bytes are right, for any splits, casts and memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/made.h"
#include "tessera/sys/store.h"
#include "tessera/sys/work.h"

static struct {
    tsr_status (*read_at)(tsr_store *store, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err);
    uint64_t bytes;
} seen;

static tsr_status note_read(tsr_store *store, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    seen.bytes += size;
    return seen.read_at(store, file, offset, buffer, size, err);
}

typedef struct column_case {
    const char *mesh, *placements;
    uint64_t shape[3];
} column_case;

/* The bytes that a reshard reads, divided by the bytes of the tensor. */
static double reads_of(const column_case *c)
{
    tsr_made made;
    tsr_target target;
    tsr_plan *plan;
    tsr_output *output;
    tsr_conversion conversion;
    tsr_error err = {0};
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL);
    tsr_made_start(&made, 5, 1);
    tsr_made_tensor(&made, "w", TSR_FLOAT32, 3, c->shape, 4, TSR_MADE_PLAIN);
    tsr_made_open(&made);
    seen.read_at = made.checkpoint.store->read_at;
    seen.bytes = 0;
    made.checkpoint.store->read_at = note_read;
    tsr_convert_options options = {.to = TSR_TO_SAFETENSORS};
    if (tsr_target_parse(tsr_str_from(c->mesh), tsr_str_from(c->placements), arena, &target, &err) ||
        tsr_plan_new(tsr_checkpoint_catalog(&made.checkpoint), &target, NULL, &made.host, &plan, &err) ||
        tsr_output_to_memory(&tsr_allocator_libc, &output, &err))
        fail_msg("%s", err.message);
    options.plan = plan;
    if (tsr_convert(&made.checkpoint, output, &options, arena, &conversion, &err)) fail_msg("%s", err.message);
    const double ratio = (double)seen.bytes / (double)(c->shape[0] * c->shape[1] * c->shape[2] * 4);
    output->close(output);
    tsr_plan_free(plan);
    tsr_arena_free(arena);
    tsr_made_end(&made);
    return ratio;
}

static void test_convert_columns__are_read_together(void **state)
{
    (void)state;
    static const column_case cases[] = {{"tp=4", "shard(1)", {100, 64, 3}},
                                        {"tp=7", "shard(1)", {50, 65, 5}},
                                        {"dp=2,tp=4", "shard(0),shard(1)", {100, 64, 3}},
                                        {"dp=2,tp=4", "replicate,shard(2)", {20, 30, 40}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) assert_true(reads_of(&cases[i]) < 1.05);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_convert_columns__are_read_together)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
