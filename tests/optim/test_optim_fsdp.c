/* Compares FSDP1's optimizer state with real PyTorch: tests/golden/fsdp_optim.json, made by tests/golden/make_optim.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>
#include <stdio.h>

#include "golden.h"
#include "optim/pieces.h"
#include "tessera/sys/flat_params.h"
#include "tessera/sys/optim.h"

/* Whether two decoded 0-d tensors have the same number. */
static tsr_status same_scalar(void *ctx, const tsr_entry *a, const tsr_entry *b, bool *equal, tsr_error *err)
{
    (void)err;
    const golden *g = ctx;
    const cJSON *const *lists = (const cJSON *const *)g->tensors.items;
    *equal = cJSON_Compare(lists[a->chunks[0].file], lists[b->chunks[0].file], true);
    return TSR_OK;
}

static tsr_fsdp_context context_of(golden *g)
{
    return (tsr_fsdp_context){&g->host, g->arena, GOLDEN_ZEROS, same_scalar, g, false};
}

static tsr_flat_params flat_of(golden *g, const cJSON *json)
{
    tsr_flat_params flat;
    tsr_error err = {0};
    char *text = cJSON_PrintUnformatted(json);
    if (tsr_flat_params_parse(tsr_str_from(text), &g->host, g->arena, &flat, &err) != TSR_OK) fail_msg("%s", err.message);
    cJSON_free(text);
    return flat;
}

static const tsr_value **ranks_of(golden *g, const cJSON *list)
{
    const tsr_value **ranks = tsr_arena_array(g->arena, (size_t)cJSON_GetArraySize(list), sizeof *ranks, NULL);
    size_t at = 0;
    for (const cJSON *r = list->child; r; r = r->next) ranks[at++] = golden_value(g, r);
    return ranks;
}

static void test_optim_fsdp__B1_B9_B10_B11_ranks_to_full_state(void **state)
{
    (void)state;
    golden g = golden_open("fsdp_optim.json");
    for (const cJSON *one = golden_get(g.document, "cases")->child; one; one = one->next) {
        tsr_flat_params flat = flat_of(&g, golden_get(one, "flat"));
        tsr_fsdp_context context = context_of(&g);
        tsr_fsdp_full full;
        tsr_error err = {0};
        if (tsr_fsdp_unshard(&flat, ranks_of(&g, golden_get(one, "raw")), 0, &context, &full, &err) != TSR_OK)
            fail_msg("%s: %s", one->string, err.message);
        if (!golden_same(&g, full.optim, golden_get(one, "full"), true)) fail_msg("%s: the full state differs", one->string);
        assert_int_equal(full.carried_count, strcmp(one->string, "flat_w2_user") == 0);
    }
    golden_close(&g);
}

/* `loads` has, for one world size, the state of each rank after PyTorch loaded the full state. */
static void check_loads(golden *g, const cJSON *one, const cJSON *ranks, uint32_t world)
{
    tsr_flat_params flat = flat_of(g, golden_get(one, "flat"));
    const tsr_value *full = golden_value(g, golden_get(one, "full")), *out;
    uint32_t rank = 0;
    for (const cJSON *want = ranks->child; want; want = want->next, rank++) {
        tsr_fsdp_context context = context_of(g);
        tsr_error err = {0};
        if (tsr_fsdp_shard(&flat, full, (tsr_fsdp_rank){world, rank}, &context, &out, &err) != TSR_OK)
            fail_msg("%s, rank %u of %u: %s", one->string, rank, world, err.message);
        if (!golden_same(g, out, want, false)) fail_msg("%s: rank %u of %u differs", one->string, rank, world);
    }
    assert_int_equal(rank, world);
}

static void test_optim_fsdp__B3_B4_B6_full_state_to_ranks_of_any_world(void **state)
{
    (void)state;
    golden g = golden_open("fsdp_optim.json");
    for (const cJSON *one = golden_get(g.document, "cases")->child; one; one = one->next) {
        check_loads(&g, one, golden_get(one, "loaded_back"), (uint32_t)cJSON_GetArraySize(golden_get(one, "raw")));
        for (const cJSON *load = golden_get(one, "loads")->child; load; load = load->next)
            check_loads(&g, one, golden_get(load, "raw"), (uint32_t)golden_get(load, "world")->valuedouble);
    }
    golden_close(&g);
}

/* ---- sharded state, meshes and hybrid strategies: tests/golden/fsdp_sharded.json ---- */

/* Finds the mesh that was passed to FSDP, with the dims of the first DTensor in the golden. */
static bool mesh_of(const cJSON *json, uint64_t *shape, tsr_mesh *mesh)
{
    const cJSON *dims = json->string && strcmp(json->string, "mesh") == 0 ? json : NULL;
    for (const cJSON *d = dims ? dims->child : NULL; d; d = d->next) shape[mesh->dim_count++] = (uint64_t)d->valuedouble;
    static const tsr_str unnamed[2] = {{NULL, 0}, {NULL, 0}};
    mesh->shape = shape;
    mesh->names = unnamed;
    for (const cJSON *c = json->child; c && !dims; c = c->next)
        if (mesh_of(c, shape, mesh)) return true;
    return dims != NULL;
}

static void test_optim_fsdp__B13_sharded_state_of_every_rank(void **state)
{
    (void)state;
    golden g = golden_open("fsdp_sharded.json");
    for (const cJSON *one = golden_get(g.document, "cases")->child; one; one = one->next) {
        tsr_flat_params flat = flat_of(&g, golden_get(one, "flat"));
        tsr_fsdp_context context = context_of(&g);
        tsr_fsdp_full full;
        tsr_error err = {0};
        uint64_t shape[2];
        tsr_mesh mesh = {0};
        bool has_mesh = mesh_of(golden_get(one, "sharded"), shape, &mesh);
        if (tsr_fsdp_unshard(&flat, ranks_of(&g, golden_get(one, "raw")), 0, &context, &full, &err) != TSR_OK)
            fail_msg("%s: %s", one->string, err.message);
        uint32_t rank = 0;
        for (const cJSON *want = golden_get(one, "sharded")->child; want; want = want->next, rank++) {
            const tsr_fsdp_rows options = {flat.world_size, rank, has_mesh ? &mesh : NULL};
            const tsr_value *out;
            if (tsr_fsdp_shard_rows(&flat, full.optim, &options, &context, &out, &err) != TSR_OK)
                fail_msg("%s, rank %u: %s", one->string, rank, err.message);
            if (!golden_same(&g, out, want, true)) fail_msg("%s: rank %u differs", one->string, rank);
        }
    }
    golden_close(&g);
}

static void test_optim_fsdp__B1_B3_B4_B10_hybrid_strategies(void **state)
{
    (void)state;
    golden g = golden_open("fsdp_sharded.json");
    for (const cJSON *one = golden_get(g.document, "cases")->child; one; one = one->next) {
        tsr_flat_params flat = flat_of(&g, golden_get(one, "flat"));
        tsr_fsdp_context context = context_of(&g);
        tsr_fsdp_full full;
        tsr_error err = {0};
        if (tsr_fsdp_unshard(&flat, ranks_of(&g, golden_get(one, "raw")), 0, &context, &full, &err) != TSR_OK)
            fail_msg("%s: %s", one->string, err.message);
        if (!golden_same(&g, full.optim, golden_get(one, "full"), true)) fail_msg("%s: the full state differs", one->string);
        check_loads(&g, one, golden_get(one, "loaded"), flat.world_size);
    }
    golden_close(&g);
}

static void test_optim_fsdp__B12_units_and_indices_of_all_fqns(void **state)
{
    (void)state;
    golden g = golden_open("fsdp_sharded.json");
    for (const cJSON *one = golden_get(g.document, "cases")->child; one; one = one->next) {
        tsr_flat_params flat = flat_of(&g, golden_get(one, "flat"));
        tsr_flat_index *index;
        size_t count = 0;
        assert_int_equal(tsr_flat_index_new(&flat, &tsr_allocator_libc, &index, NULL), TSR_OK);
        for (const cJSON *want = golden_get(one, "info")->child; want; want = want->next) {
            tsr_flat_found found = tsr_flat_index_find(index, tsr_str_from(want->string));
            assert_true(found.unit == &flat.units[(uint32_t)want->child->valuedouble]);
            assert_int_equal(found.param - found.unit->params, (int)want->child->next->valuedouble);
            assert_int_equal(found.param->needs_state, cJSON_IsTrue(want->child->next->next));
        }
        for (uint32_t u = 0; u < flat.unit_count; u++) {
            count += flat.units[u].param_count;
            for (size_t s = 0; s < flat.units[u].shared_count; s++) {
                tsr_flat_found found = tsr_flat_index_find(index, flat.units[u].shared[s].fqn);
                assert_true(found.unit == &flat.units[u] && tsr_str_equal(found.param->fqn, flat.units[u].shared[s].of));
            }
        }
        assert_int_equal(cJSON_GetArraySize(golden_get(one, "info")), count);
        assert_null(tsr_flat_index_find(index, TSR_STR("nosuch")).unit);
        tsr_flat_index_free(index);
    }
    golden_close(&g);
}

/* A hybrid unit in another world: its replicas have the same number of ranks. */
static void test_optim_fsdp__B3_hybrid_strategies_in_other_worlds(void **state)
{
    (void)state;
    golden g = golden_open("fsdp_sharded.json");
    const cJSON *one = golden_get(golden_get(g.document, "cases"), "flat_hybrid_groups");
    tsr_flat_params flat = flat_of(&g, golden_get(one, "flat"));
    tsr_fsdp_context context = context_of(&g);
    const tsr_value *full = golden_value(&g, golden_get(one, "full")), *out;
    tsr_error err = {0};
    for (uint32_t rank = 0; rank < 6; rank++) {
        assert_int_equal(tsr_fsdp_shard(&flat, full, (tsr_fsdp_rank){6, rank}, &context, &out, NULL), TSR_OK);
        /* the document's replicas are ranks 0, 2 and ranks 1, 3 */
        assert_true(golden_same(&g, out, cJSON_GetArrayItem(golden_get(one, "loaded"), rank % 2 ? 2 : 0), false));
    }
    assert_int_equal(tsr_fsdp_shard(&flat, full, (tsr_fsdp_rank){5, 0}, &context, &out, &err), TSR_E_USAGE);
    assert_string_equal(err.message, "flat params: 5 ranks cannot be divided into replicas of 2 ranks");
    golden_close(&g);
}

/* ---- errors, with a unit of two originals: a [3] and b [2, 2], on two ranks with 4 elements each (7, padded) ---- */

#define FLAT(orig, raw, groups) \
    "{\"schema\":\"tessera.flat-params/1\",\"world_size\":2,\"use_orig_params\":" orig \
    ",\"files\":[\"0\",\"1\"],\"units\":" \
    "[{\"fsdp_module\":\"\",\"raw_name\":" raw \
    ",\"params\":[{\"fqn\":\"a\",\"shape\":[3]},{\"fqn\":\"b\",\"shape\":[2,2]}]," \
    "\"numels_with_padding\":[3,4],\"is_padding_mask\":[false,false]}],\"param_groups\":" groups "}"
#define ONE_FLAT  FLAT("false", "\"_flat_param\"", "[[\"_flat_param\"]]")
#define ORIGINALS FLAT("true", "null", "[[\"a\",\"b\"]]")

#define S(text)                  "{\"s\":\"" text "\"}"
#define T(dtype, shape, numbers) "{\"T\":[\"" dtype "\"," shape "," numbers "]}"
#define OPTIM(state, params) \
    "{\"D\":[[" S("state") ",{\"D\":[" state "]}],[" S("param_groups") ",{\"L\":[{\"D\":[[" S("params") ",{\"L\":[" params \
                                                                                                        "]}]]}]}]]}"
#define OF(key, pairs) "[" key ",{\"D\":[" pairs "]}]"
#define P(name, value) "[" S(name) "," value "]"
#define FOUR           T("float32", "[4]", "[1,2,3,4]")
#define ID0            "{\"i\":0}"

static tsr_status unshard_two(golden *g, const char *flat_text, const char *rank0, const char *rank1, tsr_fsdp_full *full,
                              tsr_error *err)
{
    tsr_flat_params flat;
    assert_int_equal(tsr_flat_params_parse(tsr_str_from(flat_text), &g->host, g->arena, &flat, err), TSR_OK);
    const tsr_value *ranks[] = {golden_value(g, golden_parse(g, rank0)), golden_value(g, golden_parse(g, rank1))};
    tsr_fsdp_context context = {&g->host, g->arena, GOLDEN_ZEROS, NULL, NULL, false};
    return tsr_fsdp_unshard(&flat, ranks, 0, &context, full, err);
}

/* The state of 'b' on both ranks, and a tensor without elements. */
#define B0   OF("{\"i\":1}", P("m", T("float32", "[1]", "[1]")))
#define B1   OF("{\"i\":1}", P("m", T("float32", "[3]", "[2,3,4]")))
#define NONE T("float32", "[0]", "[]")

static void test_optim_fsdp__B2_B8_what_ranks_may_not_say(void **state)
{
    (void)state;
    static const struct {
        const char *flat, *rank0, *rank1, *message;
    } rows[] = {
        {ONE_FLAT, OPTIM(OF(ID0, P("m", FOUR)), ID0), OPTIM("", ID0),
         "rank 1 has no state for '_flat_param', which rank 0 has"},
        {ONE_FLAT, OPTIM(OF(ID0, P("m", FOUR)), ID0), OPTIM(OF(ID0, P("m", T("float32", "[3]", "[1,2,3]"))), ID0),
         "'m' of '_flat_param' on rank 1 has 3 elements; expected 4"},
        {ONE_FLAT, OPTIM(OF(ID0, P("m", FOUR)), ID0), OPTIM(OF(ID0, P("m", T("bfloat16", "[4]", "[1,2,3,4]"))), ID0),
         "is bfloat16 on rank 1, but float32"},
        {ONE_FLAT, OPTIM(OF(ID0, P("m", FOUR)), ID0), OPTIM(OF(ID0, P("n", FOUR)), ID0), "rank 1 has no tensor 'm'"},
        {ONE_FLAT, OPTIM(OF(ID0, P("m", FOUR)), ID0), "{\"D\":[]}", "rank 1"},
        {ONE_FLAT, OPTIM("", "{\"i\":1}"), OPTIM("", "{\"i\":1}"),
         "lists a parameter that is not in the flat-params document"},
        {ORIGINALS, OPTIM(OF(ID0, P("m", T("float32", "[2]", "[1,2]"))), ID0), OPTIM("", ID0),
         "'m' of 'a' on rank 0 has 2 elements; expected 3"},
        {ORIGINALS, OPTIM(OF("{\"i\":1}", P("m", T("float32", "[1]", "[1]"))), ID0), OPTIM("", ID0),
         "rank 1 has no tensor 'm' for 'b', of which it holds 3 elements"},
        {ORIGINALS, OPTIM(OF("{\"i\":1}", P("m", T("float32", "[1]", "[1]")) "," P("k", "{\"i\":1}")), ID0),
         OPTIM(OF("{\"i\":1}", P("m", T("float32", "[3]", "[1,2,3]")) "," P("k", "{\"i\":2}")), ID0),
         "'k' of 'b' has a different value on rank 1 (2) than on the ranks before it (1)"},
        /* State that only a rank without elements has, or that only some ranks have; PyTorch raises AssertionError. */
        {ORIGINALS, OPTIM(B0, "{\"i\":1}"), OPTIM(B1 "," OF(ID0, P("m", NONE) "," P("k", "{\"i\":1}")), "{\"i\":1}"),
         "rank 0 has no tensor 'm' for 'a', of which it holds 3 elements"},
        {ORIGINALS, OPTIM(B0, "{\"i\":1}"), OPTIM(B1 "," OF(ID0, P("k", "{\"i\":1}")), "{\"i\":1}"),
         "rank 0 has no state for 'a', which is on other ranks, although this rank holds elements of it"},
        {ORIGINALS, OPTIM(B0 "," OF(ID0, P("k", "{\"i\":1}")), "{\"i\":1}"),
         OPTIM(B1 "," OF(ID0, P("m", NONE)), "{\"i\":1}"), "rank 0 has no tensor 'm' for 'a', of which it holds 3 elements"},
        {ORIGINALS, OPTIM(B0, "{\"i\":1}"),
         OPTIM(OF("{\"i\":1}", P("m", T("float32", "[3]", "[2,3,4]")) "," P("n", T("float32", "[3]", "[5,6,7]"))),
               "{\"i\":1}"),
         "rank 0 has no tensor 'n' for 'b', of which it holds 1 elements"},
        {ONE_FLAT, OPTIM(OF(ID0, P("m", FOUR)), ID0), OPTIM(OF(ID0, P("m", FOUR) "," P("n", FOUR)), ID0),
         "rank 0 has no tensor 'n' for '_flat_param', which rank 1 has"},
    };
    golden g = golden_open("fsdp_optim.json");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        tsr_error err = {0};
        tsr_fsdp_full full;
        tsr_status status = unshard_two(&g, rows[i].flat, rows[i].rank0, rows[i].rank1, &full, &err);
        if (status != TSR_E_FORMAT || !strstr(err.message, rows[i].message))
            fail_msg("row %zu gave %d: %s", i, status, err.message);
    }
    golden_close(&g);
}

/* A unit whose optimizer keeps no tensors: PyTorch takes the scalars of whichever rank has them. */
static void test_optim_fsdp__B10_scalars_of_a_rank_without_elements(void **state)
{
    (void)state;
    golden g = golden_open("fsdp_optim.json");
    tsr_error err = {0};
    tsr_fsdp_full full;
    const tsr_status status = unshard_two(&g, ORIGINALS, OPTIM(OF("{\"i\":1}", P("k", "{\"i\":4}")), ID0),
                                          OPTIM(OF(ID0, P("k", "{\"i\":3}")), ID0), &full, &err);
    if (status != TSR_OK) fail_msg("%s", err.message);
    const tsr_value *states = tsr_value_get(full.optim, TSR_STR("state")), *a = tsr_value_get(states, TSR_STR("a")),
                    *b = tsr_value_get(states, TSR_STR("b"));
    assert_true(a && a->count == 2 && tsr_value_get(a, TSR_STR("k"))->as.integer == 3);
    assert_true(b && b->count == 2 && tsr_value_get(b, TSR_STR("k"))->as.integer == 4);
    golden_close(&g);
}

static tsr_status shard_one(golden *g, const char *flat_text, const char *full_text, const tsr_value **out, tsr_error *err)
{
    tsr_flat_params flat;
    assert_int_equal(tsr_flat_params_parse(tsr_str_from(flat_text), &g->host, g->arena, &flat, err), TSR_OK);
    tsr_fsdp_context context = context_of(g);
    return tsr_fsdp_shard(&flat, golden_value(g, golden_parse(g, full_text)), (tsr_fsdp_rank){2, 1}, &context, out, err);
}

#define A_STATE   T("float32", "[3]", "[1,2,3]")
#define B_STATE   T("float32", "[2,2]", "[4,5,6,7]")
#define SCALAR(x) T("float32", "[]", "[" x "]")
#define AB        S("a") "," S("b")

static void test_optim_fsdp__B3_what_originals_may_not_say(void **state)
{
    (void)state;
    static const struct {
        const char *flat, *full, *message;
    } rows[] = {
        {ONE_FLAT, OPTIM(OF(S("a"), P("m", A_STATE)) "," OF(S("b"), P("n", B_STATE)), AB),
         "their states have different names"},
        {ONE_FLAT, OPTIM(OF(S("a"), P("m", A_STATE)) "," OF(S("b"), P("m", T("float64", "[2,2]", "[4,5,6,7]"))), AB),
         "(a float32 tensor [3], a float64 tensor [2, 2])"},
        {ONE_FLAT, OPTIM(OF(S("a"), P("m", A_STATE)) "," OF(S("b"), P("m", T("float32", "[4]", "[4,5,6,7]"))), AB),
         "does not have the shape of its parameter: [4] and [2, 2]"},
        {ONE_FLAT, OPTIM(OF(S("a"), P("m", A_STATE)) "," OF(S("b"), P("m", "{\"i\":1}")), AB), "differ"},
        {ONE_FLAT, OPTIM(OF(S("a"), P("k", SCALAR("1"))) "," OF(S("b"), P("k", SCALAR("2"))), AB), "differ"},
        {ONE_FLAT, OPTIM(OF(S("a"), P("k", "{\"i\":1}")) "," OF(S("b"), P("k", "{\"i\":2}")), AB),
         "differ in type, dtype or value (1, 2)"},
        {ONE_FLAT, OPTIM(OF(S("a"), P("k", SCALAR("1"))), AB),
         "'a' has a scalar 'k', but 'b' of the same flat parameter has none"},
        {ONE_FLAT, OPTIM("", S("x")), "lists 'x'"},
        {ORIGINALS, OPTIM(OF(S("b"), P("m", A_STATE)), AB),
         "does not have as many elements as its parameter: [3] and [2, 2]"},
    };
    golden g = golden_open("fsdp_optim.json");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        tsr_error err = {0};
        const tsr_value *out;
        tsr_status status = shard_one(&g, rows[i].flat, rows[i].full, &out, &err);
        if (status != TSR_E_FORMAT || !strstr(err.message, rows[i].message))
            fail_msg("row %zu gave %d: %s", i, status, err.message);
    }
    golden_close(&g);
}

/* Computed by hand: an original without state becomes zeros, and so does the padding; None stays None. */
static void test_optim_fsdp__B3_missing_tensors_are_zeros(void **state)
{
    (void)state;
    golden g = golden_open("fsdp_optim.json");
    const tsr_value *out;
    tsr_error err = {0};
    if (shard_one(&g, ONE_FLAT, OPTIM(OF(S("b"), P("m", B_STATE) "," P("none", "{\"n\":0}")), AB), &out, &err) != TSR_OK)
        fail_msg("%s", err.message);
    assert_true(golden_same(
        &g, out, golden_parse(&g, OPTIM(OF(ID0, P("m", T("float32", "[4]", "[5,6,7,0]")) "," P("none", "{\"n\":0}")), ID0)),
        true));
    if (shard_one(&g, ONE_FLAT, OPTIM(OF(S("a"), P("m", A_STATE)), AB), &out, &err) != TSR_OK) fail_msg("%s", err.message);
    assert_true(golden_same(&g, out, golden_parse(&g, OPTIM(OF(ID0, P("m", T("float32", "[4]", "[0,0,0,0]"))), ID0)), true));
    golden_close(&g);
}

static void test_optim_fsdp__B7_named_optimizers_and_user_state(void **state)
{
    (void)state;
    golden g = golden_open("fsdp_optim.json");
    tsr_fsdp_full full;
    tsr_error err = {0};
    const char *rank = OPTIM(OF(S("_flat_param"), P("m", FOUR)) "," P("mine", "{\"i\":5}"), S("_flat_param"));
    /* user-defined state that is not a dict cannot be a parameter's: PyTorch keeps it unchanged */
    if (unshard_two(&g, ONE_FLAT, rank, rank, &full, &err) != TSR_OK) fail_msg("%s", err.message);
    assert_int_equal(full.carried_count, 1);
    assert_true(tsr_str_equal(full.carried[0], TSR_STR("mine")));
    assert_true(golden_same(
        &g, full.optim,
        golden_parse(&g, OPTIM(OF(S("a"), P("m", T("float32", "[3]", "[1,2,3]"))) "," OF(
                                   S("b"), P("m", T("float32", "[2,2]", "[4,1,2,3]"))) "," P("mine", "{\"i\":5}"),
                               AB)),
        true));
    golden_close(&g);
}

static void test_optim_fsdp__documents_that_contradict_themselves(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"{\"schema\":\"tessera.flat-params/2\"}", "expected tessera.flat-params/1"},
        {FLAT("false", "null", "[]"), "raw_name is missing"},
        {"{\"schema\":\"tessera.flat-params/1\",\"world_size\":2,\"shard_groups\":[[0,0]],\"units\":[],\"param_groups\":[]}",
         "list rank 0 twice"},
        {"{\"schema\":\"tessera.flat-params/"
         "1\",\"world_size\":3,\"shard_groups\":[[0,1],[2]],\"units\":[],\"param_groups\":[]}",
         "shard_groups of 2 and 1 ranks"},
        {"{\"schema\":\"tessera.flat-params/1\",\"world_size\":4,\"shard_groups\":[[0,1]],\"units\":[],\"param_groups\":[]}",
         "list only 2 of 4 ranks"},
        {"{\"schema\":\"tessera.flat-params/1\",\"world_size\":2,\"use_orig_params\":true,\"units\":[{\"fsdp_module\":\"\","
         "\"params\":[],\"numels_with_padding\":[],\"is_padding_mask\":[],\"sharding_strategy\":\"HYBRID_SHARD\"}],"
         "\"param_groups\":[]}",
         "HYBRID_SHARD at units[0] needs shard_groups"},
        {"{\"schema\":\"tessera.flat-params/1\",\"world_size\":0,\"units\":[],\"param_groups\":[]}", "world_size is 0"},
        {"{\"schema\":\"tessera.flat-params/1\",\"world_size\":2,\"files\":[\"a\"],\"units\":[],\"param_groups\":[]}",
         "1 files are listed for 2 ranks"},
        {"{\"schema\":\"tessera.flat-params/"
         "1\",\"world_size\":1,\"units\":[{\"fsdp_module\":\"\",\"raw_name\":\"f\",\"params\":[{\"fqn\":\"a\",\"shape\":[3]}"
         "],"
         "\"numels_with_padding\":[2],\"is_padding_mask\":[false]}],\"param_groups\":[]}",
         "'a' has 3 elements by its shape, but 2"},
        {"{\"schema\":\"tessera.flat-params/"
         "1\",\"world_size\":1,\"units\":[{\"fsdp_module\":\"\",\"raw_name\":\"f\",\"params\":[{\"fqn\":\"a\",\"shape\":[3]}"
         "],"
         "\"numels_with_padding\":[3,1],\"is_padding_mask\":[false]}],\"param_groups\":[]}",
         "do not match"},
        {"{\"schema\":\"tessera.flat-params/"
         "1\",\"world_size\":1,\"units\":[{\"fsdp_module\":\"\",\"raw_name\":\"f\",\"params\":[],"
         "\"numels_with_padding\":[3],\"is_padding_mask\":[false]}],\"param_groups\":[]}",
         "numels_with_padding has more entries than the 0 params"},
    };
    golden g = golden_open("fsdp_optim.json");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        tsr_error err = {0};
        tsr_flat_params flat;
        tsr_status status = tsr_flat_params_parse(tsr_str_from(rows[i].text), &g.host, g.arena, &flat, &err);
        if (status != TSR_E_FORMAT || !strstr(err.message, rows[i].message))
            fail_msg("row %zu gave %d: %s", i, status, err.message);
    }
    golden_close(&g);
}

/* ---- comparing pieces with a reference, element by element ---- */

static tsr_status start_pieces(tsr_pieces *p, golden *g, uint32_t ndim, const uint64_t *shape)
{
    const tsr_entry of = {.fqn = TSR_STR("x"), .dtype = TSR_INT16, .ndim = ndim, .shape = shape};
    return tsr_pieces_start(p, &g->host, g->arena, &of, NULL);
}

/* Fills a tensor of `shape` with flat ranges of a strided source, and checks the address of every element. */
static void check_pieces(golden *g, uint32_t ndim, const uint64_t *shape, uint32_t source_ndim, const uint64_t *source_shape,
                         const uint64_t *strides, uint64_t first)
{
    uint64_t elements = 1, zeros[4] = {0};
    for (uint32_t d = 0; d < ndim; d++) elements *= shape[d];
    tsr_view view = {.file = 0, .byte_offset = 8, .strides = strides};
    tsr_chunk chunk = {.offsets = zeros, .sizes = source_shape, .view = &view};
    tsr_entry source = {.kind = TSR_ENTRY_TENSOR,
                        .dtype = TSR_INT16,
                        .ndim = source_ndim,
                        .shape = source_shape,
                        .chunks = &chunk,
                        .chunk_count = 1};
    tsr_pieces p;
    const tsr_value *value;
    assert_int_equal(start_pieces(&p, g, ndim, shape), TSR_OK);
    uint64_t cut = elements / 3;
    assert_int_equal(tsr_pieces_add(&p, &source, first, first + cut, NULL), TSR_OK);
    assert_int_equal(tsr_pieces_add(&p, &source, first + cut, first + elements, NULL), TSR_OK);
    assert_int_equal(tsr_pieces_finish(&p, &value, NULL), TSR_OK);
    tsr_pieces_drop(&p);
    const tsr_entry *e = value->as.tensor;
    unsigned filled[256] = {0};
    for (uint64_t c = 0; c < e->chunk_count; c++) {
        uint64_t count = 1;
        for (uint32_t d = 0; d < ndim; d++) count *= e->chunks[c].sizes[d];
        for (uint64_t i = 0; i < count; i++) {
            uint64_t rest = i, flat = 0, row = 1, byte = e->chunks[c].view->byte_offset;
            for (uint32_t d = ndim; d-- > 0; rest /= e->chunks[c].sizes[d]) {
                uint64_t index = rest % e->chunks[c].sizes[d];
                flat += (e->chunks[c].offsets[d] + index) * row;
                row *= shape[d];
                byte += 2 * index * e->chunks[c].view->strides[d];
            }
            uint64_t from = first + flat, expected = 8;
            for (uint32_t d = source_ndim; d-- > 0; from /= source_shape[d])
                expected += 2 * (from % source_shape[d]) * strides[d];
            assert_int_equal(byte, expected);
            filled[flat]++;
        }
    }
    for (uint64_t i = 0; i < elements; i++) assert_int_equal(filled[i], 1);
}

static void test_optim_fsdp__pieces_fill_every_element_once(void **state)
{
    (void)state;
    golden g = golden_open("fsdp_optim.json");
    for (uint64_t first = 0; first < 13; first++) {
        check_pieces(&g, 2, (const uint64_t[]){11, 3}, 1, (const uint64_t[]){60}, (const uint64_t[]){1}, first);
        check_pieces(&g, 3, (const uint64_t[]){2, 3, 4}, 1, (const uint64_t[]){60}, (const uint64_t[]){5}, first);
        check_pieces(&g, 3, (const uint64_t[]){2, 1, 7}, 2, (const uint64_t[]){6, 5}, (const uint64_t[]){1, 6}, first);
        check_pieces(&g, 1, (const uint64_t[]){17}, 3, (const uint64_t[]){2, 3, 5}, (const uint64_t[]){15, 1, 3}, first);
        check_pieces(&g, 4, (const uint64_t[]){1, 2, 1, 8}, 4, (const uint64_t[]){2, 1, 5, 3},
                     (const uint64_t[]){15, 99, 3, 1}, first);
        check_pieces(&g, 0, NULL, 1, (const uint64_t[]){60}, (const uint64_t[]){1}, first);
    }
    golden_close(&g);
}

/* A source [6, 5] in four chunks, each in a separate file. A 1-d result must find every element in its chunk. */
static void test_optim_fsdp__pieces_of_sources_in_several_chunks(void **state)
{
    (void)state;
    static const uint64_t shape[] = {6, 5},
                          boxes[][2][2] = {{{0, 0}, {4, 2}}, {{0, 2}, {4, 3}}, {{4, 0}, {1, 5}}, {{5, 0}, {1, 5}}};
    golden g = golden_open("fsdp_optim.json");
    tsr_chunk chunks[4];
    for (uint32_t i = 0; i < 4; i++)
        chunks[i] = (tsr_chunk){.offsets = boxes[i][0], .sizes = boxes[i][1], .byte_offset = 100 * i, .file = i};
    tsr_entry source = {
        .kind = TSR_ENTRY_TENSOR, .dtype = TSR_INT16, .ndim = 2, .shape = shape, .chunks = chunks, .chunk_count = 4};
    for (uint64_t begin = 0; begin < 30; begin++) {
        for (uint64_t end = begin; end <= 30; end++) {
            uint64_t length = end - begin;
            tsr_pieces p;
            const tsr_value *value;
            assert_int_equal(start_pieces(&p, &g, 1, &length), TSR_OK);
            assert_int_equal(tsr_pieces_add(&p, &source, begin, end, NULL), TSR_OK);
            assert_int_equal(tsr_pieces_finish(&p, &value, NULL), TSR_OK);
            tsr_pieces_drop(&p);
            const tsr_entry *e = value->as.tensor;
            uint64_t at = 0;
            for (uint64_t c = 0; c < e->chunk_count; c++) {
                for (uint64_t i = 0; i < e->chunks[c].sizes[0]; i++, at++) {
                    uint64_t row = (begin + at) / 5, column = (begin + at) % 5, b = row == 5 ? 3 : row == 4 ? 2 : column > 1;
                    uint64_t element = (row - boxes[b][0][0]) * boxes[b][1][1] + column - boxes[b][0][1];
                    assert_int_equal(e->chunks[c].view->file, b);
                    assert_int_equal(e->chunks[c].view->byte_offset + 2 * i, 100 * b + 2 * element);
                }
            }
            assert_int_equal(at, length);
        }
    }
    source.chunk_count = 3;
    tsr_pieces p;
    tsr_error err = {0};
    assert_int_equal(start_pieces(&p, &g, 2, shape), TSR_OK);
    assert_int_equal(tsr_pieces_add(&p, &source, 0, 30, &err), TSR_E_FORMAT);
    assert_string_equal(err.message, "optim: element 25 of '' is not covered by any chunk");
    tsr_pieces_drop(&p);
    golden_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optim_fsdp__B1_B9_B10_B11_ranks_to_full_state),
        cmocka_unit_test(test_optim_fsdp__B3_B4_B6_full_state_to_ranks_of_any_world),
        cmocka_unit_test(test_optim_fsdp__B13_sharded_state_of_every_rank),
        cmocka_unit_test(test_optim_fsdp__B1_B3_B4_B10_hybrid_strategies),
        cmocka_unit_test(test_optim_fsdp__B12_units_and_indices_of_all_fqns),
        cmocka_unit_test(test_optim_fsdp__B3_hybrid_strategies_in_other_worlds),
        cmocka_unit_test(test_optim_fsdp__B2_B8_what_ranks_may_not_say),
        cmocka_unit_test(test_optim_fsdp__B10_scalars_of_a_rank_without_elements),
        cmocka_unit_test(test_optim_fsdp__B3_what_originals_may_not_say),
        cmocka_unit_test(test_optim_fsdp__B3_missing_tensors_are_zeros),
        cmocka_unit_test(test_optim_fsdp__B7_named_optimizers_and_user_state),
        cmocka_unit_test(test_optim_fsdp__documents_that_contradict_themselves),
        cmocka_unit_test(test_optim_fsdp__pieces_fill_every_element_once),
        cmocka_unit_test(test_optim_fsdp__pieces_of_sources_in_several_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
