/* FSDP1's optimizer state on ranks that are threads: what they gather and broadcast must be what real PyTorch's ranks have
 * (tests/golden/fsdp_optim.json, fsdp_sharded.json), and errors must be the same on all ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>
#include <stdlib.h>

#include "golden.h"
#include "live/optim/tree_pack.h"
#include "tessera/comm_threads.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/optimizer.h"

#define MOST_RANKS 8

/* What the ranks of one call share, and their results. */
typedef struct scene {
    golden g;
    tsr_flat_params flat;
    const tsr_value *trees[MOST_RANKS]; /* the raw state of every rank, or the full state of rank 0 */
    void **bytes;                       /* elements of the golden's tensors */
    size_t byte_count;
    bool broadcast;
    uint32_t target, poor; /* poor: a rank without memory; MOST_RANKS: none */
    tsr_arena *arenas[MOST_RANKS];
    tsr_live_state states[MOST_RANKS];
    tsr_status status[MOST_RANKS];
    char messages[MOST_RANKS][TSR_ERROR_MESSAGE_SIZE];
} scene;

static void put_number(tsr_dtype dtype, double number, char *to)
{
    float single = (float)number;
    int64_t integer = (int64_t)number;
    switch (dtype) {
    case TSR_FLOAT32: memcpy(to, &single, 4); break;
    case TSR_BFLOAT16: memcpy(to, (char *)&single + 2, 2); break;
    case TSR_FLOAT64: memcpy(to, &number, 8); break;
    case TSR_INT64: memcpy(to, &integer, 8); break;
    default: fail_msg("the goldens have no %s", tsr_dtype_describe(dtype)->name);
    }
}

static double get_number(tsr_dtype dtype, const char *from)
{
    float single = 0;
    double number = 0;
    int64_t integer = 0;
    switch (dtype) {
    case TSR_FLOAT32: memcpy(&single, from, 4); return (double)single;
    case TSR_BFLOAT16: memcpy((char *)&single + 2, from, 2); return (double)single;
    case TSR_FLOAT64: memcpy(&number, from, 8); return number;
    default: memcpy(&integer, from, 8); return (double)integer;
    }
}

/* Encodes the elements of every tensor in a value. */
static void encode(scene *s, const tsr_value *value)
{
    for (size_t i = 0; i < value->count; i++) encode(s, value->items[i]);
    if (value->kind != TSR_VALUE_TENSOR) return;
    const tsr_entry *e = value->as.tensor;
    const cJSON *list = ((const cJSON **)s->g.tensors.items)[e->chunks->file];
    size_t size = tsr_dtype_size(e->dtype), at = 0;
    char *bytes = calloc((size_t)cJSON_GetArraySize(list) + 1, size);
    for (const cJSON *n = list->child; n; n = n->next) put_number(e->dtype, n->valuedouble, bytes + size * at++);
    s->bytes[e->chunks->file] = bytes;
}

/* Turns received tensors into tensors of the golden, so that they can be compared. */
static void adopt(scene *s, const tsr_live_state *state, const tsr_value *value)
{
    for (size_t i = 0; i < value->count; i++) adopt(s, state, value->items[i]);
    if (value->kind != TSR_VALUE_TENSOR || value->as.tensor->chunks->file >= s->byte_count) return;
    const tsr_entry *e = value->as.tensor;
    tsr_chunk *chunk = (tsr_chunk *)e->chunks;
    const tsr_live_buffer *buffer = &state->buffers[chunk->file];
    cJSON *list = cJSON_CreateArray();
    for (size_t at = 0; at < buffer->size; at += tsr_dtype_size(e->dtype))
        cJSON_AddItemToArray(list, cJSON_CreateNumber(get_number(e->dtype, (char *)buffer->data + at)));
    chunk->file = (uint32_t)s->g.tensors.count;
    *(cJSON **)tsr_vec_push(&s->g.tensors, NULL) = list;
    *(cJSON **)tsr_vec_push(&s->g.parsed, NULL) = list;
}

static const void *bytes_of(void *ctx, const tsr_entry *entry)
{
    return ((const scene *)ctx)->bytes[entry->chunks->file];
}

static void *no_memory(void *ctx, void *pointer, size_t old_size, size_t new_size)
{
    (void)ctx;
    return new_size ? NULL : tsr_allocator_libc.resize(tsr_allocator_libc.ctx, pointer, old_size, 0);
}

static tsr_status play(void *arg, tsr_comm *comm, tsr_error *err)
{
    static const tsr_allocator none = {no_memory, NULL};
    scene *s = arg;
    tsr_host host = s->g.host;
    if (comm->rank == s->poor) host.allocator = &none;
    const tsr_live live = {bytes_of, s};
    const tsr_value *tree = s->trees[comm->rank];
    tsr_live_state *out = &s->states[comm->rank];
    tsr_error own = {0};
    tsr_arena *arena = tsr_arena_new(&tsr_allocator_libc, 0, err);
    s->arenas[comm->rank] = arena;
    s->status[comm->rank] =
        s->broadcast ? tsr_fsdp_broadcast(&(tsr_live_call){comm, &host, arena, live}, &s->flat, tree, out, &own)
                     : tsr_fsdp_gather(&(tsr_live_call){comm, &host, arena, live}, &s->flat, tree, s->target, out, &own);
    memcpy(s->messages[comm->rank], own.message, sizeof own.message);
    return TSR_OK;
}

static void start(scene *s, const char *file)
{
    *s = (scene){.g = golden_open(file), .target = TSR_ALL_RANKS, .poor = MOST_RANKS};
}

static void describe(scene *s, const cJSON *flat)
{
    char *text = cJSON_PrintUnformatted(flat);
    assert_int_equal(tsr_flat_params_parse(tsr_str_from(text), &s->g.host, s->g.arena, &s->flat, NULL), TSR_OK);
    cJSON_free(text);
}

static void run(scene *s, uint32_t world)
{
    tsr_error err = {0};
    s->byte_count = s->g.tensors.count;
    s->bytes = calloc(s->byte_count + 1, sizeof *s->bytes);
    for (uint32_t r = 0; r < world; r++)
        if (s->trees[r]) encode(s, s->trees[r]);
    if (tsr_comm_threads_run(&tsr_allocator_libc, world, play, s, &err) != TSR_OK) fail_msg("%s", err.message);
}

static void forget(scene *s)
{
    for (size_t i = 0; i < MOST_RANKS; i++) {
        tsr_live_state_free(&s->states[i]);
        tsr_arena_free(s->arenas[i]);
        s->trees[i] = NULL;
        s->arenas[i] = NULL;
    }
    for (size_t i = 0; i < s->byte_count; i++) free(s->bytes[i]);
    free(s->bytes);
}

static void expect(scene *s, const char *name, uint32_t rank, const cJSON *want, bool ordered)
{
    if (s->status[rank] != TSR_OK) fail_msg("%s, rank %u: %s", name, rank, s->messages[rank]);
    adopt(s, &s->states[rank], s->states[rank].tree);
    if (!golden_same(&s->g, s->states[rank].tree, want, ordered)) fail_msg("%s: rank %u differs", name, rank);
}

/* ---- gather ---- */

static void gather_cases(const char *file)
{
    scene s;
    start(&s, file);
    uint32_t number = 0;
    for (const cJSON *one = golden_get(s.g.document, "cases")->child; one; one = one->next, number++) {
        uint32_t world = 0;
        describe(&s, golden_get(one, "flat"));
        for (const cJSON *raw = golden_get(one, "raw")->child; raw; raw = raw->next)
            s.trees[world++] = golden_value(&s.g, raw);
        s.target = number % 2 ? world - 1 : TSR_ALL_RANKS;
        run(&s, world);
        for (uint32_t r = 0; r < world; r++) {
            if (s.target == TSR_ALL_RANKS || s.target == r) expect(&s, one->string, r, golden_get(one, "full"), true);
            else assert_true(s.status[r] == TSR_OK && !s.states[r].tree && s.states[r].buffer_count == 0);
        }
        forget(&s);
    }
    golden_close(&s.g);
}

static void test_optim_fsdp_live__B1_B2_B10_B11_gather(void **state)
{
    (void)state;
    gather_cases("fsdp_optim.json");
    gather_cases("fsdp_sharded.json");
}

/* ---- broadcast ---- */

static void broadcast_case(scene *s, const cJSON *one, const cJSON *ranks)
{
    uint32_t world = (uint32_t)cJSON_GetArraySize(ranks), rank = 0;
    describe(s, golden_get(one, "flat"));
    s->trees[0] = golden_value(&s->g, golden_get(one, "full"));
    run(s, world);
    for (const cJSON *want = ranks->child; want; want = want->next) expect(s, one->string, rank++, want, false);
    forget(s);
}

static void test_optim_fsdp_live__B5_broadcast_to_any_world(void **state)
{
    (void)state;
    scene s;
    start(&s, "fsdp_optim.json");
    s.broadcast = true;
    for (const cJSON *one = golden_get(s.g.document, "cases")->child; one; one = one->next) {
        broadcast_case(&s, one, golden_get(one, "loaded_back"));
        for (const cJSON *load = golden_get(one, "loads")->child; load; load = load->next)
            broadcast_case(&s, one, golden_get(load, "raw"));
    }
    golden_close(&s.g);
    start(&s, "fsdp_sharded.json");
    s.broadcast = true;
    for (const cJSON *one = golden_get(s.g.document, "cases")->child; one; one = one->next)
        broadcast_case(&s, one, golden_get(one, "loaded"));
    golden_close(&s.g);
}

/* ---- errors ---- */

#define S(text)                  "{\"s\":\"" text "\"}"
#define T(dtype, shape, numbers) "{\"T\":[\"" dtype "\"," shape "," numbers "]}"
#define OPTIM(state, params) \
    "{\"D\":[[" S("state") ",{\"D\":[" state "]}],[" S("param_groups") ",{\"L\":[{\"D\":[[" S("params") ",{\"L\":[" params \
                                                                                                        "]}]]}]}]]}"
#define OF(key, pairs) "[{\"i\":" key "},{\"D\":[" pairs "]}]"
#define P(name, value) "[" S(name) "," value "]"
#define UNIT \
    ",\"units\":[{\"fsdp_module\":\"\",\"raw_name\":\"f\",\"params\":[{\"fqn\":\"a\",\"shape\":[3]},{\"fqn\":\"b\"," \
    "\"shape\":" \
    "[2,2]}],\"numels_with_padding\":[3,4],\"is_padding_mask\":[false,false]}],\"param_groups\":"
#define FLAT      "{\"schema\":\"tessera.flat-params/1\",\"world_size\":2" UNIT "[[\"f\"]]}"
#define ORIGINALS "{\"schema\":\"tessera.flat-params/1\",\"world_size\":2,\"use_orig_params\":true" UNIT "[[\"a\",\"b\"]]}"

static void expect_everywhere(scene *s, uint32_t world, tsr_status status, const char *part)
{
    for (uint32_t r = 0; r < world; r++) {
        if (s->status[r] != status || !strstr(s->messages[r], part) || strcmp(s->messages[r], s->messages[0]) != 0)
            fail_msg("rank %u ended %d, %s; expected %s", r, s->status[r], s->messages[r], part);
        assert_true(!s->states[r].tree && !s->states[r].buffers);
    }
}

static void test_optim_fsdp_live__B2_B8_B10_errors_are_the_same_on_all_ranks(void **state)
{
    (void)state;
    static const struct {
        const char *flat, *rank0, *rank1, *message;
    } rows[] = {
        {FLAT, OPTIM(OF("0", P("m", T("float32", "[4]", "[1,2,3,4]"))), "{\"i\":0}"), OPTIM("", "{\"i\":0}"),
         "optim: rank 1 has no state for 'f', which rank 0 has"},
        {FLAT, OPTIM(OF("0", P("m", T("float32", "[4]", "[1,2,3,4]"))), "{\"i\":0}"),
         OPTIM(OF("0", P("m", T("float32", "[3]", "[1,2,3]"))), "{\"i\":0}"), "on rank 1 has 3 elements; expected 4"},
        {ORIGINALS, OPTIM(OF("1", P("m", T("float32", "[1]", "[1]")) "," P("k", T("float32", "[]", "[1]"))), "{\"i\":0}"),
         OPTIM(OF("1", P("m", T("float32", "[3]", "[1,2,3]")) "," P("k", T("float32", "[]", "[2]"))), "{\"i\":0}"),
         "'k' of 'b' has a different value on rank 1"},
        {ORIGINALS, OPTIM(OF("1", P("m", T("float32", "[1]", "[1]"))), "{\"i\":0}"),
         OPTIM(OF("1", P("m", T("bfloat16", "[3]", "[1,2,3]"))), "{\"i\":0}"), "is bfloat16 on rank 1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        scene s;
        start(&s, "fsdp_optim.json");
        describe(&s, golden_parse(&s.g, rows[i].flat));
        s.trees[0] = golden_value(&s.g, golden_parse(&s.g, rows[i].rank0));
        s.trees[1] = golden_value(&s.g, golden_parse(&s.g, rows[i].rank1));
        run(&s, 2);
        expect_everywhere(&s, 2, TSR_E_FORMAT, rows[i].message);
        forget(&s);
        golden_close(&s.g);
    }
}

static void test_optim_fsdp_live__a_rank_without_memory_is_heard_of_everywhere(void **state)
{
    (void)state;
    for (uint32_t poor = 0; poor < 4; poor++) {
        scene s;
        start(&s, "fsdp_optim.json");
        const cJSON *one = golden_get(golden_get(s.g.document, "cases"), "flat_w2_sgd");
        describe(&s, golden_get(one, "flat"));
        s.poor = poor % 2;
        s.broadcast = poor > 1;
        if (s.broadcast) s.trees[0] = golden_value(&s.g, golden_get(one, "full"));
        for (uint32_t r = 0; r < 2 && !s.broadcast; r++)
            s.trees[r] = golden_value(&s.g, cJSON_GetArrayItem(golden_get(one, "raw"), (int)r));
        run(&s, 2);
        expect_everywhere(&s, 2, TSR_E_NOMEM, s.poor ? "rank 1" : "rank 0");
        forget(&s);
        golden_close(&s.g);
    }
}

static void test_optim_fsdp_live__a_wrong_number_of_ranks(void **state)
{
    (void)state;
    scene s;
    start(&s, "fsdp_optim.json");
    describe(&s, golden_parse(&s.g, FLAT));
    for (uint32_t r = 0; r < 3; r++) s.trees[r] = golden_value(&s.g, golden_parse(&s.g, OPTIM("", "{\"i\":0}")));
    run(&s, 3);
    expect_everywhere(&s, 3, TSR_E_USAGE, "3 ranks take part, but the state is of 2 ranks");
    forget(&s);
    golden_close(&s.g);
}

/* Bytes that no rank would send: every truncated tree is rejected, and no changed byte does any harm. */
static void test_optim_fsdp_live__cut_and_changed_trees(void **state)
{
    (void)state;
    scene s;
    start(&s, "fsdp_optim.json");
    const tsr_value *tree =
                        golden_value(&s.g, golden_parse(&s.g, OPTIM(OF("0", P("m", T("float32", "[2,2]", "[1,2,3,4]")) "," P(
                                                                                "k", T("float32", "[]", "[1]"))),
                                                                    "{\"i\":0},{\"f\":0.5},{\"b\":true},{\"n\":0}"))),
                    *out;
    s.byte_count = s.g.tensors.count;
    s.bytes = calloc(s.byte_count + 1, sizeof *s.bytes);
    encode(&s, tree);
    const tsr_live live = {bytes_of, &s};
    tsr_vec bytes = tsr_vec_of(&tsr_allocator_libc, 1), tensors = tsr_vec_of(&tsr_allocator_libc, sizeof(tsr_packed_tensor)),
            scalars = tsr_vec_of(&tsr_allocator_libc, 1);
    const tsr_unpacked_into into = {1, &scalars, &s.g.host, s.g.arena};
    assert_int_equal(tsr_tree_pack(tree, &live, &s.g.host, &bytes, &tensors, NULL), TSR_OK);
    assert_int_equal(tensors.count, 1);
    char *packed = bytes.items;
    assert_int_equal(tsr_tree_unpack((tsr_str){packed, bytes.count}, 0, &into, &out, NULL), TSR_OK);
    assert_int_equal(tsr_value_match(tree, out, 64, 4096), TSR_SAME);
    for (size_t size = 0; size < bytes.count; size++) {
        char *cut = malloc(size + 1); /* allocated with this size, so that a sanitizer notices reads beyond it */
        memcpy(cut, packed, size);
        assert_int_not_equal(tsr_tree_unpack((tsr_str){cut, size}, 0, &into, &out, NULL), TSR_OK);
        free(cut);
        for (unsigned bit = 0; bit < 8; bit++) {
            packed[size] ^= (char)(1u << bit);
            (void)tsr_tree_unpack((tsr_str){packed, bytes.count}, 0, &into, &out, NULL);
            packed[size] ^= (char)(1u << bit);
        }
    }
    tsr_vec_free(&scalars);
    tsr_vec_free(&tensors);
    tsr_vec_free(&bytes);
    forget(&s);
    golden_close(&s.g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optim_fsdp_live__B1_B2_B10_B11_gather),
        cmocka_unit_test(test_optim_fsdp_live__B5_broadcast_to_any_world),
        cmocka_unit_test(test_optim_fsdp_live__B2_B8_B10_errors_are_the_same_on_all_ranks),
        cmocka_unit_test(test_optim_fsdp_live__a_rank_without_memory_is_heard_of_everywhere),
        cmocka_unit_test(test_optim_fsdp_live__a_wrong_number_of_ranks),
        cmocka_unit_test(test_optim_fsdp_live__cut_and_changed_trees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
