/* Compares rules for state dicts with real PyTorch: tests/golden/state_rules.json, made by
 * tests/golden/make_state_rules.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#include "golden.h"
#include "tessera/optim.h"
#include "tessera/state_keys.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/names.h"
#include "tessera/sys/optim_load.h"
#include "tessera/sys/optimizer.h"

static uint64_t number(const cJSON *item)
{
    return (uint64_t)item->valuedouble;
}

/* ---- E ---- */

static void check_rows(const cJSON *shards, uint64_t size, uint32_t world, bool clamp)
{
    const cJSON *shard = shards->child;
    for (uint32_t rank = 0; rank < world; rank++) {
        uint64_t begin, end;
        tsr_rows_of_rank(size, world, rank, clamp, &begin, &end);
        assert_int_equal(end - begin, shard ? number(shard->child->next) : 0);
        if (shard) assert_int_equal(begin, number(shard->child));
        shard = shard ? shard->next : NULL;
    }
}

static void test_optim_state_rules__E1_rows_of_ranks(void **state)
{
    (void)state;
    golden g = golden_open("state_rules.json");
    for (const cJSON *one = golden_get(g.document, "rows")->child; one; one = one->next) {
        uint64_t size = number(golden_get(one, "size"));
        uint32_t world = (uint32_t)number(golden_get(one, "world"));
        check_rows(golden_get(one, "spec"), size, world, false);
        check_rows(golden_get(one, "chunk"), size, world, true);
    }
    golden_close(&g);
}

static void numbers(const cJSON *list, uint64_t *out)
{
    for (const cJSON *i = list->child; i; i = i->next) *out++ = number(i);
}

/* Makes the optimizer's entries of a checkpoint (a tensor, its step, an object), and one of the model. */
static void fill_entries(tsr_entry *entries, const uint64_t *shape)
{
    static const tsr_path_item paths[4][4] = {
        {{TSR_PATH_KEY, {"model", 5}, 0, NULL}, {TSR_PATH_KEY, {"w", 1}, 0, NULL}},
        {{TSR_PATH_KEY, {"optim", 5}, 0, NULL},
         {TSR_PATH_KEY, {"state", 5}, 0, NULL},
         {TSR_PATH_KEY, {"w", 1}, 0, NULL},
         {TSR_PATH_KEY, {"exp_avg", 7}, 0, NULL}},
        {{TSR_PATH_KEY, {"optim", 5}, 0, NULL},
         {TSR_PATH_KEY, {"state", 5}, 0, NULL},
         {TSR_PATH_KEY, {"w", 1}, 0, NULL},
         {TSR_PATH_KEY, {"step", 4}, 0, NULL}},
        {{TSR_PATH_KEY, {"optim", 5}, 0, NULL}, {TSR_PATH_KEY, {"param_groups", 12}, 0, NULL}},
    };
    entries[0] = (tsr_entry){
        .fqn = TSR_STR("model.w"), .kind = TSR_ENTRY_TENSOR, .ndim = 2, .shape = shape, .path = paths[0], .path_length = 2};
    entries[1] = (tsr_entry){.fqn = TSR_STR("optim.state.w.exp_avg"),
                             .kind = TSR_ENTRY_TENSOR,
                             .ndim = 2,
                             .shape = shape,
                             .path = paths[1],
                             .path_length = 4};
    entries[2] =
        (tsr_entry){.fqn = TSR_STR("optim.state.w.step"), .kind = TSR_ENTRY_TENSOR, .path = paths[2], .path_length = 4};
    entries[3] =
        (tsr_entry){.fqn = TSR_STR("optim.param_groups"), .kind = TSR_ENTRY_OBJECT, .path = paths[3], .path_length = 2};
}

/* Checks that PyTorch's read items are inside our box, have the same destination, and fill it. */
static void check_read(const cJSON *one, const tsr_optim_read *read)
{
    uint64_t volume = 0;
    for (const cJSON *item = golden_get(one, "items")->child; item; item = item->next) {
        uint64_t at[2], lengths[2], dest[2];
        numbers(item->child, at);
        numbers(item->child->next, lengths);
        numbers(item->child->next->next, dest);
        for (int d = 0; d < 2; d++) {
            assert_true(at[d] >= read->storage_offsets[d] &&
                        at[d] + lengths[d] <= read->storage_offsets[d] + read->sizes[d]);
            assert_int_equal(at[d] - read->storage_offsets[d], dest[d] - read->dest_offsets[d]);
        }
        volume += lengths[0] * lengths[1];
    }
    assert_int_equal(volume, read->sizes[0] * read->sizes[1]);
}

static void test_optim_state_rules__E2_E3_E4_reads_of_2d_state(void **state)
{
    (void)state;
    golden g = golden_open("state_rules.json");
    for (const cJSON *one = golden_get(g.document, "reads")->child; one; one = one->next) {
        uint64_t shape[2], offsets[2], sizes[2];
        tsr_entry entries[4];
        tsr_optim_reads plan;
        tsr_error err = {0};
        numbers(golden_get(one, "shape"), shape);
        numbers(golden_get(one, "slice_offsets"), offsets);
        numbers(golden_get(one, "slice_sizes"), sizes);
        fill_entries(entries, shape);
        const tsr_tp_slice slice = {TSR_STR("w"), 2, offsets, sizes, NULL};
        const tsr_optim_mesh mesh = {(uint32_t)number(golden_get(one, "rank")), (uint32_t)number(golden_get(one, "world")),
                                     true, &slice, 1};
        const tsr_catalog catalog = {.entries = entries, .entry_count = 4};
        if (tsr_optim_load(&catalog, TSR_STR("optim"), &mesh, g.arena, &plan, &err) != TSR_OK) fail_msg("%s", err.message);
        const tsr_optim_read *reads = plan.reads;
        assert_int_equal(plan.count, 3);
        assert_int_equal(reads[0].kind, TSR_READ_BOX);
        assert_int_equal(reads[1].kind, TSR_READ_WHOLE);
        assert_int_equal(reads[2].kind, TSR_READ_OBJECT);
        assert_ptr_equal(reads[0].entry, &entries[1]);
        check_read(one, &reads[0]);
    }
    golden_close(&g);
}

static void test_optim_state_rules__E4_what_is_refused(void **state)
{
    (void)state;
    static const uint64_t shape[] = {8, 12}, beyond[] = {1, 6}, sizes[] = {8, 6};
    tsr_entry entries[4];
    tsr_optim_reads plan;
    golden g = golden_open("state_rules.json");
    fill_entries(entries, shape);
    const tsr_catalog catalog = {.entries = entries, .entry_count = 4};
    const struct {
        const char *key;
        tsr_tp_slice slice;
        uint32_t rank, world;
        tsr_status status;
        const char *message;
    } rows[] = {
        {"nothing",
         {TSR_STR("w"), 2, NULL, shape, NULL},
         0,
         1,
         TSR_E_NOT_FOUND,
         "no entries under the key 'nothing'; at its top it has 'model', 'optim'"},
        {"optim", {TSR_STR("w"), 2, beyond, sizes, NULL}, 0, 1, TSR_E_FORMAT, "ends beyond dimension 0"},
        {"optim",
         {TSR_STR("w"), 2, NULL, sizes, sizes},
         0,
         1,
         TSR_E_FORMAT,
         "is [8, 12] in the checkpoint, but 'w' is [8, 6] in the model's state"},
        {"optim", {TSR_STR("w"), 1, NULL, shape, NULL}, 0, 1, TSR_E_FORMAT, "has 2 dimensions, but the slice of 'w' has 1"},
        {"model", {TSR_STR("w"), 2, NULL, shape, NULL}, 0, 1, TSR_E_FORMAT, "does not name a parameter"},
        {"optim", {TSR_STR("w"), 2, NULL, shape, NULL}, 2, 2, TSR_E_USAGE, "rank 2 is not one of the 2 ranks"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        tsr_error err = {0};
        const tsr_optim_mesh mesh = {rows[i].rank, rows[i].world, true, &rows[i].slice, 1};
        const tsr_status status = tsr_optim_load(&catalog, tsr_str_from(rows[i].key), &mesh, g.arena, &plan, &err);
        if (status != rows[i].status || !strstr(err.message, rows[i].message))
            fail_msg("row %zu gave %d: %s", i, status, err.message);
    }
    golden_close(&g);
}

/* ---- D9 ---- */

typedef tsr_status flattener(const tsr_value *state_dict, const tsr_host *host, tsr_arena *arena, tsr_state_key **out,
                             size_t *count, tsr_error *err);

/* Compares the keys with rows [name, path, value]. */
static void check_flat(golden *g, const tsr_state_key *keys, size_t count, const cJSON *rows)
{
    size_t at = 0;
    for (const cJSON *want = rows->child; want; want = want->next, at++) {
        assert_true(at < count && tsr_str_equal(keys[at].name, tsr_str_from(want->child->valuestring)));
        assert_true(golden_same(g, keys[at].value, want->child->next->next, true));
        uint32_t depth = 0;
        for (const cJSON *p = want->child->next->child; p; p = p->next, depth++) {
            const tsr_path_item *item = &keys[at].path[depth];
            if (cJSON_IsNumber(p)) assert_true(item->kind == TSR_PATH_INDEX && item->integer == (int64_t)number(p));
            else assert_true(item->kind == TSR_PATH_KEY && tsr_str_equal(item->key, tsr_str_from(p->valuestring)));
        }
        assert_int_equal(depth, keys[at].path_length);
    }
    assert_int_equal(at, count);
}

static void check_keys(golden *g, const cJSON *one, flattener *flatten, const char *flat, const char *back)
{
    tsr_state_key *keys;
    size_t count;
    tsr_error err = {0};
    const tsr_value *nested = golden_value(g, golden_get(one, "nested")), *again;
    const tsr_status status = flatten(nested, &g->host, g->arena, &keys, &count, &err);
    if (cJSON_IsNull(golden_get(one, flat))) {
        assert_int_equal(status, TSR_E_FORMAT);
        return;
    }
    assert_int_equal(status, TSR_OK);
    check_flat(g, keys, count, golden_get(one, flat));
    assert_int_equal(tsr_state_unflatten(keys, count, &g->host, g->arena, &again, &err), TSR_OK);
    assert_true(golden_same(g, again, golden_get(one, back), true));
}

static void test_optim_state_rules__D9_keys_of_nested_state_and_back(void **state)
{
    (void)state;
    golden g = golden_open("state_rules.json");
    for (const cJSON *one = golden_get(g.document, "keys")->child; one; one = one->next) {
        check_keys(&g, one, tsr_state_keys, "flat", "back");
        check_keys(&g, one, tsr_state_keys_dcp, "dcp", "dcp_back");
    }
    golden_close(&g);
}

/* Paths that flattening never gives: positions without a key, and conflicts, which PyTorch rejects as well. */
static void check_paths(golden *g, const cJSON *one)
{
    tsr_error err = {0};
    const cJSON *rows = golden_get(one, "flat"), *want = golden_get(one, "out");
    const size_t count = (size_t)cJSON_GetArraySize(rows);
    tsr_state_key *keys = tsr_arena_array(g->arena, count, sizeof *keys, NULL), *key = keys;
    for (const cJSON *row = rows->child; row; row = row->next, key++) {
        const cJSON *steps = row->child->next;
        tsr_path_item *path = tsr_arena_array(g->arena, (size_t)cJSON_GetArraySize(steps), sizeof *path, NULL);
        *key = (tsr_state_key){tsr_str_from(row->child->valuestring), path, 0, golden_value(g, steps->next)};
        for (const cJSON *p = steps->child; p; p = p->next) {
            if (cJSON_IsNumber(p))
                path[key->path_length++] = (tsr_path_item){.kind = TSR_PATH_INDEX, .integer = (int64_t)number(p)};
            else path[key->path_length++] = (tsr_path_item){.kind = TSR_PATH_KEY, .key = tsr_str_from(p->valuestring)};
        }
    }
    const tsr_value *nested;
    const tsr_status status = tsr_state_unflatten(keys, count, &g->host, g->arena, &nested, &err);
    if (cJSON_IsNull(want)) assert_true(status == TSR_E_USAGE && err.message[0]);
    else assert_true(status == TSR_OK && golden_same(g, nested, want, true));
}

static void test_optim_state_rules__D9_paths(void **state)
{
    (void)state;
    golden g = golden_open("state_rules.json");
    const tsr_path_item position = {.kind = TSR_PATH_INDEX};
    const tsr_value *out;
    for (const cJSON *one = golden_get(g.document, "unflattened")->child; one; one = one->next) check_paths(&g, one);
    const tsr_value *value = tsr_value_int(g.arena, 1, NULL);
    const tsr_state_key bare[] = {{TSR_STR("x"), &position, 1, value}, {TSR_STR("x"), NULL, 0, value}};
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(tsr_state_unflatten(&bare[i], 1, &g.host, g.arena, &out, NULL), TSR_E_USAGE);
    /* PyTorch makes these a dict with the keys "b" and 0 */
    const tsr_path_item b[] = {{.kind = TSR_PATH_KEY, .key = TSR_STR("a")}, {.kind = TSR_PATH_KEY, .key = TSR_STR("b")}},
                        zero[] = {b[0], position};
    const tsr_state_key mixed[] = {{TSR_STR("a.b"), b, 2, value}, {TSR_STR("a.0"), zero, 2, value}};
    assert_int_equal(tsr_state_unflatten(mixed, 2, &g.host, g.arena, &out, NULL), TSR_E_USAGE);
    golden_close(&g);
}

/* ---- A4, A5 ---- */

static tsr_state_options options_of(const cJSON *bits)
{
    bool b[7];
    size_t at = 0;
    for (const cJSON *i = bits->child; i; i = i->next) b[at++] = cJSON_IsTrue(i);
    return (tsr_state_options){.size = sizeof(tsr_state_options),
                               .full_state_dict = b[0],
                               .cpu_offload = b[1],
                               .ignore_frozen_params = b[2],
                               .keep_submodule_prefixes = b[3],
                               .strict = b[4],
                               .broadcast_from_rank0 = b[5],
                               .flatten_optimizer_state_dict = b[6]};
}

static void test_optim_state_rules__A4_A5_all_options(void **state)
{
    (void)state;
    static const tsr_str plain[] = {{"w", 1}}, flat[] = {{"a._flat_param", 13}};
    golden g = golden_open("state_rules.json");
    for (const cJSON *one = golden_get(g.document, "checks")->child; one; one = one->next) {
        const tsr_state_options options = options_of(golden_get(one, "options"));
        const cJSON *refused = golden_get(one, "refused")->child, *empty = golden_get(one, "empty")->child;
        for (int i = 0; i < 3; i++, refused = refused->next) {
            tsr_status status = tsr_state_options_check(&options, i == 2, i > 0, NULL);
            assert_int_equal(status, cJSON_IsTrue(refused) ? TSR_E_USAGE : TSR_OK);
        }
        for (int i = 0; i < 12; i++, empty = empty->next) {
            tsr_state_request r = {
                .handle_model = true, .handle_optimizer = true, .submodules = i / 6 == 1, .optimizer_is_empty = i % 2 == 0};
            r.model_key_count = i / 2 % 3 != 0;
            r.model_keys = i / 2 % 3 == 2 ? flat : plain;
            assert_int_equal(tsr_state_dict_check(&options, &r, NULL), cJSON_IsTrue(empty) ? TSR_E_FORMAT : TSR_OK);
        }
    }
    golden_close(&g);
}

/* ---- A8 ---- */

/* Checks that the states of every parameter of a trained optimizer are as computed. */
static void check_first_state(golden *g, const cJSON *one, tsr_algorithm algorithm)
{
    const tsr_value *native = golden_value(g, golden_get(one, "natives")->child);
    const tsr_value *states = tsr_value_get(native, TSR_STR("state")),
                    *groups = tsr_value_get(native, TSR_STR("param_groups"));
    for (size_t gr = 0; gr < groups->count; gr++) {
        const tsr_value *params = tsr_value_get(groups->items[gr], TSR_STR("params"));
        for (size_t p = 0; p < params->count; p++) {
            const tsr_value *have = NULL;
            for (size_t i = 0; i < states->count; i += 2)
                have = states->items[i]->as.integer == params->items[p]->as.integer ? states->items[i + 1] : have;
            if (!have) continue; /* frozen */
            const tsr_value *model =
                have->count > 1 ? have->items[have->count - 1] : NULL; /* the last one has the parameter's shape */
            tsr_module_tensor param = {.requires_grad = true, .dtype = TSR_FLOAT32};
            if (model) param.ndim = model->as.tensor->ndim, param.shape = model->as.tensor->shape;
            tsr_state_spec specs[TSR_STATE_SPECS];
            size_t count;
            assert_int_equal(tsr_optim_first_state(&(tsr_first_step){algorithm, groups->items[gr], TSR_FLOAT32, false, 0},
                                                   &param, specs, &count, NULL),
                             TSR_OK);
            assert_int_equal(count, tsr_value_pairs(have));
            for (size_t i = 0; i < count; i++) {
                const tsr_entry *e = have->items[2 * i + 1]->as.tensor;
                assert_true(tsr_str_equal(have->items[2 * i]->text, specs[i].name));
                assert_int_equal(e->dtype, specs[i].dtype);
                assert_int_equal(e->ndim, specs[i].ndim);
                for (uint32_t d = 0; d < e->ndim; d++) assert_int_equal(e->shape[d], specs[i].shape[d]);
            }
        }
    }
}

static void test_optim_state_rules__A8_first_state(void **state)
{
    (void)state;
    golden g = golden_open("optim.json");
    const cJSON *cases = golden_get(g.document, "cases");
    check_first_state(&g, golden_get(cases, "sgd"), TSR_SGD);
    check_first_state(&g, golden_get(cases, "sgd_momentum"), TSR_SGD);
    check_first_state(&g, golden_get(cases, "adam_tensor_free"), TSR_ADAM);
    check_first_state(&g, golden_get(cases, "adamw_groups"), TSR_ADAMW);
    tsr_state_spec specs[TSR_STATE_SPECS];
    size_t count = 9;
    const tsr_value *options = tsr_value_items(g.arena, TSR_VALUE_DICT, NULL, 0, NULL);
    assert_int_equal(tsr_optim_first_state(&(tsr_first_step){TSR_ADAM, options, TSR_FLOAT32, false, 0},
                                           &(tsr_module_tensor){.requires_grad = false}, specs, &count, NULL),
                     TSR_OK);
    assert_int_equal(count, 0);
    assert_int_equal(tsr_optim_first_state(&(tsr_first_step){(tsr_algorithm)99, options, TSR_FLOAT32, false, 0},
                                           &(tsr_module_tensor){.requires_grad = true}, specs, &count, NULL),
                     TSR_E_USAGE);
    golden_close(&g);
}

/* A live optimizer that records how it is called, to compare its state with that of PyTorch's. */
typedef struct live {
    golden *g;
    const cJSON *one;
    tsr_value *state[3]; /* by parameter */
    double lr[2];
    unsigned steps, gradients;
    bool fails;
} live;

static const cJSON *param_at(const live *l, size_t group, size_t param)
{
    return cJSON_GetArrayItem(golden_get(l->one, "params"), (int)(group + param));
}

static bool has_state(void *ctx)
{
    return strcmp(golden_get(((const live *)ctx)->one, "name")->valuestring, "with_state") == 0;
}

static bool has_gradient(void *ctx, size_t group, size_t param)
{
    return cJSON_IsTrue(cJSON_GetArrayItem(param_at(ctx, group, param), 2));
}

/* The approximate value of an element; tests/statedict compares exact values. */
static double about(const tsr_state_spec *spec, double x)
{
    switch (spec->source) {
    case TSR_STATE_FILLED: return spec->value;
    case TSR_STATE_GRADIENT: return spec->decay * x;
    case TSR_STATE_MEAN: return spec->weight * spec->decay * x;
    default: return spec->weight * spec->decay * x * spec->decay * x;
    }
}

/* Compares the state immediately: its dtypes, shapes and elements. */
static tsr_status create(void *ctx, size_t group, size_t param, const tsr_state_spec *specs, size_t count, tsr_error *err)
{
    (void)err;
    live *l = ctx;
    const char *name = golden_get(l->one, "name")->valuestring;
    const cJSON *values = param_at(l, group, param)->child->child->child->next->next,
                *want = cJSON_GetArrayItem(golden_get(l->one, "state"), (int)(group + param))->child;
    assert_int_equal(cJSON_GetArraySize(want), count);
    const cJSON *pair = want->child;
    for (size_t i = 0; i < count; i++, pair = pair->next) {
        const cJSON *tensor = pair->child->next->child, *numbers_ = tensor->child->next->next;
        assert_true(tsr_str_equal(specs[i].name, tsr_str_from(pair->child->child->valuestring)));
        assert_string_equal(tsr_dtype_describe(specs[i].dtype)->name, tensor->child->valuestring);
        assert_int_equal(cJSON_GetArraySize(tensor->child->next), specs[i].ndim);
        for (int e = 0; e < cJSON_GetArraySize(numbers_); e++) {
            double x = specs[i].scalar ? 1 : cJSON_GetArrayItem(values, e)->valuedouble,
                   got = cJSON_GetArrayItem(numbers_, e)->valuedouble, wanted = about(&specs[i], x);
            double off = got > wanted ? got - wanted : wanted - got, size = wanted < 0 ? -wanted : wanted;
            if (off > 1e-6 * size)
                fail_msg("%s: %s[%d] is %g, PyTorch %g", name, pair->child->child->valuestring, e, wanted, got);
        }
    }
    l->state[group + param] = tsr_value_new(l->g->arena, TSR_VALUE_DICT, NULL);
    return TSR_OK;
}

static tsr_status set_lr(void *ctx, size_t group, const tsr_value *lr, tsr_error *err)
{
    (void)err;
    ((live *)ctx)->lr[group] = lr ? lr->as.real : 0;
    return TSR_OK;
}

static tsr_status set_gradients(void *ctx, bool zeros, tsr_error *err)
{
    (void)err;
    ((live *)ctx)->gradients = zeros;
    return TSR_OK;
}

static tsr_status step(void *ctx, tsr_error *err)
{
    live *l = ctx;
    assert_true(l->gradients && l->lr[0] == 0 && l->lr[1] == 0);
    l->steps++;
    return l->fails ? tsr_raise(err, TSR_E_USAGE, TSR_NO_POSITION, "no step today") : TSR_OK;
}

static void check_init(golden *g, const cJSON *one)
{
    const char *name = golden_get(one, "name")->valuestring;
    tsr_module_tensor tensors[3];
    uint64_t shapes[3][2];
    live l = {.g = g, .one = one, .lr = {0.5, 0.1}};
    for (size_t i = 0; i < 3; i++) {
        const cJSON *p = param_at(&l, 0, i), *shape = p->child->child->child->next;
        numbers(shape, shapes[i]);
        tensors[i] = (tsr_module_tensor){.dtype = TSR_FLOAT32,
                                         .ndim = (uint32_t)cJSON_GetArraySize(shape),
                                         .shape = shapes[i],
                                         .requires_grad = cJSON_IsTrue(p->child->next)};
    }
    const tsr_module_tensor *first[] = {&tensors[0]}, *others[] = {&tensors[1], &tensors[2]};
    const tsr_value *options = golden_value(g, golden_get(one, "groups"));
    const tsr_live_group groups[] = {{options->items[0], first, 1, false, 0}, {options->items[1], others, 2, false, 0}};
    tsr_live_optimizer o = {.algorithm = strncmp(name, "sgd", 3) == 0     ? TSR_SGD
                                         : strncmp(name, "adamw", 5) == 0 ? TSR_ADAMW
                                         : strcmp(name, "recorder") == 0  ? TSR_OTHER_ALGORITHM
                                                                          : TSR_ADAM,
                            .groups = groups,
                            .group_count = 2,
                            .ctx = &l,
                            .has_state = has_state,
                            .has_gradient = has_gradient,
                            .create = create,
                            .set_lr = set_lr,
                            .set_gradients = set_gradients,
                            .step = step};
    assert_int_equal(tsr_optim_init(&o, NULL), TSR_OK);
    assert_true(l.lr[0] == 0.5 && l.lr[1] == 0.1 && !l.gradients);
    assert_int_equal(l.steps, o.algorithm == TSR_OTHER_ALGORITHM);
    for (int i = 0; i < 3 && !l.steps && strcmp(name, "with_state") != 0; i++)
        assert_int_equal(l.state[i] != NULL, cJSON_HasObjectItem(cJSON_GetArrayItem(golden_get(one, "state"), i), "D"));
    if (!l.steps) return;
    tsr_error err = {0};
    l.fails = true;
    assert_int_equal(tsr_optim_init(&o, &err), TSR_E_USAGE);
    assert_string_equal(err.message, "no step today");
    assert_true(l.lr[0] == 0.5 && l.lr[1] == 0.1 && !l.gradients);
    o.step = NULL;
    assert_int_equal(tsr_optim_init(&o, NULL), TSR_E_USAGE);
}

static void test_optim_state_rules__A8_live_optimizers(void **state)
{
    (void)state;
    golden g = golden_open("state_rules.json");
    for (const cJSON *one = golden_get(g.document, "init")->child; one; one = one->next) check_init(&g, one);
    golden_close(&g);
}

/* ---- A1 ---- */

static void test_optim_state_rules__A1_defaults_and_fsdp_choices(void **state)
{
    (void)state;
    golden g = golden_open("state_rules.json");
    for (const cJSON *one = golden_get(g.document, "choices")->child; one; one = one->next) {
        const tsr_state_options defaults = tsr_state_options_default();
        if (cJSON_HasObjectItem(one, "defaults")) {
            const tsr_state_options want = options_of(golden_get(one, "defaults"));
            assert_memory_equal(&want, &defaults, sizeof want);
            continue;
        }
        const cJSON *bits = golden_get(one, "options")->child, *offload = golden_get(one, "offload")->child,
                    *rank0 = golden_get(one, "rank0_only")->child;
        tsr_state_options options = defaults;
        options.full_state_dict = cJSON_IsTrue(bits);
        options.cpu_offload = cJSON_IsTrue(bits->next);
        options.broadcast_from_rank0 = cJSON_IsTrue(bits->next->next);
        const tsr_fsdp_choice choice = tsr_state_fsdp_choice(&options);
        assert_int_equal(choice.full, cJSON_IsTrue(golden_get(one, "full")));
        assert_int_equal(choice.offload_to_cpu, cJSON_IsTrue(offload));
        assert_int_equal(choice.offload_to_cpu, cJSON_IsTrue(offload->next));
        assert_int_equal(choice.model_rank0_only, cJSON_IsTrue(rank0));
        assert_int_equal(choice.optimizer_rank0_only, cJSON_IsTrue(rank0->next));
    }
    golden_close(&g);
}

/* ---- A4: modules ---- */

static void test_optim_state_rules__A4_named_modules_units_and_submodule_prefixes(void **state)
{
    (void)state;
    golden g = golden_open("state_rules.json");
    const cJSON *one = golden_get(g.document, "submodules")->child;
    tsr_modules_document document;
    tsr_modules *modules;
    tsr_named_module *named;
    size_t count, at = 0;
    char *text = cJSON_PrintUnformatted(golden_get(one, "modules"));
    assert_int_equal(tsr_modules_parse(tsr_str_from(text), &g.host, g.arena, &document, NULL), TSR_OK);
    assert_int_equal(tsr_modules_new(document.root, &g.host, &modules, NULL), TSR_OK);
    assert_int_equal(tsr_fqn_named_modules(modules, &g.host, g.arena, &named, &count, NULL), TSR_OK);
    const cJSON *units = golden_get(one, "units")->child;
    for (const cJSON *n = golden_get(one, "named")->child; n; n = n->next, at++) {
        assert_true(at < count && tsr_str_equal(named[at].raw, tsr_str_from(n->valuestring)));
        bool unit = units && number(units) == at;
        assert_int_equal(tsr_modules_at(modules, named[at].module)->wrapper == TSR_WRAPPER_FSDP1, unit);
        if (unit) units = units->next;
    }
    assert_int_equal(at, count);
    for (const cJSON *p = golden_get(one, "prefixes")->child; p; p = p->next) {
        tsr_module_ref refs[2];
        tsr_name_list prefixes;
        for (int i = 0; i < 2; i++) refs[i] = named[number(cJSON_GetArrayItem(p->child, i))].module;
        assert_int_equal(tsr_fqn_submodule_prefixes(modules, (tsr_module_refs){refs, 2}, &g.host, g.arena, &prefixes, NULL),
                         TSR_OK);
        for (const cJSON *want = p->child->next->child; want; want = want->next) {
            bool found = false;
            for (size_t i = 0; i < prefixes.count; i++)
                found = found || tsr_str_equal(prefixes.names[i], tsr_str_from(want->valuestring));
            assert_true(found);
        }
    }
    cJSON_free(text);
    tsr_modules_free(modules);
    golden_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optim_state_rules__E1_rows_of_ranks),
        cmocka_unit_test(test_optim_state_rules__E2_E3_E4_reads_of_2d_state),
        cmocka_unit_test(test_optim_state_rules__E4_what_is_refused),
        cmocka_unit_test(test_optim_state_rules__D9_keys_of_nested_state_and_back),
        cmocka_unit_test(test_optim_state_rules__D9_paths),
        cmocka_unit_test(test_optim_state_rules__A4_A5_all_options),
        cmocka_unit_test(test_optim_state_rules__A8_first_state),
        cmocka_unit_test(test_optim_state_rules__A8_live_optimizers),
        cmocka_unit_test(test_optim_state_rules__A1_defaults_and_fsdp_choices),
        cmocka_unit_test(test_optim_state_rules__A4_named_modules_units_and_submodule_prefixes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
