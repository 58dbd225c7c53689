/* Rows D1 to D8 compared with real PyTorch (tests/golden/make_state_dict.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>
#include <stdio.h>

#include "live.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/statedict.h"

static cJSON *golden;

/* One case on one rank: the rank's record, the input value, and a dict for the result. */
typedef struct run {
    const cJSON *test, *record;
    tsr_host host;
    tsr_comm *comm;
    tsr_state_dict *in, *out;
    const tsr_value *state;
    live_device device; /* used when on_device */
    bool on_device;
} run;

typedef tsr_status row_body(run *r, tsr_error *err);

typedef struct row_case {
    const cJSON *test;
    row_body *body;
    bool on_device;
} row_case;

static tsr_status run_row(void *arg, tsr_comm *comm, tsr_error *err)
{
    const row_case *c = arg;
    run r = {.test = c->test, .host = live_host(NULL), .comm = comm, .on_device = c->on_device};
    r.record = cJSON_GetArrayItem(live_get(c->test, "ranks"), (int)comm->rank);
    live_device_open(&r.device);
    TSR_TRY(tsr_state_dict_new(&r.host, &r.in, err));
    TSR_TRY(tsr_state_dict_new(&r.host, &r.out, err));
    r.state = live_value(r.in, live_get(r.record, "in"), comm->rank, c->on_device ? &r.device.base : NULL);
    tsr_status status = c->body(&r, err);
    tsr_state_dict_free(r.out);
    tsr_state_dict_free(r.in);
    if (status == TSR_OK && r.device.allocated) status = tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "the device leaks");
    return status;
}

static void run_cases(const char *op, row_body *body, bool on_device)
{
    unsigned count = 0;
    for (const cJSON *test = live_get(golden, "cases")->child; test; test = test->next) {
        if (!live_is(test, "op", op)) continue;
        row_case c = {test, body, on_device};
        count += live_run((uint32_t)live_get(test, "world")->valuedouble, run_row, &c);
    }
    assert_true(count > 0);
}

/* Reads `ranks_only` of the case, which may be empty. Returns the number of ranks. */
static size_t ranks_only(const run *r, uint32_t *ranks)
{
    size_t count = 0;
    for (const cJSON *n = live_get(r->test, "ranks_only")->child; n; n = n->next) ranks[count++] = (uint32_t)n->valuedouble;
    return count;
}

static tsr_status expect_out(const run *r, tsr_error *err)
{
    tsr_status status = live_same(tsr_state_dict_root(r->out), live_get(r->record, "out"), false, err);
    if (status != TSR_OK) tsr_error_context(err, "rank %u", (unsigned)r->comm->rank);
    return status;
}

/* ---- D1 ---- */

static tsr_status iterate(run *r, tsr_error *err)
{
    uint32_t ranks[4];
    tsr_error own = {0};
    const cJSON *companion = cJSON_GetObjectItem(r->record, "companion"), *error = cJSON_GetObjectItem(r->record, "error");
    const tsr_iterate how = {.comm = r->comm,
                             .companion = companion ? live_value(r->in, companion, 0, NULL) : NULL,
                             .ranks_only = ranks,
                             .ranks_only_count = ranks_only(r, ranks),
                             .any_type = !cJSON_IsTrue(live_get(r->test, "type_check"))};
    const tsr_status status = tsr_state_dict_iterate(r->state, &how, r->out, &own);
    if (!error) return status == TSR_OK ? expect_out(r, err) : tsr_raise(err, status, TSR_NO_POSITION, "%s", own.message);
    const tsr_status want = strcmp(error->valuestring, "ValueError") == 0 ? TSR_E_UNSUPPORTED : TSR_E_USAGE;
    return status == want ? TSR_OK
                          : tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "%s: PyTorch raises %s, status is %d (%s)",
                                      live_get(r->test, "of")->valuestring, error->valuestring, status, own.message);
}

static void test_statedict_rows__D1_iterate(void **state)
{
    (void)state;
    run_cases("iterate", iterate, false);
}

/* ---- D2 ---- */

static tsr_status gather(run *r, tsr_error *err)
{
    uint32_t ranks[4];
    const size_t rounds[] = {0, 1, 100};
    for (size_t i = 0; i < 3; i++) {
        tsr_state_dict *out = r->out;
        const tsr_gather_options options = {.ranks_only = ranks,
                                            .ranks_only_count = ranks_only(r, ranks),
                                            .round_bytes = rounds[i],
                                            .offload = r->on_device && i == 1};
        TSR_TRY(tsr_state_dict_new(&r->host, &r->out, err));
        tsr_status status = tsr_state_dict_gather(r->state, r->comm, &options, r->out, err);
        if (status == TSR_OK) status = expect_out(r, err);
        tsr_state_dict_free(r->out);
        r->out = out;
        TSR_TRY(status);
    }
    return TSR_OK;
}

/* Gathers into the same companion twice: it stays, and nothing is allocated for it. */
static tsr_status gather_companion(run *r, tsr_error *err)
{
    tsr_comm *comm = r->comm;
    uint32_t ranks[4];
    if (ranks_only(r, ranks)) return TSR_OK;
    const tsr_value *companion = live_value(r->in, live_get(r->record, "out"), 0, NULL);
    const tsr_gather_options options = {.companion = companion};
    for (int i = 0; i < 2; i++) {
        const tsr_value *first = companion->items[1];
        memset(tsr_tensor_of(first)->data, 0x55, 4);
        TSR_TRY(tsr_state_dict_gather(r->state, comm, &options, r->out, err));
        NEED(tsr_state_dict_root(r->out)->items[1] == first);
        NEED(tsr_state_dict_owned(r->out) == 0);
        TSR_TRY(expect_out(r, err));
    }
    return TSR_OK;
}

static void test_statedict_rows__D2_gather(void **state)
{
    (void)state;
    run_cases("gather", gather, false);
}

static void test_statedict_rows__D2_gather_from_a_device(void **state)
{
    (void)state;
    run_cases("gather", gather, true);
}

static void test_statedict_rows__D2_gather_into_a_companion(void **state)
{
    (void)state;
    run_cases("gather", gather_companion, false);
}

/* ---- D3, D4, D5 ---- */

static tsr_status offload(run *r, tsr_error *err)
{
    tsr_comm *comm = r->comm;
    uint32_t ranks[4];
    const size_t count = ranks_only(r, ranks);
    TSR_TRY(tsr_state_dict_offload(r->state, comm, &(tsr_offload_options){.ranks_only = ranks, .ranks_only_count = count},
                                   r->out, err));
    NEED(r->device.waits == (r->on_device && (count == 0 || comm->rank == 0)));
    return expect_out(r, err);
}

static void test_statedict_rows__D3_offload(void **state)
{
    (void)state;
    run_cases("offload", offload, false);
    run_cases("offload", offload, true);
}

static tsr_status copy(run *r, tsr_error *err)
{
    tsr_comm *comm = r->comm;
    tsr_state_dict *target;
    TSR_TRY(tsr_state_dict_new(&r->host, &target, err));
    tsr_status status = tsr_state_dict_create(r->state, NULL, target, err);
    if (status == TSR_OK) status = tsr_state_dict_copy(r->state, tsr_state_dict_root(target), false, r->out, err);
    if (status == TSR_OK) status = expect_out(r, err);
    if (status == TSR_OK) status = live_same(tsr_state_dict_root(target), live_get(r->record, "out"), false, err);
    const uint64_t owned = tsr_state_dict_owned(r->out);
    tsr_state_dict_free(target);
    TSR_TRY(status);
    NEED(owned == 0);
    return TSR_OK;
}

static void test_statedict_rows__D4_copy(void **state)
{
    (void)state;
    run_cases("copy", copy, false);
    run_cases("copy", copy, true);
}

/* Into tensors of other dtypes and shapes, as copy_ does. */
static tsr_status convert(run *r, tsr_error *err)
{
    tsr_comm *comm = r->comm;
    const tsr_value *target =
        live_value(r->in, live_get(r->record, "other"), comm->rank, r->on_device ? &r->device.base : NULL);
    TSR_TRY(tsr_state_dict_copy(r->state, target, false, r->out, err));
    return expect_out(r, err);
}

static void test_statedict_rows__D4_copy_converts_and_broadcasts(void **state)
{
    (void)state;
    run_cases("convert", convert, false);
    run_cases("convert", convert, true);
}

static tsr_status create(run *r, tsr_error *err)
{
    tsr_create_options options = {.share = cJSON_GetObjectItem(r->test, "share") ? r->comm : NULL};
    if (r->on_device) options.pin = &r->device.base;
    TSR_TRY(tsr_state_dict_create(r->state, &options, r->out, err));
    return live_same(tsr_state_dict_root(r->out), live_get(r->record, "out"), true, err);
}

static void test_statedict_rows__D5_create(void **state)
{
    (void)state;
    run_cases("create", create, false);
    run_cases("create", create, true);
}

/* What a rank writes into its shared tensors is what the others read. */
static tsr_status share(run *r, tsr_error *err)
{
    tsr_comm *comm = r->comm;
    const tsr_create_options options = {.share = comm};
    TSR_TRY(tsr_state_dict_create(r->state, &options, r->out, err));
    const tsr_tensor *rows = tsr_tensor_of(tsr_state_dict_get(r->out, TSR_STR("rows")));
    void *data;
    uint64_t bytes;
    TSR_TRY(tsr_state_dict_peer(r->out, comm->rank, rows, &data, &bytes, err));
    NEED(data == rows->data);
    if (bytes) memset(data, (int)comm->rank + 1, (size_t)bytes);
    TSR_TRY(tsr_comm_barrier(comm, err));
    for (uint32_t peer = 0; peer < comm->size; peer++) {
        const uint64_t per = (5 + comm->size - 1) / comm->size, first = peer * per < 5 ? peer * per : 5;
        TSR_TRY(tsr_state_dict_peer(r->out, peer, rows, &data, &bytes, err));
        NEED(bytes == (first + per < 5 ? per : 5 - first) * 12);
        for (uint64_t i = 0; i < bytes; i++) NEED(((const char *)data)[i] == (char)(peer + 1));
    }
    NEED(tsr_state_dict_peer(r->out, comm->size, rows, &data, &bytes, NULL) == TSR_E_USAGE);
    return tsr_comm_barrier(comm, err);
}

static void test_statedict_rows__D5_shared_between_ranks(void **state)
{
    (void)state;
    run_cases("copy", share, false);
}

/* ---- D6 ---- */

static tsr_status similar(run *r, tsr_error *err)
{
    tsr_comm *comm = r->comm;
    tsr_error difference = {0};
    bool same;
    const tsr_value *other = live_value(r->in, live_get(r->record, "other"), 0, NULL);
    TSR_TRY(tsr_state_dict_similar(r->state, other, &r->host, &same, &difference, err));
    if (same != (bool)cJSON_IsTrue(live_get(r->record, "same")))
        return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "'%s': said %d", live_get(r->test, "of")->valuestring, same);
    NEED(same == (difference.message[0] == 0));
    return TSR_OK;
}

static void test_statedict_rows__D6_similar(void **state)
{
    (void)state;
    run_cases("similar", similar, false);
}

/* ---- D7, D8 ---- */

static tsr_status broadcast(run *r, tsr_error *err)
{
    const size_t rounds[] = {0, 7, 64};
    for (size_t i = 0; i < 3; i++) {
        tsr_state_dict *out = r->out;
        const tsr_broadcast_options options = {.strict = cJSON_IsTrue(live_get(r->test, "strict")),
                                               .round_bytes = rounds[i]};
        const tsr_value *local =
            live_value(r->in, live_get(r->record, "local"), r->comm->rank, r->on_device ? &r->device.base : NULL);
        TSR_TRY(tsr_state_dict_new(&r->host, &r->out, err));
        tsr_status status = tsr_state_dict_broadcast(r->state, local, r->comm, &options, r->out, err);
        if (status == TSR_OK) status = expect_out(r, err);
        tsr_state_dict_free(r->out);
        r->out = out;
        TSR_TRY(status);
    }
    return TSR_OK;
}

static void test_statedict_rows__D7_broadcast(void **state)
{
    (void)state;
    run_cases("broadcast", broadcast, false);
    run_cases("broadcast", broadcast, true);
}

/* Extra state of a module: PyTorch sends such values as they are, including tensors inside them; a bytearray stays one. */
static tsr_status broadcast_nested(void *arg, tsr_comm *comm, tsr_error *err)
{
    static const uint64_t shape[] = {2, 1}, none[] = {0};
    float numbers[2] = {1.5f, -2.0f};
    const tsr_host host = live_host(NULL);
    const tsr_tensor tensors[] = {tsr_tensor_whole(TSR_FLOAT32, 2, shape, numbers),
                                  tsr_tensor_whole(TSR_INT64, 1, none, NULL)};
    const tsr_value *values[2];
    tsr_state_dict *in, *out;
    (void)arg;
    TSR_TRY(tsr_state_dict_new(&host, &in, err));
    TSR_TRY(tsr_state_dict_new(&host, &out, err));
    tsr_arena *arena = tsr_state_dict_arena(in);
    for (size_t i = 0; i < 2; i++) TSR_TRY(tsr_state_dict_tensor(in, &tensors[i], &values[i], err));
    tsr_value *bytes = tsr_value_str(arena, TSR_STR("\x07\x09"), err);
    if (!bytes) return TSR_E_NOMEM;
    bytes->kind = TSR_VALUE_BYTES;
    bytes->variant = TSR_VARIANT_BYTEARRAY;
    const tsr_value *extra = tsr_value_dict(arena, 3, "at", values[0], "empty", values[1], "bytes", bytes);
    const tsr_value *local = tsr_value_dict(arena, 1, "extra", tsr_value_int(arena, 0, err));
    tsr_status status =
        tsr_state_dict_broadcast(comm->rank ? NULL : tsr_value_dict(arena, 1, "extra", extra), local, comm, NULL, out, err);
    numbers[0] = comm->rank ? 0 : numbers[0];
    const tsr_value *got = status == TSR_OK ? tsr_value_get(tsr_state_dict_root(out), TSR_STR("extra")) : NULL;
    const tsr_tensor *at = got ? tsr_tensor_of(tsr_value_get(got, TSR_STR("at"))) : NULL;
    const tsr_tensor *empty = got ? tsr_tensor_of(tsr_value_get(got, TSR_STR("empty"))) : NULL;
    const bool same = at && at->entry.ndim == 2 && at->entry.shape[0] == 2 && ((float *)at->data)[0] == 1.5f &&
                      ((float *)at->data)[1] == -2.0f && empty && !empty->meta && empty->entry.dtype == TSR_INT64;
    const tsr_value *had = got ? tsr_value_get(got, TSR_STR("bytes")) : NULL;
    const bool kept = had && had->kind == TSR_VALUE_BYTES && had->variant == TSR_VARIANT_BYTEARRAY &&
                      tsr_str_equal(had->text, TSR_STR("\x07\x09"));
    tsr_state_dict_free(out);
    tsr_state_dict_free(in);
    if (status == TSR_OK) NEED(same && kept);
    return status;
}

static void test_statedict_rows__D7_tensors_inside_a_value(void **state)
{
    (void)state;
    live_run(3, broadcast_nested, NULL);
    live_run(1, broadcast_nested, NULL);
}

static tsr_status distribute(run *r, tsr_error *err)
{
    const tsr_value *local =
        live_value(r->in, live_get(r->record, "local"), r->comm->rank, r->on_device ? &r->device.base : NULL);
    TSR_TRY(tsr_state_dict_distribute(r->state, local, r->out, err));
    return expect_out(r, err);
}

static void test_statedict_rows__D8_distribute(void **state)
{
    (void)state;
    run_cases("distribute", distribute, false);
    run_cases("distribute", distribute, true);
}

static int open_golden(void **state)
{
    (void)state;
    golden = live_golden("state_dict.json");
    return 0;
}

static int close_golden(void **state)
{
    (void)state;
    cJSON_Delete(golden);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statedict_rows__D1_iterate),
        cmocka_unit_test(test_statedict_rows__D2_gather),
        cmocka_unit_test(test_statedict_rows__D2_gather_from_a_device),
        cmocka_unit_test(test_statedict_rows__D2_gather_into_a_companion),
        cmocka_unit_test(test_statedict_rows__D3_offload),
        cmocka_unit_test(test_statedict_rows__D4_copy),
        cmocka_unit_test(test_statedict_rows__D4_copy_converts_and_broadcasts),
        cmocka_unit_test(test_statedict_rows__D5_create),
        cmocka_unit_test(test_statedict_rows__D5_shared_between_ranks),
        cmocka_unit_test(test_statedict_rows__D6_similar),
        cmocka_unit_test(test_statedict_rows__D7_broadcast),
        cmocka_unit_test(test_statedict_rows__D7_tensors_inside_a_value),
        cmocka_unit_test(test_statedict_rows__D8_distribute),
    };
    ranks_begin(&argc, &argv);
    return ranks_end(cmocka_run_group_tests(tests, open_golden, close_golden));
}
