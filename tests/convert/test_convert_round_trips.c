/* Writes random checkpoints with every writer and reads them back. What is read must equal the true contents exactly, and
 * must be where the target requires. TSR_TEST_FULL raises the counts to 100,000 cases. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/failing_allocator.h"
#include "support/full_counts.h"
#include "support/made.h"
#include "tessera/check.h"
#include "tessera/compare.h"
#include "tessera/convert.h"
#include "tessera/glob.h"
#include "tessera/sys/check.h"
#include "tessera/sys/layout.h"
#include "tessera/sys/plan.h"
#include "tessera/sys/store.h"

#define TENSORS 5u

static const tsr_dtype dtypes[] = {TSR_FLOAT64,       TSR_FLOAT32,        TSR_FLOAT16,    TSR_BFLOAT16,
                                   TSR_FLOAT8_E4M3FN, TSR_FLOAT8_E8M0FNU, TSR_INT64,      TSR_INT32,
                                   TSR_INT8,          TSR_UINT16,         TSR_UINT64,     TSR_BOOL,
                                   TSR_COMPLEX64,     TSR_COMPLEX32,      TSR_COMPLEX128, TSR_FLOAT4_E2M1FN_X2};
static const char *const names[TENSORS] = {"a", "b.weight", "b.bias", "c.0", "c.1"};

static uint64_t cases(uint64_t usual, uint64_t full)
{
    return full_counts() ? full : usual;
}

static void fill(tsr_made *made, uint64_t seed, bool for_safetensors)
{
    tsr_made_start(made, seed, TENSORS);
    for (unsigned i = 0; i < TENSORS; i++) {
        uint64_t shape[8];
        uint32_t ndim = tsr_made_shape(made, shape, seed % 50 ? 7 : 60);
        tsr_dtype dtype = dtypes[tsr_made_random(made, sizeof dtypes / sizeof *dtypes)];
        if (for_safetensors && (dtype == TSR_COMPLEX32 || dtype == TSR_COMPLEX128)) dtype = TSR_UINT8;
        if (ndim == 0 && dtype == TSR_FLOAT4_E2M1FN_X2) dtype = TSR_INT16;
        tsr_made_tensor(made, names[i], dtype, ndim, shape, (unsigned)tsr_made_random(made, 9),
                        (tsr_made_how)tsr_made_random(made, 3));
    }
    tsr_made_open(made);
}

typedef struct reopened {
    tsr_output *output;
    tsr_arena *arena;
    tsr_store *store;
    tsr_checkpoint *checkpoint;
} reopened;

static void start(reopened *r)
{
    *r = (reopened){.arena = tsr_arena_new(&tsr_allocator_libc, 0, NULL)};
    tsr_output_to_memory(&tsr_allocator_libc, &r->output, NULL);
}

static void reopen(reopened *r, const tsr_host *host, const char *single)
{
    tsr_memory_file files[40];
    tsr_error err = {0};
    const uint32_t count = tsr_output_memory_count(r->output);
    assert_true(count <= 40);
    for (uint32_t i = 0; i < count; i++) {
        const tsr_str name = tsr_output_memory_name(r->output, i);
        files[i] = (tsr_memory_file){name.size ? name : tsr_str_from(single), tsr_output_memory_file(r->output, name)};
    }
    assert_int_equal(tsr_store_from_memory(&tsr_allocator_libc, files, count, &r->store, NULL), TSR_OK);
    if (tsr_checkpoint_open(r->store, host, NULL, &r->checkpoint, &err)) fail_msg("%s", err.message);
}

static void end(reopened *r)
{
    tsr_checkpoint_close(r->checkpoint);
    if (r->store) r->store->close(r->store);
    r->output->close(r->output);
    tsr_arena_free(r->arena);
}

static void expect_equal(tsr_made *made, const reopened *r, uint64_t seed)
{
    tsr_ring *ring;
    tsr_error err = {0};
    tsr_ring_new(&made->host, 1, &ring, NULL);
    for (uint64_t i = 0; i < made->count; i++) {
        const tsr_entry *entry = tsr_checkpoint_entry(r->checkpoint, made->entries[i].fqn);
        tsr_difference difference = {0};
        if (!entry) fail_msg("seed %d: %.*s is missing", (int)seed, TSR_STR_ARG(made->entries[i].fqn));
        const tsr_status status = tsr_compare_tensors((tsr_stored_tensor){&made->checkpoint, &made->entries[i]},
                                                      (tsr_stored_tensor){r->checkpoint, entry},
                                                      &(tsr_tolerance){.exact = true}, ring, &difference, &err);
        if (status != TSR_OK) fail_msg("seed %d: %s", (int)seed, err.message);
        if (difference.differing) fail_msg("seed %d: %.*s differs", (int)seed, TSR_STR_ARG(entry->fqn));
    }
    if (tsr_check_deep(r->checkpoint, ring, NULL, &err)) fail_msg("seed %d: %s", (int)seed, err.message);
    const tsr_findings *findings = tsr_checkpoint_findings(r->checkpoint);
    if (tsr_findings_total(findings, TSR_ERROR))
        fail_msg("seed %d: %s", (int)seed, tsr_findings_at(findings, 0)->message.data);
    tsr_ring_free(ring);
}

static void test_convert_round_trips__conversions_keep_every_bit(void **state)
{
    (void)state;
    static const struct {
        tsr_container to;
        uint64_t shard;
        const char *single;
    } forms[] = {{TSR_TO_SAFETENSORS, 0, "x.safetensors"},
                 {TSR_TO_SAFETENSORS, 100, ""},
                 {TSR_TO_TORCH, 0, "x.pt"},
                 {TSR_TO_DCP, 0, ""}};
    const uint64_t count = cases(200, 60000);
    for (uint64_t seed = 0; seed < count; seed++) {
        const unsigned form = (unsigned)(seed % 4);
        tsr_made made;
        reopened r;
        tsr_error err = {0};
        tsr_conversion conversion;
        fill(&made, seed, form < 2);
        start(&r);
        const tsr_convert_options options = {
            .to = forms[form].to, .max_shard_size = forms[form].shard, .max_memory = seed % 3 ? 1 : 0};
        if (tsr_convert(&made.checkpoint, r.output, &options, r.arena, &conversion, &err))
            fail_msg("seed %d: %s", (int)seed, err.message);
        reopen(&r, &made.host, forms[form].single);
        assert_int_equal(tsr_checkpoint_catalog(r.checkpoint)->entry_count, TENSORS);
        expect_equal(&made, &r, seed);
        end(&r);
        tsr_made_end(&made);
    }
}

/* ---- resharding ---- */

static const char *const meshes[] = {"dp=1", "dp=3", "2,2", "dp=2,tp=3", "7", "a=2,b=2,c=2"};
static const unsigned mesh_dims[] = {1, 1, 2, 2, 1, 3};

static tsr_plan *plan_for(tsr_made *made, tsr_arena *arena, tsr_target *target)
{
    static const char *const placements[] = {"shard(0)", "replicate", "shard(1)", "shard(-1)", "shard(2)"};
    const uint64_t mesh = tsr_made_random(made, 6);
    char text[96];
    size_t used = 0;
    tsr_plan *plan;
    tsr_error err = {0};
    for (unsigned d = 0; d < mesh_dims[mesh]; d++) {
        used +=
            (size_t)snprintf(text + used, sizeof text - used, "%s%s", d ? "," : "", placements[tsr_made_random(made, 5)]);
    }
    if (tsr_target_parse(tsr_str_from(meshes[mesh]), tsr_str_from(text), arena, target, &err)) fail_msg("%s", err.message);
    if (tsr_plan_new(tsr_checkpoint_catalog(&made->checkpoint), target, NULL, &made->host, &plan, &err))
        fail_msg("%s", err.message);
    return plan;
}

/* In a DCP directory, every chunk is in a file of its owner, and the chunks are the plan's shards. */
typedef struct placed {
    const tsr_plan *plan;
    const reopened *r;
    uint64_t shards;
} placed;

static tsr_status expect_shard(void *ctx, uint64_t tensor, uint64_t owner, const tsr_shard *shard, tsr_error *err)
{
    placed *p = ctx;
    char file[32];
    (void)err;
    snprintf(file, sizeof file, "__%u_0.distcp", (unsigned)owner);
    const tsr_entry *entry = tsr_checkpoint_entry(p->r->checkpoint, tsr_plan_tensor_at(p->plan, tensor).entry->fqn);
    for (uint64_t b = 0; b < shard->box_count; b++) {
        bool found = false;
        for (uint64_t c = 0; c < entry->chunk_count && !found; c++) {
            const tsr_box chunk = {entry->ndim, entry->chunks[c].offsets, entry->chunks[c].sizes};
            const tsr_str name = p->r->store->files[entry->chunks[c].file].name;
            found = tsr_box_equal(chunk, (tsr_box){shard->ndim, shard->boxes[b].offsets, shard->boxes[b].sizes}) &&
                    tsr_str_equal(name, tsr_str_from(file));
        }
        assert_true(found);
        p->shards++;
    }
    return TSR_OK;
}

static void expect_places(const tsr_plan *plan, const reopened *r)
{
    placed p = {plan, r, 0};
    uint64_t chunks = 0;
    const tsr_catalog *catalog = tsr_checkpoint_catalog(r->checkpoint);
    assert_int_equal(tsr_plan_each_write(plan, expect_shard, &p, NULL), TSR_OK);
    for (uint64_t i = 0; i < catalog->entry_count; i++) chunks += catalog->entries[i].chunk_count;
    assert_int_equal(p.shards, chunks);
}

static void test_convert_round_trips__reshards_keep_every_bit_and_lie_with_their_owners(void **state)
{
    (void)state;
    static const tsr_container forms[] = {TSR_TO_DCP, TSR_TO_TORCH, TSR_TO_SAFETENSORS};
    const uint64_t count = cases(200, 40000);
    for (uint64_t seed = 0; seed < count; seed++) {
        const tsr_container to = forms[seed % 3];
        tsr_made made;
        reopened r;
        tsr_target target;
        tsr_error err = {0};
        tsr_conversion conversion;
        fill(&made, seed * 2 + 1, to == TSR_TO_SAFETENSORS);
        start(&r);
        tsr_plan *plan = plan_for(&made, r.arena, &target);
        const tsr_convert_options options = {.to = to, .max_memory = 1, .plan = plan};
        if (tsr_convert(&made.checkpoint, r.output, &options, r.arena, &conversion, &err))
            fail_msg("seed %d: %s", (int)seed, err.message);
        reopen(&r, &made.host, "");
        expect_equal(&made, &r, seed);
        if (to == TSR_TO_DCP) expect_places(plan, &r);
        if (to == TSR_TO_TORCH) assert_int_equal(tsr_output_memory_count(r.output), tsr_plan_ranks(plan));
        end(&r);
        tsr_plan_free(plan);
        tsr_made_end(&made);
    }
}

static void test_convert_round_trips__every_failed_allocation_ends_cleanly(void **state)
{
    (void)state;
    static const tsr_container forms[] = {TSR_TO_TORCH, TSR_TO_DCP};
    for (size_t n = 0, form = 0; form < 2;) {
        failing_allocator failing;
        tsr_made made;
        tsr_output *output = NULL;
        tsr_conversion conversion;
        tsr_error err = {0};
        fill(&made, 3, false);
        failing_start(&failing, n);
        made.host.allocator = &failing.allocator;
        tsr_arena *arena = tsr_arena_new(&failing.allocator, 0, &err);
        tsr_status status = arena ? tsr_output_to_memory(&failing.allocator, &output, &err) : TSR_E_NOMEM;
        if (status == TSR_OK)
            status =
                tsr_convert(&made.checkpoint, output, &(tsr_convert_options){.to = forms[form]}, arena, &conversion, &err);
        assert_int_equal(status, failing.failed ? TSR_E_NOMEM : TSR_OK);
        if (output) output->close(output);
        tsr_arena_free(arena);
        assert_int_equal(failing.live, 0);
        tsr_made_end(&made);
        form += !failing.failed;
        n = failing.failed ? n + 1 : 0;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convert_round_trips__conversions_keep_every_bit),
        cmocka_unit_test(test_convert_round_trips__reshards_keep_every_bit_and_lie_with_their_owners),
        cmocka_unit_test(test_convert_round_trips__every_failed_allocation_ends_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
