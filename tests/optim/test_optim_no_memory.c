/* Every allocation failure in every operation on names and optimizer state must end in TSR_E_NOMEM and leak nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#include "golden.h"
#include "support/failing_allocator.h"
#include "tessera/optim.h"
#include "tessera/state_keys.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/host_calls.h"
#include "tessera/sys/names.h"
#include "tessera/sys/optim.h"
#include "tessera/sys/optimizer.h"
#include "tessera/sys/try.h"

/* The input of the operations, read once with enough memory. */
typedef struct material {
    golden optim, fsdp;
    char *modules, *flat, *alone;
    const tsr_value *native, *nested, *flat_state, *full, *ranks[2], *lonely_full, *lonely_raw;
} material;

static material gather_material(void)
{
    material m = {.optim = golden_open("optim.json"), .fsdp = golden_open("fsdp_optim.json")};
    const cJSON *one = golden_get(golden_get(m.optim.document, "cases"), "sgd_momentum");
    m.modules = cJSON_PrintUnformatted(golden_get(one, "modules"));
    m.native = golden_value(&m.optim, golden_get(one, "natives")->child);
    m.nested = golden_value(&m.optim, golden_get(one, "nested"));
    m.flat_state = golden_value(&m.optim, golden_get(one, "flat"));
    one = golden_get(golden_get(m.fsdp.document, "cases"), "flat_w2_sgd");
    m.flat = cJSON_PrintUnformatted(golden_get(one, "flat"));
    m.full = golden_value(&m.fsdp, golden_get(one, "full"));
    m.ranks[0] = golden_value(&m.fsdp, golden_get(one, "raw")->child);
    m.ranks[1] = golden_value(&m.fsdp, golden_get(one, "raw")->child->next);
    one = golden_get(golden_get(m.fsdp.document, "cases"), "flat_w1");
    m.alone = cJSON_PrintUnformatted(golden_get(one, "flat"));
    m.lonely_full = golden_value(&m.fsdp, golden_get(one, "full"));
    m.lonely_raw = golden_value(&m.fsdp, golden_get(one, "raw")->child);
    return m;
}

/* The objects that one run uses. */
typedef struct run {
    const material *m;
    tsr_host host;
    tsr_arena *arena;
    tsr_modules *modules;
    tsr_params *params;
    tsr_error err;
} run;

static tsr_status swallow(void *ctx, const char *data, size_t size, tsr_error *err)
{
    (void)ctx, (void)data, (void)size, (void)err;
    return TSR_OK;
}

static tsr_status names(run *r)
{
    static const tsr_name_pair moved[] = {{{"module.a.b", 10}, {"a.b", 3}}, {{"module.c.b", 10}, {"c.b", 3}}};
    tsr_modules_document document;
    tsr_state_item *items;
    tsr_collision *collisions;
    tsr_named_module *named;
    tsr_name_list prefixes;
    tsr_rename_rule *rules;
    size_t count, collision_count;
    TSR_TRY(tsr_modules_parse(tsr_str_from(r->m->modules), &r->host, r->arena, &document, &r->err));
    TSR_TRY(tsr_modules_write(&document, r->host.allocator, swallow, NULL, &r->err));
    TSR_TRY(tsr_modules_new(document.root, &r->host, &r->modules, &r->err));
    TSR_TRY(tsr_fqn_named_modules(r->modules, &r->host, r->arena, &named, &count, &r->err));
    const tsr_module_refs last = {&named[count - 1].module, 1};
    TSR_TRY(tsr_fqn_submodule_prefixes(r->modules, last, &r->host, r->arena, &prefixes, &r->err));
    TSR_TRY(tsr_fqn_rename_rules(moved, 2, r->arena, &rules, &count, &r->err));
    TSR_TRY(tsr_params_new(r->modules, &r->host, &r->params, &r->err));
    TSR_TRY(tsr_fqn_named_parameters(r->modules, &r->host, r->arena, &items, &count, &r->err));
    tsr_name *found = tsr_arena_array(r->arena, count, sizeof *found, &r->err);
    tsr_str *raws = tsr_arena_array(r->arena, count, sizeof *raws, &r->err);
    if (!found || !raws) return TSR_E_NOMEM;
    for (size_t i = 0; i < count; i++) raws[i] = items[i].raw;
    TSR_TRY(tsr_fqn_from_text(raws, count, r->host.allocator, r->arena, found, &r->err));
    return tsr_fqn_collisions(found, count, r->arena, &collisions, &collision_count, &r->err);
}

static tsr_status forms(run *r)
{
    tsr_group_names lists;
    const tsr_value *nested, *out;
    tsr_state_key *keys;
    size_t count;
    TSR_TRY(names(r));
    const tsr_group_naming naming = {.modules = r->modules};
    TSR_TRY(tsr_optim_name_groups(r->m->native, &naming, &r->host, r->arena, &lists, &r->err));
    TSR_TRY(tsr_optim_to_fqn(r->m->native, lists, &r->host, r->arena, &nested, &r->err));
    TSR_TRY(tsr_optim_to_id(nested, &r->host, r->arena, &out, &r->err));
    TSR_TRY(tsr_optim_merge(&nested, 1, &r->host, r->arena, &out, &r->err));
    TSR_TRY(tsr_optim_flatten(nested, &r->host, r->arena, &out, &r->err));
    TSR_TRY(tsr_optim_unflatten(r->m->flat_state, &(tsr_unflatten){r->params, NULL, 0, NULL, NULL, NULL}, &r->host, r->arena,
                                &out, &r->err));
    TSR_TRY(tsr_state_keys(r->m->nested, &r->host, r->arena, &keys, &count, &r->err));
    TSR_TRY(tsr_state_unflatten(keys, count, &r->host, r->arena, &out, &r->err));
    const size_t first[] = {0};
    const tsr_optimizer optimizer = {&(tsr_optimizer_group){first, 1}, 1};
    return tsr_optim_split(r->m->nested, &(tsr_split){r->params, &optimizer, false}, &r->host, r->arena, &out, &r->err);
}

static tsr_status flat_parameters(run *r)
{
    tsr_flat_params flat;
    tsr_fsdp_full full;
    const tsr_value *out;
    const tsr_fsdp_context context = {&r->host, r->arena, GOLDEN_ZEROS, NULL, NULL, false};
    TSR_TRY(tsr_flat_params_parse(tsr_str_from(r->m->flat), &r->host, r->arena, &flat, &r->err));
    tsr_name_list differences;
    TSR_TRY(tsr_fsdp_differences(&flat, r->m->ranks, 0, &context, &differences, &r->err));
    TSR_TRY(tsr_fsdp_unshard(&flat, r->m->ranks, 0, &context, &full, &r->err));
    TSR_TRY(tsr_fsdp_shard_rows(&flat, full.optim, &(tsr_fsdp_rows){2, 1, NULL}, &context, &out, &r->err));
    const tsr_value *key = tsr_value_str(r->arena, TSR_STR("state.emb.weight.m"), &r->err), *pair[] = {key, r->m->full},
                    *flat_state = key ? tsr_value_items(r->arena, TSR_VALUE_DICT, pair, 2, &r->err) : NULL;
    if (!flat_state) return TSR_E_NOMEM;
    TSR_TRY(tsr_fsdp_nest_state(&flat, flat_state, &r->host, r->arena, &out, &r->err));
    return tsr_fsdp_shard(&flat, r->m->full, (tsr_fsdp_rank){3, 1}, &context, &out, &r->err);
}

static const void *zeros(void *ctx, const tsr_entry *entry)
{
    static const char bytes[4096] = {0};
    (void)ctx, (void)entry;
    return bytes;
}

static tsr_status meet(run *r, tsr_comm *comm)
{
    const tsr_live_call call = {comm, &r->host, r->arena, {zeros, NULL}};
    tsr_flat_params flat;
    tsr_live_state state;
    TSR_TRY(tsr_flat_params_parse(tsr_str_from(r->m->alone), &r->host, r->arena, &flat, &r->err));
    TSR_TRY(tsr_fsdp_gather(&call, &flat, r->m->lonely_raw, TSR_ALL_RANKS, &state, &r->err));
    tsr_live_state_free(&state);
    TSR_TRY(tsr_fsdp_broadcast(&call, &flat, r->m->lonely_full, &state, &r->err));
    tsr_live_state_free(&state);
    return TSR_OK;
}

static tsr_status live_ranks(run *r)
{
    tsr_comm *comm;
    TSR_TRY(tsr_comm_self(r->host.allocator, &comm, &r->err));
    tsr_status status = meet(r, comm);
    comm->close(comm);
    return status;
}

static tsr_status keys(run *r)
{
    tsr_group_names all, one;
    const tsr_rekeying to_names = {.names = &all, .to_names = true}, to_numbers = {.names = &all, .keep_others = true};
    const tsr_value *out;
    TSR_TRY(names(r));
    const tsr_value *emb = tsr_value_str(r->arena, TSR_STR("emb.weight"), &r->err);
    const tsr_value *list = emb ? tsr_value_list(r->arena, TSR_VALUE_LIST, 1, emb) : NULL;
    const tsr_value *group = tsr_value_dict(r->arena, 1, "params", list);
    const tsr_value *input = tsr_value_list(r->arena, TSR_VALUE_LIST, 1, group);
    if (!input) return tsr_raise(&r->err, TSR_E_NOMEM, TSR_NO_POSITION, "no memory");
    TSR_TRY(tsr_optim_input_names(input, r->modules, &r->host, r->arena, &one, &r->err));
    TSR_TRY(tsr_optim_input_names(NULL, r->modules, &r->host, r->arena, &all, &r->err));
    TSR_TRY(tsr_optim_rekey(r->m->nested, &to_numbers, &r->host, r->arena, &out, &r->err));
    return tsr_optim_rekey(out, &to_names, &r->host, r->arena, &out, &r->err);
}

static void fail_everywhere(tsr_status (*operations)(run *r))
{
    material m = gather_material();
    for (size_t n = 0;; n++) {
        failing_allocator failing;
        failing_start(&failing, n);
        run r = {.m = &m, .host = {.allocator = &failing.allocator, .limits = tsr_limits_default()}};
        r.arena = tsr_arena_new(&failing.allocator, 0, &r.err);
        tsr_status status = r.arena ? operations(&r) : TSR_E_NOMEM;
        tsr_params_free(r.params);
        tsr_modules_free(r.modules);
        tsr_arena_free(r.arena);
        if (status != (failing.failed ? TSR_E_NOMEM : TSR_OK))
            fail_msg("allocation %zu: status %d, %s", n, status, r.err.message);
        if (status != TSR_OK) assert_int_equal(r.err.status, TSR_E_NOMEM);
        assert_int_equal(failing.live, 0);
        if (!failing.failed) break;
    }
    cJSON_free(m.alone);
    cJSON_free(m.flat);
    cJSON_free(m.modules);
    golden_close(&m.fsdp);
    golden_close(&m.optim);
}

static void test_optim_no_memory__forms_and_names(void **state)
{
    (void)state;
    fail_everywhere(forms);
}

static void test_optim_no_memory__keys(void **state)
{
    (void)state;
    fail_everywhere(keys);
}

static void test_optim_no_memory__flat_parameters(void **state)
{
    (void)state;
    fail_everywhere(flat_parameters);
}

static void test_optim_no_memory__live_ranks(void **state)
{
    (void)state;
    fail_everywhere(live_ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optim_no_memory__forms_and_names),
        cmocka_unit_test(test_optim_no_memory__keys),
        cmocka_unit_test(test_optim_no_memory__flat_parameters),
        cmocka_unit_test(test_optim_no_memory__live_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
