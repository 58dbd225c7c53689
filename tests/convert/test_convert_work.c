/* A work done in parts: whatever the number of parts, their order, and the process that does them, the bytes are the same as
 * in a single run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/failing_allocator.h"
#include "support/full_counts.h"
#include "support/made.h"
#include "tessera/sys/plan.h"
#include "tessera/sys/store.h"
#include "tessera/sys/work.h"

#define TENSORS 6u

static const char *const names[TENSORS] = {"a", "b.weight", "b.bias", "c.0", "c.1", "d"};

static void fill(tsr_made *made, uint64_t seed)
{
    static const tsr_dtype dtypes[] = {TSR_FLOAT64, TSR_FLOAT32, TSR_BFLOAT16, TSR_INT8, TSR_UINT16, TSR_BOOL};
    tsr_made_start(made, seed, TENSORS);
    for (unsigned i = 0; i < TENSORS; i++) {
        uint64_t shape[8];
        uint32_t ndim = tsr_made_shape(made, shape, 9);
        tsr_made_tensor(made, names[i], dtypes[tsr_made_random(made, 6)], ndim, shape, (unsigned)tsr_made_random(made, 9),
                        (tsr_made_how)tsr_made_random(made, 3));
    }
    tsr_made_open(made);
}

/* Files that several works share: `create` finds the files that another work has created. */
typedef struct shared_output {
    tsr_output base; /* must be first */
    tsr_output *memory;
} shared_output;

static tsr_status shared_create(tsr_output *base, tsr_str name, uint64_t size, uint32_t *file, tsr_error *err)
{
    tsr_output *memory = ((shared_output *)base)->memory;
    for (*file = 0; *file < tsr_output_memory_count(memory); ++*file) {
        if (tsr_str_equal(tsr_output_memory_name(memory, *file), name)) return TSR_OK;
    }
    return memory->create(memory, name, size, file, err);
}

static tsr_status shared_write(tsr_output *base, uint32_t file, uint64_t offset, const void *data, size_t size,
                               tsr_error *err)
{
    tsr_output *memory = ((shared_output *)base)->memory;
    return memory->write_at(memory, file, offset, data, size, err);
}

typedef struct form {
    tsr_container to;
    uint64_t shard;
    bool reshard;
    tsr_dtype dtype;
} form;

static const form forms[] = {{TSR_TO_SAFETENSORS, 0, false, 0}, {TSR_TO_SAFETENSORS, 100, false, 0},
                             {TSR_TO_TORCH, 0, false, 0},       {TSR_TO_DCP, 0, false, TSR_BFLOAT16},
                             {TSR_TO_SAFETENSORS, 0, true, 0},  {TSR_TO_TORCH, 0, true, TSR_FLOAT16},
                             {TSR_TO_DCP, 0, true, 0},          {TSR_TO_DCP, 0, false, 0}};
#define FORMS (sizeof forms / sizeof *forms)

typedef struct job {
    tsr_made made;
    tsr_arena *arena;
    tsr_plan *plan;
    tsr_target target;
    tsr_convert_options options;
    shared_output output;
    tsr_storage_server servers[3];
    tsr_striping striping;
    tsr_storage storage;
} job;

/* Distributes the one file over servers with different speeds, in small stripes. */
static void add_storage(job *j, uint64_t seed)
{
    for (uint32_t s = 0; s < 3; s++)
        j->servers[s] = (tsr_storage_server){TSR_STR("s"), (double)(100 + (seed >> s) % 7 * 50), 0.01};
    j->striping = (tsr_striping){.stripe_size = 1 + seed % 300, .stripe_count = (uint32_t)(1 + seed % 3), .first = 2};
    j->storage = (tsr_storage){j->servers, 3, 400, &j->striping, 1};
    j->options.storage = &j->storage;
}

static void start(job *j, uint64_t seed)
{
    const form *f = &forms[seed % FORMS];
    tsr_error err = {0};
    *j = (job){.arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL)};
    fill(&j->made, seed);
    j->made.host.threads = (uint32_t)(seed % 5); /* also the number of lanes */
    j->options = (tsr_convert_options){
        .to = f->to, .max_shard_size = f->shard, .dtype = f->dtype, .max_memory = 1, .unit_bytes = 64 + seed % 5000};
    if (!f->reshard) return;
    if (tsr_target_parse(TSR_STR("dp=2,tp=2"), TSR_STR("shard(0),shard(1)"), j->arena, &j->target, &err) ||
        tsr_plan_new(tsr_checkpoint_catalog(&j->made.checkpoint), &j->target, NULL, &j->made.host, &j->plan, &err))
        fail_msg("%s", err.message);
    j->options.plan = j->plan;
    if (seed / FORMS % 2) add_storage(j, seed);
}

static void new_output(job *j)
{
    j->output.base = (tsr_output){.create = shared_create, .write_at = shared_write};
    tsr_output_to_memory(&tsr_allocator_libc, &j->output.memory, NULL);
}

static tsr_work *new_work(job *j)
{
    tsr_work *work;
    tsr_error err = {0};
    if (tsr_work_new(&j->made.checkpoint, &j->options, 0, j->arena, &work, &err) ||
        tsr_work_open(work, &j->output.base, &err))
        fail_msg("%s", err.message);
    return work;
}

static void end(job *j)
{
    j->output.memory->close(j->output.memory);
    tsr_plan_free(j->plan);
    tsr_arena_free(j->arena);
    tsr_made_end(&j->made);
}

/* Does one part with a separate work, and appends its records. */
static void run_part(job *j, uint64_t part, uint64_t parts, tsr_vec *records)
{
    tsr_work *work = new_work(j);
    tsr_error err = {0};
    if (tsr_work_run(work, part, parts, NULL, &err)) fail_msg("%s", err.message);
    assert_int_equal(tsr_work_left(work, part, parts), 0);
    assert_int_equal(tsr_work_records(work, records, &err), TSR_OK);
    tsr_work_free(work);
}

static void finish(job *j, const tsr_vec *records)
{
    tsr_work *work = new_work(j);
    tsr_error err = {0};
    size_t taken;
    assert_int_equal(tsr_work_take(work, (tsr_str){records->items, records->count}, &taken, &err), TSR_OK);
    assert_int_equal(taken, records->count);
    if (tsr_work_finish(work, &err)) fail_msg("%s", err.message);
    tsr_work_free(work);
}

static void expect_same(const tsr_output *a, const tsr_output *b, uint64_t seed)
{
    assert_int_equal(tsr_output_memory_count(a), tsr_output_memory_count(b));
    for (uint32_t f = 0; f < tsr_output_memory_count(a); f++) {
        const tsr_str name = tsr_output_memory_name(a, f);
        if (!tsr_str_equal(tsr_output_memory_file(a, name), tsr_output_memory_file(b, name)))
            fail_msg("seed %d: '%.*s' differs", (int)seed, TSR_STR_ARG(name));
    }
}

static uint64_t cases(uint64_t usual, uint64_t full)
{
    return full_counts() ? full : usual;
}

static void test_convert_work__parts_in_any_order_write_the_same_bytes(void **state)
{
    (void)state;
    const uint64_t count = cases(160, 8000);
    uint64_t units = 0;
    for (uint64_t seed = 0; seed < count; seed++) {
        job j;
        tsr_output *whole;
        tsr_conversion conversion;
        tsr_error err = {0};
        start(&j, seed);
        tsr_output_to_memory(&tsr_allocator_libc, &whole, NULL);
        tsr_convert_options one_go = j.options;
        one_go.unit_bytes = 0;
        const tsr_status status = tsr_convert(&j.made.checkpoint, whole, &one_go, j.arena, &conversion, &err);
        if (status) fail_msg("seed %d: %s", (int)seed, err.message);
        new_output(&j);
        tsr_vec records = tsr_vec_of(&tsr_allocator_libc, 1);
        const uint64_t parts = 1 + seed % 7, turn = seed % parts;
        for (uint64_t p = 0; p < parts; p++) run_part(&j, (parts - 1 - p + turn) % parts, parts, &records);
        run_part(&j, turn, parts, &records); /* doing a part twice is harmless */
        tsr_work *work = new_work(&j);
        units += tsr_work_units(work);
        tsr_work_free(work);
        finish(&j, &records);
        expect_same(whole, j.output.memory, seed);
        tsr_vec_free(&records);
        whole->close(whole);
        end(&j);
    }
    assert_true(units > 3 * count);
}

/* A journal in memory that fails after a number of entries, like a killed run. */
typedef struct journal {
    tsr_work_journal base; /* must be first */
    tsr_vec records;
    unsigned left;
} journal;

static tsr_status append(void *ctx, tsr_str records, tsr_error *err)
{
    journal *own = ctx;
    if (own->left-- == 0) return tsr_raise(err, TSR_E_IO, TSR_NO_POSITION, "killed");
    assert_int_equal(tsr_vec_reserve(&own->records, records.size, err), TSR_OK);
    memcpy((char *)own->records.items + own->records.count, records.data, records.size);
    own->records.count += records.size;
    return TSR_OK;
}

static void test_convert_work__a_journal_cut_anywhere_is_taken_as_far_as_it_is_whole(void **state)
{
    (void)state;
    job j;
    start(&j, 2);
    new_output(&j);
    journal log = {.base = {append, &log}, .records = tsr_vec_of(&tsr_allocator_libc, 1), .left = 1000};
    tsr_work *work = new_work(&j);
    tsr_error err = {0};
    assert_int_equal(tsr_work_run(work, 0, 1, &log.base, &err), TSR_OK);
    const uint64_t units = tsr_work_units(work);
    tsr_work_free(work);
    uint64_t last = units;
    for (size_t size = 0; size <= log.records.count; size++) {
        size_t taken;
        work = new_work(&j);
        assert_int_equal(tsr_work_take(work, (tsr_str){log.records.items, size}, &taken, &err), TSR_OK);
        assert_true(taken <= size);
        const uint64_t left = tsr_work_left(work, 0, 1);
        assert_true(left <= last);
        assert_int_equal(left == 0, size == log.records.count);
        if (left) assert_int_equal(tsr_work_finish(work, &err), TSR_E_USAGE);
        err = (tsr_error){0};
        last = left;
        tsr_work_free(work);
    }
    ((char *)log.records.items)[9] ^= 1; /* nothing is used from a damaged record on */
    work = new_work(&j);
    assert_int_equal(tsr_work_take(work, (tsr_str){log.records.items, log.records.count}, &last, &err), TSR_OK);
    assert_int_equal(last, 0);
    assert_int_equal(tsr_work_left(work, 0, 1), units);
    tsr_work_free(work);
    tsr_vec_free(&log.records);
    end(&j);
}

static void test_convert_work__records_of_another_work_are_refused(void **state)
{
    (void)state;
    job a, b;
    tsr_error err = {0};
    tsr_vec records = tsr_vec_of(&tsr_allocator_libc, 1);
    start(&a, 2);
    new_output(&a);
    run_part(&a, 0, 1, &records);
    start(&b, 10);
    b.options.unit_bytes = 0; /* a single unit */
    new_output(&b);
    tsr_work *work = new_work(&b);
    assert_int_equal(tsr_work_units(work), 1);
    assert_int_equal(tsr_work_take(work, (tsr_str){records.items, records.count}, NULL, &err), TSR_E_FORMAT);
    assert_non_null(strstr(err.message, "does not belong to this work"));
    tsr_work_free(work);
    tsr_vec_free(&records);
    end(&b);
    end(&a);
}

static void test_convert_work__a_part_that_does_not_exist_is_refused(void **state)
{
    (void)state;
    job j;
    tsr_error err = {0};
    start(&j, 3);
    new_output(&j);
    tsr_work *work = new_work(&j);
    assert_int_equal(tsr_work_run(work, 3, 3, NULL, &err), TSR_E_USAGE);
    assert_string_equal(err.message, "there is no share 3 of 3");
    assert_int_equal(tsr_work_run(work, 400, 1000, NULL, NULL), TSR_OK); /* more shares than units */
    tsr_work_free(work);
    end(&j);
}

static void test_convert_work__every_failed_allocation_ends_cleanly(void **state)
{
    (void)state;
    bool failed = true;
    for (size_t n = 0; failed; n++) {
        job j;
        failing_allocator failing;
        tsr_error err = {0};
        tsr_work *work = NULL;
        start(&j, 3);
        new_output(&j);
        failing_start(&failing, n);
        j.made.host.allocator = &failing.allocator;
        tsr_vec records = tsr_vec_of(&failing.allocator, 1);
        tsr_arena *arena = tsr_arena_new(&failing.allocator, 0, &err);
        tsr_status status = arena ? tsr_work_new(&j.made.checkpoint, &j.options, 0, arena, &work, &err) : TSR_E_NOMEM;
        if (status == TSR_OK) status = tsr_work_open(work, &j.output.base, &err);
        if (status == TSR_OK) status = tsr_work_run(work, 0, 1, NULL, &err);
        if (status == TSR_OK) status = tsr_work_records(work, &records, &err);
        if (status == TSR_OK) status = tsr_work_finish(work, &err);
        assert_int_equal(status, failing.failed ? TSR_E_NOMEM : TSR_OK);
        failed = failing.failed;
        tsr_vec_free(&records);
        tsr_work_free(work);
        tsr_arena_free(arena);
        assert_int_equal(failing.live, 0);
        j.made.host.allocator = &tsr_allocator_libc;
        end(&j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convert_work__parts_in_any_order_write_the_same_bytes),
        cmocka_unit_test(test_convert_work__a_journal_cut_anywhere_is_taken_as_far_as_it_is_whole),
        cmocka_unit_test(test_convert_work__records_of_another_work_are_refused),
        cmocka_unit_test(test_convert_work__a_part_that_does_not_exist_is_refused),
        cmocka_unit_test(test_convert_work__every_failed_allocation_ends_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
