/* Parts of a reshard on a simulated parallel file system: what the parts really read, and in which order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/made.h"
#include "support/storage_model.h"
#include "tessera/sys/store.h"
#include "tessera/sys/work.h"

#define PARTS        8u
#define SERVERS      8u
#define TENSORS      64u
#define ROWS         64u
#define TENSOR_BYTES ((uint64_t)ROWS * ROWS * 4)

static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h"};

typedef struct parallel_job {
    tsr_made made;
    tsr_arena *arena;
    tsr_target target;
    tsr_plan *plan;
    tsr_convert_options options;
    tsr_storage_server servers[SERVERS];
    tsr_striping striping;
    tsr_storage storage;
    model_reader parts[PARTS];
} parallel_job;

/* Records what the current part reads, and passes the reads on to the store. */
static struct {
    tsr_status (*read_at)(tsr_store *store, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err);
    model_reader *reader;
} seen;

static tsr_status note_read(tsr_store *store, uint32_t file, uint64_t offset, void *buffer, size_t size, tsr_error *err)
{
    model_reader *reader = seen.reader;
    if (reader) {
        reader->reads = realloc(reader->reads, (reader->count + 1) * sizeof *reader->reads);
        assert_non_null(reader->reads);
        reader->reads[reader->count++] = (tsr_byte_range){file, offset, size};
    }
    return seen.read_at(store, file, offset, buffer, size, err);
}

/* Eight layers of eight tensors. Each layer is a stripe, and the next one is on the next server. Ranks read rows. */
static void start(parallel_job *j, double slowest)
{
    const uint64_t shape[] = {ROWS, ROWS};
    tsr_error err = {0};
    *j = (parallel_job){.arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL)};
    tsr_made_start(&j->made, 1, TENSORS);
    for (unsigned t = 0; t < TENSORS; t++) {
        char *name = tsr_arena_array(j->arena, 8, 1, NULL);
        name[0] = names[t / 8][0], name[1] = (char)('0' + t % 8);
        tsr_made_tensor(&j->made, name, TSR_FLOAT32, 2, shape, 1, TSR_MADE_PLAIN);
    }
    tsr_made_open(&j->made);
    seen.read_at = j->made.checkpoint.store->read_at;
    j->made.checkpoint.store->read_at = note_read;
    if (tsr_target_parse(TSR_STR("dp=8"), TSR_STR("shard(0)"), j->arena, &j->target, &err) ||
        tsr_plan_new(tsr_checkpoint_catalog(&j->made.checkpoint), &j->target, NULL, &j->made.host, &j->plan, &err))
        fail_msg("%s", err.message);
    for (uint32_t s = 0; s < SERVERS; s++) j->servers[s] = (tsr_storage_server){TSR_STR("s"), 1e6, 1e-6};
    j->servers[SERVERS - 1].bandwidth = slowest;
    j->striping = (tsr_striping){.stripe_size = j->made.file.count / SERVERS + 1, .stripe_count = SERVERS};
    j->storage = (tsr_storage){j->servers, SERVERS, 1e6, &j->striping, 1};
    j->options = (tsr_convert_options){.to = TSR_TO_DCP, .plan = j->plan, .unit_bytes = TENSOR_BYTES / 8};
}

/* The seconds that all parts take at the same time. Together they write what a single process would write. */
static double run_parts(parallel_job *j, double *bound)
{
    tsr_work *work;
    tsr_output *output;
    tsr_error err = {0};
    if (tsr_output_to_memory(&tsr_allocator_libc, &output, &err) ||
        tsr_work_new(&j->made.checkpoint, &j->options, 0, j->arena, &work, &err) || tsr_work_open(work, output, &err))
        fail_msg("%s", err.message);
    for (uint32_t p = 0; p < PARTS; p++) {
        free(j->parts[p].reads);
        j->parts[p] = (model_reader){.reads = NULL};
        seen.reader = &j->parts[p];
        if (tsr_work_run(work, p, PARTS, NULL, &err)) fail_msg("%s", err.message);
        seen.reader = NULL;
        assert_true(j->parts[p].count > 0);
    }
    assert_int_equal(tsr_work_left(work, 0, 1), 0);
    tsr_work_free(work);
    output->close(output);
    *bound = model_bound(&j->storage, j->parts, PARTS);
    return model_run(&j->storage, j->parts, PARTS);
}

static void end(parallel_job *j)
{
    for (uint32_t p = 0; p < PARTS; p++) free(j->parts[p].reads);
    tsr_plan_free(j->plan);
    tsr_arena_free(j->arena);
    tsr_made_end(&j->made);
}

static void test_convert_storage__parts_do_not_queue_at_one_server(void **state)
{
    (void)state;
    parallel_job j;
    double bound;
    start(&j, 1e6);
    const double by_file = run_parts(&j, &bound);
    assert_true(by_file > 3 * bound); /* all parts begin with the first layer */
    j.options.storage = &j.storage;
    const double by_server = run_parts(&j, &bound);
    print_message("by file %.4f s, by server %.4f s, bound %.4f s\n", by_file, by_server, bound);
    assert_true(by_server < 1.15 * bound);
    end(&j);
}

/* The last layer is on a slow server, so shares with the same number of bytes do not take the same time. */
static void test_convert_storage__shares_are_even_in_the_servers_time(void **state)
{
    (void)state;
    parallel_job j;
    double bound;
    start(&j, 1e5);
    tsr_target whole;
    tsr_plan *plan;
    tsr_error err = {0};
    if (tsr_target_parse(TSR_STR("dp=1"), TSR_STR("replicate"), j.arena, &whole, &err) ||
        tsr_plan_new(tsr_checkpoint_catalog(&j.made.checkpoint), &whole, NULL, &j.made.host, &plan, &err))
        fail_msg("%s", err.message);
    j.options.plan = plan;
    j.options.unit_bytes = TENSOR_BYTES;
    double slowest[2] = {0}, fastest[2] = {1e9, 1e9};
    for (int ordered = 0; ordered < 2; ordered++) {
        j.options.storage = ordered ? &j.storage : NULL;
        run_parts(&j, &bound);
        for (uint32_t p = 0; p < PARTS; p++) {
            model_reader alone = j.parts[p];
            const double seconds = model_run(&j.storage, &alone, 1);
            slowest[ordered] = seconds > slowest[ordered] ? seconds : slowest[ordered];
            fastest[ordered] = seconds < fastest[ordered] ? seconds : fastest[ordered];
        }
    }
    print_message("the longest part takes %.4f s by bytes, %.4f s by time\n", slowest[0], slowest[1]);
    assert_true(slowest[0] > 8 * fastest[0]);
    assert_true(slowest[1] < 3 * fastest[1]); /* a single unit of the slow server is half of a share */
    assert_true(slowest[1] < slowest[0] / 3);
    tsr_plan_free(plan);
    end(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convert_storage__parts_do_not_queue_at_one_server),
        cmocka_unit_test(test_convert_storage__shares_are_even_in_the_servers_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
