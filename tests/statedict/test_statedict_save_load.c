/* Checkpoints that ranks write and read together: a world of any size saves, and one of any other size loads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "ramp.h"
#include "support/full_counts.h"
#include "support/random.h"
#include "tessera/check.h"
#include "tessera/checkpoint.h"
#include "tessera/native_host.h"
#include "tessera/save_load.h"
#include "tessera/sys/catalog.h"
#include "tessera/sys/check.h"
#include "tessera/sys/checkpoint.h"
#include "tessera/sys/collectives.h"
#include "tessera/sys/directory.h"
#include "tessera/sys/host_calls.h"

enum { TENSORS = 6 };

typedef struct job {
    uint64_t seed;
    const char *path;
    bool on_device, meta;
    tsr_save_options save;
    tsr_load_options load;
} job;

/* Makes a state dict. Names, shapes and types depend only on the job's seed, and the distributions on `distribution`. */
static tsr_status make_state(const job *j, const tsr_comm *comm, tsr_device *device, uint64_t distribution,
                             tsr_state_dict *dict, tsr_error *err)
{
    static const tsr_dtype dtypes[] = {TSR_BOOL, TSR_BFLOAT16, TSR_FLOAT32, TSR_INT64, TSR_COMPLEX128, TSR_FLOAT8_E5M2};
    tsr_arena *arena = tsr_state_dict_arena(dict);
    uint64_t seed = j->seed;
    char name[32];
    for (uint32_t i = 0; i < TENSORS; i++) {
        uint64_t *shape = tsr_arena_array(arena, 4, sizeof *shape, NULL);
        const uint32_t ndim = (uint32_t)(ramp_random(&seed) % 4);
        const tsr_dtype dtype = dtypes[ramp_random(&seed) % 6];
        for (uint32_t d = 0; d < ndim; d++) shape[d] = ramp_random(&seed) % 9;
        const tsr_value *value;
        tsr_tensor tensor = ramp_tensor(&distribution, arena, comm, dtype, ndim, shape);
        tensor.device = device;
        tensor.meta = j->meta;
        if (tensor.meta && tensor.spread == TSR_IN_BOXES) tensor.spread = TSR_WHOLE;
        if (tensor.meta) TSR_TRY(tsr_state_dict_tensor(dict, &tensor, &value, err));
        else TSR_TRY(tsr_state_dict_allocate(dict, &tensor, &value, err));
        snprintf(name, sizeof name, "layer.%u", i);
        TSR_TRY(tsr_state_dict_put(dict, tsr_str_from(name), value, err));
    }
    tsr_value *number = tsr_value_int(arena, 0, err), *text = tsr_value_str(arena, TSR_STR(""), err);
    if (distribution % 2) number->as.integer = 12;
    TSR_TRY(tsr_state_dict_put(dict, TSR_STR("step"), number, err));
    return tsr_state_dict_put(dict, TSR_STR("note"), text, err);
}

static tsr_status save(void *arg, tsr_comm *comm, tsr_error *err)
{
    const job *j = arg;
    tsr_native_host native;
    tsr_native_host_open(&native, 1);
    tsr_state_dict *dict;
    live_device device;
    live_device_open(&device);
    TSR_TRY(tsr_state_dict_new(&native.host, &dict, err));
    TSR_TRY(make_state(j, comm, j->on_device ? &device.base : NULL, j->seed * 2 + 1, dict, err));
    for (size_t i = 0; i < TENSORS; i++)
        TSR_TRY(ramp_over(tsr_tensor_of(tsr_state_dict_root(dict)->items[2 * i + 1]), tsr_state_dict_arena(dict), true, NULL,
                          err));
    tsr_value *number = tsr_value_int(tsr_state_dict_arena(dict), 41 + comm->rank, err);
    tsr_value *text = tsr_value_str(tsr_state_dict_arena(dict), TSR_STR("rank 0's"), err);
    TSR_TRY(tsr_state_dict_put(dict, TSR_STR("step"), number, err));
    TSR_TRY(tsr_state_dict_put(dict, TSR_STR("note"), text, err));
    const tsr_status status = tsr_state_dict_save(tsr_state_dict_root(dict), comm, j->path, &j->save, &native.host, err);
    tsr_state_dict_free(dict);
    tsr_native_host_close(&native);
    return status;
}

static tsr_status load(void *arg, tsr_comm *comm, tsr_error *err)
{
    const job *j = arg;
    const tsr_host host = live_host(NULL);
    tsr_state_dict *dict, *out;
    live_device device;
    bool right = true;
    live_device_open(&device);
    TSR_TRY(tsr_state_dict_new(&host, &dict, err));
    TSR_TRY(tsr_state_dict_new(&host, &out, err));
    TSR_TRY(make_state(j, comm, j->on_device ? &device.base : NULL, j->seed * 3 + 2, dict, err));
    TSR_TRY(tsr_state_dict_load(j->path, tsr_state_dict_root(dict), comm, &j->load, out, err));
    for (size_t i = 0; i < TENSORS; i++)
        TSR_TRY(ramp_over(tsr_tensor_of(tsr_state_dict_root(out)->items[2 * i + 1]), tsr_state_dict_arena(dict), false,
                          &right, err));
    NEED(tsr_state_dict_get(out, TSR_STR("step"))->as.integer == 41);
    NEED(tsr_str_equal(tsr_state_dict_get(out, TSR_STR("note"))->text, TSR_STR("rank 0's")));
    tsr_state_dict_free(out);
    tsr_state_dict_free(dict);
    NEED(right);
    return TSR_OK;
}

static void remove_directory(const char *path)
{
    char command[512];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
}

/* Removes the directory in one process of mpirun, or in the only process. */
static tsr_status settle_directory(void *arg, tsr_comm *comm, tsr_error *err)
{
    if (comm->rank == 0) remove_directory(arg);
    return tsr_comm_barrier(comm, err);
}

static void test_statedict_save_load__any_world_to_any_other(void **state)
{
    (void)state;
    static const uint32_t worlds[][2] = {{1, 1}, {1, 3}, {4, 3}, {3, 2}, {2, 4}, {4, 1}, {3, 3}};
    char path[400];
    snprintf(path, sizeof path, "%s/checkpoint", ranks_scratch());
    for (uint64_t i = 0; i < 28; i++) {
        const uint32_t *world = worlds[i % 7];
        job j = {.seed = i * 1009 + 5,
                 .path = path,
                 .on_device = i % 3 == 1,
                 .meta = i % 5 == 2,
                 /* With a world of 1 this runs twice. */
                 .save = {.overwrite = world[0] == 1, .buffer_bytes = i % 2 ? 100 : 0},
                 .load = {.buffer_bytes = i % 2 ? 64 : 0}};
        job loading = j;
        j.meta = false;
        if (ranks_count(4) < 4 && (world[0] > ranks_count(4) || world[1] > ranks_count(4))) continue;
        live_run(world[0], save, &j);
        live_run(world[1], load, &loading);
        live_run(1, settle_directory, path);
    }
}

/* What was written must pass the deep check, and must contain each shard once. */
static void test_statedict_save_load__sound_and_without_copies(void **state)
{
    (void)state;
    char path[400];
    snprintf(path, sizeof path, "%s/sound", ranks_scratch());
    job j = {.seed = 77, .path = path};
    live_run(2, save, &j);
    const tsr_host host = live_host(NULL);
    tsr_store *store;
    tsr_checkpoint *checkpoint;
    tsr_error err = {0};
    assert_int_equal(tsr_directory_store_open(NULL, host.allocator, path, &store, &err), TSR_OK);
    if (tsr_checkpoint_open(store, &host, NULL, &checkpoint, &err) != TSR_OK) fail_msg("%s", err.message);
    const tsr_catalog *catalog = tsr_checkpoint_catalog(checkpoint);
    assert_int_equal(catalog->entry_count, TENSORS + 2);
    for (uint64_t e = 0; e < catalog->entry_count; e++) assert_int_equal(catalog->entries[e].replica_count, 0);
    tsr_ring *ring;
    assert_int_equal(tsr_ring_new(&host, 0, &ring, &err), TSR_OK);
    if (tsr_check_deep(checkpoint, ring, NULL, &err) != TSR_OK) fail_msg("%s", err.message);
    tsr_findings *findings = tsr_checkpoint_findings(checkpoint);
    assert_int_equal(tsr_findings_total(findings, TSR_ERROR) + tsr_findings_total(findings, TSR_WARNING), 0);
    tsr_ring_free(ring);
    tsr_checkpoint_close(checkpoint);
    store->close(store);
}

static tsr_status save_again(void *arg, tsr_comm *comm, tsr_error *err)
{
    tsr_error told = {0};
    job *j = arg;
    const tsr_status status = save(j, comm, &told);
    NEED(status == TSR_E_EXISTS && strstr(told.message, "exists"));
    return TSR_OK;
}

static void test_statedict_save_load__an_old_checkpoint_is_kept_or_replaced(void **state)
{
    (void)state;
    char path[400], file[450];
    snprintf(path, sizeof path, "%s/replaced", ranks_scratch());
    job j = {.seed = 9, .path = path};
    live_run(2, save, &j);
    live_run(2, save_again, &j);
    live_run(2, load, &j);
    job other = {.seed = 2018, .path = path, .save = {.overwrite = true}};
    live_run(2, save, &other);
    live_run(2, load, &other);
    snprintf(file, sizeof file, "%s/__0_0.distcp", path);
    assert_int_not_equal(access(file, F_OK), 0);
}

static tsr_status save_refused(void *arg, tsr_comm *comm, tsr_error *err)
{
    tsr_error told = {0};
    job *j = arg;
    NEED(save(j, comm, &told) == TSR_E_UNSUPPORTED && strstr(told.message, ".metadata"));
    return TSR_OK;
}

static void put_file(const char *directory, const char *name)
{
    char path[500];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite("mine", 1, 4, file), 4);
    fclose(file);
}

static void expect_file(const char *directory, const char *name)
{
    char path[500], text[5] = "";
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(text, 1, 5, file), 4);
    assert_string_equal(text, "mine");
    fclose(file);
}

/* Files that the old checkpoint does not list stay; without a readable list nothing is replaced. */
static void test_statedict_save_load__only_what_is_listed_is_replaced(void **state)
{
    (void)state;
    static const char *const foreign[] = {"optimizer.distcp", "adapter.safetensors", "other.index.json", "rank_notes.pt"};
    char path[400];
    snprintf(path, sizeof path, "%s/listed", ranks_scratch());
    job j = {.seed = 9, .path = path}, other = {.seed = 2018, .path = path, .save = {.overwrite = true}};
    live_run(2, save, &j);
    for (size_t i = 0; i < 4; i++) put_file(path, foreign[i]);
    live_run(2, save, &other);
    live_run(2, load, &other);
    for (size_t i = 0; i < 4; i++) expect_file(path, foreign[i]);
    put_file(path, ".metadata");
    live_run(2, save_refused, &other);
    for (size_t i = 0; i < 4; i++) expect_file(path, foreign[i]);
    expect_file(path, ".metadata");
}

typedef struct misfit {
    const char *name;
    tsr_dtype dtype;
    uint64_t rows;
    bool allow_missing;
    tsr_status status;
    const char *message;
} misfit;

static tsr_status load_misfit(void *arg, tsr_comm *comm, tsr_error *err)
{
    const misfit *m = arg;
    char path[400];
    snprintf(path, sizeof path, "%s/misfits", ranks_scratch());
    const tsr_host host = live_host(NULL);
    const uint64_t shape[] = {m->rows, 3};
    const tsr_tensor tensor = tsr_tensor_whole(m->dtype, 2, shape, NULL);
    const tsr_load_options options = {.allow_missing = m->allow_missing};
    tsr_state_dict *dict, *out;
    const tsr_value *value;
    tsr_error told = {0};
    TSR_TRY(tsr_state_dict_new(&host, &dict, err));
    TSR_TRY(tsr_state_dict_new(&host, &out, err));
    TSR_TRY(tsr_state_dict_allocate(dict, &tensor, &value, err));
    /* The other ranks load nothing. */
    if (comm->rank == 1) TSR_TRY(tsr_state_dict_put(dict, tsr_str_from(m->name), value, err));
    const tsr_status status = tsr_state_dict_load(path, tsr_state_dict_root(dict), comm, &options, out, &told);
    tsr_state_dict_free(out);
    tsr_state_dict_free(dict);
    if (status != m->status || (m->message && !strstr(told.message, m->message)))
        return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "'%s': status %d: %s", m->name, status, told.message);
    return TSR_OK;
}

static tsr_status save_one(void *arg, tsr_comm *comm, tsr_error *err)
{
    const tsr_host host = live_host(NULL);
    const uint64_t shape[] = {4, 3};
    const tsr_tensor tensor = tsr_tensor_whole(TSR_FLOAT32, 2, shape, NULL);
    tsr_state_dict *dict;
    const tsr_value *value;
    TSR_TRY(tsr_state_dict_new(&host, &dict, err));
    TSR_TRY(tsr_state_dict_allocate(dict, &tensor, &value, err));
    memset(tsr_tensor_of(value)->data, 0, 48);
    TSR_TRY(tsr_state_dict_put(dict, TSR_STR("w"), value, err));
    const tsr_status status = tsr_state_dict_save(tsr_state_dict_root(dict), comm, arg, NULL, &host, err);
    tsr_state_dict_free(dict);
    return status;
}

static void test_statedict_save_load__misfits_are_told_to_all(void **state)
{
    (void)state;
    char path[400];
    snprintf(path, sizeof path, "%s/misfits", ranks_scratch());
    live_run(2, save_one, path);
    static const misfit table[] = {
        {"w", TSR_FLOAT32, 4, false, TSR_OK, NULL},
        {"w", TSR_FLOAT32, 5, false, TSR_E_USAGE,
         "rank 1: float32 [5, 3] in the state dict, float32 [4, 3] in the checkpoint, in 'w'"},
        {"w", TSR_INT32, 4, false, TSR_E_USAGE, "int32 [4, 3] in the state dict, float32 [4, 3] in the checkpoint"},
        {"v", TSR_FLOAT32, 4, false, TSR_E_NOT_FOUND, "rank 1: the checkpoint has no 'v'"},
        {"v", TSR_FLOAT32, 4, true, TSR_OK, NULL},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) live_run(2, load_misfit, (void *)&table[i]);
}

static tsr_status save_nowhere(void *arg, tsr_comm *comm, tsr_error *err)
{
    (void)arg;
    tsr_error told = {0};
    const tsr_status status = save_one("/nowhere/at/all", comm, &told);
    NEED(status == TSR_E_NOT_FOUND || status == TSR_E_IO);
    NEED(strstr(told.message, "rank 0: "));
    return TSR_OK;
}

/* A tensor inside a tuple has no name; a failed save must leave nothing. */
static tsr_status save_unnamed(void *arg, tsr_comm *comm, tsr_error *err)
{
    const tsr_host host = live_host(NULL);
    const uint64_t shape[] = {1};
    const tsr_tensor tensor = tsr_tensor_whole(TSR_FLOAT32, 1, shape, NULL);
    tsr_state_dict *dict;
    const tsr_value *value;
    tsr_error told = {0};
    TSR_TRY(tsr_state_dict_new(&host, &dict, err));
    TSR_TRY(tsr_state_dict_allocate(dict, &tensor, &value, err));
    TSR_TRY(tsr_state_dict_put(dict, TSR_STR("t"),
                               tsr_value_items(tsr_state_dict_arena(dict), TSR_VALUE_TUPLE, &value, 1, err), err));
    const tsr_status status = tsr_state_dict_save(tsr_state_dict_root(dict), comm, arg, NULL, &host, &told);
    tsr_state_dict_free(dict);
    NEED(status == TSR_E_UNSUPPORTED);
    NEED(access(arg, F_OK) != 0);
    return TSR_OK;
}

static void test_statedict_save_load__failures_leave_nothing(void **state)
{
    (void)state;
    char path[400];
    snprintf(path, sizeof path, "%s/failed", ranks_scratch());
    live_run(3, save_nowhere, NULL);
    live_run(3, save_unnamed, path);
}

enum { ROWS = 2000, COLUMNS = 100, BUFFER = 65536 };

/* Saves and loads one tensor by columns, so that no part of it is a single run. Memory is limited to the buffer and what the
 * metadata takes. */
static tsr_status within_bounds(void *arg, tsr_comm *comm, tsr_error *err)
{
    live_meter meter;
    live_meter_open(&meter);
    const tsr_host host = live_host(&meter.base), free_host = live_host(NULL);
    const uint64_t shape[] = {ROWS, COLUMNS}, ranks[] = {comm->size};
    const tsr_mesh mesh = {1, ranks, NULL};
    const tsr_placement strided = {TSR_STRIDED_SHARD, 1, 5};
    const tsr_tensor tensor =
        tsr_tensor_over_mesh(tsr_tensor_whole(TSR_FLOAT64, 2, shape, NULL), &mesh, &strided, comm->rank);
    const tsr_save_options saving = {.buffer_bytes = BUFFER};
    const tsr_load_options loading = {.buffer_bytes = BUFFER};
    tsr_state_dict *dict, *out;
    const tsr_value *value;
    bool right = true;
    TSR_TRY(tsr_state_dict_new(&free_host, &dict, err));
    TSR_TRY(tsr_state_dict_allocate(dict, &tensor, &value, err));
    TSR_TRY(ramp_over(tsr_tensor_of(value), tsr_state_dict_arena(dict), true, NULL, err));
    TSR_TRY(tsr_state_dict_put(dict, TSR_STR("w"), value, err));
    TSR_TRY(tsr_state_dict_save(tsr_state_dict_root(dict), comm, arg, &saving, &host, err));
    NEED(meter.most < BUFFER + 150000 && meter.now == 0);
    meter.most = 0;
    memset(tsr_tensor_of(value)->data, 0, 8);
    TSR_TRY(tsr_state_dict_new(&host, &out, err));
    TSR_TRY(tsr_state_dict_load(arg, tsr_state_dict_root(dict), comm, &loading, out, err));
    tsr_state_dict_free(out);
    NEED(meter.most < BUFFER + 1000000 && meter.now == 0); /* readers have a scratch buffer of 512 KiB */
    TSR_TRY(ramp_over(tsr_tensor_of(value), tsr_state_dict_arena(dict), false, &right, err));
    tsr_state_dict_free(dict);
    NEED(right);
    return TSR_OK;
}

static void test_statedict_save_load__memory_is_bounded(void **state)
{
    (void)state;
    char path[400];
    snprintf(path, sizeof path, "%s/bounded", ranks_scratch());
    live_run(2, within_bounds, path);
}

/* ---- damage ---- */

typedef struct damaged {
    const char *path, *name;
    tsr_load_options load;
    bool on_device;
    tsr_status status;
} damaged;

/* Rank 0 loads the tensor whole; the other ranks load nothing. */
static tsr_status load_damaged(void *arg, tsr_comm *comm, tsr_error *err)
{
    const damaged *d = arg;
    const tsr_host host = live_host(NULL);
    const uint64_t shape[] = {11, 6};
    tsr_tensor tensor = tsr_tensor_whole(TSR_FLOAT32, 2, shape, NULL);
    tsr_state_dict *dict, *out;
    const tsr_value *value;
    live_device device;
    tsr_error found = {0};
    live_device_open(&device);
    if (d->on_device) tensor.device = &device.base;
    TSR_TRY(tsr_state_dict_new(&host, &dict, err));
    TSR_TRY(tsr_state_dict_new(&host, &out, err));
    TSR_TRY(tsr_state_dict_allocate(dict, &tensor, &value, err));
    if (comm->rank == 0) TSR_TRY(tsr_state_dict_put(dict, tsr_str_from(d->name), value, err));
    const tsr_status status = tsr_state_dict_load(d->path, tsr_state_dict_root(dict), comm, &d->load, out, &found);
    tsr_state_dict_free(out);
    tsr_state_dict_free(dict);
    if (status != d->status ||
        (status != TSR_OK && (!strstr(found.message, "is damaged") || !strstr(found.message, "rank 0: "))))
        return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "'%s' (device %d, buffer %zu): status %d: %s", d->path,
                         d->on_device, d->load.buffer_bytes, status, found.message);
    return TSR_OK;
}

static tsr_status run_command(void *arg, tsr_comm *comm, tsr_error *err)
{
    if (comm->rank == 0) NEED(system(arg) == 0);
    return tsr_comm_barrier(comm, err);
}

/* A safetensors file as Tessera writes it, with its checksum. */
static tsr_status put_safetensors(void *path, tsr_comm *comm, tsr_error *err)
{
    if (comm->rank > 0) return tsr_comm_barrier(comm, err);
    static const char header[] = "{\"w\":{\"dtype\":\"F32\",\"shape\":[11,6],\"data_offsets\":[0,264]},"
                                 "\"__metadata__\":{\"tessera.crc32\":\"00000000\"}} ";
    char digits[9];
    uint8_t bytes[8 + sizeof header - 1 + 264] = {sizeof header - 1};
    memcpy(bytes + 8, header, sizeof header - 1);
    for (size_t i = 8 + sizeof header - 1; i < sizeof bytes; i++) bytes[i] = (uint8_t)(i * 7);
    snprintf(digits, sizeof digits, "%08x", (unsigned)tsr_crc32(NULL, 0, bytes, sizeof bytes));
    memcpy(bytes + 8 + sizeof header - 1 - 12, digits, 8);
    FILE *file = fopen(path, "wb");
    NEED(file && fwrite(bytes, 1, sizeof bytes, file) == sizeof bytes && fclose(file) == 0);
    return tsr_comm_barrier(comm, err);
}

static void check_damage(const char *path, const char *name)
{
    live_byte last;
    live_last_element(path, name, &last);
    for (int round = 0; round < 2; round++) {
        for (int how = 0; how < 8; how++) {
            damaged d = {.path = path, .name = name, .on_device = how & 1};
            d.load.buffer_bytes = how & 2 ? 128 : 0; /* in many pieces */
            d.load.ignore_crc = how & 4;
            d.status = round && !d.load.ignore_crc ? TSR_E_FORMAT : TSR_OK;
            live_run(2, load_damaged, &d);
        }
        live_run(2, live_flip_bit, &last);
    }
}

static void test_statedict_save_load__damage_is_noticed(void **state)
{
    (void)state;
    static const char *const forms[][2] = {{"dcp_fsdp2", "model.emb.weight"}, {"torch_plain/model.pt", "emb.weight"}};
    char path[500], command[2000];
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/damaged-%zu", ranks_scratch(), i);
        snprintf(command, sizeof command, "cp -r '%s/samples/checkpoints/%s' '%s'", TSR_TEST_DATA, forms[i][0], path);
        live_run(2, run_command, command);
        check_damage(path, forms[i][1]);
        live_run(1, settle_directory, path);
    }
    snprintf(path, sizeof path, "%s/damaged.safetensors", ranks_scratch());
    live_run(2, put_safetensors, path);
    check_damage(path, "w");
}

/* Whether a deep check of the checkpoint has errors. */
static bool has_errors(tsr_store *store, const tsr_host *host)
{
    const tsr_open_options options = {.purpose = TSR_FOR_FINDINGS};
    const tsr_validate_options deep = {.deep = true};
    tsr_checkpoint *checkpoint = NULL;
    tsr_error err = {0};
    bool has = tsr_checkpoint_open(store, host, &options, &checkpoint, &err) != TSR_OK ||
               tsr_validate(checkpoint, &deep, &err) != TSR_OK;
    const tsr_findings *findings = checkpoint ? tsr_checkpoint_findings(checkpoint) : NULL;
    for (uint64_t i = 0; findings && i < tsr_findings_count(findings); i++)
        has |= tsr_findings_at(findings, i)->level == TSR_ERROR;
    if (checkpoint) tsr_checkpoint_close(checkpoint);
    return has;
}

static tsr_status flip_any(const char *path, random_source *random, const tsr_comm *comm, tsr_error *err)
{
    const tsr_host host = live_host(NULL);
    tsr_store *store;
    live_byte byte;
    uint64_t total = 0;
    uint32_t f = 0;
    TSR_TRY(tsr_directory_store_open(NULL, host.allocator, path, &store, err));
    NEED(!has_errors(store, &host));
    for (uint32_t i = 0; i < store->file_count; i++) total += store->files[i].size;
    uint64_t at = random_next(random) % total;
    while (at >= store->files[f].size) at -= store->files[f++].size;
    snprintf(byte.path, sizeof byte.path, "%s/%.*s", path, TSR_STR_ARG(store->files[f].name));
    byte.at = (long)at;
    TSR_TRY(live_flip(&byte, comm, err));
    if (!has_errors(store, &host)) return tsr_raise(err, TSR_E_FORMAT, TSR_NO_POSITION, "%s: byte %ld", byte.path, byte.at);
    store->close(store);
    return live_flip(&byte, comm, err);
}

static tsr_status flip_many(void *arg, tsr_comm *comm, tsr_error *err)
{
    random_source random = {44};
    for (int n = full_counts() ? 4000 : 200; comm->rank == 0 && n > 0; n--) TSR_TRY(flip_any(arg, &random, comm, err));
    return TSR_OK;
}

static void test_statedict_save_load__a_deep_check_reports_every_flip(void **state)
{
    (void)state;
    char path[400];
    snprintf(path, sizeof path, "%s/flips", ranks_scratch());
    job j = {.seed = 5, .path = path};
    live_run(2, save, &j);
    live_run(2, flip_many, path);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statedict_save_load__any_world_to_any_other),
        cmocka_unit_test(test_statedict_save_load__sound_and_without_copies),
        cmocka_unit_test(test_statedict_save_load__an_old_checkpoint_is_kept_or_replaced),
        cmocka_unit_test(test_statedict_save_load__only_what_is_listed_is_replaced),
        cmocka_unit_test(test_statedict_save_load__misfits_are_told_to_all),
        cmocka_unit_test(test_statedict_save_load__failures_leave_nothing),
        cmocka_unit_test(test_statedict_save_load__memory_is_bounded),
        cmocka_unit_test(test_statedict_save_load__damage_is_noticed),
        cmocka_unit_test(test_statedict_save_load__a_deep_check_reports_every_flip),
    };
    ranks_begin(&argc, &argv);
    return ranks_end(cmocka_run_group_tests(tests, NULL, NULL));
}
