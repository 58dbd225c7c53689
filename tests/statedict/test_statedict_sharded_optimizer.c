/* Optimizer state that FSDP1 saved in shards, loaded by ranks and compared with what real PyTorch loads:
 * tests/golden/sharded_optimizer.json and sharded_optimizer/, made by tests/golden/make_sharded_optimizer.py; and
 * sharded_optimizer_forms, made by make_sharded_optimizer_forms.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "live.h"
#include "ramp.h"
#include "tessera/save_load.h"
#include "tessera/sharded_optimizer.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/statedict.h"

static const tsr_str optimizer = {"optimizer", 9};

typedef struct job {
    const cJSON *one;   /* the case */
    const char *golden; /* directory of the case */
    bool on_device;
    bool in_groups; /* `one` is the case of slice 0, and the case of slice 1 follows it; ranks are data × tensor parallel */
} job;

/* The warnings of the load. */
typedef struct told {
    char text[1024];
    unsigned count;
} told;

static void keep_warning(void *ctx, const char *message)
{
    told *t = ctx;
    t->count++;
    snprintf(t->text, sizeof t->text, "%s", message);
}

static uint64_t *numbers(tsr_arena *arena, const cJSON *list)
{
    uint64_t *out = tsr_arena_array(arena, (size_t)cJSON_GetArraySize(list), sizeof *out, NULL);
    size_t at = 0;
    for (const cJSON *n = list->child; n; n = n->next) out[at++] = (uint64_t)n->valuedouble;
    return out;
}

/* Puts one item [fqn, shape, [offsets, sizes] or null, inner shape or null] into the model's state. It has no memory, since
 * the layout needs none. */
static tsr_status put_model(tsr_state_dict *model, const cJSON *row, tsr_comm *group, tsr_error *err)
{
    const cJSON *shape = row->child->next, *shard = shape->next, *inner_shape = shard->next;
    tsr_arena *arena = tsr_state_dict_arena(model);
    const uint32_t ndim = (uint32_t)cJSON_GetArraySize(shape);
    tsr_tensor tensor = tsr_tensor_whole(TSR_FLOAT32, ndim, numbers(arena, shape), NULL);
    tensor.meta = true;
    const tsr_value *value;
    tsr_tensor_part part;
    tsr_tensor inner;
    if (!cJSON_IsNull(shard)) {
        inner = tsr_tensor_in_boxes(TSR_FLOAT32, ndim, numbers(arena, inner_shape), NULL, 0);
        inner.group = group;
        part = (tsr_tensor_part){numbers(arena, shard->child), numbers(arena, shard->child->next), NULL};
        tensor = tsr_tensor_in_boxes(TSR_FLOAT32, ndim, tensor.entry.shape, &part, 1);
        tensor.nested = &inner;
    }
    TSR_TRY(tsr_state_dict_tensor(model, &tensor, &value, err));
    return tsr_state_dict_put(model, tsr_str_from(row->child->valuestring), value, err);
}

static tsr_status make_model(tsr_state_dict *model, const cJSON *record, tsr_comm *group, tsr_error *err)
{
    for (const cJSON *row = live_get(record, "model")->child; row; row = row->next)
        TSR_TRY(put_model(model, row, group, err));
    return TSR_OK;
}

static void golden_path(const char *directory, const char *name, char *path, size_t size)
{
    snprintf(path, size, "%s/tests/golden/%s/%s", TSR_TEST_DATA, directory, name);
}

/* Whether every tensor with dimensions belongs to this group. */
static bool is_of_group(const tsr_value *value, const tsr_comm *group)
{
    const tsr_tensor *tensor = tsr_tensor_of(value);
    bool right = !tensor || tensor->spread != TSR_IN_BOXES || tensor->group == group;
    for (size_t i = value->kind == TSR_VALUE_DICT; i < value->count; i += value->kind == TSR_VALUE_DICT ? 2 : 1)
        right = right && is_of_group(value->items[i], group);
    return right;
}

static tsr_status load_and_compare(const job *j, const cJSON *one, tsr_comm *comm, tsr_comm *data, tsr_error *err)
{
    const bool two = !cJSON_IsNull(live_get(one, "slice"));
    const cJSON *record = cJSON_GetArrayItem(live_get(one, "ranks"), (int)(two ? data->rank : comm->rank));
    const tsr_host host = live_host(NULL);
    char path[512];
    told warning = {"", 0};
    live_device device;
    tsr_state_dict *model, *out;
    live_device_open(&device);
    golden_path(j->golden, live_get(one, "saved")->valuestring, path, sizeof path);
    TSR_TRY(tsr_state_dict_new(&host, &model, err));
    TSR_TRY(tsr_state_dict_new(&host, &out, err));
    TSR_TRY(make_model(model, record, data, err));
    const tsr_optimizer_target to = {.out = out,
                                     .device = j->on_device ? &device.base : NULL,
                                     .buffer_bytes = j->on_device ? 128 : 0,
                                     .warnings = {keep_warning, &warning}};
    const bool by_hand = strcmp(live_get(one, "saved")->valuestring, "by_hand") == 0;
    const bool refused = cJSON_GetObjectItem(record, "error") != NULL;
    tsr_error own = {0};
    const tsr_status status = tsr_optimizer_state_load(path, optimizer, tsr_state_dict_root(model), comm, &to, &own);
    if (refused != (status != TSR_OK))
        return tsr_raise(err, TSR_E_FORMAT, 0, "%s: PyTorch %s; here: %s", path, refused ? "refuses" : "loads", own.message);
    if (!refused) TSR_TRY(live_same(tsr_state_dict_root(out), live_get(record, "got"), false, err));
    NEED(refused || is_of_group(tsr_state_dict_root(out), two ? data : NULL));
    NEED(warning.count == by_hand || strcmp(j->golden, "sharded_optimizer") != 0);
    NEED(!by_hand || strstr(warning.text, "of 1 parameter that the model's state does not have: 'gone.weight'"));
    NEED(!by_hand || strstr(warning.text, two ? "without a tensor-parallel slice" : "all the same"));
    NEED(!j->on_device || device.allocated == tsr_state_dict_owned(out));
    tsr_state_dict_free(out);
    tsr_state_dict_free(model);
    return TSR_OK;
}

static tsr_status load_as_pytorch(void *arg, tsr_comm *comm, tsr_error *err)
{
    const job *j = arg;
    if (!j->in_groups) return load_and_compare(j, j->one, comm, comm, err);
    tsr_comm *data;
    const uint32_t slice = comm->rank % 2;
    TSR_TRY(comm->split(comm, slice, comm->rank, &data, err));
    const tsr_status status = load_and_compare(j, slice ? j->one->next : j->one, comm, data, err);
    data->close(data);
    return status;
}

static void test_statedict_sharded_optimizer__E4_as_pytorch_loads_in_any_world(void **state)
{
    (void)state;
    static const char *const directories[] = {"sharded_optimizer", "sharded_optimizer_forms"};
    for (size_t i = 0; i < 2; i++) {
        cJSON *golden = live_golden(i ? "sharded_optimizer_forms.json" : "sharded_optimizer.json");
        for (const cJSON *one = live_get(golden, "cases")->child; one; one = one->next)
            for (int on_device = 0; on_device < 2; on_device++) {
                job j = {one, directories[i], on_device, false};
                live_run((uint32_t)live_get(one, "world")->valuedouble, load_as_pytorch, &j);
            }
        cJSON_Delete(golden);
    }
}

/* PyTorch fails for groups of other ranks than 0, 1, …; here every rank gets what the ranks of its group get. */
static void test_statedict_sharded_optimizer__E2_each_rank_has_its_group_s_slice(void **state)
{
    (void)state;
    cJSON *golden = live_golden("sharded_optimizer.json");
    for (const cJSON *one = live_get(golden, "cases")->child; one; one = one->next) {
        const cJSON *slice = live_get(one, "slice");
        job j = {one, "sharded_optimizer", false, true};
        if (cJSON_IsNull(slice) || slice->valuedouble > 0 || live_get(one, "world")->valuedouble < 2) continue;
        live_run(4, load_as_pytorch, &j);
    }
    cJSON_Delete(golden);
}

/* ---- rejected input ---- */

static const uint64_t shape[] = {5, 6}, at[] = {0, 3}, columns[] = {5, 3}, origin[] = {0, 0};

/* Model states that are wrong in one way, on the rank that `odd` gives. */
typedef enum wrong {
    NOTHING,
    AN_INT,
    NO_DICT,
    NESTED_DTENSOR,
    DTENSOR_OF_SHARDS,
    TWO_SHARDS,
    NO_GROUP,
    TWO_GROUPS,
    ONE_D,
    NO_SHARD,
    TOO_WIDE,
    OTHER_SHAPE
} wrong;

typedef struct refusal {
    wrong what;
    const char *key;
    tsr_status status;
    const char *message;
} refusal;

static tsr_status wrong_value(tsr_state_dict *model, wrong what, tsr_comm *comm, const tsr_value **out, tsr_error *err)
{
    static const uint64_t wide[] = {5, 4}, ranks[] = {1};
    static const tsr_placement rows = {TSR_SHARD, 0, 0};
    static const tsr_mesh mesh = {1, ranks, NULL};
    const tsr_tensor_part parts[] = {{at, what == TOO_WIDE ? wide : columns, NULL}, {origin, columns, NULL}};
    tsr_tensor inner = tsr_tensor_in_boxes(TSR_FLOAT32, 2, columns, NULL, 0);
    tsr_tensor tensor = tsr_tensor_in_boxes(TSR_FLOAT32, 2, what == OTHER_SHAPE ? wide : shape, parts,
                                            what == NO_SHARD     ? 0
                                            : what == TWO_SHARDS ? 2
                                                                 : 1);
    inner.group = what == NO_GROUP ? NULL : comm;
    tensor.nested = &inner;
    if (what == NESTED_DTENSOR)
        inner = tsr_tensor_over_mesh(tsr_tensor_whole(TSR_FLOAT32, 2, columns, NULL), &mesh, &rows, 0);
    if (what == DTENSOR_OF_SHARDS) {
        tensor = tsr_tensor_over_mesh(tsr_tensor_whole(TSR_FLOAT32, 2, shape, NULL), &mesh, &rows, 0);
        tensor.nested = &inner;
    }
    if (what == ONE_D) tensor.nested = NULL;
    if (what == AN_INT) *out = tsr_value_int(tsr_state_dict_arena(model), 4, err);
    else if (what == NO_DICT) *out = tsr_value_list(tsr_state_dict_arena(model), TSR_VALUE_LIST, 0);
    else return tsr_state_dict_tensor(model, &tensor, out, err);
    return *out ? TSR_OK : TSR_E_NOMEM;
}

static tsr_status put_wrong(tsr_state_dict *model, wrong what, tsr_comm *comm, tsr_comm *other, tsr_error *err)
{
    const tsr_value *value;
    TSR_TRY(wrong_value(model, what, comm, &value, err));
    if (what == NO_DICT) tsr_state_dict_set_root(model, value);
    else TSR_TRY(tsr_state_dict_put(model, TSR_STR("0.weight"), value, err));
    if (what != TWO_GROUPS) return TSR_OK;
    TSR_TRY(wrong_value(model, NOTHING, other, &value, err));
    return tsr_state_dict_put(model, TSR_STR("2.weight"), value, err);
}

static tsr_status load_refused(void *arg, tsr_comm *comm, tsr_error *err)
{
    const refusal *r = arg;
    const tsr_host host = live_host(NULL);
    char path[512];
    tsr_error message = {0};
    tsr_state_dict *model, *out;
    tsr_comm *self;
    golden_path("sharded_optimizer", "fsdp2", path, sizeof path);
    TSR_TRY(tsr_comm_self(&tsr_allocator_libc, &self, err));
    TSR_TRY(tsr_state_dict_new(&host, &model, err));
    TSR_TRY(tsr_state_dict_new(&host, &out, err));
    TSR_TRY(put_wrong(model, comm->rank == 1 ? r->what : NOTHING, comm, self, err));
    const tsr_optimizer_target to = {.out = out};
    const tsr_str key = comm->rank == 1 ? tsr_str_from(r->key) : optimizer;
    const tsr_status status = tsr_optimizer_state_load(path, key, tsr_state_dict_root(model), comm, &to, &message);
    const bool is_empty = tsr_state_dict_root(out)->count == 0 && (status == TSR_OK || tsr_state_dict_owned(out) == 0);
    tsr_state_dict_free(out);
    tsr_state_dict_free(model);
    self->close(self);
    if (status != r->status || !strstr(message.message, r->message))
        return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "wanted '%s', got %d: %s", r->message, status, message.message);
    NEED(is_empty);
    return TSR_OK;
}

static void test_statedict_sharded_optimizer__what_one_rank_cannot_do_all_refuse(void **state)
{
    (void)state;
    static const refusal rows[] = {
        {AN_INT, "optimizer", TSR_E_USAGE, "rank 1: '0.weight' of the model's state is of type int, which has no size"},
        {NO_DICT, "optimizer", TSR_E_USAGE, "rank 1: the model's state is a list"},
        {NESTED_DTENSOR, "optimizer", TSR_E_UNSUPPORTED, "is a DTensor inside a ShardedTensor"},
        {DTENSOR_OF_SHARDS, "optimizer", TSR_E_UNSUPPORTED, "is a ShardedTensor inside a DTensor"},
        {TWO_SHARDS, "optimizer", TSR_E_UNSUPPORTED, "'0.weight' of the model's state has 2 shards on this rank"},
        {NO_GROUP, "optimizer", TSR_E_USAGE, "does not state which ranks share its slice"},
        {TWO_GROUPS, "optimizer", TSR_E_USAGE, "is shared by a group where this is rank 1 of 2, that of '2.weight' by one"},
        {ONE_D, "optimizer", TSR_E_USAGE, "model's state is 2-D (FSDP over tensor parallel) on rank 0, but 1-D on rank 1"},
        {NO_SHARD, "optimizer", TSR_E_USAGE, "on rank 0, but 1-D on rank 1"}, /* as PyTorch sees it: not nested */
        {TOO_WIDE, "optimizer", TSR_E_FORMAT, "rank 1: optim: the slice of '0.weight' ends beyond dimension 1"},
        {OTHER_SHAPE, "optimizer", TSR_E_FORMAT, "[5, 6] in the checkpoint, but '0.weight' is [5, 4] in the model's state"},
        {NOTHING, "optim", TSR_E_NOT_FOUND, "no entries under the key 'optim'; at its top it has 'model', 'optimizer'"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) live_run(2, load_refused, (void *)&rows[i]);
}

static tsr_status load_two_keys(void *arg, tsr_comm *comm, tsr_error *err)
{
    const tsr_host host = live_host(NULL);
    char path[512];
    tsr_error message = {0};
    tsr_state_dict *model, *out;
    golden_path("sharded_optimizer", "fsdp2", path, sizeof path);
    if (arg) snprintf(path, sizeof path, "%s/nothing-here", ranks_scratch());
    TSR_TRY(tsr_state_dict_new(&host, &model, err));
    TSR_TRY(tsr_state_dict_new(&host, &out, err));
    const tsr_optimizer_target to = {.out = out};
    const tsr_str key = comm->rank == 0 || arg ? optimizer : TSR_STR("model");
    const tsr_status status = tsr_optimizer_state_load(path, key, tsr_state_dict_root(model), comm, &to, &message);
    tsr_state_dict_free(out);
    tsr_state_dict_free(model);
    NEED(status == (arg ? TSR_E_NOT_FOUND : TSR_E_USAGE));
    NEED(arg || strstr(message.message, "the optimizer's key is optimizer on rank 0, but model on rank 1"));
    return TSR_OK;
}

static void test_statedict_sharded_optimizer__ranks_agree_on_the_key_and_the_path(void **state)
{
    (void)state;
    static const bool absent = true;
    live_run(2, load_two_keys, NULL);
    live_run(2, load_two_keys, (void *)&absent);
}

/* ---- other forms; tests/package/optimizer_ranks.py compares all of them with PyTorch's ---- */

static tsr_status load_sample(const char *name, tsr_str key, tsr_comm *comm, tsr_state_dict *out, tsr_error *err)
{
    char path[512];
    tsr_state_dict *model;
    const tsr_optimizer_target to = {.out = out};
    snprintf(path, sizeof path, "%s/samples/checkpoints/%s", TSR_TEST_DATA, name);
    TSR_TRY(tsr_state_dict_new(tsr_state_dict_host(out), &model, err));
    const tsr_status status = tsr_optimizer_state_load(path, key, tsr_state_dict_root(model), comm, &to, err);
    tsr_state_dict_free(model);
    return status;
}

/* torch.save keeps ids as ints; 11 rows are divided into 4, 4 and 3. */
static tsr_status load_native(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    const tsr_host host = live_host(NULL);
    tsr_state_dict *out;
    TSR_TRY(tsr_state_dict_new(&host, &out, err));
    TSR_TRY(load_sample("torch_train_state", optimizer, comm, out, err));
    const tsr_value *all = tsr_state_dict_get(out, optimizer), *states = tsr_value_get(all, TSR_STR("state"));
    NEED(tsr_value_pairs(states) == 3 && states->items[4]->kind == TSR_VALUE_INT && states->items[4]->as.integer == 2);
    const tsr_tensor *rows = tsr_tensor_of(tsr_value_get(states->items[5], TSR_STR("exp_avg")));
    NEED(rows->spread == TSR_IN_BOXES && rows->part_count == 1 && rows->parts[0].offsets[0] == 4 * comm->rank);
    NEED(rows->parts[0].sizes[0] == (comm->rank < 2 ? 4 : 3) && rows->parts[0].sizes[1] == 6);
    const tsr_value *groups = tsr_value_get(all, TSR_STR("param_groups"));
    NEED(groups->kind == TSR_VALUE_LIST && groups->count == 2);
    NEED(tsr_value_get(groups->items[0], TSR_STR("betas"))->kind == TSR_VALUE_TUPLE);
    tsr_state_dict_free(out);
    return TSR_OK;
}

static tsr_status load_sparse(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    const tsr_host host = live_host(NULL);
    tsr_error message = {0};
    tsr_state_dict *out;
    TSR_TRY(tsr_state_dict_new(&host, &out, err));
    NEED(load_sample("torch_sparse", TSR_STR("coo"), comm, out, &message) == TSR_E_UNSUPPORTED);
    NEED(strstr(message.message, "is neither a dense tensor nor plain data") && strstr(message.message, "'coo'"));
    tsr_state_dict_free(out);
    return TSR_OK;
}

static void test_statedict_sharded_optimizer__torch_save_files(void **state)
{
    (void)state;
    live_run(3, load_native, NULL);
    live_run(2, load_sparse, NULL);
}

/* Other operations must not treat the tensor of a slice like one with memory. */
static tsr_status use_slice(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    const tsr_host host = live_host(NULL);
    tsr_state_dict *model, *other, *out;
    tsr_error message = {0};
    TSR_TRY(tsr_state_dict_new(&host, &model, err));
    TSR_TRY(tsr_state_dict_new(&host, &other, err));
    TSR_TRY(tsr_state_dict_new(&host, &out, err));
    TSR_TRY(put_wrong(model, NOTHING, comm, NULL, err));
    TSR_TRY(put_wrong(other, NOTHING, comm, NULL, err));
    NEED(tsr_state_dict_gather(tsr_state_dict_root(model), comm, NULL, out, &message) == TSR_E_UNSUPPORTED);
    NEED(strstr(message.message, "is a distributed tensor inside another one"));
    message = (tsr_error){0};
    NEED(tsr_state_dict_copy(tsr_state_dict_root(model), tsr_state_dict_root(other), false, out, &message) ==
         TSR_E_UNSUPPORTED);
    tsr_state_dict_free(out);
    tsr_state_dict_free(other);
    tsr_state_dict_free(model);
    return TSR_OK;
}

static void test_statedict_sharded_optimizer__slices_are_for_loading_only(void **state)
{
    (void)state;
    live_run(2, use_slice, NULL);
}

/* ---- memory ---- */

enum { ROWS = 4096, COLUMNS = 256, STATES = 3 };

static const char *const names[STATES] = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};

/* Saves one parameter's state, cut along a dimension. */
static tsr_status save_state(tsr_comm *comm, const char *path, const uint64_t *global, int dim, tsr_error *err)
{
    const tsr_host host = live_host(NULL);
    const uint64_t ranks[] = {comm->size};
    const tsr_mesh mesh = {1, ranks, NULL};
    const tsr_placement cut = {TSR_SHARD, dim, 0};
    const tsr_tensor like = tsr_tensor_over_mesh(tsr_tensor_whole(TSR_FLOAT32, 2, global, NULL), &mesh, &cut, comm->rank);
    tsr_state_dict *dict;
    const tsr_value *values[STATES];
    TSR_TRY(tsr_state_dict_new(&host, &dict, err));
    tsr_arena *arena = tsr_state_dict_arena(dict);
    for (int i = 0; i < STATES; i++) {
        TSR_TRY(tsr_state_dict_allocate(dict, &like, &values[i], err));
        TSR_TRY(ramp_over(tsr_tensor_of(values[i]), arena, true, NULL, err));
    }
    const tsr_value *of_w = tsr_value_dict(arena, 3, names[0], values[0], names[1], values[1], names[2], values[2]);
    const tsr_value *states = tsr_value_dict(arena, 1, "state", tsr_value_dict(arena, 1, "w", of_w));
    TSR_TRY(tsr_state_dict_put(dict, optimizer, states, err));
    const tsr_save_options options = {.overwrite = true};
    const tsr_status status = tsr_state_dict_save(tsr_state_dict_root(dict), comm, path, &options, &host, err);
    tsr_state_dict_free(dict);
    return status;
}

static tsr_status within_bounds(void *arg, tsr_comm *comm, tsr_error *err)
{
    live_meter meter;
    live_meter_open(&meter);
    const tsr_host host = live_host(&meter.base), own = live_host(NULL);
    tsr_state_dict *model, *out;
    bool right = true;
    /* By columns, so that every rank's file has parts of each row. */
    TSR_TRY(save_state(comm, arg, (const uint64_t[]){ROWS, COLUMNS}, 1, err));
    TSR_TRY(tsr_state_dict_new(&own, &model, err));
    TSR_TRY(tsr_state_dict_new(&host, &out, err));
    const tsr_optimizer_target to = {.out = out, .buffer_bytes = 65536};
    TSR_TRY(tsr_optimizer_state_load(arg, optimizer, tsr_state_dict_root(model), comm, &to, err));
    const size_t shards = (size_t)STATES * ROWS * COLUMNS * sizeof(float) / comm->size;
    NEED(tsr_state_dict_owned(out) == shards);
    NEED(meter.most < shards + 65536 + 1000000); /* readers have a scratch buffer of 512 KiB */
    const tsr_value *root = tsr_state_dict_root(out), *of_w = root->items[1]->items[1]->items[1];
    for (size_t i = 1; i < of_w->count; i += 2)
        TSR_TRY(ramp_over(tsr_tensor_of(of_w->items[i]), tsr_state_dict_arena(model), false, &right, err));
    NEED(right && of_w->count == 2 * STATES);
    tsr_state_dict_free(out);
    NEED(meter.now == 0);
    tsr_state_dict_free(model);
    return TSR_OK;
}

static void test_statedict_sharded_optimizer__memory_is_the_rank_s_own_shards(void **state)
{
    (void)state;
    char path[400];
    snprintf(path, sizeof path, "%s/large", ranks_scratch());
    live_run(4, within_bounds, path);
}

/* ---- damage ---- */

typedef struct damaged {
    const char *path;
    bool on_device, ignore_crc;
    size_t buffer_bytes;
    bool noticed;
} damaged;

static tsr_status save_small(void *path, tsr_comm *comm, tsr_error *err)
{
    return save_state(comm, path, (const uint64_t[]){12, 7}, 0, err);
}

static tsr_status load_damaged(void *arg, tsr_comm *comm, tsr_error *err)
{
    const damaged *d = arg;
    const tsr_host host = live_host(NULL);
    live_device device;
    tsr_state_dict *model, *out;
    tsr_error found = {0};
    live_device_open(&device);
    TSR_TRY(tsr_state_dict_new(&host, &model, err));
    TSR_TRY(tsr_state_dict_new(&host, &out, err));
    const tsr_optimizer_target to = {.out = out,
                                     .device = d->on_device ? &device.base : NULL,
                                     .buffer_bytes = d->buffer_bytes,
                                     .ignore_crc = d->ignore_crc};
    const tsr_status status = tsr_optimizer_state_load(d->path, optimizer, tsr_state_dict_root(model), comm, &to, &found);
    const bool is_empty = tsr_state_dict_root(out)->count == 0;
    tsr_state_dict_free(out);
    tsr_state_dict_free(model);
    if (status != (d->noticed ? TSR_E_FORMAT : TSR_OK) || is_empty != d->noticed ||
        (d->noticed && !strstr(found.message, "is damaged")))
        return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "'%s' (device %d, buffer %zu): status %d: %s", d->path,
                         d->on_device, d->buffer_bytes, status, found.message);
    return TSR_OK;
}

/* Each rank reads whole chunks: it has the rows that were saved by the rank with its number. */
static void test_statedict_sharded_optimizer__damage_is_noticed(void **state)
{
    (void)state;
    char path[400], name[100];
    for (uint32_t world = 2; world <= 3; world++) { /* a world of one runs each body twice */
        live_byte last;
        snprintf(path, sizeof path, "%s/damaged-%u", ranks_scratch(), (unsigned)world);
        if (!live_run(world, save_small, path)) continue;
        for (int flips = 0; flips < 2 * STATES + 1; flips++) {
            for (int how = 0; how < 8; how++) {
                damaged d = {path, how & 1, how & 4, how & 2 ? 128 : 0, flips % 2 && !(how & 4)};
                live_run(world, load_damaged, &d);
            }
            snprintf(name, sizeof name, "optimizer.state.w.%s", names[flips / 2 % STATES]);
            if (flips % 2 == 0) live_last_element(path, name, &last);
            live_run(world, live_flip_bit, &last);
        }
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statedict_sharded_optimizer__E4_as_pytorch_loads_in_any_world),
        cmocka_unit_test(test_statedict_sharded_optimizer__E2_each_rank_has_its_group_s_slice),
        cmocka_unit_test(test_statedict_sharded_optimizer__what_one_rank_cannot_do_all_refuse),
        cmocka_unit_test(test_statedict_sharded_optimizer__ranks_agree_on_the_key_and_the_path),
        cmocka_unit_test(test_statedict_sharded_optimizer__torch_save_files),
        cmocka_unit_test(test_statedict_sharded_optimizer__slices_are_for_loading_only),
        cmocka_unit_test(test_statedict_sharded_optimizer__memory_is_the_rank_s_own_shards),
        cmocka_unit_test(test_statedict_sharded_optimizer__damage_is_noticed),
    };
    ranks_begin(&argc, &argv);
    return ranks_end(cmocka_run_group_tests(tests, NULL, NULL));
}
